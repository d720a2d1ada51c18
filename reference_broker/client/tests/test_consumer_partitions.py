"""Positions and records of partitions: the wait for an epoch, resets, truncation, offsets to commit."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.client.consumer_observer import PositionReset
from reference_broker.client.consumer_partitions import HeldPartitions, Phase
from reference_broker.client.offset_commits import CommittedOffset, OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import InvalidRecords
from reference_broker.records.record import Record, build
from reference_broker.wire.fetch import PartitionData

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def data(first: int, *values: str, leader_epoch: int = 3, **more: Any) -> PartitionData:
    records = build(
        [Record(timestamp_ms=1, value=value.encode()) for value in values],
        base_offset=first,
        leader_epoch=leader_epoch,
        **more,
    )
    return PartitionData(0, 0, 100, log_start_offset=0, records=records)


@pytest.fixture
def held() -> HeldPartitions:
    partitions = HeldPartitions()
    partitions.add((T0, T1))
    partitions.take_unplaced()
    return partitions


@pytest.mark.clause("M-10")
def test_all_partitions_wait_for_newest_epoch_of_offsets(held: HeldPartitions) -> None:
    held.learn_committed({T0: CommittedOffset(5), T1: CommittedOffset(6, metadata_epoch=9)}, 8)
    assert held.in_phase(Phase.WAITING) == [T0, T1]
    held.learn_epoch(8)
    assert held.is_waiting
    held.learn_epoch(9)
    assert (held.is_waiting, held.in_phase(Phase.READING)) == (False, [T0, T1])
    assert [held.state.positions[each].offset for each in (T0, T1)] == [5, 6]


@pytest.mark.clause("M-11")
def test_offsets_without_epoch_need_no_wait(held: HeldPartitions) -> None:
    held.learn_committed({T0: CommittedOffset(5, 2), T1: CommittedOffset(-1)}, -1)
    assert (held.in_phase(Phase.READING), held.in_phase(Phase.RESETTING)) == ([T0], [T1])
    assert held.state.positions[T0].leader_epoch == 2


def test_seek_needs_no_wait_and_overrides_committed_offset(held: HeldPartitions) -> None:
    held.place(T0, 30)
    held.learn_committed({T0: CommittedOffset(5, metadata_epoch=9), T1: CommittedOffset(6)}, -1)
    assert held.state.positions[T0].offset == 30
    assert not held.is_waiting


def test_dropped_partition_delays_no_other(held: HeldPartitions) -> None:
    held.learn_committed({T0: CommittedOffset(5), T1: CommittedOffset(6, metadata_epoch=9)}, 8)
    held.drop([T1])
    held.learn_epoch(8)
    assert held.in_phase(Phase.READING) == [T0]


def test_reset_is_reported_with_old_offset_and_reason(held: HeldPartitions) -> None:
    held.place(T0, 30)
    held.begin_reset(T0, "out_of_range")
    held.reset(T0, 2, -1, 7)
    held.reset(T1, 9, -1, 7)
    assert held.resets == [PositionReset(T0, 30, 2, "out_of_range", 7)]
    assert held.in_phase(Phase.UNPLACED) == [T1]


def test_truncation_moves_position_back_only(held: HeldPartitions) -> None:
    held.place(T0, 30, 4)
    held.truncated(T0, 3, 20, -1)
    assert (held.held[T0].given, held.state.positions[T0].leader_epoch) == (20, 3)
    held.truncated(T0, 3, 25, -1)
    assert held.held[T0].given == 20
    assert held.resets == [PositionReset(T0, 30, 20, "truncated", -1)]


def test_only_returned_records_are_to_be_committed(held: HeldPartitions) -> None:
    held.place(T0, 11)
    held.place(T1, 0)
    held.take(T0, data(10, "a", "b", "c"))
    assert [each.value for each in held.give(1)] == [b"b"]
    assert held.read_so_far([T0, T1], 6) == {T0: OffsetToCommit(12, 3, 6), T1: OffsetToCommit(0, -1, 6)}
    assert [(each.offset, each.value) for each in held.give(9)] == [(12, b"c")]
    assert held.read_so_far([T0])[T0].offset == 13


def test_batch_without_records_moves_offset_to_commit(held: HeldPartitions) -> None:
    held.place(T0, 10)
    held.take(T0, data(10, "a"))
    held.take(T0, data(11, "x", is_control=True))
    assert held.held[T0].given == 10
    assert len(held.give(9)) == 1
    assert held.read_so_far([T0])[T0].offset == 12


@pytest.mark.parametrize(
    ("byte", "bit"),
    [(22, 0x20), (23, 0x80)],
    ids=["it seems to be a control batch", "it seems to end before the position"],
)
def test_damaged_batch_before_position_is_rejected(held: HeldPartitions, byte: int, bit: int) -> None:
    held.place(T0, 10)
    first, second = data(10, "a"), data(11, "b")
    assert first.records is not None
    assert second.records is not None
    damaged = bytearray(first.records)
    damaged[byte] ^= bit
    with pytest.raises(InvalidRecords):
        held.take(T0, replace(first, records=bytes(damaged) + bytes(second.records)))
    assert held.state.positions[T0].offset == 10


def test_fetched_records_of_dropped_partition_are_discarded(held: HeldPartitions) -> None:
    held.place(T0, 10)
    held.take(T0, data(10, "a"))
    held.drop([T0])
    assert held.give(9) == []
    assert held.read_so_far([T0]) == {}
