"""Markers sent to other brokers: each partition gets its markers despite losses and leader changes."""

from collections.abc import Sequence

import pytest

from reference_broker.metadata.identifiers import TopicPartition
from reference_broker.metadata.image import PartitionImage
from reference_broker.ports.slicing import MARKER_PARTITIONS_PER_SLICE
from reference_broker.transactions.tests.transaction_world import TransactionWorld
from reference_broker.transactions.transaction_marker_channel_manager import (
    PendingCompleteTxn,
    TransactionMarkerChannelManager,
)
from reference_broker.transactions.transaction_metadata import TransactionState
from reference_broker.wire.errors import ErrorCode

NONE = ErrorCode.none
LEADERS = (2, 2, 3, 1)


def ended_transaction(leaders: tuple[int, ...] = LEADERS, *indexes: int) -> tuple[TransactionWorld, str]:
    world = TransactionWorld(leaders=leaders)
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    owner = world.initialized_producer(id_)
    assert world.add_partitions(id_, owner, *(indexes or range(len(leaders)))) == [NONE]
    assert world.sent == [], "nothing is decided yet"
    assert world.end_transaction(id_, owner) == [(NONE, (1000, 1))]
    return world, id_


def broker_and_partitions(world: TransactionWorld, at: int = 0) -> tuple[int, list[int]]:
    """Return the broker of a request, and the partitions of ``events`` that the request names."""
    peer, body, _, _ = world.sent[at]
    return peer, [int(index) for marker in body.markers for topic in marker.topics for index in topic.partition_indexes]


@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldOnlyWriteTxnCompletionOnce")
@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldGenerateEmptyMapWhenNoRequestsOutstanding")
@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldGenerateRequestPerPartitionPerBroker")
@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldCompleteAppendToLogOnEndTxnWhenSendMarkersSucceed")
@pytest.mark.clause("TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenNoErrors")
def test_each_leader_gets_markers_of_its_partitions() -> None:
    world, id_ = ended_transaction()
    assert [broker_and_partitions(world, at) for at in range(len(world.sent))] == [(2, [0, 1]), (3, [2])]
    (marker,) = world.sent[0][1].markers
    identity = marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_version
    assert (*identity, marker.transaction_result) == (1000, 1, 0, 2, True)
    assert world.markers(3) == [("commit", 1000, 1, 0)]
    world.reply()
    assert world.transaction(id_).state is TransactionState.PREPARE_COMMIT
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT
    assert (world.sent, len(world.record_values(0))) == ([], 4), "taken, added, prepared, completed once"


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    ],
)
@pytest.mark.clause(
    "TransactionMarkerRequestCompletionHandlerTest.shouldRetryPartitionWhenUnknownTopicOrPartitionError"
)
@pytest.mark.clause("TransactionMarkerRequestCompletionHandlerTest.shouldRetryPartitionWhenNotLeaderOrFollowerError")
@pytest.mark.clause("TransactionMarkerRequestCompletionHandlerTest.shouldRetryPartitionWhenNotEnoughReplicasError")
@pytest.mark.clause(
    "TransactionMarkerRequestCompletionHandlerTest.shouldRetryPartitionWhenNotEnoughReplicasAfterAppendError"
)
@pytest.mark.clause("TransactionMarkerRequestCompletionHandlerTest.shouldRetryPartitionWhenKafkaStorageError")
def test_retriable_marker_error_is_retried(error: ErrorCode) -> None:
    world, id_ = ended_transaction((2, 2))
    world.reply(p1=error)
    assert world.sent == []
    world.pass_ms(100)
    assert broker_and_partitions(world) == (2, [1])
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause("TransactionMarkerRequestCompletionHandlerTest.shouldReEnqueuePartitionsWhenBrokerDisconnected")
def test_lost_marker_request_is_resent_to_new_leader() -> None:
    world, id_ = ended_transaction((2,))
    world.sent.pop()[3]()
    world.leaders_of = (3,)
    world.publish_topics()
    world.pass_ms(100)
    assert broker_and_partitions(world) == (3, [0])
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldSaveForLaterWhenLeaderUnknownButNotAvailable")
def test_marker_waits_for_partition_without_leader() -> None:
    world, id_ = ended_transaction((-1,))
    world.pass_ms(1000)
    assert world.sent == []
    assert world.transactions.metrics.waiting_markers.value == 1
    world.leaders_of = (2,)
    world.publish_topics()
    world.pass_ms(100)
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldSkipSendMarkersWhenLeaderNotFound")
def test_deleted_topic_needs_no_marker() -> None:
    world, id_ = ended_transaction((2, 3))
    world.publish_topics(events=False)
    world.reply(ErrorCode.unknown_topic_or_partition)
    world.sent.pop()[3]()
    world.pass_ms(100)
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


def test_fenced_marker_counts_as_written() -> None:
    world, id_ = ended_transaction((2,))
    world.reply(ErrorCode.invalid_producer_epoch)
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause(
    "TransactionMarkerRequestCompletionHandlerTest.shouldRemoveTopicPartitionFromWaitingSetOnUnsupportedForMessageFormat"
)
def test_unsupported_marker_counts_as_written() -> None:
    world, id_ = ended_transaction((2,))
    world.reply(ErrorCode.unsupported_for_message_format)
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause("X-6")
@pytest.mark.clause(
    "TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenCoordinatorEpochFenced"
)
def test_fenced_coordinator_stops_sending_markers() -> None:
    world, id_ = ended_transaction((2,))
    world.reply(ErrorCode.transaction_coordinator_fenced)
    world.pass_ms(60_000)
    assert world.sent == []
    assert world.transaction(id_).state is TransactionState.PREPARE_COMMIT


@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldGenerateRequestPerPartitionPerBroker")
def test_one_marker_request_per_broker_batches_transactions() -> None:
    world = TransactionWorld(leaders=(2,))
    world.coordinate(0)
    ids = [world.transactional_id_in(0, prefix) for prefix in "abc"]
    for id_ in ids:
        owner = world.initialized_producer(id_)
        world.add_partitions(id_, owner)
        world.end_transaction(id_, owner)
    assert [len(body.markers) for _, body, _, _ in world.sent] == [1]
    world.reply()
    assert [len(body.markers) for _, body, _, _ in world.sent] == [2]
    world.reply()
    assert {world.transaction(id_).state for id_ in ids} == {TransactionState.COMPLETE_COMMIT}


def test_leaders_of_many_partitions_are_looked_up_in_slices() -> None:
    many = MARKER_PARTITIONS_PER_SLICE * 3
    world, id_ = ended_transaction((2,) * many)
    before = world.events
    requested: list[int] = []
    while world.transaction(id_).state is TransactionState.PREPARE_COMMIT:
        requested += broker_and_partitions(world)[1]
        world.reply()
        world.pass_ms(0)
    assert sorted(requested) == list(range(many))
    assert before > 3


@pytest.mark.clause("X-3")
def test_new_coordinator_sends_markers_of_prepared_transactions() -> None:
    world, id_ = ended_transaction((2, 3))
    world.reply()
    log = world.stop_leading(0)
    world.sent.pop()[3]()
    world.coordinate(0, log, epoch=4)
    world.pass_ms(0)
    assert [broker_and_partitions(world, at) for at in range(2)] == [(2, [0]), (3, [1])], (
        "it does not know which were written"
    )
    assert [marker.coordinator_epoch for _, body, _, _ in world.sent for marker in body.markers] == [4, 4]
    world.reply()
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT
    log = world.stop_leading(0)
    world.coordinate(0, log, epoch=5)
    world.pass_ms(1000)
    assert world.sent == []


@pytest.mark.clause("X-2")
def test_new_coordinator_sends_markers_once_loaded_records_are_replicated() -> None:
    world = TransactionWorld(replicas=(1, 2, 3), leaders=(2,))
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    responses = world.init_producer_id(id_)
    world.replicate(0)
    world.add_partitions(id_, responses[0][1])
    world.replicate(0)
    world.end_transaction(id_, responses[0][1])
    log = world.stop_leading(0)
    world.cached.clear()
    world.coordinate(0, log, epoch=1)
    world.pass_ms(1000)
    assert world.transactions.find_metadata(id_) is ErrorCode.coordinator_load_in_progress
    assert world.transactions.loading()
    assert world.sent == []
    world.replicate(0)
    world.pass_ms(1000)
    assert broker_and_partitions(world) == (2, [0])
    assert world.transaction(id_).state is TransactionState.PREPARE_COMMIT


@pytest.mark.clause("X-2")
def test_coordinator_below_min_insync_replicas_is_unavailable() -> None:
    world = TransactionWorld(replicas=(1, 2, 3), leaders=(2,), min_isr=2)
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    responses = world.init_producer_id(id_)
    world.replicate(0)
    world.add_partitions(id_, responses[0][1])
    log = world.stop_leading(0)
    world.cached.clear()
    world.isr = (1,)
    world.coordinate(0, log, epoch=1)
    world.pass_ms(1000)
    assert world.add_partitions(id_, responses[0][1]) == [ErrorCode.coordinator_not_available], (
        "as Kafka maps NOT_ENOUGH_REPLICAS"
    )
    assert world.transactions.loading()
    world.isr = (1, 2, 3)
    world.roles.leads(world.led[0], PartitionImage(world.replicas, world.isr, 1, 1, 1))
    assert world.add_partitions(id_, responses[0][1]) == [ErrorCode.coordinator_load_in_progress]
    world.replicate(0)
    assert world.add_partitions(id_, responses[0][1]) == [ErrorCode.none]


def test_missing_leaders_are_looked_up_when_metadata_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[int] = []
    original = TransactionMarkerChannelManager._add_to_broker_queues

    def counted(
        self: TransactionMarkerChannelManager, pending_txn: PendingCompleteTxn, partitions: Sequence[TopicPartition]
    ) -> None:
        lookups.append(len(partitions))
        original(self, pending_txn, partitions)

    monkeypatch.setattr(TransactionMarkerChannelManager, "_add_to_broker_queues", counted)
    world, id_ = ended_transaction((-1, -1))
    world.pass_ms(10_000)
    assert lookups == [2]
    world.leaders_of = (-1, 2)
    world.publish_topics()
    world.pass_ms(200)
    assert (broker_and_partitions(world), lookups) == ((2, [1]), [2, 2])
    world.reply()
    world.leaders_of = (2, 2)
    world.publish_topics()
    world.pass_ms(200)
    assert broker_and_partitions(world) == (2, [0])
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("arrives", ["once it is lost", "while it is loaded", "once it is loaded"])
@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldNotLoseTxnCompletionAfterLoad")
@pytest.mark.clause("TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenNotCoordinator")
@pytest.mark.clause(
    "TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenCoordinatorLoading"
)
@pytest.mark.clause(
    "TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenCoordinatorEpochChanged"
)
def test_response_to_earlier_coordinator_epoch_is_ignored(is_lost: bool, arrives: str) -> None:
    world, id_ = ended_transaction((2,))
    ((_, body, replied, failed),) = world.sent

    def respond() -> None:
        if is_lost:
            world.sent.remove((2, body, replied, failed))
            failed()
            world.pass_ms(0)
        else:
            world.reply()

    log = world.stop_leading(0)
    if arrives == "once it is lost":
        respond()
    world.coordinate(0, log, epoch=1)
    if arrives == "while it is loaded":
        assert world.transactions.loading()
        respond()
    world.pass_ms(0)
    if arrives == "once it is loaded":
        respond()
    world.pass_ms(100)
    assert world.transaction(id_).state is TransactionState.PREPARE_COMMIT
    assert [[marker.coordinator_epoch for marker in body.markers] for _, body, _, _ in world.sent] == [[1]]
    world.reply()
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldRemoveMarkersForTxnPartitionWhenPartitionEmigrated")
def test_pending_markers_are_dropped_with_lost_partition() -> None:
    world = TransactionWorld(leaders=(2,))
    ids = [world.transactional_id_in(0), world.transactional_id_in(0, "y"), world.transactional_id_in(1)]
    for index in (0, 1):
        world.coordinate(index)
    for id_ in ids:
        owner = world.initialized_producer(id_)
        world.add_partitions(id_, owner)
        world.end_transaction(id_, owner)
    assert [len(body.markers) for _, body, _, _ in world.sent] == [1], "the others wait for its response"
    world.stop_leading(0)
    world.reply()
    assert [[marker.producer_id for marker in body.markers] for _, body, _, _ in world.sent] == [[1002]]
    world.reply()
    assert world.sent == []
    assert world.transaction(ids[2]).state is TransactionState.COMPLETE_COMMIT
