"""Operations of a node's disk that fail: which ones a rule hits, what the node sees, and what is left as evidence."""

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.fault_times import FaultTimes
from chaos.checks.log.batches import read_batches
from chaos.interceptor.tests.intercepted import NOW, Ended, Log, interceptor, request, rule
from chaos.interceptor.watched_disk import WatchedDisk
from chaos.sim import timed_faults
from chaos.sim.tests.stub_machine import StubMachine
from chaos.sim.world import SimWorld
from reference_broker.core.events import Note, Sync, SyncFailed
from reference_broker.ports.disk import Disk, DiskError, MemoryDisk, UndoFailed
from scenarios.loader import find
from scenarios.model import Fault, Match, Range
from scenarios.vocabulary import DISK_OPERATIONS

OPERATIONS: dict[str, tuple[Callable[[Disk], object], set[str]]] = {
    "list": (lambda disk: disk.list(""), {"open", "list"}),
    "exists": (lambda disk: disk.exists("a"), {"stat"}),
    "size": (lambda disk: disk.size("a"), {"open", "stat"}),
    "append": (lambda disk: disk.append("a", [b"4"]), {"open", "write"}),
    "read": (lambda disk: disk.read("a", 0, 1), {"open", "read"}),
    "truncate": (lambda disk: disk.truncate("a", 0), {"open", "truncate"}),
    "write": (lambda disk: disk.write("a", b"4"), {"open", "write"}),
    "rename": (lambda disk: disk.rename("a", "b"), {"rename"}),
    "delete": (lambda disk: disk.delete("a"), {"delete"}),
    "make_durable": (lambda disk: disk.make_durable("a"), {"open", "sync"}),
}


def holding() -> MemoryDisk:
    return MemoryDisk({"a": bytearray(b"123")})


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("operation", DISK_OPERATIONS)
def test_operation_fails_by_each_of_its_names_and_changes_nothing(operation: str, name: str) -> None:
    act, names = OPERATIONS[name]
    log, disk = Log(), holding()
    watched = interceptor(log, rule("disk_error", on="disk", match=Match(operation=operation))).watch(disk)
    if operation not in names:
        act(watched)
        assert not log.rows
        return
    with pytest.raises(DiskError, match=r"Input/output error .injected by rule.") as failure:
        act(watched)
    assert failure.value.errno == errno.EIO
    assert disk.files == {"a": b"123"}
    assert len(log.rows) == 1
    assert log.rows[0].detail.endswith(": EIO")


def test_every_operation_of_the_port_is_hit_without_a_name() -> None:
    for act, _ in OPERATIONS.values():
        with pytest.raises(DiskError):
            act(interceptor(Log(), rule("disk_error", on="disk")).watch(holding()))


def test_error_is_the_one_that_the_scenario_names_and_the_nth_of_the_path_is_hit() -> None:
    log = Log()
    failing = rule("disk_error", on="disk", match=Match(path="b*", operation="open"), error="EMFILE", nth=2)
    watched = interceptor(log, failing).watch(MemoryDisk({"a": bytearray(), "b": bytearray()}))
    watched.read("a", 0, 1)
    watched.read("b", 0, 1)
    with pytest.raises(DiskError, match="Too many open files") as failure:
        watched.read("b", 0, 1)
    watched.read("b", 0, 1)
    assert failure.value.errno == errno.EMFILE
    assert [row.detail for row in log.rows] == ["read b: EMFILE"]


def test_reads_of_a_check_are_no_operations_of_the_node() -> None:
    log = Log()
    watched = interceptor(log, rule("disk_error", on="disk", match=Match(operation="read"), nth=1)).watch(holding())

    class File:
        def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:  # noqa: ARG002
            return watched.read("a", 0, 3)

    assert list(read_batches(File(), 0, 1)) == []
    assert not log.rows
    with pytest.raises(DiskError):
        watched.read("a", 0, 3)


@pytest.mark.parametrize("name", ["list", "exists", "size", "read"])
def test_check_looks_at_files_without_using_up_a_fault(name: str) -> None:
    act, log = OPERATIONS[name][0], Log()
    watched = interceptor(log, rule("disk_error", on="disk", nth=1)).watch(holding())
    with WatchedDisk.unwatched():
        act(watched)
    assert not log.rows
    with pytest.raises(DiskError):
        act(watched)


def test_rename_is_matched_by_either_name() -> None:
    for pattern in ("a", "new"):
        watched = interceptor(Log(), rule("disk_error", on="disk", match=Match(path=pattern))).watch(holding())
        with pytest.raises(DiskError):
            watched.rename("a", "new")


def test_node_dies_before_an_operation_of_its_disk() -> None:
    disk = holding()
    killed = interceptor(Log(), rule("node_killed", on="disk", match=Match(operation="delete")))
    with pytest.raises(Ended):
        killed.watch(disk).delete("a")
    assert disk.files == {"a": b"123"}


def test_sync_that_fails_is_taken_away_and_its_failure_is_reported_after_the_delay() -> None:
    log = Log()
    failing = rule("disk_error", on="disk", match=Match(operation="sync", path="x"), delay_ms=Range(7, 7))
    subject = interceptor(log, failing)
    other, hit, note = Sync(1, ("a",)), Sync(2, ("a", "x")), Note("n", ())
    assert list(subject.after(NOW, request(), [other, hit, note])) == [other, note]
    (_, row), lost, (action, event, delay_us) = log.calls
    assert getattr(row, "detail", "") == "sync a and 1 more: EIO"
    assert lost == ("sync_fails", "a", "x")
    assert (action, delay_us) == ("deliver_later", 7000)
    assert isinstance(event, SyncFailed)
    assert event.token == 2
    assert "cannot sync a: Input/output error" in event.reason
    assert list(subject.before(NOW, event)) == [event]


@pytest.mark.parametrize("undo_fails", [False, True])
def test_error_in_the_middle_of_a_write_leaves_its_bytes_only_if_the_undo_fails(undo_fails: bool) -> None:
    log, disk = Log(), holding()
    torn = rule("disk_error", on="disk_write", cut_bytes=Range(2, 2), undo_fails=undo_fails)
    with pytest.raises(UndoFailed if undo_fails else DiskError):
        interceptor(log, torn).watch(disk).append("a", [b"456"])
    assert bytes(disk.files["a"]) == (b"12345" if undo_fails else b"123")
    assert log.rows[0].detail == "a at 3, 2 of 3 bytes"


def test_error_in_the_middle_of_a_replacement_leaves_a_part_of_the_new_content() -> None:
    disk = holding()
    with pytest.raises(DiskError):
        interceptor(Log(), rule("disk_error", on="disk_write", cut_bytes=Range(2, 2))).watch(disk).write("a", b"new")
    assert disk.files["a"] == b"ne"


@pytest.mark.thorough
@pytest.mark.parametrize("operation", [None, "sync", "rename"])
def test_failed_sync_on_one_replica_guarantees_only_flushed_writes(operation: str | None) -> None:
    def promised(**config: str) -> bool:
        cluster = replace(found.cluster, config=tuple(config.items()))
        return SimWorld(replace(found, cluster=cluster, faults=(failing,)), 1).history.writes_guaranteed

    found, failing = find("failed-sync"), rule("disk_error", on="disk", match=Match(operation=operation), node=0)
    assert promised(**{"log.flush.interval.messages": "1"})
    assert promised() is (operation == "rename")


def test_slow_names_are_slow_syncs_of_names_alone_in_the_simulator() -> None:
    machine = StubMachine()
    fault = Fault("f", "disk_slowed", at_s=1.0, delay_ms=Range(70, 70), names_only=True)
    nowhere: Any = None
    context = timed_faults.SimFaultContext(machine.as_machine(), (), nowhere, FaultTimes())
    heal = timed_faults.begin(fault, context, 1_000_000)
    assert (machine.names_extra_us, machine.sync_extra_us) == (70_000, 0)
    heal()
    assert machine.names_extra_us == 0
