"""The comparison in one picture: what a fetch costs in bytes and in the node's time, and how soon a loss is mended."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.plots import style
from reports.plots.comparison import colour_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.comparison import Measured

_Value = float | int | None
_Panel = tuple[str, "list[_Value]", Callable[[float], str]]
MEANINGS = {"final": "final revision", "first": "first revision", "none": "full fetches"}
_ROW_IN = 1.15


def overview(runs: "Sequence[Measured]") -> Figure | None:
    """The axes are linear from zero, so that lengths are ratios. Panels without a number are left out."""
    panels = [panel for panel in _panels(runs) if any(panel[1])]
    if len(panels) < 2 or len(runs) < 2:
        return None
    rows = (len(panels) + 1) // 2
    figure = style.blank(_ROW_IN * rows + 0.2)
    places = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, (title, values, text) in zip(places, panels, strict=False):
        _draw(axes, runs, title, values, text)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return figure


def _panels(runs: "Sequence[Measured]") -> "list[_Panel]":
    return [
        ("fetcher: bytes a fetch, without records", [_bytes(one, follower=False) for one in runs], _size),
        ("follower: bytes a fetch, without records", [_bytes(one, follower=True) for one in runs], _size),
        ("fetcher: the node's time a fetch", [one.clients.mean_us for one in runs], style.micros),
        ("follower: the node's time a fetch", [one.followers.mean_us for one in runs], style.micros),
        ("partitions sent a second time", [one.sent_again for one in runs], lambda value: f"{value:,.0f}"),
        ("asking again after a lost answer, median", [one.asking_median_us for one in runs], style.micros),
    ]


def _bytes(one: "Measured", *, follower: bool) -> float | None:
    served = one.followers if follower else one.clients
    if served.request_bytes is None or served.overhead_bytes is None:
        return None
    return served.request_bytes + served.overhead_bytes


def _size(value: float) -> str:
    return f"{value:,.0f} B"


def _draw(
    axes: Axes, runs: "Sequence[Measured]", title: str, values: "list[_Value]", text: Callable[[float], str]
) -> None:
    for place, (run, value) in enumerate(zip(runs, values, strict=True)):
        axes.barh(place, value or 0, 0.72, color=colour_of(run.revision), linewidth=0)
        axes.text(value or 0, place, f" {text(value) if value is not None else '–'}", va="center")
    style.rows(axes, [MEANINGS.get(one.revision, one.revision) for one in runs])
    axes.set_xlim(0, 1.18 * max(value or 0 for value in values))
    axes.set_xticks([])
    axes.set_title(title)
    style.no_lines(axes)
    axes.spines["bottom"].set_visible(False)
