"""The target of each fault, in words, and what it cost.

``fault_sentence`` describes a fault by its kind and by the evidence of its first hit. ``impacts`` has the latency and
the throughput before, during and after it, the longest outage and the time to recover. ``attacks`` is the list of the
first page, with the most telling figure of each fault.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reports.collect import Findings
from reports.decide import LOSSES
from reports.job_rows import Row, Rows, without_presets
from reports.page import control_plane, words
from reports.page.latency import quantile
from reports.read_tables import JobConfig
from reports.rows import is_hit
from reports.verdict import Verdict

_ROLES = ("leader", "follower", "observer", "partition_leader", "partition_follower")
_IN_WORDS = re.compile(r"(the controller|the leader of \S+|a follower of \S+(?: \S+)?|an observer): ")
_NOTE = re.compile(r"([a-z]+(?:_[a-z]+)+)(?= \w+=)")
_FIELD = re.compile(r"(\w+)=(.*?)(?= \w+=| pid \d|$)")

FETCH = 1
_APIS = {
    0: "produce",
    1: "fetch",
    3: "metadata",
    8: "commit offsets",
    10: "find a coordinator",
    11: "join a group",
    12: "heartbeats",
    14: "sync a group",
    19: "create topics",
    22: "get a producer ID",
    24: "add partitions to a transaction",
    25: "add offsets to a transaction",
    26: "end a transaction",
    27: "write markers of a transaction",
    28: "commit offsets in a transaction",
    56: "change in-sync replicas",
    59: "fetch a snapshot",
    63: "heartbeats of a broker",
}
"""The purpose of a request with this API key."""

_ENDED = {
    "node_killed": "was killed",
    "node_powered_off": "lost power",
    "host_lost": "vanished with its host for {lasted}",
    "node_paused": "was stopped for {lasted}",
    "node_terminated": "was terminated",
    "node_isolated": "was cut off from the other nodes for {lasted}",
    "node_cut_from_controller": "was cut off from the controller for {lasted}",
    "directory_missing": "came back with an empty directory",
    "rolling_bounce": "was ended and restarted, and then each other node in turn",
    "disk_slowed": "had a slow disk for {lasted}",
    "disk_full": "had no space left on its disk for {lasted}",
    "disk_bit_flipped": "found one bit of its disk turned over",
    "disk_error": "got an error of its disk",
    "disk_write_failed": "could not write to its disk",
    "files_missing": "found files of its disk deleted",
    "clock_stepped": "had its clock stepped",
    "feature_finalized": "got a request to raise a feature",
    "requests_replayed": "was sent old requests of other nodes again",
    "requests_forged": "was sent forged requests in the name of other nodes",
    "store_refused": "was refused by the object store",
    "store_slowed": "had to wait for the object store",
    "store_result_lost": "did not get the object store's response",
    "store_answer_lost": "did not get the object store's response",  # of an older run
    "store_listed_late": "did not see in a list what it had just stored",
}
_FRAMES = {
    "dropped": "lost",
    "lost_by_proxy": "lost in Toxiproxy",
    "delayed": "late",
    "duplicated": "doubled",
    "damaged": "damaged by one bit",
    "truncated": "cut short",
    "error": "replaced by an error",
}
_LINKS = {
    "link_cut": "was cut for {lasted}",
    "link_delayed": "was slow to deliver for {lasted}",
    "link_reset": "was reset for {lasted}",
    "link_truncated": "broke off inside frames for {lasted}",
    "link_sliced": "delivered in small pieces for {lasted}",
    "link_slowed": "was narrow for {lasted}",
    "link_down": "was down for {lasted}",
}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a fault according to its evidence."""

    role: str
    """A noun phrase, or empty."""
    state: str
    """The name of the note at which the fault fired, or empty."""
    fields: Mapping[str, str]

    @property
    def is_controller(self) -> bool:
        return self.role == "the controller"


def target_of(row: Row) -> Target:
    """Read the evidence of a fault (a row of ``fault_log``)."""
    detail = row["detail"]
    match = _IN_WORDS.match(detail)
    note = None if match else _NOTE.search(detail)
    state = note[1] if note else ""
    fields = dict(_FIELD.findall(detail[note.end() :])) if note else {}
    return Target(match[1] if match else _role(detail.split(), state), state, fields)


def _role(tokens: list[str], state: str) -> str:
    """Return the role in which the node acted at that state. A node has several roles at a time."""
    roles = [token for token in tokens if token in _ROLES]
    if state.startswith(("transaction_", "group_", "offset_")):
        return "a coordinator"
    if "leader" in roles and (state.startswith("metadata_") or not state):
        return "the controller"
    return "an observer" if "observer" in roles else ""


def fault_sentence(row: Row) -> str:
    """Say what the fault did, as a whole sentence without its full stop."""
    return _of_frames(row) or _of_links(row) or _of_node(row)


def _of_frames(row: Row) -> str:
    side, _, effect = row["kind"].partition("_")
    if side not in ("request", "response") or effect not in _FRAMES:
        return ""
    singular, plural = _requests(row["api_key"])
    if row["hits"] == 1:
        sentence = f"{singular} was" if side == "request" else f"a response to {singular} was"
    else:
        sentence = f"{words.count(row['hits'])} {'' if side == 'request' else 'responses to '}{plural} were"
    return f"{sentence[0].upper()}{sentence[1:]} {_FRAMES[effect]}"


def _requests(api_key: int) -> tuple[str, str]:
    """Return the words for one request of this kind and for several."""
    if api_key == FETCH:
        return "a fetch", "fetches"
    wants = f" to {_APIS[api_key]}" if api_key in _APIS else ""
    return f"a request{wants}", f"requests{wants}"


def _of_links(row: Row) -> str:
    if row["kind"] not in _LINKS:
        return ""
    names = re.findall(r"(client|node-\d+|\d+|all|\w+)[->]+(node-\d+|\d+|all|\w+)", row["target"])
    ends = [" and ".join(_end(end) for end in pair) for pair in dict.fromkeys(names)]
    role = target_of(row).role
    link = f"The link between {ends[0]}" if len(ends) == 1 else "A link" if not ends else f"Each of {len(ends)} links"
    link += f" ({role})" if role and len(ends) == 1 else ""
    return f"{link} {_lasting(_LINKS[row['kind']], row)}"


def _end(name: str) -> str:
    if name == "client":
        return "clients"
    return "all nodes" if name == "all" else f"node {name.removeprefix('node-')}"


def _of_node(row: Row) -> str:
    target = target_of(row)
    node = row["target"].replace("node-", "node ") if row["hits"] == 1 else ""
    who = (f"{target.role} ({node})" if node else target.role) if target.role else node or "a node"
    did = _lasting(_ENDED.get(row["kind"], f"was hit ({row['kind'].replace('_', ' ')})"), row)
    sentence = f"{who} {did}{_at(target, row)}"
    return sentence[0].upper() + sentence[1:]


def _lasting(text: str, row: Row) -> str:
    """The duration is shown of one hit only, since several need not be consecutive."""
    if row["hits"] == 1:
        return text.format(lasted=words.brief(row["until_us"] - row["from_us"]))
    return f"{text.removesuffix(' for {lasted}')} {words.count(row['hits'])} times"


def _at(target: Target, row: Row) -> str:
    if not target.state:
        return f" at a request to {_APIS[row['api_key']]}" if row["api_key"] in _APIS else ""
    if target.state in _STATES:
        return " " + _STATES[target.state].format_map(_Known(target.fields))
    return f" at “{target.state.replace('_', ' ')}”"


class _Known(dict[str, str]):
    """Fields of a note. A field that it lacks is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


_STATES = {
    "metadata_appended": "inside a metadata transaction ({change}, batch {number} of {of})",
    "metadata_committed": "when batch {number} of {of} of a metadata transaction was committed",
    "download_chunk": "in the middle of a snapshot download",
    "download_finished": "at the end of a snapshot download",
    "snapshot_started": "when it began a snapshot",
    "snapshot_written": "when it had written a snapshot",
    "snapshot_renamed": "when it had made a snapshot whole",
    "transaction_decided": "with a transaction decided ({outcome}) and no marker sent",
    "transaction_marker": "when a marker of a transaction was written",
    "offset_committed": "when it had written a committed offset",
    "group_state": "when it had written a generation of a group",
    "log_cleaned": "when it had cleaned a log",
}
"""At which state the fault fired, by the name of the note; the fields are the note's."""


KINDS = ("fetch", "produce")
WITHOUT_RECORDS = ("create_topics", "metadata_read")
"""These operations are looked at if no client wrote or read records."""
RECOVERED = 0.9
"""A run has recovered in the first second after the fault with this share of the median before it."""

_WINDOWS = JobConfig()


@dataclass(frozen=True, slots=True)
class Window:
    """Latencies and rate in one part of the run. A figure is None if it has too few samples."""

    p50_us: int | None
    p99_us: int | None
    samples: int
    """Shown beside every figure."""
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
    outage_us: int | None
    """Longest time without a success that touches the fault."""
    first_ok_us: int | None
    """From the (last) end of the fault to the first success, worst hit."""
    recovery_us: int | None
    """From there to RECOVERED of the throughput before."""
    never_ok: bool = False
    """Clients went on trying after a hit, and nothing succeeded any more."""


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
        outage_us=_outage_of(findings, kind, hits),
        first_ok_us=_first_ok(findings, name, kind),
        recovery_us=_recovery(findings, kind, before, fault["until_us"]),
        never_ok=_never_ok(findings, name, kind),
    )


def disturbed_seconds(hits: Rows) -> set[int]:
    """The seconds in which a hit lasted or had just ended."""
    return {
        second
        for hit in hits
        for second in range(hit["at_us"] // 10**6, hit["until_us"] // 10**6 + _WINDOWS.settle_s + 1)
    }


def _window(findings: Findings, fault: str, kind: str, window: str, seconds: Sequence[int]) -> Window:
    row_key = (kind, "response", fault, window)
    keys = ("operation", "measure", "fault", "window")
    row = next((row for row in findings.percentiles if tuple(row[key] for key in keys) == row_key), None)
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


def _outage_of(findings: Findings, kind: str, hits: Rows) -> int | None:
    slack = _WINDOWS.settle_s * 1_000_000
    touching = [
        gap["gap_us"]
        for gap in findings.gaps
        if gap["f"] == kind
        and any(gap["from_us"] <= h["until_us"] + slack and gap["until_us"] >= h["at_us"] for h in hits)
    ]
    return max(touching, default=None)


def _first_ok(findings: Findings, fault: str, kind: str) -> int | None:
    first_ok = next((row for row in findings.first_ok if row["fault"] == fault and row["f"] == kind), None)
    if first_ok is None or first_ok["first_ok_us"] is None:
        return None
    return int(first_ok["first_ok_us"] - first_ok["until_us"])


def _never_ok(findings: Findings, fault: str, kind: str) -> bool:
    first_ok = next((row for row in findings.first_ok if row["fault"] == fault and row["f"] == kind), None)
    if first_ok is None or first_ok["first_ok_us"] is not None:
        return False
    tried = (row["second"] for row in findings.throughput if row["f"] == kind and row["type"] != "ok")
    return any(second > first_ok["until_us"] // 1_000_000 for second in tried)


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


TRANSACTION_APIS = (22, 24, 25, 26, 27, 28)
_SLOWS = ("link_delayed", "link_slowed", "link_sliced", "disk_slowed", "clock_stepped")
_FRAME_FAULTS = ("request_", "response_")
_STILL_WAITING_US = 5_000_000
"""Bounds the wait of a client for a response that was lost."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The one figure that the page shows for a fault."""

    value: str
    means: str
    """Follows the value as the rest of a phrase."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One fault."""

    fault: str
    at_us: int
    sentence: str
    figure: Figure | None
    nothing_lost: bool
    anomalies: int
    """The number of examples of violated guarantees that name it."""


def attacks(findings: Findings, verdict: Verdict, costs: Sequence[Impact]) -> list[Attack]:
    """The faults in the order in which they began. Rows that only report what became of a hit are none."""
    rows = [row for row in without_presets(findings.faults) if is_hit(row["kind"])]
    rows.sort(key=lambda row: (row["from_us"], row["name"]))
    is_nothing_lost = _nothing_lost(verdict)
    return [
        Attack(
            fault=row["name"],
            at_us=row["from_us"],
            sentence=fault_sentence(row),
            figure=_figure(findings, row, [cost for cost in costs if cost.fault == row["name"]]),
            nothing_lost=is_nothing_lost and not row["kind"].startswith(_FRAME_FAULTS),
            anomalies=_anomalies(verdict, row["name"]),
        )
        for row in rows
    ]


def _nothing_lost(verdict: Verdict) -> bool:
    states = [guarantee.status for guarantee in verdict.guarantees if guarantee.name in LOSSES]
    return "holds" in states and not any(state.startswith("broken") for state in states)


def _anomalies(verdict: Verdict, fault: str) -> int:
    named = [example.fault_name.split(" #")[0] for guarantee in verdict.guarantees for example in guarantee.examples]
    return named.count(fault)


_Measure = Callable[[Findings, Row, Sequence[Impact]], Figure | None]


def _figure(findings: Findings, row: Row, costs: Sequence[Impact]) -> Figure | None:
    """The first of the measures that this fault is about for which there is a number."""
    for measure in (*_about(row, target_of(row)), _outage_figure, _without_controller_figure):
        figure = measure(findings, row, costs)
        if figure is not None:
            return figure
    return None


def _about(row: Row, target: Target) -> tuple[_Measure, ...]:
    if target.state.startswith("download_"):
        return (_resumed_figure,)
    if target.state.startswith("transaction_") or row["api_key"] in TRANSACTION_APIS:
        return (_decided_figure,)
    if target.state.startswith(("offset_", "group_")):
        return (_next_commit_figure,)
    if target.is_controller:
        return (_without_controller_figure,)
    if row["kind"].startswith(_FRAME_FAULTS):
        return (_next_response_figure, _slowed_figure) if row["api_key"] == FETCH else (_slowed_figure,)
    return (_slowed_figure,) if row["kind"] in _SLOWS else ()


def _resumed_figure(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    node = row["target"].removeprefix("node-")
    for transfer in control_plane.transfers(findings):
        if str(transfer.node) == node and transfer.at_us <= row["until_us"] and transfer.finished and transfer.resumes:
            more = (
                f"came twice, as it went on at {words.size(transfer.resumed_at)} of {words.size(transfer.size_bytes)}"
            )
            return Figure(words.size(transfer.beyond_bytes), more)
    return None


def _decided_figure(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    longest_times = [
        around["longest_us"] for around in findings.transactions_around_faults if around["fault"] == row["name"]
    ]
    longest = max((around for around in longest_times if around is not None), default=None)
    return None if longest is None else Figure(words.brief(longest), "until the last open transaction was decided")


def _next_commit_figure(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    moved = [
        move["first_us"] - move["last_us"]
        for move in findings.coordinators
        if move["last_us"] <= row["until_us"] and move["first_us"] >= row["from_us"]
    ]
    return Figure(words.brief(max(moved)), "until the group's next commit") if moved else None


def _without_controller_figure(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    gone = [failover.without_us for failover in control_plane.failovers(findings) if failover.cause == row["name"]]
    if not gone:
        return None
    return Figure(words.brief(max(gone)), "until the next controller" + (", at worst" if len(gone) > 1 else ""))


def _next_response_figure(findings: Findings, row: Row, _: Sequence[Impact]) -> Figure | None:
    back = [
        recovery["recovered_us"]
        for recovery in findings.recoveries
        if row["from_us"] <= recovery["lost_us"] <= row["until_us"] + _STILL_WAITING_US
    ]
    return Figure(words.brief(max(back)), "at worst from a lost response to the next good one") if back else None


def _slowed_figure(_: Findings, __: Row, costs: Sequence[Impact]) -> Figure | None:
    for cost in sorted(costs, key=lambda cost: cost.operation != "produce"):
        if cost.before.p99_us is not None and cost.during.p99_us is not None:
            before, during = words.brief(cost.before.p99_us), words.brief(cost.during.p99_us)
            return Figure(during, f"p99 of {cost.operation}, {before} before")
    return None


def _outage_figure(_: Findings, __: Row, costs: Sequence[Impact]) -> Figure | None:
    named = {"produce": ("record", "acknowledged"), "fetch": ("fetch", "served")}
    for operation, (what, done) in named.items():
        for cost in costs:
            if cost.operation == operation and cost.never_ok:
                return Figure("never", f"again was a {what} {done}")
            if cost.operation == operation and cost.outage_us:
                return Figure(words.brief(cost.outage_us), f"until the next {done} {what}")
    return None
