"""The frame that charts over time share: panels above, the fault lane below, one x axis in seconds of the run."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.plots import faults, style

LEAST_SECONDS = 3


def frame(heights: Sequence[float], hits: Sequence[dict[str, Any]], seconds: int) -> tuple[Figure, list[Axes]]:
    """The panels in the order of ``heights``. The fault lane is drawn already."""
    with_lane = bool(faults.names(hits))
    figure, axes = style.canvas([*heights, faults.lane_height(hits)] if with_lane else heights)
    for one in axes[: len(heights)]:
        faults.shade(one, hits, seconds)
        one.set_xlim(0, seconds)
    if with_lane:
        faults.lane(axes[-1], hits, seconds)
    style.seconds_axis(axes[-1])
    axes[-1].set_xlim(0, seconds)
    return figure, axes[: len(heights)]


def dense(points: Mapping[int, float], seconds: int, missing: float = float("nan")) -> tuple[list[float], list[float]]:
    """x lies in the middle of each second; y has gaps where nothing was measured."""
    return [second + 0.5 for second in range(seconds)], [points.get(second, missing) for second in range(seconds)]
