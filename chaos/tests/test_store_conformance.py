"""One suite for each implementation of the store port. S3 is played by versitygw, with Toxiproxy before it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.live.s3_server import S3Server
from chaos.sim.agenda import Agenda
from chaos.sim.store import SimStore
from chaos.sim.tests.stub_machine import StubMachine
from reference_broker.core.events import StoreCall, StoreDone, StoreFailed
from reference_broker.ports.disk import Disk, MemoryDisk
from reference_broker.ports.store import (
    LARGEST_KEY_BYTES,
    Delete,
    FailureKind,
    Get,
    ListObjects,
    MemoryStore,
    Put,
    PutFile,
    StoredObject,
    StoreFailure,
    StoreOperation,
    StoreResult,
)
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.object_store import Folder, Objects

CarryOut = Callable[[StoreOperation], StoreResult | StoreFailure]
KEY = "topic-0-AbC_-9==/00000000000000000000-x_Y-.log"
BAD_KEYS = ["", "/a", "a/", "a//b", "a/../b", ".", "..", "../b", "a/.", "a#1", "a b", "a\\b", "é", "a\n", "x" * 1025]


@dataclass
class Played:
    """A store, and the disk of the node that calls it."""

    carry_out: CarryOut
    disk: Disk

    def kind(self, operation: StoreOperation) -> FailureKind | None:
        result = self.carry_out(operation)
        return result.kind if isinstance(result, StoreFailure) else None

    def content(self, key: str) -> Any:
        return self.carry_out(Get(key, 0, 1 << 30))


def memory(_: Path) -> Played:
    store, disk = MemoryStore(), MemoryDisk()
    return Played(lambda operation: store.carry_out(operation, disk), disk)


def simulated(_: Path) -> Played:
    agenda, disk = Agenda(), MemoryDisk()
    machine = StubMachine(disk)
    store = SimStore(agenda, Random(1))

    def carry_out(operation: StoreOperation) -> StoreResult | StoreFailure:
        store.call(machine.as_machine(), StoreCall(5, operation))
        agenda.run_until(agenda.now_us + 60_000_000)
        ((_, event),) = machine.delivered
        machine.delivered.clear()
        assert isinstance(event, StoreDone | StoreFailed)
        assert event.token == 5
        return event.failure if isinstance(event, StoreFailed) else event.result

    return Played(carry_out, disk)


def folder(tmp_path: Path) -> Played:
    disk = FileDisk(tmp_path / "node", 64)
    store = Objects(Folder(tmp_path / "remote"), tmp_path / "node")
    return Played(lambda operation: store.carry_out(operation, lambda: None), disk)


MAKERS: dict[str, Callable[[Path], Played]] = {"memory": memory, "simulated": simulated, "folder": folder}


@pytest.fixture(params=[*MAKERS, pytest.param("s3", marks=[pytest.mark.live, pytest.mark.nightly])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Played:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        objects = Objects(server.bucket(prefix=tmp_path.name.replace("[", "-")), tmp_path)
        return Played(lambda operation: objects.carry_out(operation, lambda: None), FileDisk(tmp_path, 64))
    return MAKERS[request.param](tmp_path)


def test_get_reads_object_whole_and_in_ranges(store: Played) -> None:
    assert store.carry_out(Put(KEY, b"0123456789")) is None
    assert store.carry_out(Get(KEY, 0, 10)) == b"0123456789"
    assert store.carry_out(Get(KEY, 3, 4)) == b"3456"


def test_range_is_short_only_at_the_end_and_empty_behind_it(store: Played) -> None:
    store.carry_out(Put(KEY, b"0123456789"))
    assert store.carry_out(Get(KEY, 8, 4)) == b"89"
    assert store.carry_out(Get(KEY, 9, 1)) == b"9"
    assert store.carry_out(Get(KEY, 10, 1)) == b""
    assert store.carry_out(Get(KEY, 1000, 5)) == b""
    assert store.carry_out(Get(KEY, 4, 0)) == b""


def test_empty_object_is_there(store: Played) -> None:
    store.carry_out(Put(KEY, b""))
    assert store.carry_out(Get(KEY, 0, 5)) == b""
    assert store.carry_out(ListObjects("")) == (StoredObject(KEY, 0),)


def test_get_of_absent_key_is_missing(store: Played) -> None:
    store.carry_out(Put("a/b/c", b"x"))
    for key in ("a", "a/b", "a/b/d", "other"):
        assert store.kind(Get(key, 0, 5)) is FailureKind.MISSING, key
        assert store.kind(Get(key, 0, 0)) is FailureKind.MISSING, key


def test_put_replaces_the_whole_object(store: Played) -> None:
    store.carry_out(Put(KEY, b"a long first content"))
    store.carry_out(Put(KEY, b"short"))
    assert store.content(KEY) == b"short"


def test_put_if_absent_never_replaces_and_a_deleted_key_is_absent(store: Played) -> None:
    assert store.carry_out(Put(KEY, b"first", if_absent=True)) is None
    assert store.kind(Put(KEY, b"other", if_absent=True)) is FailureKind.EXISTS
    assert store.content(KEY) == b"first"
    store.carry_out(Delete((KEY,)))
    assert store.carry_out(Put(KEY, b"third", if_absent=True)) is None
    assert store.content(KEY) == b"third"


def test_file_is_put_up_to_the_requested_size(store: Played) -> None:
    content = bytes(range(251)) * 100
    store.disk.append("topic-0/a.log", [content])
    assert store.carry_out(PutFile(KEY, "topic-0/a.log", len(content) - 7)) is None
    assert store.content(KEY) == content[:-7]
    assert store.carry_out(PutFile(KEY, "topic-0/a.log", 0)) is None
    assert store.content(KEY) == b""


def test_file_larger_than_the_parts_in_which_it_is_sent(store: Played) -> None:
    content = bytes(range(251)) * 50_000
    store.disk.append("a.log", [content])
    assert store.carry_out(PutFile(KEY, "a.log", len(content) - 1)) is None
    assert store.carry_out(ListObjects("")) == (StoredObject(KEY, len(content) - 1),)
    assert store.carry_out(Get(KEY, 9_345_678, 1000)) == content[9_345_678:9_346_678]
    assert store.content(KEY) == content[:-1]


def test_file_that_is_gone_or_too_short_is_missing_and_leaves_what_was_there(store: Played) -> None:
    store.disk.append("a.log", [b"0123"])
    store.carry_out(Put(KEY, b"before"))
    assert store.kind(PutFile(KEY, "b.log", 4)) is FailureKind.MISSING
    assert store.kind(PutFile(KEY, "a.log", 5)) is FailureKind.MISSING
    assert store.content(KEY) == b"before"


def test_list_is_sorted_and_returns_whole_names_at_any_depth(store: Played) -> None:
    for key in ("b/2", "b/10", "b/1/x", "b-c/1", "a/1", "b.c", "B/1"):
        store.carry_out(Put(key, key.encode()))
    assert store.carry_out(ListObjects("b")) == (("b/1/x", 5), ("b/10", 4), ("b/2", 3))
    assert [key for key, _ in everything(store)] == ["B/1", "a/1", "b-c/1", "b.c", "b/1/x", "b/10", "b/2"]
    assert store.carry_out(ListObjects("b/1")) == (("b/1/x", 5),)
    assert store.carry_out(ListObjects("nothing")) == ()


@pytest.mark.thorough
def test_list_of_more_objects_than_a_page_of_s3_has(store: Played) -> None:
    keys = [f"many/{number:020d}" for number in range(1100)]
    for key in keys:
        store.carry_out(Put(key, b"."))
    assert [key for key, _ in everything(store)] == keys
    assert store.carry_out(Delete(tuple(keys))) is None
    assert everything(store) == ()


def test_delete_removes_exactly_the_named_objects(store: Played) -> None:
    for key in ("a/1", "a/2", "a/3", "a/10"):
        store.carry_out(Put(key, b"x"))
    assert store.carry_out(Delete(("a/1", "a/never", "a/3"))) is None
    assert everything(store) == (("a/10", 1), ("a/2", 1))
    assert store.carry_out(Delete(())) is None
    assert store.carry_out(Delete(("a",))) is None, "a folder is no object"
    assert everything(store) == (("a/10", 1), ("a/2", 1))


@pytest.mark.parametrize("key", BAD_KEYS)
def test_invalid_key_is_refused_by_every_operation(store: Played, key: str) -> None:
    store.disk.append("a.log", [b"0123"])
    operations: list[StoreOperation] = [Put(key, b"x"), PutFile(key, "a.log", 4), Get(key, 0, 1), Delete(("good", key))]
    if key:
        operations.append(ListObjects(key))
    for operation in operations:
        assert store.kind(operation) is FailureKind.REFUSED, operation
    assert everything(store) == ()


def test_key_of_the_largest_length_can_be_put_and_listed(store: Played) -> None:
    key = "/".join(["x" * 204] * 5)
    assert len(key) == LARGEST_KEY_BYTES
    assert store.carry_out(Put(key, b"x")) is None
    assert everything(store) == ((key, 1),)


def everything(store: Played) -> Any:
    return store.carry_out(ListObjects(""))
