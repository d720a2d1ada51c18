"""The first page's list: what was attacked, in words, and of each fault the one figure that one remembers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.collect import Findings, Row, without_presets
from reports.decide import LOSSES
from reports.page import control_plane, words
from reports.page.impact import Impact
from reports.page.struck import FETCH, Struck, sentence, struck
from reports.strikes import is_strike
from reports.verdict import Verdict

TRANSACTION_APIS = (22, 24, 25, 26, 27, 28)
_SLOWS = ("link_delayed", "link_slowed", "link_sliced", "disk_slowed", "clock_stepped")
_FRAMES = ("request_", "response_")
_STILL_ASKING_US = 5_000_000
"""A client may wait so long for an answer that was lost before it gives up."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``means`` follows the value as the rest of a phrase."""

    value: str
    means: str


@dataclass(frozen=True, slots=True)
class Attack:
    """One fault. ``anomalies`` counts the examples of broken guarantees that name it."""

    fault: str
    at_us: int
    sentence: str
    figure: Figure | None
    nothing_lost: bool
    anomalies: int


def attacks(findings: Findings, verdict: Verdict, costs: Sequence[Impact]) -> list[Attack]:
    """The faults in the order in which they began. Rows that only tell what became of a strike are none."""
    rows = [row for row in without_presets(findings.faults) if is_strike(row["kind"])]
    rows.sort(key=lambda row: (row["from_us"], row["name"]))
    kept = _nothing_lost(verdict)
    return [
        Attack(
            fault=row["name"],
            at_us=row["from_us"],
            sentence=sentence(row),
            figure=_figure(findings, row, [one for one in costs if one.fault == row["name"]]),
            nothing_lost=kept and not row["kind"].startswith(_FRAMES),
            anomalies=_anomalies(verdict, row["name"]),
        )
        for row in rows
    ]


def _nothing_lost(verdict: Verdict) -> bool:
    states = [one.status for one in verdict.guarantees if one.name in LOSSES]
    return "holds" in states and not any(state.startswith("broken") for state in states)


def _anomalies(verdict: Verdict, fault: str) -> int:
    named = [one.fault_name.split(" #")[0] for each in verdict.guarantees for one in each.examples]
    return named.count(fault)


_Measure = Callable[[Findings, Row, Sequence[Impact]], Figure | None]


def _figure(findings: Findings, row: Row, costs: Sequence[Impact]) -> Figure | None:
    """The first of the measures that this fault is about for which there is a number."""
    for measure in (*_about(row, struck(row)), _outage, _without_controller):
        found = measure(findings, row, costs)
        if found is not None:
            return found
    return None


def _about(row: Row, found: Struck) -> tuple[_Measure, ...]:
    if found.state.startswith("download_"):
        return (_resumed,)
    if found.state.startswith("transaction_") or row["api_key"] in TRANSACTION_APIS:
        return (_decided,)
    if found.state.startswith(("offset_", "group_")):
        return (_next_commit,)
    if found.is_controller:
        return (_without_controller,)
    if row["kind"].startswith(_FRAMES):
        return (_next_answer, _slowed) if row["api_key"] == FETCH else (_slowed,)
    return (_slowed,) if row["kind"] in _SLOWS else ()


def _resumed(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    node = row["target"].removeprefix("node-")
    for one in control_plane.transfers(findings):
        if str(one.node) == node and one.at_us <= row["until_us"] and one.finished and one.resumes:
            more = f"came twice, as it went on at {words.size(one.resumed_at)} of {words.size(one.size_bytes)}"
            return Figure(words.size(one.beyond_bytes), more)
    return None


def _decided(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    found = [one["longest_us"] for one in findings.transactions_around_faults if one["fault"] == row["name"]]
    longest = max((one for one in found if one is not None), default=None)
    return None if longest is None else Figure(words.brief(longest), "until the last open transaction was decided")


def _next_commit(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    moved = [
        one["first_us"] - one["last_us"]
        for one in findings.coordinators
        if one["last_us"] <= row["until_us"] and one["first_us"] >= row["from_us"]
    ]
    return Figure(words.brief(max(moved)), "until the group's next commit") if moved else None


def _without_controller(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    gone = [one.without_us for one in control_plane.failovers(findings) if one.cause == row["name"]]
    if not gone:
        return None
    return Figure(words.brief(max(gone)), "until the next controller" + (", at worst" if len(gone) > 1 else ""))


def _next_answer(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    back = [
        one["recovered_us"]
        for one in findings.recoveries
        if row["from_us"] <= one["lost_us"] <= row["until_us"] + _STILL_ASKING_US
    ]
    return Figure(words.brief(max(back)), "at worst from a lost answer to the next good one") if back else None


def _slowed(_: Findings, __: Row, costs: Sequence[Impact]) -> Figure | None:
    for one in sorted(costs, key=lambda each: each.operation != "produce"):
        if one.before.p99_us is not None and one.during.p99_us is not None:
            before, during = words.brief(one.before.p99_us), words.brief(one.during.p99_us)
            return Figure(during, f"p99 of {one.operation}, {before} before")
    return None


def _outage(_: Findings, __: Row, costs: Sequence[Impact]) -> Figure | None:
    named = {"produce": ("record", "acknowledged"), "fetch": ("fetch", "answered")}
    for operation, (what, done) in named.items():
        for one in costs:
            if one.operation == operation and one.never_ok:
                return Figure("never", f"again was a {what} {done}")
            if one.operation == operation and one.outage_us:
                return Figure(words.brief(one.outage_us), f"until the next {done} {what}")
    return None
