"""Batches that a read_committed consumer drops, and the isolation level of its requests."""

from struct import pack
from typing import Any

import pytest

from reference_broker.client.consumer import READ_COMMITTED, ConsumerState
from reference_broker.client.leader_fetches import FetchSettings, NodeChannel
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.control import ControlType, control_record
from reference_broker.records.record import Record, build
from reference_broker.wire.fetch import AbortedTransaction, PartitionData

FOO0 = TopicPartition("foo", 0)
NODE = NodeAddress(1, "one", 9092)
ONE, TWO = 901, 902


def data(offset: int, producer_id: int = -1, count: int = 1) -> bytes:
    records = [Record(timestamp_ms=1, value=b"v")] * count
    return build(records, base_offset=offset, producer_id=producer_id, is_transactional=producer_id >= 0)


def marker(offset: int, producer_id: int, type_: ControlType) -> bytes:
    return build(
        [control_record(type_, pack(">hi", 0, 0), 1)],
        base_offset=offset,
        producer_id=producer_id,
        is_control=True,
        is_transactional=True,
    )


def read(*batches: bytes, aborted: tuple[tuple[int, int], ...] = (), position: int = 0) -> tuple[list[int], int]:
    """Return the first offsets of the batches taken, and the position after them. ``aborted`` has producer IDs and
    first
    offsets."""
    state = ConsumerState()
    state.seek(FOO0, position)
    named = [AbortedTransaction(*each) for each in aborted]
    taken = state.take(FOO0, PartitionData(0, 0, 100, aborted_transactions=named, records=b"".join(batches)))
    return [each.header.base_offset for each in taken], state.positions[FOO0].offset


def test_aborted_transaction_is_dropped_from_first_offset_to_marker() -> None:
    batches = data(0, ONE), data(1), data(2, ONE), marker(3, ONE, ControlType.ABORT), data(4, ONE)
    assert read(*batches, aborted=((ONE, 0),)) == ([1, 4], 5)


def test_transaction_not_listed_as_aborted_is_kept() -> None:
    batches = data(0, ONE), data(1, TWO), marker(2, TWO, ControlType.COMMIT), marker(3, ONE, ControlType.ABORT)
    assert read(*batches, aborted=((ONE, 0),)) == ([1], 4)
    assert read(*batches) == ([0, 1], 4)


def test_aborted_transaction_may_extend_beyond_response() -> None:
    assert read(data(5, ONE), data(6, ONE, count=3), aborted=((ONE, 2),), position=5) == ([], 9)


def test_committed_transaction_before_aborted_one_of_same_producer_is_kept() -> None:
    batches = data(0, ONE), marker(1, ONE, ControlType.COMMIT), data(2, ONE), marker(3, ONE, ControlType.ABORT)
    assert read(*batches, aborted=((ONE, 2),)) == ([0], 4)


def test_two_aborted_transactions_of_one_producer_are_dropped() -> None:
    end = marker(1, ONE, ControlType.ABORT), marker(5, ONE, ControlType.ABORT)
    batches = data(0, ONE), end[0], data(2, ONE), marker(3, ONE, ControlType.COMMIT), data(4, ONE), end[1]
    assert read(*batches, aborted=((ONE, 4), (ONE, 0))) == ([2], 6)


def test_marker_before_position_ends_its_transaction() -> None:
    """A broker may start its response before the position. Batches after the marker are of another transaction."""
    batches = data(0, ONE), marker(1, ONE, ControlType.ABORT), data(2, ONE)
    assert read(*batches, aborted=((ONE, 0),), position=2) == ([2], 3)


@pytest.mark.parametrize(("settings", "level"), [({}, 0), ({"read_committed": True}, READ_COMMITTED)])
def test_isolation_level_of_fetch_and_list_offsets(settings: dict[str, Any], level: int) -> None:
    channel = NodeChannel(FetchSettings(**settings))
    listing: Any = channel.list_offsets(NODE, {FOO0: 0}).body
    fetching: Any = channel.fetch(NODE, {})[0].body
    assert (int(listing.isolation_level), fetching.isolation_level) == (level, level)
