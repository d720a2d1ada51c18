"""The figures of mirrors: one mirror with its rewinds and its lag, and those of several runs on one scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.job_rows import Rows
from reports.jobs.mirror import SLOT_US
from reports.plots import style, timeline

if TYPE_CHECKING:
    from reports.mirrored import Place, Rewind, Track


MAX_PARTITIONS = 3
"""More lines cannot be distinguished; those that were rewound come first."""


def draw_mirror(known: "Mapping[Place, Track]", rewinds: "Sequence[Rewind]", hits: Rows, seconds: int) -> Figure | None:
    """Draw a mirror's position in its source over time, with its rewinds. Below is how far it was behind.

    None without a mirror.
    """
    if not known or seconds < timeline.MIN_SECONDS:
        return None
    back = {place: sum((rewind.topic, rewind.partition) == place for rewind in rewinds) for place in known}
    shown = sorted(sorted(known, key=lambda place: (-back[place], place))[:MAX_PARTITIONS])
    figure, panels = timeline.frame([*(1.5 for _ in shown), 1.2], hits, seconds)
    for axes, place in zip(panels, shown, strict=False):
        draw_position(axes, known[place], [rewind for rewind in rewinds if (rewind.topic, rewind.partition) == place])
        axes.set_title(f"{place[0]}-{place[1]}: offsets")
    lag_legend(panels[0])
    draw_lag(panels[-1], known, style.BLUE, "")
    panels[-1].set_ylim(bottom=0)
    panels[-1].set_title("seconds behind: age of the oldest record not reached, worst partition")
    return figure


def lag_legend(axes: Axes) -> None:
    handles = [
        Line2D([], [], color=style.MUTED, label="end of the source"),
        Line2D([], [], color=style.BLUE, label="the mirror's position"),
        Line2D([], [], color=style.RED, marker="v", linewidth=0, label="rewind"),
    ]
    style.legend(axes, 3, handles)


def draw_position(axes: Axes, track: "Track", rewinds: "Sequence[Rewind]") -> None:
    for line, colour, width in ((track.ends, style.MUTED, 1.2), (track.positions, style.BLUE, 1.5)):
        shown = timeline.extremes(line, ceil(len(line) / timeline.MAX_BUCKETS))
        x = [_seconds(track.first + number) for number in shown]
        axes.step(x, [line[number] for number in shown], where="post", color=colour, linewidth=width)
    (marks,) = axes.plot(
        [rewind.at_us / 1e6 for rewind in rewinds],
        [rewind.to_offset for rewind in rewinds],
        "v",
        color=style.RED,
        markersize=6,
        clip_on=False,
    )
    marks.set_in_layout(False)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def draw_lag(axes: Axes, known: "Mapping[Place, Track]", colour: str, label: str) -> None:
    worst: dict[int, int] = {}
    for track in known.values():
        for number, lag_us in enumerate(track.lags_us):
            worst[track.first + number] = max(lag_us, worst.get(track.first + number, 0))
    slots = sorted(worst)
    in_order = [
        slots[number]
        for number in timeline.extremes([worst[slot] for slot in slots], ceil(len(slots) / timeline.MAX_BUCKETS))
    ]
    axes.step(
        [_seconds(slot) for slot in in_order],
        [worst[slot] / 1e6 for slot in in_order],
        where="post",
        color=colour,
        label=label or None,
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")


def _seconds(slot: int) -> float:
    """The second at which the slot ends, because its values are known by then."""
    return (slot + 1) * SLOT_US / 1e6


@dataclass(frozen=True, slots=True)
class MirrorRun:
    name: str
    known: "Mapping[Place, Track]"
    rewinds: "Sequence[Rewind]"
    hits: Rows


def draw_positions(runs: Sequence[MirrorRun], seconds: int) -> Figure | None:
    """The positions in the partition that was rewound most in any run."""
    places = sorted({place for run in runs for place in run.known})
    if not places or seconds < timeline.MIN_SECONDS:
        return None
    back = [(rewind.topic, rewind.partition) for run in runs for rewind in run.rewinds]
    place = max(places, key=back.count)
    shown = [run for run in runs if place in run.known]
    figure, panels = timeline.frame([1.7 for _ in shown], runs[0].hits, seconds)
    for axes, run in zip(panels, shown, strict=True):
        draw_position(
            axes, run.known[place], [rewind for rewind in run.rewinds if (rewind.topic, rewind.partition) == place]
        )
        axes.set_title(f"{run.name}: offsets of {place[0]}-{place[1]}")
    lag_legend(panels[0])
    return figure


def draw_lags(runs: Sequence[MirrorRun], seconds: int) -> Figure | None:
    shown = [run for run in runs if run.known]
    if not shown or seconds < timeline.MIN_SECONDS:
        return None
    figure, (axes,) = timeline.frame([2.0], shown[0].hits, seconds)
    for number, run in enumerate(shown):
        draw_lag(axes, run.known, style.series(number), run.name)
    axes.set_ylim(bottom=0)
    axes.set_title("seconds behind")
    style.legend(axes, len(shown))
    return figure
