"""Draws who was the active controller, and when nobody was. Below it shows which node downloaded a snapshot when."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reports.plots import style, timeline

MOST_DOWNLOADS = 12
_STATES = (("active controller", style.BLUE), ("none", style.RED), ("active, nothing accepted yet", style.YELLOW))


def draw(
    failovers: Sequence[dict[str, Any]],
    transfers: Sequence[dict[str, Any]],
    hits: Sequence[dict[str, Any]],
    seconds: int,
) -> Figure | None:
    """None if the controller never changed and nothing was downloaded: there is nothing to see."""
    if not (failovers or transfers) or seconds < timeline.LEAST_SECONDS:
        return None
    shown = sorted(transfers, key=lambda row: row["from_us"])[:MOST_DOWNLOADS]
    nodes = sorted({row[name] for row in failovers for name in ("node", "next_node")})
    heights = [*([0.3 * (len(nodes) + 1)] if nodes else []), *([0.26 * len(shown) + 0.2] if shown else [])]
    figure, panels = timeline.frame(heights, hits, seconds)
    if nodes:
        _controllers(panels[0], failovers, nodes, seconds)
    if shown:
        _downloads(panels[-1], shown, seconds)
    return figure


def _controllers(axes: Axes, failovers: Sequence[dict[str, Any]], nodes: Sequence[int], seconds: int) -> None:
    in_order = sorted(failovers, key=lambda row: row["active_us"])
    since_us, many = 0, len(in_order) > timeline.MOST_SPANS
    spans: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in in_order:
        accepted_us = row["accepted_us"] or row["active_us"]
        spans[nodes.index(row["node"]), style.BLUE].append(_span(since_us, row["lost_us"]))
        spans[len(nodes), style.RED].append(_span(row["lost_us"], row["active_us"], seconds))
        spans[len(nodes), style.YELLOW].append(_span(row["active_us"], accepted_us, seconds))
        since_us = row["active_us"]
    spans[nodes.index(in_order[-1]["next_node"]), style.BLUE].append(_span(since_us, seconds * 1_000_000))
    for (place, colour), bars in spans.items():
        _draw(axes, place, bars, colour, many=many)
    style.rows(axes, [*(f"node {each}" for each in nodes), "without"])
    axes.set_title("active controller")
    style.no_lines(axes)
    handles = [Patch(color=colour, label=name) for name, colour in _STATES]
    style.legend(axes, 3, handles)


def _downloads(axes: Axes, transfers: Sequence[dict[str, Any]], seconds: int) -> None:
    labels = []
    for place, row in enumerate(transfers):
        colour = style.GREEN if row["finished"] else style.MUTED
        _draw(axes, place, [_span(row["from_us"], row["until_us"], seconds)], colour)
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


def _draw(axes: Axes, place: int, spans: Sequence[tuple[float, float]], colour: str, *, many: bool = False) -> None:
    shown = [span for span in spans if span[1]]
    axes.broken_barh(shown, (place - 0.32, 0.64), color=colour, linewidth=0, rasterized=many)
