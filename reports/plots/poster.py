"""The one picture of the first page: what clients got, second by second, and the faults below."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from reports.plots import style, timeline

_SHOWN = ("produce", "fetch")
_WITHOUT_RECORDS = ("create_topics", "metadata_read")
"""These operations are shown if no client wrote or read records."""


def draw(
    throughput: Sequence[dict[str, Any]],
    latency: Sequence[dict[str, Any]],
    hits: Sequence[dict[str, Any]],
    seconds: int,
) -> Figure | None:
    """Above are the operations that ended ok and those that did not, below their slowest hundredth by response time."""
    found = {row["f"] for row in throughput}
    kinds = [kind for kind in (_SHOWN if found & set(_SHOWN) else _WITHOUT_RECORDS) if kind in found]
    if not kinds or seconds < timeline.LEAST_SECONDS:
        return None
    figure, (rates, times) = timeline.frame([1.9, 1.6], hits, seconds)
    for kind in kinds:
        ok = _per_second(throughput, kind, ok=True)
        rates.plot(*timeline.dense(ok, seconds, 0), color=style.color_of(kind), label=f"{kind}, ok")
        p99 = {row["second"]: max(1, row["p99_us"]) for row in latency if _is_response(row, kind)}
        times.plot(*timeline.dense(p99, seconds), color=style.color_of(kind), label=f"{kind}, p99")
    _draw_failed(rates, throughput, kinds, seconds)
    rates.set_title("operations a second")
    rates.set_ylim(bottom=0)
    style.legend(rates, len(kinds) + 1)
    times.set_title("response time")
    style.micros_axis(times)
    style.legend(times, len(kinds))
    figure.axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value // 60:.0f}:{value % 60:02.0f}"))
    figure.axes[-1].set_xlabel(timeline.axis_label(seconds, "minutes and seconds since the start of the run"))
    return figure


def _draw_failed(axes: Axes, throughput: Sequence[dict[str, Any]], kinds: Sequence[str], seconds: int) -> None:
    failed = sum((_per_second(throughput, kind, ok=False) for kind in kinds), Counter[int]())
    if failed:
        timeline.bars(axes, [failed], [style.RED], ["not ok"], seconds)


def _per_second(throughput: Sequence[dict[str, Any]], kind: str, *, ok: bool) -> Counter[int]:
    counts = Counter[int]()
    for row in throughput:
        if row["f"] == kind and (row["type"] == "ok") is ok:
            counts[row["second"]] += row["operations"]
    return counts


def _is_response(row: dict[str, Any], kind: str) -> bool:
    return bool(row["operation"] == kind and row["measure"] == "response")
