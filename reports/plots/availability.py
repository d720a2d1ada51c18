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


def draw(throughput: Sequence[dict[str, Any]], hits: Sequence[dict[str, Any]], seconds: int) -> Figure | None:
    kinds = [kind for kind in _SHOWN if any(row["f"] == kind for row in throughput)]
    if not kinds or seconds < timeline.LEAST_SECONDS:
        return None
    figure, (axes,) = timeline.frame([0.36 * len(kinds)], hits, seconds)
    for row, kind in enumerate(kinds):
        states = _states(throughput, kind, seconds)
        for state, colour in enumerate(colour for _, colour in _STATES):
            axes.broken_barh(_spans(states, state), (row - 0.34, 0.68), color=colour, linewidth=0)
    style.rows(axes, kinds)
    style.no_lines(axes)
    axes.tick_params(axis="x", length=0)
    handles = [Patch(color=colour, label=name) for name, colour in _STATES]
    style.legend(axes, 4, handles)
    return figure


def _spans(states: Sequence[int], wanted: int) -> list[tuple[float, float]]:
    """The start and the length of each stretch of seconds in this state."""
    spans: list[tuple[float, float]] = []
    start = 0
    for state, seconds in groupby(states):
        length = len(list(seconds))
        if state == wanted:
            spans.append((start, length))
        start += length
    return spans


def _states(throughput: Sequence[dict[str, Any]], kind: str, seconds: int) -> list[int]:
    """For each second an index of _STATES."""
    good, bad = Counter[int](), Counter[int]()
    for row in throughput:
        if row["f"] == kind:
            (good if row["type"] == "ok" else bad)[row["second"]] += row["operations"]
    return [(1 if bad[second] else 0) if good[second] else (2 if bad[second] else 3) for second in range(seconds)]
