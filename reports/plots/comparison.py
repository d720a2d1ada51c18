"""The figures that compare runs of one scenario. Each revision has one colour in all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.plots import style


@dataclass(frozen=True, slots=True)
class Served:
    """The cost of one kind of fetches on the nodes. Means are of one fetch; None means that there were no fetches."""

    fetches: int = 0
    request_bytes: float | None = None
    response_bytes: float | None = None
    overhead_bytes: float | None = None
    """Of the response, without its records."""
    named: float | None = None
    sent: float | None = None
    mean_us: float | None = None
    p50_us: float | None = None
    """Of the kind that is most frequent, full or incremental."""
    p99_us: float | None = None
    total_us: int = 0
    full: int = 0
    """Fetches that named all partitions."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's side of the comparison. Fetches and partitions are those of fetchers that got their response."""

    revision: str
    fetches: int
    named: int
    returned: int
    full_again: int
    """Full requests beyond a fetcher's first at a node, and requests sent again."""
    named_again: int
    sent_again: int
    losses: int
    recovered_us: tuple[int, ...]
    """Ascending; from the end of the wait for the response to the next good one."""
    requests_us: tuple[int, ...]
    """Ascending; the part of it between requests and their responses."""
    recovery_bytes: float | None
    """Mean of requests and responses, until the first good response."""
    clients: Served
    followers: Served

    @property
    def recovery_median_us(self) -> float | None:
        return median(self.recovered_us) if self.recovered_us else None

    @property
    def requests_median_us(self) -> float | None:
        return median(self.requests_us) if self.requests_us else None


COLOURS: Mapping[str, str] = {"final": style.BLUE, "first": style.ORANGE, "none": style.MUTED}
_BAR = 0.25
MIN_FETCHES = 10
_Value = float | int | None


def revision_colour(revision: str) -> str:
    return COLOURS.get(revision, style.PURPLE)


def draw_bytes_per_fetch(runs: Sequence[Measured]) -> Figure | None:
    return _bars(
        runs,
        {
            "request": [run.clients.request_bytes for run in runs],
            "response without records": [run.clients.overhead_bytes for run in runs],
            "follower's request": [run.followers.request_bytes for run in runs],
            "follower's response\nwithout records": [run.followers.overhead_bytes for run in runs],
        },
        "bytes a fetch",
        lambda value: f"{value:,.0f} B",
    )


def draw_partitions(runs: Sequence[Measured]) -> Figure | None:
    return _bars(
        runs,
        {
            "named a fetch": [run.named / run.fetches if run.fetches else None for run in runs],
            "in a response": [run.returned / run.fetches if run.fetches else None for run in runs],
            "named again, in all": [run.named_again for run in runs],
            "sent again, in all": [run.sent_again for run in runs],
        },
        "partitions",
        lambda value: f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}",
    )


def draw_service(runs: Sequence[Measured]) -> Figure | None:
    return _bars(
        runs,
        {
            "mean": [run.clients.mean_us for run in runs],
            "median": [run.clients.p50_us for run in runs],
            "99 %": [run.clients.p99_us for run in runs],
            "follower's, mean": [run.followers.mean_us for run in runs],
        },
        "the node's time a fetch",
        style.micros,
    )


def _bars(runs: Sequence[Measured], groups: Mapping[str, Sequence[_Value]], title: str, text: Any) -> Figure | None:
    """The axis is logarithmic, since a full fetch costs many times an incremental one. Every bar shows its number."""
    shown = {name: values for name, values in groups.items() if any(values)}
    if not shown:
        return None
    figure, (axes,) = style.canvas([0.42 * len(shown) * max(2, len(runs)) + 0.3])
    least = min(value for values in shown.values() for value in values if value)
    for place, values in enumerate(shown.values()):
        for number, (run, value) in enumerate(zip(runs, values, strict=True)):
            y = place + (number - (len(runs) - 1) / 2) * _BAR
            axes.barh(
                y,
                value or 0,
                _BAR * 0.9,
                color=revision_colour(run.revision),
                linewidth=0,
                label=run.revision if not place else None,
            )
            axes.text(max(value or 0, least / 2), y, f"  {text(value) if value is not None else '–'}", va="center")
    _plain_log(axes, lambda value: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.set_xlim(left=least / 2)
    axes.margins(x=0.15)
    style.rows(axes, list(shown), 0.45)
    axes.set_title(title)
    axes.grid(False, axis="y")
    style.legend(axes, len(runs))
    return figure


def _plain_log(axes: Axes, text: Callable[[float], str]) -> None:
    """Labels the axis with plain numbers at 1, 2 and 5."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_recovery(runs: Sequence[Measured]) -> Figure | None:
    """Each lost response is a dot; the line is the median."""
    if not any(run.requests_us for run in runs):
        return None
    figure, (axes,) = style.canvas([0.5 * len(runs) + 0.5])
    for place, run in enumerate(runs):
        _dots(axes, place, run)
    every = [request_us for run in runs for request_us in run.requests_us]
    _plain_log(axes, style.micros)
    axes.set_xlim(max(1, min(every)) * 0.8, max(every) * 1.25)
    style.rows(axes, [run.revision for run in runs], 0.4)
    axes.set_title("after a lost response: requests until the next good one")
    axes.grid(False, axis="y")
    return figure


def _dots(axes: Axes, place: int, run: Measured) -> None:
    count = len(run.requests_us)
    spread = [place + ((number * 7) % 11 - 5) * 0.04 for number in range(count)]
    axes.plot(run.requests_us, spread, "o", color=revision_colour(run.revision), markersize=3.5, alpha=0.6, linewidth=0)
    middle = run.requests_median_us
    if middle is not None:
        axes.plot([middle, middle], [place - 0.32, place + 0.32], color=style.INK, linewidth=1.6)


def draw_growth(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure | None:
    """The node's time by partitions of the response and revision. Only means of at least MIN_FETCHES count."""
    lines = {
        name: sorted((row["bucket"], row["mean_us"]) for row in rows if row["fetches"] >= MIN_FETCHES)
        for name, rows in curves.items()
    }
    if not any(len(points) >= 2 for points in lines.values()):
        return None
    figure, (axes,) = style.canvas([2.4])
    for name, points in lines.items():
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=revision_colour(name), markersize=4, label=name)
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    style.micros_axis(axes)
    axes.set_xlabel("partitions in the response, up to")
    axes.set_title("the node's time a fetch")
    style.legend(axes, 3)
    return figure


_Figure = float | int | None
_Panel = tuple[str, "list[_Figure]", Callable[[float], str]]
MEANINGS = {"final": "final revision", "first": "first revision", "none": "full fetches"}
_ROW_IN = 1.15


def draw_overview(runs: Sequence[Measured]) -> Figure | None:
    """The axes are linear from zero, so that lengths are ratios. Panels without a number are omitted."""
    panels = [panel for panel in _panels(runs) if any(panel[1])]
    if len(panels) < 2 or len(runs) < 2:
        return None
    rows = (len(panels) + 1) // 2
    figure = style.blank(_ROW_IN * rows + 0.2)
    places = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, (title, values, text) in zip(places, panels, strict=False):
        _draw_panel(axes, runs, title, values, text)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return figure


def _panels(runs: Sequence[Measured]) -> "list[_Panel]":
    return [
        ("fetcher: bytes a fetch, without records", [_overview_bytes(run, follower=False) for run in runs], _size),
        ("follower: bytes a fetch, without records", [_overview_bytes(run, follower=True) for run in runs], _size),
        ("fetcher: the node's time a fetch", [run.clients.mean_us for run in runs], style.micros),
        ("follower: the node's time a fetch", [run.followers.mean_us for run in runs], style.micros),
        ("partitions sent a second time", [run.sent_again for run in runs], lambda value: f"{value:,.0f}"),
        ("requests after a lost response, median", [run.requests_median_us for run in runs], style.micros),
    ]


def _overview_bytes(run: Measured, *, follower: bool) -> float | None:
    served = run.followers if follower else run.clients
    if served.request_bytes is None or served.overhead_bytes is None:
        return None
    return served.request_bytes + served.overhead_bytes


def _size(value: float) -> str:
    return f"{value:,.0f} B"


def _draw_panel(
    axes: Axes, runs: Sequence[Measured], title: str, values: "list[_Figure]", text: Callable[[float], str]
) -> None:
    for place, (run, value) in enumerate(zip(runs, values, strict=True)):
        axes.barh(place, value or 0, 0.72, color=revision_colour(run.revision), linewidth=0)
        axes.text(value or 0, place, f" {text(value) if value is not None else '–'}", va="center")
    style.rows(axes, [MEANINGS.get(run.revision, run.revision) for run in runs])
    axes.set_xlim(0, 1.18 * max(value or 0 for value in values))
    axes.set_xticks([])
    axes.set_title(title)
    style.no_lines(axes)
    axes.spines["bottom"].set_visible(False)
