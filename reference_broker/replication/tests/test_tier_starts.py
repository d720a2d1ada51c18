"""A follower whose leader has only later records starts after those that are in the remote tier."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.list_offsets.v10.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.log.producer_state import BatchMetadata, ProducerStateEntry, ProducerStateManager, encode_snapshot
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.follower.partition_data_applier import TierState
from reference_broker.replication.tests.follower_world import FollowerWorld, named
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchPartition, PartitionData

NO_TIME = i32Timedelta.parse(timedelta(0))
MOVED = PartitionData(0, int(ErrorCode.offset_moved_to_tiered_storage), 50, 50, 10)
EPOCHS = ((0, 0), (1, 30))


class FakeTier:
    """``sent`` has the leader epoch, the offset, and the callback for the result."""

    def __init__(self) -> None:
        self.lookups: list[tuple[int, int, Callable[[TierState | Error], None]]] = []

    def state_before(
        self,
        log: UnifiedLog,  # noqa: ARG002
        partition: int,  # noqa: ARG002
        leader_epoch: int,
        offset: int,
        done: Callable[[TierState | Error], None],
    ) -> None:
        self.lookups.append((leader_epoch, offset, done))


def producers() -> ProducerStateManager:
    """Return the state of producer 7, whose open transaction starts at offset 35."""
    states = ProducerStateManager(1000, reject_unknown=False)
    mark = BatchMetadata(0, 3, 35, 38, 0)
    states.by_id[7] = ProducerStateEntry(1, (mark,), 0, 0, 35)
    states.open_transactions[7] = 35
    return states


def following() -> tuple[FollowerWorld, FakeTier, UnifiedLog]:
    """Return a follower with three records, whose fetch offset has moved to the tier."""
    world, tier = FollowerWorld(), FakeTier()
    world.fetchers.tier = tier
    log = world.follow(records=3, epoch=2)
    sent, _ = world.fetch()
    world.respond(sent, MOVED)
    return world, tier, log


def local_start(offset: int, epoch: int, error: ErrorCode = ErrorCode.none) -> ListOffsetsResponse:
    one = ListOffsetsPartitionResponse(
        partition_index=i32(0), error_code=error, timestamp=i64(-1), offset=i64(offset), leader_epoch=i32(epoch)
    )
    topics = (ListOffsetsTopicResponse(name=TopicName("t"), partitions=(one,)),)
    return ListOffsetsResponse(throttle_time=NO_TIME, topics=topics)


def epoch_end(epoch: int, end_offset: int, error: ErrorCode = ErrorCode.none) -> OffsetForLeaderEpochResponse:
    one = EpochEndOffset(error_code=error, partition=i32(0), leader_epoch=i32(epoch), end_offset=i64(end_offset))
    topics = (OffsetForLeaderTopicResult(topic=TopicName("t"), partitions=(one,)),)
    return OffsetForLeaderEpochResponse(throttle_time=NO_TIME, topics=topics)


def _named_next(world: FollowerWorld) -> list[FetchPartition]:
    """Return the partitions of the next fetch that names any. Other fetches of the session get an empty response."""
    for _ in range(20):
        world.pass_ms(200)
        for sent in [world.sent.pop() for _ in world.sent[:]]:
            assert sent.api_key == ApiKey.FETCH
            if named(sent.body):
                return named(sent.body)
            world.respond(sent)
    return []


def _retries(world: FollowerWorld) -> bool:
    """The leader includes an error in each response, as long as it lasts."""
    for _ in range(20):
        world.pass_ms(200)
        for sent in [world.sent.pop() for _ in world.sent[:]]:
            if sent.api_key == ApiKey.LIST_OFFSETS:
                return True
            world.respond(sent, MOVED)
    return False


@pytest.mark.clause(
    "P-11",
    "TierStateMachineTest.testFollowerFetchMovedToTieredStore",
    "LeaderEpochFileCacheTest.testPreviousEpoch",
    "LeaderEpochFileCacheTest.testFindPreviousEpoch",
    "LeaderEpochFileCacheTest.testFindPreviousEntry",
)
@pytest.mark.parametrize(("end_of_earlier", "wanted_epoch"), [(40, 1), (39, 2)])
def test_log_starts_with_epochs_and_producers_of_tier(end_of_earlier: int, wanted_epoch: int) -> None:
    """The record before offset 40 is of the epoch before that of the leader's first one, or of the same."""
    world, tier, log = following()
    sent = world.only_request(ApiKey.LIST_OFFSETS)
    assert sent.body.topics[0].partitions[0].timestamp == -4
    sent.replied(local_start(40, 2))
    sent = world.only_request(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    assert sent.body.topics[0].partitions[0].leader_epoch == 1
    sent.replied(epoch_end(1, end_of_earlier))
    ((epoch, offset, done),) = tier.lookups
    assert (epoch, offset) == (wanted_epoch, 40)
    done(TierState(42, EPOCHS, encode_snapshot(producers()), producers()))
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (10, 42, 42)
    assert (log.epochs.epochs, log.epochs.starts) == ([0, 1], [10, 30])
    assert log.producers.by_id[7].current_txn_first_offset == 35
    (wanted,) = _named_next(world)
    assert (wanted.fetch_offset, wanted.log_start_offset) == (42, 10)
    assert world.noted("started_in_the_tier")


def test_first_epoch_needs_no_lookup_of_previous() -> None:
    world, tier, _ = following()
    world.only_request(ApiKey.LIST_OFFSETS).replied(local_start(40, 0))
    assert tier.lookups[0][:2] == (0, 40)


@pytest.mark.parametrize(
    "responses",
    [
        (local_start(-1, -1, ErrorCode.not_leader_or_follower),),
        (local_start(40, 2), epoch_end(-1, -1, ErrorCode.not_leader_or_follower)),
        (local_start(40, 0), ErrorCode.unknown_server_error),
    ],
)
def test_failed_lookup_is_retried(responses: Sequence[Any]) -> None:
    world, tier, log = following()
    for response in responses:
        if isinstance(response, ErrorCode):
            tier.lookups[0][2](response)
        else:
            is_epoch = isinstance(response, OffsetForLeaderEpochResponse)
            world.only_request(ApiKey.OFFSET_FOR_LEADER_EPOCH if is_epoch else ApiKey.LIST_OFFSETS).replied(response)
    assert log.log_end_offset == 3
    assert _retries(world)


@pytest.mark.clause("TierStateMachineTest.testFencedOffsetResetAfterMovedToRemoteTier")
def test_lookup_result_for_earlier_leader_is_ignored() -> None:
    world, tier, log = following()
    world.only_request(ApiKey.LIST_OFFSETS).replied(local_start(40, 0))
    world.follow(epoch=3)
    tier.lookups[0][2](TierState(42, EPOCHS, encode_snapshot(producers()), producers()))
    assert log.log_end_offset == 3


def test_node_without_tier_retries() -> None:
    world, _, log = following()
    world.fetchers.tier = None
    world.only_request(ApiKey.LIST_OFFSETS).replied(local_start(40, 0))
    assert log.log_end_offset == 3
