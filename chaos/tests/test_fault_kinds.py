"""Every kind of fault is injected in both worlds, has its words in the report, and is in the documentation."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.tests.intercepted import NOW, Ended, Log, interceptor, peer_response, rule, send
from chaos.interceptor.tests.test_wire_damage import fetched, produce
from chaos.live.fault_scheduler import BEGIN
from chaos.sim import fault_scheduler, swarm, timed_faults
from reference_broker.core.events import Closed, Note, StoreCall, StoreDone
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import ListObjects, Put, StoredObject
from reports.jobs.guarantee_job import LOSING_KINDS
from reports.jobs.leadership import ENDS_A_PROCESS
from reports.page.faults import fault_sentence
from scenarios.fault_kinds import FAULT_KINDS, KINDS_AT, STATES, SWARM_KINDS, TIMED_KINDS
from scenarios.model import Match, Range

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_real_processes_have_each_kind_at_a_time_that_is_not_only_simulated() -> None:
    assert {kind for kind in TIMED_KINDS if not FAULT_KINDS[kind].only_simulated} == set(BEGIN)


def test_simulator_has_each_kind_at_a_time() -> None:
    assert set(TIMED_KINDS) == set(timed_faults.BEGIN) | set(fault_scheduler.IN_STEPS)


def test_swarm_draws_each_kind_that_it_may_name() -> None:
    assert {kind for kind in SWARM_KINDS if not FAULT_KINDS[kind].hits_link} == set(swarm.DRAW)


def at_request(subject: Interceptor) -> Iterator[object]:
    yield from subject.before(NOW, produce())


def at_reply(subject: Interceptor) -> Iterator[object]:
    given = fetched()
    yield from subject.after(NOW, Closed(0), (given._replace(tag=given.tag._replace(role="client")),))


def at_peer_reply(subject: Interceptor) -> Iterator[object]:
    for token in (1, 2):
        subject.after(NOW, Closed(1), [send(token)])
        yield from subject.before(NOW, peer_response(token))


def at_disk(subject: Interceptor) -> Iterator[object]:
    yield subject.watch(MemoryDisk({"a": bytearray(b"old")})).read("a", 0, 3)


def at_disk_write(subject: Interceptor) -> Iterator[object]:
    disk = MemoryDisk()
    subject.watch(disk).write("a", b"abc")
    yield disk.files["a"]


def at_store(subject: Interceptor) -> Iterator[object]:
    yield from subject.after(NOW, Closed(1), [StoreCall(7, Put("a", b"x"))])


def at_store_result(subject: Interceptor) -> Iterator[object]:
    for token, operation in ((7, Put("a", b"x")), (8, ListObjects(""))):
        subject.after(NOW, Closed(1), [StoreCall(token, operation)])
        yield from subject.before(NOW, StoreDone(token, (StoredObject("a", 1),) if token == 8 else None))


def at_note(subject: Interceptor) -> Iterator[object]:
    yield from subject.after(NOW, Closed(1), [Note("voted", ())])


def at_decision(subject: Interceptor) -> Iterator[object]:
    subject.decided(NOW, "session-epoch=expected")
    yield from ()


AT: dict[str, Callable[[Interceptor], Iterator[object]]] = {
    "request": at_request,
    "response": at_reply,
    "peer_response": at_peer_reply,
    "disk": at_disk,
    "disk_write": at_disk_write,
    "store": at_store,
    "store_result": at_store_result,
    "note": at_note,
    "decision": at_decision,
}


def what_happens(on: str, *rules: Any) -> tuple[list[object], list[tuple[object, ...]]]:
    """Return what the node, its client or its disk got, and the calls of the driver apart from the evidence."""
    log, got = Log(), list[object]()
    try:
        got.extend(AT[on](interceptor(log, *rules)))
    except (Ended, OSError) as ended:
        got.append(ended)
    assert [row.kind for row in log.rows] == [each.kind for each in rules], "each fault leaves evidence"
    return got, [call for call in log.calls if call[0] != "report"]


@pytest.mark.parametrize(("on", "kind"), [(on, kind) for on in STATES for kind in KINDS_AT[on]])
def test_fault_at_a_state_changes_what_the_node_its_client_or_its_disk_gets(on: str, kind: str) -> None:
    match = Match(note="voted") if on == "note" else Match()
    if kind == "store_listed_late":
        match = Match(operation="list")
    given = rule(kind, on, match, code=6, delay_ms=Range(5, 5), cut_bytes=Range(1, 1), total=1)
    assert what_happens(on, given) != what_happens(on)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_report_describes_each_fault_kind(kind: str) -> None:
    row = {"name": "f", "kind": kind, "target": "node-1", "detail": "", "hits": 1, "api_key": -1}
    sentence = fault_sentence({**row, "from_us": 0, "until_us": 1_000_000})
    assert f"was hit ({kind.replace('_', ' ')})" not in sentence, sentence


def test_report_lists_kinds_that_end_a_process() -> None:
    ends = {kind.name for kind in FAULT_KINDS.values() if kind.ends_node and not kind.shown_at_end}
    assert ends == set(ENDS_A_PROCESS)


def test_report_counts_kinds_that_can_lose_records() -> None:
    losing = {kind.name for kind in FAULT_KINDS.values() if kind.ends_node or kind.cuts or kind.changes_files}
    assert "host_lost" in losing
    assert {name for name in losing if not re.search(LOSING_KINDS, name)} == set()


def test_documentation_has_how_each_kind_at_a_time_is_done_with_real_processes() -> None:
    named = set(re.findall(r"[a-z]+(?:_[a-z]+)+", (DOCS / "live-runs.md").read_text(encoding="utf-8")))
    assert set(BEGIN) <= named
