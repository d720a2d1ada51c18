"""Fetches of records that are in the remote tier only: parked fetches, their responses, concurrent changes."""

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.apis.records.fetch_partition import Lookup, RemoteReads
from reference_broker.apis.records.tests.sliced_fetches import slices_of_one
from reference_broker.apis.tests.fetch_world import LARGE, FetchWorld, partitions_of, two_topics
from reference_broker.records.record import Record, build
from reference_broker.remote_log.reading.reader import RemoteRecords
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import AbortedTransaction, FetchPartition

HERE_FROM = 50


class FakeReader:
    """``reads`` has the pending reads: offset, limit, whether of committed records, and the callback for the result.
    ``abandoned`` has the offsets whose reads were abandoned."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, bool, Callable[[Any], None]]] = []
        self.abandoned: list[int] = []

    def read(
        self, _log: object, _index: int, offset: int, limit: int, done: Callable[[Any], None], *, is_committed: bool
    ) -> Callable[[], None]:
        self.reads.append((offset, limit, is_committed, done))
        return lambda: self.abandoned.append(offset)

    def complete(self, result: RemoteRecords | ErrorCode, at: int = 0) -> None:
        self.reads.pop(at)[3](result)


def tiered() -> tuple[FetchWorld, FakeReader]:
    """Return a world whose partition a-0 has its records before 50 in the tier. Partition b-0 is a plain one."""
    world, reader = two_topics(), FakeReader()
    remote_log: Any = SimpleNamespace(reader=reader)
    world.broker.remote_log = remote_log
    world.append("a", records=100)
    world.log("a").here_from = HERE_FROM
    return world, reader


def batches(offset: int, count: int = 1, aborted: list[AbortedTransaction] | None = None) -> RemoteRecords:
    data = [build([Record(timestamp_ms=0, key=b"k", value=b"v")], base_offset=offset + at) for at in range(count)]
    return RemoteRecords(b"".join(data), aborted)


def test_fetch_waits_for_tier_although_other_partitions_have_data() -> None:
    world, reader = tiered()
    world.append("b")
    call = world.fetch(wanted={("a", 0): 10, ("b", 0): 0}, max_wait_ms=0)
    world.pass_ms(400)
    assert call.waiting
    assert reader.reads[0][:3] == (10, LARGE, False)
    reader.complete(batches(10))
    response = partitions_of(call.response)
    assert response["a", 0].records == batches(10).records
    assert response["b", 0].records
    assert (response["a", 0].high_watermark, response["a", 0].error_code) == (100, ErrorCode.none)


def test_remote_reads_of_all_partitions_are_sent_in_one_response() -> None:
    world, reader = tiered()
    world.append("a", 1, records=100)
    world.log("a", 1).here_from = HERE_FROM
    call = world.fetch(wanted={("a", 0): 10, ("a", 1): 20}, max_wait_ms=9000)
    reader.complete(batches(20), at=1)
    assert call.waiting
    reader.complete(batches(10))
    assert [data.records for data in partitions_of(call.response).values()] == [
        batches(10).records,
        batches(20).records,
    ]


@pytest.mark.parametrize("session", [False, True])
def test_remote_read_timeout_returns_no_records_and_next_fetch_retries(session: bool) -> None:
    world, reader = tiered()
    session_id = world.open_session({("a", 0): 60}) if session else 0
    wanted: Any = {("a", 0): 10}
    call = world.fetch(session_id, 1 if session else -1, wanted, max_wait_ms=9000)
    world.pass_ms(499)
    assert call.waiting
    world.pass_ms(1)
    assert all(not data.records and not data.error_code for data in partitions_of(call.response).values())
    assert reader.abandoned == [10]
    reader.complete(batches(10))  # A late result has no effect.
    again = world.fetch(session_id, 2 if session else -1, {} if session else wanted, max_wait_ms=9000)
    assert again.waiting
    reader.complete(batches(10))
    assert partitions_of(again.response)["a", 0].records == batches(10).records


def test_session_reads_tier_then_local_log() -> None:
    world, reader = tiered()
    session_id = world.open_session({("a", 0): 60})
    for number, offset in enumerate((10, 11), 1):
        call = world.fetch(session_id, number, {("a", 0): offset}, max_wait_ms=9000)
        reader.complete(batches(offset))
        assert partitions_of(call.response)["a", 0].records == batches(offset).records
    call = world.fetch(session_id, 3, {("a", 0): HERE_FROM})
    assert partitions_of(call.response)["a", 0].records
    assert not reader.reads


def test_partition_omitted_by_limit_is_read_again() -> None:
    """The response limit leaves no room for the second partition. The session's next request names neither."""
    world, reader = tiered()
    world.append("a", 1, records=100)
    world.log("a", 1).here_from = HERE_FROM
    session_id = world.open_session({("a", 0): 60, ("a", 1): 60}, max_bytes=0)
    size = len(batches(10).records)
    call = world.fetch(session_id, 1, {("a", 0): 10, ("a", 1): 20}, max_bytes=size, max_wait_ms=100)
    reader.complete(batches(10))
    reader.complete(batches(20))
    partitions = partitions_of(call.response)
    assert sum(bool(data.records) for data in partitions.values()) == 1
    world.fetch(session_id, 2, max_bytes=size, max_wait_ms=100)
    assert sorted(read[0] for read in reader.reads) == [10, 20]


def test_remote_records_are_cut_to_whole_batches_within_limit() -> None:
    world, reader = tiered()
    size = len(batches(10).records)
    call = world.fetch(wanted={("a", 0): FetchPartition(0, 10, 2 * size + 1)}, max_bytes=2 * size + 1)
    reader.complete(batches(10, 3))
    assert partitions_of(call.response)["a", 0].records == batches(10, 2).records


@pytest.mark.clause("X-4", "X-5")
def test_read_committed_from_tier_returns_aborted_transactions() -> None:
    world, reader = tiered()
    world.log("a").lso_hold = 11
    aborted = [AbortedTransaction(7, 3)]
    call = world.fetch(wanted={("a", 0): 10}, isolation_level=1)
    assert reader.reads[0][2] is True
    reader.complete(batches(10, 2, aborted))
    data = partitions_of(call.response)["a", 0]
    assert (data.records, data.aborted_transactions) == (batches(10).records, aborted)


@pytest.mark.parametrize("error", [ErrorCode.unknown_server_error, ErrorCode.offset_out_of_range])
def test_remote_read_error_fails_only_its_partition(error: ErrorCode) -> None:
    world, reader = tiered()
    world.append("b")
    call = world.fetch(wanted={("a", 0): 10, ("b", 0): 0})
    reader.complete(error)
    partitions = partitions_of(call.response)
    assert partitions["a", 0].error_code == error
    assert partitions["b", 0].records


def test_follower_fetch_returns_offset_moved_to_tiered_storage() -> None:
    world, reader = tiered()
    call = world.fetch(wanted={("a", 0): 10}, replica_id=8)
    data = partitions_of(call.response)["a", 0]
    assert data.error_code == ErrorCode.offset_moved_to_tiered_storage
    assert (data.log_start_offset, data.records or b"") == (0, b"")
    assert not reader.reads


@pytest.mark.clause("F-14")
def test_state_after_offset_moved_to_tiered_storage_is_sent() -> None:
    """The state is sent although the error came with the same offsets."""
    world, _ = tiered()
    end = world.log("a").log_end_offset
    opened = world.fetch(0, 0, {("a", 0): 10}, replica_id=8).response
    assert partitions_of(opened)["a", 0].error_code == ErrorCode.offset_moved_to_tiered_storage
    following = world.fetch(opened.session_id, 1, {("a", 0): end}, replica_id=8).response
    assert partitions_of(following)["a", 0].error_code == ErrorCode.none
    assert partitions_of(world.fetch(opened.session_id, 2, {}, replica_id=8).response) == {}


def test_tiered_offset_without_remote_log_returns_out_of_range() -> None:
    world, _ = tiered()
    world.broker.remote_log = None
    assert (
        partitions_of(world.fetch(wanted={("a", 0): 10}).response)["a", 0].error_code == ErrorCode.offset_out_of_range
    )


def test_closed_connection_abandons_remote_read() -> None:
    world, reader = tiered()
    call = world.fetch(wanted={("a", 0): 10}, max_wait_ms=9000)
    call.hang_up()
    assert reader.abandoned == [10]
    reader.complete(batches(10))
    assert not call.responses


def test_parked_fetch_reads_records_that_move_to_tier() -> None:
    world, reader = tiered()
    call = world.fetch(wanted={("a", 0): 99}, min_bytes=LARGE, max_wait_ms=9000)
    assert call.waiting
    world.log("a").here_from = 100
    world.partition("a").changed()
    assert reader.reads[0][0] == 99
    reader.complete(batches(99))
    assert partitions_of(call.response)["a", 0].records == batches(99).records


def test_closed_connection_of_fetch_with_moved_records_leaves_no_watchers() -> None:
    """The fetch's session goes too, since no client knows its ID."""
    world, reader = tiered()
    call = world.fetch(wanted={("a", 0): 60, ("b", 0): 0}, min_bytes=LARGE, max_wait_ms=9000)
    assert call.waiting
    assert world.partition("b").watchers
    world.log("a").here_from = 70
    world.partition("a").changed()
    call.hang_up()
    world.pass_ms(10_000)
    assert reader.abandoned == [60]
    assert not world.partition("a").watchers
    assert not world.partition("b").watchers
    assert not world.ports.timers


class Named:
    """A cached partition with the fields that a read needs."""

    index, fetch_offset, max_bytes = 0, 10, LARGE


class Held(list[AbortedTransaction]):
    """A list that can be referred to weakly, unlike bytes."""


@pytest.mark.parametrize("is_completed", [True, False])
def test_remote_records_are_released_with_their_fetch(is_completed: bool) -> None:
    """The abandoning side refers to the read, which refers to its callback. Records of many MiB would stay until the
    garbage collector finds such cycles, which is seldom in a large process."""
    held = Held()
    end = weakref.ref(held)
    reader: Any = SimpleNamespace(done=None, holds=None if is_completed else held)

    def read(*arguments: Any, is_committed: bool) -> Callable[[], None]:
        done = reader.done = arguments[-1]
        holds = reader.holds
        return lambda: done(holds or is_committed)

    reader.read = read
    cached: Any = Named()
    log: Any = object()
    gc.collect()
    gc.disable()
    try:
        reads = RemoteReads(reader, False, LARGE, lambda _: None)
        reads.look_up(cached, Lookup(None), log)
        if is_completed:
            reader.done(batches(10)._replace(aborted=held))
        reads.end()
        reader.done = reader.read = reader.holds = None
        del held, read
        assert end() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("session", [False, True])
def test_connection_closed_between_slices_abandons_remote_reads(session: bool) -> None:
    """The first slices have started reads, and the fetch is not parked yet. A session takes up the rest."""
    world, reader = tiered()
    world.append("a", 1, records=100)
    world.log("a", 1).here_from = HERE_FROM
    session_id = world.open_session({("a", 0): 60, ("a", 1): 60, ("b", 0): 0}) if session else 0
    with slices_of_one():
        wanted: Any = {("a", 0): 10, ("a", 1): 20, ("b", 0): 0}
        call = world.fetch(session_id, 1 if session else -1, wanted, max_wait_ms=9000)
        while not reader.reads:
            world.ports.timers.pop(min(world.ports.timers))[1]()
        call.hang_up()
        world.pass_ms(100)
    assert reader.abandoned == [read[0] for read in reader.reads]
    if session:
        world.fetch(session_id, 2, max_wait_ms=9000)
        assert {10, 20} <= {read[0] for read in reader.reads}
