"""What each fault cost: latency and throughput before, during and after, the longest outage, the time to recover."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reports.collect import Findings, without_presets
from reports.page.latency_table import quantile
from reports.read_tables import JobConfig

KINDS = ("fetch", "produce")
WITHOUT_RECORDS = ("create_topics", "metadata_read")
"""These operations are looked at if no client wrote or read records."""
RECOVERED = 0.9
"""A run has recovered in the first second after the fault with this share of the median before it."""

_WINDOWS = JobConfig()


@dataclass(frozen=True, slots=True)
class Window:
    """``samples`` stands beside every figure. A figure is None if there are not enough of them."""

    p50_us: int | None
    p99_us: int | None
    samples: int
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Impact:
    """One fault and one kind of operation. Times are microseconds; None means "does not apply" or "never"."""

    fault: str
    operation: str
    before: Window
    during: Window
    after: Window
    errors: int
    outage_us: int | None  # longest time without a success that touches the fault
    first_ok_us: int | None  # from the (last) end of the fault to the first success, worst hit
    recovery_us: int | None  # from there to RECOVERED of the throughput before
    never_ok: bool = False  # clients went on trying after a hit, and nothing succeeded any more


def impacts(findings: Findings) -> list[Impact]:
    faults = sorted(without_presets(findings.faults), key=lambda row: (row["from_us"], row["name"]))
    known = {row["f"] for row in findings.throughput}
    kinds = [kind for kind in (KINDS if known & set(KINDS) else WITHOUT_RECORDS) if kind in known]
    return [_impact(findings, fault, kind) for fault in faults for kind in kinds]


def _impact(findings: Findings, fault: dict[str, Any], kind: str) -> Impact:
    name = fault["name"]
    first, last = fault["from_us"] // 1_000_000, fault["until_us"] // 1_000_000 + _WINDOWS.settle_s
    hits = [row for row in findings.fault_hits if row["name"] == name]
    inside = sorted(disturbed_seconds(hits))
    before = range(max(0, first - _WINDOWS.window_s), first)
    after = range(last + 1, min(last + _WINDOWS.window_s, _last_second(findings)) + 1)
    return Impact(
        fault=name,
        operation=kind,
        before=_window(findings, name, kind, "before", before),
        during=_window(findings, name, kind, "during", inside),
        after=_window(findings, name, kind, "after", after),
        errors=sum(_per_second(findings, kind, inside, ok=False)),
        outage_us=_outage(findings, kind, hits),
        first_ok_us=_first_ok(findings, name, kind),
        recovery_us=_recovery(findings, kind, before, fault["until_us"]),
        never_ok=_never_ok(findings, name, kind),
    )


def disturbed_seconds(hits: Sequence[dict[str, Any]]) -> set[int]:
    """The seconds in which a hit lasted or had just ended."""
    return {
        second
        for hit in hits
        for second in range(hit["at_us"] // 10**6, hit["until_us"] // 10**6 + _WINDOWS.settle_s + 1)
    }


def _window(findings: Findings, fault: str, kind: str, window: str, seconds: Sequence[int]) -> Window:
    wanted = (kind, "response", fault, window)
    keys = ("operation", "measure", "fault", "window")
    row = next((row for row in findings.percentiles if tuple(row[key] for key in keys) == wanted), None)
    done = _per_second(findings, kind, seconds, ok=True)
    samples = int(row["count"]) if row else 0
    rate = sum(done) / len(done) if done else None
    return Window(quantile(row, "p50_us", 2), quantile(row, "p99_us", 100), samples, rate)


def _per_second(findings: Findings, kind: str, seconds: Sequence[int], *, ok: bool) -> list[int]:
    counts = dict.fromkeys(seconds, 0)
    for row in findings.throughput:
        if row["f"] == kind and row["second"] in counts and (row["type"] == "ok") is ok:
            counts[row["second"]] += row["operations"]
    return list(counts.values())


def _last_second(findings: Findings) -> int:
    return max((row["second"] for row in findings.load if row["offered"]), default=0)


def _outage(findings: Findings, kind: str, hits: Sequence[dict[str, Any]]) -> int | None:
    slack = _WINDOWS.settle_s * 1_000_000
    touching = [
        gap["gap_us"]
        for gap in findings.gaps
        if gap["f"] == kind
        and any(gap["from_us"] <= h["until_us"] + slack and gap["until_us"] >= h["at_us"] for h in hits)
    ]
    return max(touching, default=None)


def _first_ok(findings: Findings, fault: str, kind: str) -> int | None:
    found = next((row for row in findings.first_ok if row["fault"] == fault and row["f"] == kind), None)
    if found is None or found["first_ok_us"] is None:
        return None
    return int(found["first_ok_us"] - found["until_us"])


def _never_ok(findings: Findings, fault: str, kind: str) -> bool:
    found = next((row for row in findings.first_ok if row["fault"] == fault and row["f"] == kind), None)
    if found is None or found["first_ok_us"] is not None:
        return False
    tried = (row["second"] for row in findings.throughput if row["f"] == kind and row["type"] != "ok")
    return any(second > found["until_us"] // 1_000_000 for second in tried)


def _recovery(findings: Findings, kind: str, before: Sequence[int], until_us: int) -> int | None:
    earlier = _per_second(findings, kind, before, ok=True)
    if not earlier or not median(earlier):
        return None
    enough = RECOVERED * median(earlier)
    later = range(until_us // 1_000_000, _last_second(findings) + 1)
    rates = _per_second(findings, kind, later, ok=True)
    for second, rate in zip(later, rates, strict=True):
        if rate >= enough:
            return max(0, second * 1_000_000 - until_us)
    return None
