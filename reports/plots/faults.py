"""Draws faults in every chart over time: shaded bands behind the data, and their names in a lane below."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from reports.collect import without_presets
from reports.plots import style

MOST_LANES = 12
_MOST_MARKS = 12
_NARROW = 0.004
"""A band narrower than this share of the run is drawn as a line, because nobody would see the band."""


def lane_height(hits: Sequence[dict[str, Any]]) -> float:
    return 0.14 + 0.22 * min(MOST_LANES, len(names(hits)))


def names(hits: Sequence[dict[str, Any]]) -> list[str]:
    """The names of faults in the order in which they first hit. Presets are no faults."""
    in_time = sorted(without_presets(hits), key=lambda one: (one["at_us"], one["name"]))
    return list(dict.fromkeys(one["name"] for one in in_time))


def shade(axes: Axes, hits: Sequence[dict[str, Any]], seconds: float) -> None:
    """Shades the faults. Only the lane shows a fault that hit more often than a reader can tell apart."""
    for name in names(hits)[:MOST_LANES]:
        mine = [one for one in hits if one["name"] == name]
        for one in mine if len(mine) <= _MOST_MARKS else []:
            _mark(axes, one["at_us"] / 1e6, one["until_us"] / 1e6, seconds)


def _mark(axes: Axes, start: float, end: float, seconds: float) -> None:
    if end - start >= seconds * _NARROW:
        axes.axvspan(start, end, color=style.FAULT, alpha=0.16, linewidth=0, zorder=0)
    else:
        axes.axvline(start, color=style.FAULT, alpha=0.55, linewidth=1, linestyle=(0, (3, 2)), zorder=0)


def lane(axes: Axes, hits: Sequence[dict[str, Any]], seconds: float) -> None:
    shown = names(hits)[:MOST_LANES]
    for row, name in enumerate(shown):
        spans = [(one["at_us"] / 1e6, one["until_us"] / 1e6) for one in hits if one["name"] == name]
        wide = [(start, end - start) for start, end in spans if end - start >= seconds * _NARROW]
        brief = [start for start, end in spans if end - start < seconds * _NARROW]
        axes.broken_barh(wide, (row - 0.3, 0.6), color=style.FAULT, alpha=0.85, linewidth=0)
        # One line with gaps: in SVG as many markers would take three times the bytes.
        x = [at for start in brief for at in (start, start, float("nan"))]
        y = [at for _ in brief for at in (row - 0.3, row + 0.3, float("nan"))]
        axes.plot(x, y, color=style.FAULT, linewidth=1.5, solid_capstyle="butt")
    style.rows(axes, shown, 0.4)
    axes.tick_params(axis="y", labelcolor=style.FAULT)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
