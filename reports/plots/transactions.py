"""The figure of transactions."""

from collections import Counter
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.job_rows import Rows
from reports.jobs.transactions import WHOLE_RUN
from reports.plots import style, timeline

TRANSACTION = "transaction"
"""The operation that a transaction is."""
SLOT_US = 100_000
"""The age of the last stable offset is drawn in steps of this size."""
_ENDS = (("ok", "committed", style.GREEN), ("fail", "aborted", style.YELLOW), ("info", "undecided", style.RED))
_LINES = (
    ("commit", "p50_us", "commit p50", style.BLUE, "-"),
    ("commit", "max_us", "slowest commit", style.BLUE, ":"),
    ("abort", "p50_us", "abort p50", style.ORANGE, "-"),
    ("abort", "max_us", "slowest abort", style.ORANGE, ":"),
)


def draw_transactions(throughput: Rows, decided: Rows, stalls: Rows, hits: Rows, seconds: int) -> Figure | None:
    """Transactions over time: how they ended, how long their ends took, and how far back the last stable offset was.

    None without transactions.
    """
    ended = [row for row in throughput if row["f"] == TRANSACTION]
    if not ended or seconds < timeline.MIN_SECONDS:
        return None
    by_second = [row for row in decided if row["second"] != WHOLE_RUN]
    heights = [1.3, *([1.4] if by_second else []), *([1.2] if stalls else [])]
    figure, panels = timeline.frame(heights, hits, seconds)
    left = iter(panels)
    _ends(next(left), ended, seconds)
    if by_second:
        _decided(next(left), by_second, seconds)
    if stalls:
        _age(next(left), stalls, seconds)
    return figure


def _ends(axes: Axes, ended: Rows, seconds: int) -> None:
    counts = {kind: Counter[int]() for kind, _, _ in _ENDS}
    for row in ended:
        if row["type"] in counts:
            counts[row["type"]][row["second"]] += row["operations"]
    colours, labels = [colour for _, _, colour in _ENDS], [label for _, label, _ in _ENDS]
    timeline.bars(axes, [*counts.values()], colours, labels, seconds)
    axes.set_title("transactions by the second of their end")
    style.legend(axes, 3)


def _decided(axes: Axes, rows: Rows, seconds: int) -> None:
    for requested_end, column, label, colour, line in _LINES:
        points = {row["second"]: max(1, row[column]) for row in rows if row["requested_end"] == requested_end}
        if points:
            x, y = timeline.dense(points, seconds)
            axes.plot(x, y, color=colour, linestyle=line, marker=timeline.marker(seconds), markersize=2.5, label=label)
    style.micros_axis(axes)
    axes.set_title("time to decide, by the second of the response")
    style.legend(axes, 4)


def _age(axes: Axes, stalls: Rows, seconds: int) -> None:
    """The age of the oldest stall at the end of each slot."""
    slots = seconds * 1_000_000 // SLOT_US
    ages = [0] * (slots + 1)
    for row in stalls:
        for slot in range(-(-row["from_us"] // SLOT_US), min(row["until_us"] // SLOT_US, slots) + 1):
            ages[slot] = max(ages[slot], slot * SLOT_US - row["from_us"])
    shown = timeline.extremes(ages, ceil(slots / timeline.MAX_BUCKETS))
    x = [slot * SLOT_US / 1e6 for slot in shown]
    y = [ages[slot] / 1e6 for slot in shown]
    axes.plot(x, y, color=style.PURPLE)
    axes.fill_between(x, y, color=style.PURPLE, alpha=0.18, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    axes.set_title("age of the last stable offset while behind, worst partition")
