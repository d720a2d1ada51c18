"""Draws latency against percentile on a log 1/(1-p) axis. Each step to the right is ten times rarer."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.plots import style

LEAST_SAMPLES = 100
TAIL_SAMPLES = 10
"""A percentile is shown only if at least so many values lie beyond it."""

_TICKS = {0.0: "0", 0.5: "50", 0.9: "90", 0.99: "99", 0.999: "99.9", 0.9999: "99.99", 0.99999: "99.999"}
_LINES = {"service": "-", "response": (0, (4, 2))}


def draw(distribution: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]] = ()) -> Figure | None:
    """None if no operation has LEAST_SAMPLES values."""
    curves = _curves(distribution)
    if not curves:
        return None
    figure, (axes,) = style.canvas([3.3])
    for (operation, measure), (x, y) in _curves(baseline).items():
        if measure == "service":
            axes.plot(x, y, color=style.MUTED, linewidth=1, alpha=0.8, label=f"{operation}, baseline")
    for (operation, measure), (x, y) in curves.items():
        axes.plot(
            x, y, color=style.color_of(operation), linestyle=_LINES.get(measure, ":"), label=f"{operation}, {measure}"
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


def _curves(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    grouped: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in rows:
        grouped.setdefault((row["operation"], row["measure"]), []).append((row["high_us"], row["count"]))
    curves = {
        key: curve(sorted(points))
        for key, points in sorted(grouped.items(), key=lambda one: (one[0][0], one[0][1] != "service"))
    }
    return {key: line for key, line in curves.items() if line[0]}


def curve(points: Sequence[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Places on the percentile axis, and the latency there. ``points`` are latencies with their counts, in order."""
    total = sum(count for _, count in points)
    x: list[float] = []
    y: list[float] = []
    below = 0
    for high_us, count in points if total >= LEAST_SAMPLES else []:
        if total - below < TAIL_SAMPLES:
            break
        below += count
        x.append(-math.log10(1 - min(below, total - TAIL_SAMPLES) / total))
        y.append(max(high_us, 1))
    return ([0.0, *x], [y[0], *y]) if x else (x, y)
