"""Figures of the clients' operations: the poster of the first page, load, throughput and availability."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from reports.job_rows import Rows
from reports.plots import style, timeline

_POSTER_OPERATIONS = ("produce", "fetch")
_POSTER_WITHOUT_RECORDS = ("create_topics", "metadata_read")
"""These operations are shown if no client wrote or read records."""


def draw_poster(
    throughput: Rows,
    latency: Rows,
    hits: Rows,
    seconds: int,
) -> Figure | None:
    """The one picture of the first page: what clients got, second by second, and the faults below.

    Above are the operations that ended ok and those that did not, below their slowest hundredth by response time.
    """
    kinds_seen = {row["f"] for row in throughput}
    kinds = [
        kind
        for kind in (_POSTER_OPERATIONS if kinds_seen & set(_POSTER_OPERATIONS) else _POSTER_WITHOUT_RECORDS)
        if kind in kinds_seen
    ]
    if not kinds or seconds < timeline.MIN_SECONDS:
        return None
    figure, (rates, times) = timeline.frame([1.9, 1.6], hits, seconds)
    for kind in kinds:
        ok = _rates_per_second(throughput, kind, ok=True)
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


def _draw_failed(axes: Axes, throughput: Rows, kinds: Sequence[str], seconds: int) -> None:
    failed = sum((_rates_per_second(throughput, kind, ok=False) for kind in kinds), Counter[int]())
    if failed:
        timeline.bars(axes, [failed], [style.RED], ["not ok"], seconds)


def _rates_per_second(throughput: Rows, kind: str, *, ok: bool) -> Counter[int]:
    counts = Counter[int]()
    for row in throughput:
        if row["f"] == kind and (row["type"] == "ok") is ok:
            counts[row["second"]] += row["operations"]
    return counts


def _is_response(row: dict[str, Any], kind: str) -> bool:
    return bool(row["operation"] == kind and row["measure"] == "response")


_LOAD_LINES = (("offered", style.INK, (0, (2, 2))), ("sent", style.BLUE, "-"), ("completed", style.GREEN, "-"))


def draw_load(load: Rows, hits: Rows, seconds: int) -> Figure | None:
    """Draw what the schedule offered, what the fleet sent and what completed. Below is how late the fleet was."""
    if len(load) < timeline.MIN_SECONDS:
        return None
    figure, panels = timeline.frame([1.8, 1.0], hits, seconds)
    scheduled = [row for row in load if row["offered"]]  # operations after the schedule's end are not load
    lasted = max((row["second"] + 1 for row in scheduled), default=seconds)
    for name, colour, line in _LOAD_LINES:
        points = {row["second"]: row[name] for row in load}
        panels[0].plot(*timeline.dense(points, seconds, 0, lasted), color=colour, linestyle=line, label=name)
    panels[0].set_ylim(bottom=0)
    panels[0].set_title("operations per second")
    style.legend(panels[0], 3)
    slip = {row["second"]: (row["max_slip_us"] or 0) / 1_000 for row in load}
    x, y = timeline.dense(slip, seconds, 0, lasted)
    panels[1].fill_between(x, y, color=style.MUTED, alpha=0.5, linewidth=0)
    panels[1].set_ylim(bottom=0)
    panels[1].set_title("schedule slip: worst delay from the intended to the real send, ms")
    return figure


MAX_ABOVE = 5
_ERROR_COLOURS = (style.RED, style.YELLOW, style.PURPLE, style.SKY, style.MUTED)


def draw_throughput(throughput: Rows, hits: Rows, seconds: int) -> Figure | None:
    """Draw operations by the second in which they completed. Below are those that did not end ok, stacked by error."""
    ok = _by_second([row for row in throughput if row["type"] == "ok"], "f")
    bad = _by_second([row for row in throughput if row["type"] != "ok"], "error")
    if len({second for series in ok.values() for second in series}) < timeline.MIN_SECONDS:
        return None
    figure, panels = timeline.frame([2.0, 1.1] if bad else [2.2], hits, seconds)
    names = sorted(ok, key=lambda name: -sum(ok[name].values()))
    x, stacks = timeline.stacked([ok[name] for name in names], seconds)
    panels[0].stackplot(
        x, *stacks, labels=names, colors=[style.color_of(name) for name in names], alpha=0.8, linewidth=0
    )
    panels[0].set_title("completed ok, operations per second")
    _throughput_legend(panels[0], len(names))
    if bad:
        errors = sorted(bad, key=lambda name: -sum(bad[name].values()))
        colours = [_ERROR_COLOURS[min(place, len(_ERROR_COLOURS) - 1)] for place in range(len(errors))]
        series = [bad[name] for name in errors]
        timeline.bars(panels[1], series, colours, [name or "unknown" for name in errors], seconds)
        panels[1].set_title("failed or unknown, operations per second")
        _throughput_legend(panels[1], len(bad))
    return figure


def _throughput_legend(axes: Axes, entries: int) -> None:
    """Put the legend beside the title or, if it has too many entries, beside the data."""
    if entries <= MAX_ABOVE:
        style.legend(axes, 5)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), ncols=1, fontsize=7.5, labelspacing=0.25)


def _by_second(rows: Rows, key: str) -> dict[str, Counter[int]]:
    series: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        series[row[key]][row["second"]] += row["operations"]
    return series


_AVAILABILITY_OPERATIONS = ("fetch", "produce", "create_topics", "metadata_read")
_STATES = (("ok", style.GREEN), ("some failed", style.YELLOW), ("all failed", style.RED), ("none ended", style.GRID))
_BETTER_FIRST = (0, 1, 3, 2)
"""Indexes of _STATES. That none ended is the better of the two last: nothing may have been sent."""


def draw_availability(throughput: Rows, hits: Rows, seconds: int) -> Figure | None:
    """Draw for each kind of operation and each second whether one succeeded, all failed, or none ended."""
    kinds = [kind for kind in _AVAILABILITY_OPERATIONS if any(row["f"] == kind for row in throughput)]
    if not kinds or seconds < timeline.MIN_SECONDS:
        return None
    figure, (axes,) = timeline.frame([0.36 * len(kinds)], hits, seconds, "by their worst second")
    width = timeline.bucket_s(seconds)
    for row, kind in enumerate(kinds):
        states = _availability_states(throughput, kind, seconds)
        for state, colour in enumerate(colour for _, colour in _STATES):
            axes.broken_barh(_spans(states, state, width), (row - 0.34, 0.68), color=colour, linewidth=0)
    style.rows(axes, kinds)
    style.no_lines(axes)
    axes.tick_params(axis="x", length=0)
    handles = [Patch(color=colour, label=name) for name, colour in _STATES]
    style.legend(axes, 4, handles)
    return figure


def _spans(states: Sequence[int], shown_state: int, width: int) -> list[tuple[float, float]]:
    """The start and the length of each stretch of buckets in this state."""
    spans: list[tuple[float, float]] = []
    start = 0
    for state, buckets in groupby(states):
        length = width * len(list(buckets))
        if state == shown_state:
            spans.append((start, length))
        start += length
    return spans


def _availability_states(throughput: Rows, kind: str, seconds: int) -> list[int]:
    """Return for each bucket the index in _STATES of its worst second."""
    good, bad = Counter[int](), Counter[int]()
    for row in throughput:
        if row["f"] == kind:
            (good if row["type"] == "ok" else bad)[row["second"]] += row["operations"]
    by_second = [(1 if bad[second] else 0) if good[second] else (2 if bad[second] else 3) for second in range(seconds)]
    width = timeline.bucket_s(seconds)
    return [max(by_second[start : start + width], key=_BETTER_FIRST.index) for start in range(0, seconds, width)]
