"""The figures of a report, in the order of the page. A figure without enough samples is not drawn."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure

from reports.collect import Findings
from reports.mirrored import rewinds, tracks
from reports.plots import style
from reports.plots.broker import draw_broker
from reports.plots.drawing_process import DrawingProcess, DrawingProcessError
from reports.plots.groups import draw_groups
from reports.plots.latency import draw_heatmap, draw_latency, draw_percentiles
from reports.plots.leadership import draw_controller, draw_leadership
from reports.plots.mirror import draw_mirror
from reports.plots.operations import draw_availability, draw_load, draw_poster, draw_throughput
from reports.plots.transactions import draw_transactions

Makers: TypeAlias = Mapping[str, Callable[[], Figure | None]]


@dataclass(frozen=True, slots=True)
class Drawing:
    svg: str
    caption: str


_CAPTIONS = {
    "poster": "What clients got in each second. The shaded bands and the strip below are the faults. A band ends when "
    "its fault does; what it held up comes later.",
    "load": "Offered load is what the schedule wanted. The distance between the offered and the completed load is what "
    "the system owed.",
    "percentiles": "Latency by percentile. Every step to the right is ten times rarer. Solid lines are service time "
    "(from the send), and dashed lines are response time (from the intended send). A curve ends where fewer than ten "
    "samples lie beyond.",
    "latency": "Response time by the second of completion. The shaded bands and the strip below are the faults.",
    "heatmap": "Every operation by second and service time. Darker means more operations. Two bands are two modes.",
    "throughput": "Operations by the second in which they completed, so that a stall shows as a hole.",
    "availability": "Whether operations of each kind succeeded in each second.",
    "controller": "Which node was the active controller, and when there was none. Below are the snapshots that nodes "
    "fetched from each other.",
    "leadership": "Who led the replicated partitions that changed most, and where replicas were missing in the in-sync "
    "set. Below is how many partitions changed in each second.",
    "groups": "Each group's generations, and the time from the first JoinGroup until the last member knew its "
    "part. Below are how many partitions had no owner between two owners, and how long commits took.",
    "mirror": "What the source held, and how far the mirror was. Where the line falls, the mirror started again and "
    "copied records again. Below is the age of the oldest record that it had not reached.",
    "transactions": "How many transactions ended in each second, and how long it took from the request of an end until "
    "the producer got its response. Below is how long the last stable offset had been behind the high "
    "watermark, as readers saw it.",
    "broker": "The broker's own metrics on the same time axis.",
}


def draw_all(findings: Findings, baseline: Findings | None, seconds: int, folder: Path) -> dict[str, Drawing]:
    """PNG copies go to ``folder``. Faults are drawn by the hits of ``Findings.fault_hits``."""
    hits = list(findings.fault_hits)
    makers: Makers = {
        "poster": partial(draw_poster, findings.throughput, findings.latency, hits, seconds),
        "load": partial(draw_load, findings.load, hits, seconds),
        "percentiles": partial(draw_percentiles, findings.distribution, baseline.distribution if baseline else ()),
        "latency": partial(draw_latency, findings.latency, hits, seconds),
        "heatmap": partial(draw_heatmap, findings.heatmap, hits, seconds),
        "throughput": partial(draw_throughput, findings.throughput, hits, seconds),
        "availability": partial(draw_availability, findings.throughput, hits, seconds),
        "controller": partial(draw_controller, findings.failovers, findings.transfers, hits, seconds),
        "leadership": partial(draw_leadership, findings.leadership, findings.leaderships, hits, seconds),
        "groups": partial(draw_groups, findings.rebalances, findings.ownerless, findings.latency, hits, seconds),
        "mirror": partial(draw_mirror, tracks(findings), rewinds(findings), hits, seconds),
        "transactions": partial(
            draw_transactions, findings.throughput, findings.decided, findings.stalls, hits, seconds
        ),
        "broker": partial(draw_broker, findings.broker, hits, seconds),
    }
    return drawn_by_two(makers, _CAPTIONS, folder)


@cache
def drawing_process() -> DrawingProcess:
    """Return the second process that draws figures. It is started by the first call, and need not be ready."""
    return DrawingProcess(__name__)


def _forget_drawing_process() -> None:
    """Let the next call of ``drawing_process`` start another one."""
    broken = drawing_process()
    drawing_process.cache_clear()
    broken.close()


def drawn_by_two(makers: Makers, captions: Mapping[str, str], folder: Path) -> dict[str, Drawing]:
    """Do the same as ``drawn`` in two processes. The second draws from the first figure on and this one from the last,
    until they meet, since a dozen figures take six seconds. The makers must be such as can be sent to a process."""
    waiting = deque(makers)
    drawings: dict[str, Drawing | None] = {}

    def draw_from_the_last() -> None:
        while (name := _taken(waiting.pop)) is not None:
            drawings[name] = _draw(name, makers[name], captions[name], folder)

    def have_drawn_from_the_first() -> None:
        while (name := _taken(waiting.popleft)) is not None:
            try:
                drawings[name] = drawing_process().call(partial(_draw, name, makers[name], captions[name], folder))
            except DrawingProcessError:
                waiting.append(name)
                _forget_drawing_process()
                return

    with ThreadPoolExecutor(1) as pool:
        helped = pool.submit(have_drawn_from_the_first)
        try:
            draw_from_the_last()
        except BaseException:
            waiting.clear()  # So that the other process draws no more than it has begun.
            raise
        helped.result()
    draw_from_the_last()  # what the other process left behind, if it has died
    return {name: drawing for name in makers if (drawing := drawings[name]) is not None}


def _taken(take: Callable[[], str]) -> str | None:
    try:
        return take()
    except IndexError:
        return None


def drawn(makers: Makers, captions: Mapping[str, str], folder: Path, prefix: str = "") -> dict[str, Drawing]:
    """The figures that have enough samples, in the order of ``makers``. PNG copies go to ``folder``."""
    drawings = {name: _draw(name, make, captions[name], folder, prefix) for name, make in makers.items()}
    return {name: drawing for name, drawing in drawings.items() if drawing is not None}


def _draw(name: str, make: Callable[[], Figure | None], caption: str, folder: Path, prefix: str = "") -> Drawing | None:
    with style.styled():
        figure = make()
        if figure is None:
            return None
        style.png(figure, folder / f"{prefix}{name}.png")
        return Drawing(style.svg(figure, name, caption), caption)
