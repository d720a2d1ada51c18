"""Figures of latency: over time, by percentile, and as a heatmap."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from reports.job_rows import Rows
from reports.jobs.latency import HEATMAP_STEPS_PER_OCTAVE
from reports.plots import style, timeline

_LATENCY_LINES = (
    ("p50_us", "p50", "-", 1.6, 1.0),
    ("p99_us", "p99", (0, (4, 1.5)), 1.4, 0.95),
    ("max_us", "max", ":", 1.1, 0.8),
)
_LATENCY_OPERATIONS = ("fetch", "produce")
_WITHOUT_RECORDS = ("create_topics", "metadata_read")
"""These operations are shown if no client wrote or read records."""


def draw_latency(latency: Rows, hits: Rows, seconds: int) -> Figure | None:
    """Response time second by second, log scale: p50, p99 and max, faults shaded."""
    rows = [row for row in latency if row["measure"] == "response"]
    counts = {kind: sum(row["operation"] == kind for row in rows) for kind in (*_LATENCY_OPERATIONS, *_WITHOUT_RECORDS)}
    shown = _LATENCY_OPERATIONS if any(counts[kind] for kind in _LATENCY_OPERATIONS) else _WITHOUT_RECORDS
    kinds = [kind for kind in shown if counts[kind] >= timeline.MIN_SECONDS]
    if not kinds:
        return None
    figure, panels = timeline.frame([2.1] * len(kinds), hits, seconds)
    for kind, axes in zip(kinds, panels, strict=True):
        for column, label, line, width, alpha in _LATENCY_LINES:
            points = {row["second"]: max(1, row[column]) for row in rows if row["operation"] == kind}
            axes.plot(
                *timeline.dense(points, seconds),
                color=style.color_of(kind),
                linestyle=line,
                linewidth=width,
                alpha=alpha,
                label=label,
            )
        axes.set_title(f"{kind}: response time, from the intended send")
        style.micros_axis(axes)
        style.legend(axes, 3)
    return figure


MIN_CURVE_SAMPLES = 100
TAIL_SAMPLES = 10
"""The least number of values beyond a percentile that is shown."""

_TICKS = {0.0: "0", 0.5: "50", 0.9: "90", 0.99: "99", 0.999: "99.9", 0.9999: "99.99", 0.99999: "99.999"}
_MEASURE_LINES = {"service": "-", "response": (0, (4, 2))}


def draw_percentiles(distribution: Rows, baseline: Rows = ()) -> Figure | None:
    """Draw latency against percentile on a log 1/(1-p) axis. Each step to the right is ten times rarer.

    None if no operation has MIN_SAMPLES values.
    """
    curves = _curves(distribution)
    if not curves:
        return None
    figure, (axes,) = style.canvas([3.3])
    for (operation, measure), (x, y) in _curves(baseline).items():
        if measure == "service":
            axes.plot(x, y, color=style.MUTED, linewidth=1, alpha=0.8, label=f"{operation}, baseline")
    for (operation, measure), (x, y) in curves.items():
        axes.plot(
            x,
            y,
            color=style.color_of(operation),
            linestyle=_MEASURE_LINES.get(measure, ":"),
            label=f"{operation}, {measure}",
        )
    percentile_axis(axes, max(x[-1] for x, _ in curves.values()))
    style.micros_axis(axes)
    style.legend(axes, 4)
    return figure


def percentile_axis(axes: Axes, furthest: float) -> None:
    """``furthest`` is the greatest x of ``curve``."""
    ticks = {-math.log10(1 - p): label for p, label in _TICKS.items() if -math.log10(1 - p) <= furthest + 0.35}
    axes.set_xticks(list(ticks), [f"{label} %" for label in ticks.values()])
    axes.set_xlim(0, furthest * 1.02)
    axes.set_xlabel("percentile")


def _curves(rows: Rows) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    grouped: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in rows:
        grouped.setdefault((row["operation"], row["measure"]), []).append((row["high_us"], row["count"]))
    curves = {
        key: percentile_curve(sorted(points))
        for key, points in sorted(grouped.items(), key=lambda entry: (entry[0][0], entry[0][1] != "service"))
    }
    return {key: line for key, line in curves.items() if line[0]}


def percentile_curve(points: Sequence[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Places on the percentile axis, and the latency there. ``points`` are latencies with their counts, in order."""
    total = sum(count for _, count in points)
    x: list[float] = []
    y: list[float] = []
    below = 0
    for high_us, count in points if total >= MIN_CURVE_SAMPLES else []:
        if total - below < TAIL_SAMPLES:
            break
        below += count
        x.append(-math.log10(1 - min(below, total - TAIL_SAMPLES) / total))
        y.append(max(high_us, 1))
    return ([0.0, *x], [y[0], *y]) if x else (x, y)


MIN_HEATMAP_SAMPLES = 500
_HEATMAP_OPERATIONS = ("fetch", "produce")
_LIGHT = {"fetch": ("#b9dcf2", "#0072b2", "#012a44"), "produce": ("#fbd3b4", "#d55e00", "#4a1f00")}


def draw_heatmap(heatmap: Rows, hits: Rows, seconds: int) -> Figure | None:
    """Draw how many operations took how long, second by second. It shows the modes that quantile lines hide."""
    kinds = [
        kind
        for kind in _HEATMAP_OPERATIONS
        if sum(row["count"] for row in heatmap if row["operation"] == kind) >= MIN_HEATMAP_SAMPLES
    ]
    if not kinds or seconds < timeline.MIN_SECONDS:
        return None
    figure, panels = timeline.frame([1.9] * len(kinds), hits, seconds, "by one column")
    width = timeline.bucket_s(seconds)
    columns = -(-seconds // width)
    for kind, axes in zip(kinds, panels, strict=True):
        rows = [row for row in heatmap if row["operation"] == kind and row["second"] < seconds]
        low, high = min(row["step"] for row in rows), max(row["step"] for row in rows)
        counts = np.zeros((high - low + 1, columns))
        for row in rows:
            counts[row["step"] - low, row["second"] // width] += row["count"]
        edges = 2.0 ** (np.arange(low, high + 2) / HEATMAP_STEPS_PER_OCTAVE)
        shades = LinearSegmentedColormap.from_list(kind, _LIGHT[kind])
        mesh = axes.pcolormesh(
            np.minimum(np.arange(columns + 1) * width, seconds),
            edges,
            np.ma.masked_equal(counts, 0),
            cmap=shades,
            norm=LogNorm(1, max(2, counts.max())),
            rasterized=True,
        )
        axes.set_title(f"{kind}: service time")
        style.micros_axis(axes)
        axes.grid(False)
        bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=14)
        bar.outline.set_visible(False)
        bar.ax.set_ylabel("operations", fontsize=8.5)
    return figure
