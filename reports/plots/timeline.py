"""Common parts of charts over time: panels, faults as shaded bands, the strip with their names, and the x axis.

A run of hours has more seconds than a chart has points, and a page with all of them would take many megabytes. From
``MAX_SECONDS`` on, a chart shows the lowest and the highest second of each bucket, at their places, so that no peak
and no gap vanishes. The axis label has the length of a bucket.
"""

from collections.abc import Mapping, Sequence
from math import ceil, isnan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.job_rows import Rows, without_presets
from reports.plots import style

MAX_FAULT_ROWS = 12
_MAX_MARKS = 12
_NARROW = 0.004
"""A band narrower than this share of the run is drawn as a line, because nobody would see the band."""


def fault_strip_height(hits: Rows) -> float:
    return 0.14 + 0.22 * min(MAX_FAULT_ROWS, len(fault_names(hits)))


def fault_names(hits: Rows) -> list[str]:
    """The names of faults in the order in which they first hit. Presets are no faults."""
    in_time = sorted(without_presets(hits), key=lambda hit: (hit["at_us"], hit["name"]))
    return list(dict.fromkeys(hit["name"] for hit in in_time))


def shade_faults(axes: Axes, hits: Rows, seconds: float) -> None:
    """Shade the faults. Only the strip shows a fault that hit more often than a reader can distinguish."""
    for name in fault_names(hits)[:MAX_FAULT_ROWS]:
        mine = [hit for hit in hits if hit["name"] == name]
        for hit in mine if len(mine) <= _MAX_MARKS else []:
            _mark(axes, hit["at_us"] / 1e6, hit["until_us"] / 1e6, seconds)


def _mark(axes: Axes, start: float, end: float, seconds: float) -> None:
    if end - start >= seconds * _NARROW:
        axes.axvspan(start, end, color=style.FAULT, alpha=0.16, linewidth=0, zorder=0)
    else:
        axes.axvline(start, color=style.FAULT, alpha=0.55, linewidth=1, linestyle=(0, (3, 2)), zorder=0)


def fault_strip(axes: Axes, hits: Rows, seconds: float) -> None:
    shown = fault_names(hits)[:MAX_FAULT_ROWS]
    for row, name in enumerate(shown):
        spans = [(hit["at_us"] / 1e6, hit["until_us"] / 1e6) for hit in hits if hit["name"] == name]
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


MIN_SECONDS = 3
MAX_SECONDS = 400
"""Number of seconds up to which each one is drawn."""
MAX_BUCKETS = 150
MAX_SPANS = 300
"""Number of bars above which a panel holds them as a picture of points."""
_WIDTHS_S = (5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600)
SECONDS = "seconds since the start of the run"
LOWEST_AND_HIGHEST = "by their lowest and highest second"


def frame(
    heights: Sequence[float], hits: Rows, seconds: int, drawn: str = LOWEST_AND_HIGHEST
) -> tuple[Figure, list[Axes]]:
    """The panels in the order of ``heights``. The fault strip is drawn already. ``drawn`` is the style of buckets."""
    with_strip = bool(fault_names(hits))
    figure, axes = style.canvas([*heights, fault_strip_height(hits)] if with_strip else heights)
    for panel in axes[: len(heights)]:
        shade_faults(panel, hits, seconds)
        panel.set_xlim(0, seconds)
    if with_strip:
        fault_strip(axes[-1], hits, seconds)
    axes[-1].set_xlabel(axis_label(seconds, SECONDS, drawn))
    axes[-1].margins(x=0)
    axes[-1].set_xlim(0, seconds)
    return figure, axes[: len(heights)]


def axis_label(seconds: int, unit: str, drawn: str = LOWEST_AND_HIGHEST) -> str:
    """Return what the time axis says: its unit, and how long a bucket is if the chart has buckets."""
    width = bucket_s(seconds)
    return unit if width == 1 else f"{unit}; each {width} seconds are drawn {drawn}"


def bucket_s(seconds: int) -> int:
    """Return the length of a bucket in a run of this length; 1 where each second is drawn."""
    if seconds <= MAX_SECONDS:
        return 1
    return next((width for width in _WIDTHS_S if seconds <= width * MAX_BUCKETS), ceil(seconds / MAX_BUCKETS))


def marker(seconds: int) -> str:
    """Return the marker of a line's points. Those of a long run have none."""
    return "o" if bucket_s(seconds) == 1 else ""


def extremes(values: Sequence[float], width: int) -> list[int]:
    """Return the places of the lowest and the highest of each ``width`` values, in order. Gaps (NaN) are one place."""
    if width <= 2:
        return [*range(len(values))]
    shown: list[int] = []
    for start in range(0, len(values), width):
        places = range(start, min(start + width, len(values)))
        known = [place for place in places if not isnan(values[place])] or places[:1]
        shown += sorted({min(known, key=values.__getitem__), max(known, key=values.__getitem__)})
    return shown


def dense(
    points: Mapping[int, float], seconds: int, missing: float = float("nan"), until: int | None = None
) -> tuple[list[float], list[float]]:
    """x is in the middle of each second that is drawn; y has gaps where nothing was measured. The line ends at the
    second ``until``."""
    values = [points.get(second, missing) for second in range(seconds if until is None else min(until, seconds))]
    shown = extremes(values, bucket_s(seconds))
    return [second + 0.5 for second in shown], [values[second] for second in shown]


def stacked(series: Sequence[Mapping[int, float]], seconds: int) -> tuple[list[float], list[list[float]]]:
    """Return x, and each series' heights there. Of a bucket the seconds with the lowest and highest sum are drawn."""
    shown = extremes(_sums(series, seconds), bucket_s(seconds))
    return [second + 0.5 for second in shown], [[heights.get(second, 0) for second in shown] for heights in series]


def bars(
    axes: Axes, series: Sequence[Mapping[int, float]], colours: Sequence[str], labels: Sequence[str], seconds: int
) -> None:
    """Draw one bar for each second, with the series on top of each other. Of a bucket the second with the highest sum
    is drawn."""
    width, sums = bucket_s(seconds), _sums(series, seconds)
    starts = range(0, seconds, width)
    highest = [max(range(start, min(start + width, seconds)), key=sums.__getitem__) for start in starts]
    stacks = [[values.get(second, 0) for second in highest] for values in series]
    floor = [0.0] * len(highest)
    for heights, colour, label in zip(stacks, colours, labels, strict=True):
        tops = [low + high for low, high in zip(floor, heights, strict=True)]
        if width == 1:
            shown = [place for place in highest if heights[place]]
            x = [second + 0.5 for second in shown]
            y, bottom = [heights[place] for place in shown], [floor[place] for place in shown]
            axes.bar(x, y, bottom=bottom, width=0.9, color=colour, label=label, linewidth=0)
        else:
            edges = [*starts, seconds]
            low, high = [*floor, floor[-1]], [*tops, tops[-1]]
            axes.fill_between(edges, low, high, step="post", color=colour, label=label, linewidth=0)
        floor = tops


def _sums(series: Sequence[Mapping[int, float]], seconds: int) -> list[float]:
    return [sum(heights.get(second, 0) for heights in series) for second in range(seconds)]


def steps(x: Sequence[float], y: Sequence[float], seconds: int) -> tuple[list[float], list[float]]:
    """Return fewer points of a line of steps, if it has many: the first, lowest, highest and last of each bucket."""
    if len(x) <= 2 * MAX_SECONDS:
        return [*x], [*y]
    buckets: dict[int, list[int]] = {}
    for place, at in enumerate(x):
        buckets.setdefault(int(at * MAX_BUCKETS / seconds), []).append(place)
    shown = [
        place
        for places in buckets.values()
        for place in sorted({places[0], min(places, key=y.__getitem__), max(places, key=y.__getitem__), places[-1]})
    ]
    return [x[place] for place in shown], [y[place] for place in shown]
