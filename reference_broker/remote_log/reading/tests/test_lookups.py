"""Other look-ups in the tier: timestamps, and the state with which a replica starts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log import producer_state
from reference_broker.log.producer_state import ProducerStateEntry, ProducerStateManager, decode_snapshot
from reference_broker.log.tests.log_world import (
    START_MS,
    all_bytes,
    appended,
    at,
    batch_of,
    headers_of,
    offset_for_timestamp,
    opened,
)
from reference_broker.log.tests.tiered_world import TIERED
from reference_broker.log.timestamp_lookup import FoundOffset
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.remote_log.metadata.events import RemoteLogSegmentState, update_of
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.remote_log.reading.segment_readings import Auxiliary
from reference_broker.remote_log.reading.tests.reading_world import Tiered, by_epochs, plain, transactional
from reference_broker.wire.errors import ErrorCode

# --- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("RemoteLogManagerTest.testFindOffsetByTimestamp")
@pytest.mark.usefixtures("block_bytes")
def test_timestamp_lookup_equals_that_of_whole_log() -> None:
    tiered = Tiered(plain)
    start = tiered.log.local_log_start_offset
    for time in range(-5, 430):
        expected = offset_for_timestamp(tiered.twin, START_MS + time)
        assert tiered.time(START_MS + time) == (expected if expected is not None and expected.offset < start else None)


def test_first_of_many_batches_with_same_timestamp_is_found() -> None:
    def fill(log: UnifiedLog) -> None:
        for number in range(40):
            appended(log, batch_of(2, timestamps=[number // 12, number // 12]))

    tiered = Tiered(fill, replace(TIERED, segment_bytes=3000))
    assert (tiered.time(START_MS).offset, tiered.time(START_MS + 1).offset) == (0, 24)


def test_timestamp_lookup_skips_records_before_log_start() -> None:
    tiered = Tiered(plain)
    tiered.log.delete_records_before(20)
    reading = tiered.time(START_MS)
    assert isinstance(reading, FoundOffset)
    assert reading.offset == 20


@pytest.mark.parametrize("codec", [1, 4])
def test_timestamps_inside_compressed_batches_are_found(codec: int) -> None:
    def fill(log: UnifiedLog) -> None:
        for number in range(12):
            appended(log, batch_of(20, timestamps=[20 * number + n for n in range(20)], compression=codec))

    tiered = Tiered(fill)
    assert [tiered.time(START_MS + time).offset for time in (0, 7, 33, 99)] == [0, 7, 33, 99]


# --- auxiliary state ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("block_bytes")
def test_auxiliary_state_has_leader_epochs_and_producers() -> None:
    tiered = Tiered(transactional)
    log = tiered.log
    start = log.local_log_start_offset
    state = tiered.auxiliary(log.epoch_at(start - 1), start)
    assert isinstance(state, Auxiliary)
    assert state.offset == start
    assert list(state.epochs) == log.epochs.before(start)
    again = opened(MemoryDisk(), TIERED)
    again.start_from_remote(at(0), state.offset, log.log_start_offset, state.epochs, state.snapshot, state.producers)
    twin: Any = tiered.twin.disk
    path = tiered.twin.segments.snapshots.path(start)
    assert dict(decode_snapshot(state.snapshot)) == dict(decode_snapshot(bytes(twin.files[path])))


def test_auxiliary_state_without_segment_returns_error() -> None:
    tiered = Tiered(plain)
    assert tiered.auxiliary(77, tiered.log.local_log_start_offset) is ErrorCode.offset_out_of_range
    assert tiered.auxiliary(0, 10_000) is ErrorCode.offset_out_of_range


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("fill", [transactional, by_epochs])
def test_auxiliary_state_inside_segment_is_state_at_offset(fill: Callable[[UnifiedLog], object]) -> None:
    """A leader of another history may start there. The segment's state after that offset is omitted: the replica would
    have to truncate it, and to start in the tier again."""
    tiered, twin = Tiered(fill), Tiered(fill).twin
    inside = 0
    for header in headers_of(all_bytes(twin)):
        offset = header.base_offset
        if not 0 < offset <= tiered.log.local_log_start_offset:
            continue
        inside += offset not in twin.bases
        state = tiered.auxiliary(twin.epoch_at(offset - 1), offset)
        assert state.offset == offset
        assert list(state.epochs) == twin.epochs.before(offset)
        expected = naive_producers(twin, offset)
        found_by_id = {
            one: each._replace(batch_metadata=each.batch_metadata[-1:]) for one, each in decode_snapshot(state.snapshot)
        }
        assert found_by_id == {
            one: each._replace(batch_metadata=each.batch_metadata[-1:]) for one, each in expected.by_id.items()
        }
        again = opened(MemoryDisk(), TIERED)
        again.start_from_remote(at(0), offset, 0, state.epochs, state.snapshot, state.producers)
        assert again.producers.open_transactions == expected.open_transactions
        again.check_invariants()
    assert inside > 20


def naive_producers(log: UnifiedLog, offset: int) -> ProducerStateManager:
    """Apply every batch of the log before ``offset``, one after the other."""
    states, data = log.producers.empty_copy(), all_bytes(log)
    position = 0
    for header in headers_of(data):
        batch = data[position : position + header.size_bytes]
        position += header.size_bytes
        if header.base_offset < offset and header.is_control:
            states.record_control(header, header.base_offset, header.max_timestamp_ms, batch)
        elif header.base_offset < offset and header.producer_id >= 0:
            states.record(header, header.base_offset, header.max_timestamp_ms)
    return states


def test_auxiliary_state_of_deleted_records_returns_error() -> None:
    tiered = Tiered(transactional)
    first, second, third, *_ = tiered.tier.listed(tiered.partition)
    known = tiered.tier.known(tiered.partition)
    inside = next(
        header.base_offset for header in headers_of(all_bytes(tiered.twin)) if header.base_offset > third.start_offset
    )
    for gone in (second, first):
        assert not known.apply(update_of(gone, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1, 5, 0))
    assert tiered.auxiliary(0, inside).offset == inside, "what comes before is not needed"
    assert tiered.auxiliary(0, second.start_offset + 1) is ErrorCode.offset_out_of_range


def test_many_producers_are_decoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(log: UnifiedLog) -> None:
        for number in range(200):
            appended(log, batch_of(1, producer_id=number, producer_epoch=0, base_sequence=0))

    tiered = Tiered(fill)
    taken = most = 0
    monkeypatch.setattr(producer_state, "PRODUCERS_PER_SLICE", 10)
    deliver, make = tiered.node.ports.deliver, producer_state._producer

    def delivered(callback: Callable[[], None]) -> None:
        nonlocal taken
        taken = 0
        deliver(callback)

    def made(row: tuple[int, ...]) -> tuple[int, ProducerStateEntry]:
        nonlocal taken, most
        taken += 1
        most = max(most, taken)
        return make(row)

    tiered.node.ports.deliver = delivered  # type: ignore[method-assign]
    monkeypatch.setattr(producer_state, "_producer", made)
    start = tiered.log.local_log_start_offset
    found = tiered.auxiliary(0, start)
    assert 0 < most <= 20, "a slice, and the one that is about to be taken"
    assert list(found.producers.by_id) == list(range(start))
    again = opened(MemoryDisk(), TIERED)
    again.start_from_remote(at(0), start, 0, found.epochs, found.snapshot, found.producers)
    assert 0 < most <= 20, "nothing is decoded again"
    assert again.producers.by_id == found.producers.by_id
    again.check_invariants()


@pytest.mark.parametrize("kind", [ObjectKind.LEADER_EPOCHS, ObjectKind.PRODUCER_SNAPSHOT])
@pytest.mark.parametrize("damage", [b"", b"0\n0\n", b"0\n1\nx y\n", b"\x00\x01junk"])
def test_damaged_auxiliary_state_returns_error(kind: ObjectKind, damage: bytes) -> None:
    tiered = Tiered(plain)
    start = tiered.log.local_log_start_offset
    last = tiered.tier.listed(tiered.partition)[-1]
    tiered.tier.store_memory.objects[key_of(last, kind)] = damage
    assert tiered.auxiliary(last.leader_epochs[-1][0], start) is ErrorCode.corrupt_message
    assert tiered.node.value("BuildRemoteLogAuxStateErrorsPerSec") == 1
