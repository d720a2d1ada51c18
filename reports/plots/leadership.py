"""Figures of leaders: of replicated partitions, and of the quorum (the controller)."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reports.job_rows import Row, Rows
from reports.plots import style, timeline

_BELOW = 0.13
"""The height of the strip that shows a reduced in-sync set."""


def draw_leadership(
    leadership: Rows,
    by_second: Rows,
    hits: Rows,
    seconds: int,
) -> Figure | None:
    """Draw who led each replicated partition, and how many replicas were in sync. Below are all changes per second.

    None if there are no replicated partitions.
    """
    if not leadership or seconds < timeline.MIN_SECONDS:
        return None
    partitions = list(dict.fromkeys(row["partition"] for row in sorted(leadership, key=lambda row: row["place"])))
    figure, panels = timeline.frame([0.3 * len(partitions) + 0.3, 1.0], hits, seconds)
    nodes = sorted({row["node"] for row in leadership})
    for place, name in enumerate(partitions):
        rows = [row for row in leadership if row["partition"] == name]
        _draw_partition(panels[0], place, rows, nodes, seconds, many=len(leadership) > timeline.MAX_SPANS)
    style.rows(panels[0], partitions, 0.4)
    panels[0].set_title("leader of each partition (red strip: replicas missing in the in-sync set)")
    style.no_lines(panels[0])
    handles = [Patch(color=node_colour(node, nodes), label=f"node {node}") for node in nodes]
    style.legend(panels[0], 6, handles)
    _draw_changes(panels[1], by_second, seconds)
    return figure


def node_colour(node: int, nodes: Sequence[int]) -> str:
    return style.series(nodes.index(node))


def _draw_partition(axes: Axes, place: int, rows: list[Row], nodes: Sequence[int], seconds: int, *, many: bool) -> None:
    in_order = sorted(rows, key=lambda row: row["n"])
    largest = max(isr_members(row) for row in in_order)
    ends = [row["at_us"] / 1e6 for row in in_order[1:]] + [float(seconds)]
    led: dict[int, list[tuple[float, float]]] = defaultdict(list)
    short: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row, end in zip(in_order, ends, strict=True):
        start = row["at_us"] / 1e6
        span = (start, max(end - start, seconds * 0.001))
        led[row["node"]].append(span)
        short[largest - isr_members(row)].append(span)
    for node, spans in led.items():
        axes.broken_barh(spans, (place - 0.32, 0.5), color=node_colour(node, nodes), linewidth=0, rasterized=many)
    for missing, spans in short.items():
        if missing > 0:
            strip = (place + 0.2, _BELOW * missing)
            axes.broken_barh(spans, strip, color=style.RED, linewidth=0, rasterized=many)


def isr_members(row: dict[str, Any]) -> int:
    """Return the number of in-sync replicas, 0 if the note does not have it."""
    return len(row["isr"].split(",")) if row["isr"] else 0


def _draw_changes(axes: Axes, by_second: Rows, seconds: int) -> None:
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


MAX_DOWNLOADS = 12
_STATES = (("active controller", style.BLUE), ("none", style.RED), ("active, nothing accepted yet", style.YELLOW))


def draw_controller(
    failovers: Rows,
    transfers: Rows,
    hits: Rows,
    seconds: int,
) -> Figure | None:
    """Draw who was the active controller, and when nobody was. Below it shows which node downloaded a snapshot when.

    None if the controller never changed and nothing was downloaded: there is nothing to see.
    """
    if not (failovers or transfers) or seconds < timeline.MIN_SECONDS:
        return None
    shown = sorted(transfers, key=lambda row: row["from_us"])[:MAX_DOWNLOADS]
    nodes = sorted({row[name] for row in failovers for name in ("node", "next_node")})
    heights = [*([0.3 * (len(nodes) + 1)] if nodes else []), *([0.26 * len(shown) + 0.2] if shown else [])]
    figure, panels = timeline.frame(heights, hits, seconds)
    if nodes:
        _controllers(panels[0], failovers, nodes, seconds)
    if shown:
        _downloads(panels[-1], shown, seconds)
    return figure


def _controllers(axes: Axes, failovers: Rows, nodes: Sequence[int], seconds: int) -> None:
    in_order = sorted(failovers, key=lambda row: row["active_us"])
    since_us, many = 0, len(in_order) > timeline.MAX_SPANS
    spans: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in in_order:
        accepted_us = row["accepted_us"] or row["active_us"]
        spans[nodes.index(row["node"]), style.BLUE].append(_span(since_us, row["lost_us"]))
        spans[len(nodes), style.RED].append(_span(row["lost_us"], row["active_us"], seconds))
        spans[len(nodes), style.YELLOW].append(_span(row["active_us"], accepted_us, seconds))
        since_us = row["active_us"]
    spans[nodes.index(in_order[-1]["next_node"]), style.BLUE].append(_span(since_us, seconds * 1_000_000))
    for (place, colour), bars in spans.items():
        _draw_spans(axes, place, bars, colour, many=many)
    style.rows(axes, [*(f"node {node}" for node in nodes), "without"])
    axes.set_title("active controller")
    style.no_lines(axes)
    handles = [Patch(color=colour, label=name) for name, colour in _STATES]
    style.legend(axes, 3, handles)


def _downloads(axes: Axes, transfers: Rows, seconds: int) -> None:
    labels = []
    for place, row in enumerate(transfers):
        colour = style.GREEN if row["finished"] else style.MUTED
        _draw_spans(axes, place, [_span(row["from_us"], row["until_us"], seconds)], colour)
        resumed = f", resumed {row['resumes']}x" if row["resumes"] else ""
        labels.append(f"node {row['node']}{resumed}")
    style.rows(axes, labels, 0.4)
    axes.set_title("snapshot downloads, from the first request to the last byte")
    style.no_lines(axes)


def _span(from_us: int, until_us: int, seconds: int = 0) -> tuple[float, float]:
    """The start and the length of a bar, in seconds. ``seconds`` is the length of the whole run, so that a short bar is
    widened until it can be seen. With 0 the bar is as long as it was.
    """
    return from_us / 1e6, max((until_us - from_us) / 1e6, seconds * 0.003) if until_us > from_us else 0.0


def _draw_spans(
    axes: Axes, place: int, spans: Sequence[tuple[float, float]], colour: str, *, many: bool = False
) -> None:
    shown = [span for span in spans if span[1]]
    axes.broken_barh(shown, (place - 0.32, 0.64), color=colour, linewidth=0, rasterized=many)
