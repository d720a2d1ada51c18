"""Draws who led each replicated partition, and how many replicas were in sync. Below are all changes per second."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reports.plots import style, timeline

_BELOW = 0.13
"""The height of the strip that shows a reduced in-sync set."""


def draw(
    leadership: Sequence[dict[str, Any]],
    by_second: Sequence[dict[str, Any]],
    hits: Sequence[dict[str, Any]],
    seconds: int,
) -> Figure | None:
    """None if there are no replicated partitions."""
    if not leadership or seconds < timeline.LEAST_SECONDS:
        return None
    partitions = list(dict.fromkeys(row["partition"] for row in sorted(leadership, key=lambda row: row["place"])))
    figure, panels = timeline.frame([0.3 * len(partitions) + 0.3, 1.0], hits, seconds)
    nodes = sorted({row["node"] for row in leadership})
    for place, name in enumerate(partitions):
        rows = [row for row in leadership if row["partition"] == name]
        _partition(panels[0], place, rows, nodes, seconds, many=len(leadership) > timeline.MOST_SPANS)
    style.rows(panels[0], partitions, 0.4)
    panels[0].set_title("leader of each partition (red strip: replicas missing in the in-sync set)")
    style.no_lines(panels[0])
    handles = [Patch(color=colour_of(node, nodes), label=f"node {node}") for node in nodes]
    style.legend(panels[0], 6, handles)
    _changes(panels[1], by_second, seconds)
    return figure


def colour_of(node: int, nodes: Sequence[int]) -> str:
    return style.series(nodes.index(node))


def _partition(
    axes: Axes, place: int, rows: list[dict[str, Any]], nodes: Sequence[int], seconds: int, *, many: bool
) -> None:
    in_order = sorted(rows, key=lambda row: row["n"])
    largest = max(members(row) for row in in_order)
    ends = [row["at_us"] / 1e6 for row in in_order[1:]] + [float(seconds)]
    led: dict[int, list[tuple[float, float]]] = defaultdict(list)
    short: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row, end in zip(in_order, ends, strict=True):
        start = row["at_us"] / 1e6
        span = (start, max(end - start, seconds * 0.001))
        led[row["node"]].append(span)
        short[largest - members(row)].append(span)
    for node, spans in led.items():
        axes.broken_barh(spans, (place - 0.32, 0.5), color=colour_of(node, nodes), linewidth=0, rasterized=many)
    for missing, spans in short.items():
        if missing > 0:
            strip = (place + 0.2, _BELOW * missing)
            axes.broken_barh(spans, strip, color=style.RED, linewidth=0, rasterized=many)


def members(row: dict[str, Any]) -> int:
    """How many members the in-sync set has; 0 if the note did not say."""
    return len(row["isr"].split(",")) if row["isr"] else 0


def _changes(axes: Axes, by_second: Sequence[dict[str, Any]], seconds: int) -> None:
    kinds = (
        ("elected", "leaders elected", style.BLUE),
        ("shrunk", "in-sync sets shrunk", style.RED),
        ("grown", "in-sync sets grown", style.GREEN),
    )
    for name, label, colour in kinds:
        points = {row["second"]: row[name] for row in by_second}
        axes.step(*timeline.dense(points, seconds, 0), where="mid", color=colour, label=label)
    axes.set_ylim(bottom=0)
    axes.set_title("changes per second, all partitions")
    style.legend(axes, 3)
