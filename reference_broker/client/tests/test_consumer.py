"""Effects of responses on positions."""

from typing import Any

import pytest

from reference_broker.client.consumer import ConsumerState
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.record import Record, build
from reference_broker.wire.fetch import PartitionData

FOO0 = TopicPartition("foo", 0)


def batch(first: int, count: int, **more: Any) -> bytes:
    return build([Record(timestamp_ms=1, value=b"v")] * count, base_offset=first, **more)


def response(*batches: bytes, high_watermark: int = 100, log_start: int = 0) -> PartitionData:
    return PartitionData(0, 0, high_watermark, log_start_offset=log_start, records=b"".join(batches))


@pytest.fixture
def state() -> ConsumerState:
    consumer = ConsumerState()
    consumer.seek(FOO0, 10)
    return consumer


def test_batches_move_position_behind_last_record(state: ConsumerState) -> None:
    taken = state.take(FOO0, response(batch(10, 3), batch(13, 2, leader_epoch=4)))
    assert [(each.header.base_offset, each.from_offset) for each in taken] == [(10, 10), (13, 10)]
    assert (state.positions[FOO0].offset, state.positions[FOO0].leader_epoch) == (15, 4)


def test_batch_before_position_is_skipped_and_one_around_it_is_cut(state: ConsumerState) -> None:
    [taken] = state.take(FOO0, response(batch(3, 4), batch(8, 5)))
    assert (taken.header.base_offset, taken.from_offset) == (8, 10)
    assert bytes(taken.data) == batch(8, 5)
    assert state.positions[FOO0].offset == 13


def test_control_batch_moves_position_without_records(state: ConsumerState) -> None:
    assert state.take(FOO0, response(batch(10, 1, is_control=True))) == []
    assert state.positions[FOO0].offset == 11


def test_incomplete_batch_is_not_taken(state: ConsumerState) -> None:
    [taken] = state.take(FOO0, response(batch(10, 2), batch(12, 2)[:-1]))
    assert taken.header.base_offset == 10
    assert state.positions[FOO0].offset == 12


def test_position_does_not_go_back_for_earlier_batches(state: ConsumerState) -> None:
    taken = state.take(FOO0, response(batch(14, 2), batch(10, 2)))
    assert [each.header.base_offset for each in taken] == [14, 10]
    assert state.positions[FOO0].offset == 16


def test_watermarks_are_kept(state: ConsumerState) -> None:
    state.take(FOO0, response(high_watermark=12, log_start=2))
    state.take(FOO0, response(batch(10, 2), high_watermark=-1, log_start=-1))
    assert (state.positions[FOO0].high_watermark, state.positions[FOO0].log_start_offset) == (12, 2)


def test_seek_moves_position_anywhere(state: ConsumerState) -> None:
    state.take(FOO0, response(batch(10, 2, leader_epoch=3)))
    state.seek(FOO0, 0)
    assert (state.positions[FOO0].offset, state.positions[FOO0].leader_epoch) == (0, -1)
