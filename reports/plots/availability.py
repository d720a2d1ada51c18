"""For each kind of operation, second by second: did one succeed, did all fail, or did none end?"""

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
        states = [_state(throughput, kind, second) for second in range(seconds)]
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


def _state(throughput: Sequence[dict[str, Any]], kind: str, second: int) -> int:
    mine = [row for row in throughput if row["f"] == kind and row["second"] == second]
    good = sum(row["operations"] for row in mine if row["type"] == "ok")
    bad = sum(row["operations"] for row in mine if row["type"] != "ok")
    if good:
        return 1 if bad else 0
    return 2 if bad else 3
