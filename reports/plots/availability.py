"""For each kind of operation, second by second: did one succeed, did all fail, or did none end?"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reports.plots import style, timeline

_SHOWN = ("fetch", "produce", "create_topics", "metadata_read")
_STATES = (("ok", style.GREEN), ("some failed", style.YELLOW), ("all failed", style.RED), ("none ended", style.GRID))
_BETTER_FIRST = (0, 1, 3, 2)
"""Indexes of _STATES. That none ended is the better of the two last: nothing may have been sent."""


def draw(throughput: Sequence[dict[str, Any]], hits: Sequence[dict[str, Any]], seconds: int) -> Figure | None:
    kinds = [kind for kind in _SHOWN if any(row["f"] == kind for row in throughput)]
    if not kinds or seconds < timeline.LEAST_SECONDS:
        return None
    figure, (axes,) = timeline.frame([0.36 * len(kinds)], hits, seconds, "by their worst second")
    width = timeline.bucket_s(seconds)
    for row, kind in enumerate(kinds):
        states = _states(throughput, kind, seconds)
        for state, colour in enumerate(colour for _, colour in _STATES):
            axes.broken_barh(_spans(states, state, width), (row - 0.34, 0.68), color=colour, linewidth=0)
    style.rows(axes, kinds)
    style.no_lines(axes)
    axes.tick_params(axis="x", length=0)
    handles = [Patch(color=colour, label=name) for name, colour in _STATES]
    style.legend(axes, 4, handles)
    return figure


def _spans(states: Sequence[int], wanted: int, width: int) -> list[tuple[float, float]]:
    """The start and the length of each stretch of buckets in this state."""
    spans: list[tuple[float, float]] = []
    start = 0
    for state, buckets in groupby(states):
        length = width * len(list(buckets))
        if state == wanted:
            spans.append((start, length))
        start += length
    return spans


def _states(throughput: Sequence[dict[str, Any]], kind: str, seconds: int) -> list[int]:
    """For each bucket an index of _STATES, that of its worst second."""
    good, bad = Counter[int](), Counter[int]()
    for row in throughput:
        if row["f"] == kind:
            (good if row["type"] == "ok" else bad)[row["second"]] += row["operations"]
    found = [(1 if bad[second] else 0) if good[second] else (2 if bad[second] else 3) for second in range(seconds)]
    width = timeline.bucket_s(seconds)
    return [max(found[start : start + width], key=_BETTER_FIRST.index) for start in range(0, seconds, width)]
