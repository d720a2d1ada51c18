"""Draws the mirrors of several runs: positions in panels of one scale, lags together in one panel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from reports.plots import mirror, style, timeline

if TYPE_CHECKING:
    from reports.mirrored import Place, Rewind, Track


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    known: "Mapping[Place, Track]"
    rewinds: "Sequence[Rewind]"
    hits: Sequence[dict[str, Any]]


def positions(runs: Sequence[Run], seconds: int) -> Figure | None:
    """The positions in the partition that was rewound most in any run."""
    places = sorted({place for one in runs for place in one.known})
    if not places or seconds < timeline.LEAST_SECONDS:
        return None
    back = [(each.topic, each.partition) for one in runs for each in one.rewinds]
    place = max(places, key=back.count)
    shown = [one for one in runs if place in one.known]
    figure, panels = timeline.frame([1.7 for _ in shown], runs[0].hits, seconds)
    for axes, one in zip(panels, shown, strict=True):
        mirror.position(axes, one.known[place], [each for each in one.rewinds if (each.topic, each.partition) == place])
        axes.set_title(f"{one.name}: offsets of {place[0]}-{place[1]}")
    mirror.legend(panels[0])
    return figure


def lags(runs: Sequence[Run], seconds: int) -> Figure | None:
    shown = [one for one in runs if one.known]
    if not shown or seconds < timeline.LEAST_SECONDS:
        return None
    figure, (axes,) = timeline.frame([2.0], shown[0].hits, seconds)
    for number, one in enumerate(shown):
        mirror.lag(axes, one.known, style.series(number), one.name)
    axes.set_ylim(bottom=0)
    axes.set_title("seconds behind")
    style.legend(axes, len(shown))
    return figure
