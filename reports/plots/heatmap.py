"""How many operations took how long, second by second. It shows the modes that quantile lines hide."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from reports.jobs.latency import HEATMAP_STEPS_PER_OCTAVE
from reports.plots import style, timeline

LEAST_SAMPLES = 500
_SHOWN = ("fetch", "produce")
_LIGHT = {"fetch": ("#b9dcf2", "#0072b2", "#012a44"), "produce": ("#fbd3b4", "#d55e00", "#4a1f00")}


def draw(heatmap: Sequence[dict[str, Any]], hits: Sequence[dict[str, Any]], seconds: int) -> Figure | None:
    kinds = [
        kind for kind in _SHOWN if sum(row["count"] for row in heatmap if row["operation"] == kind) >= LEAST_SAMPLES
    ]
    if not kinds or seconds < timeline.LEAST_SECONDS:
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
