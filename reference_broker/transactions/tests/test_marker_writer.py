"""Markers in led partitions: validation, their effect on the partition, and when the writer gets the result."""

import pytest

from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE
from reference_broker.records.control import build_marker
from reference_broker.records.tests import markers as by_schema
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.transactions.markers import UNITS_PER_MARKER
from reference_broker.transactions.tests.marker_world import PRODUCER, MarkerWorld
from reference_broker.wire.errors import ErrorCode

ZERO, ONE = ("events", 0), ("events", 1)
NONE = [ErrorCode.none]
INVALID_PRODUCER_EPOCH = [ErrorCode.invalid_producer_epoch]
TRANSACTION_COORDINATOR_FENCED = [ErrorCode.transaction_coordinator_fenced]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_ends_transaction(commit: bool) -> None:
    world = MarkerWorld()
    world.open(count=3)
    log = world.led[0].log
    assert (log.last_stable_offset, log.high_watermark) == (0, 3)

    assert world.errors(commit=commit, coordinator=4) == NONE

    assert (log.last_stable_offset, log.high_watermark) == (4, 4)
    assert [(transaction.producer_id, transaction.first_offset) for transaction in log.aborted_transactions(0, 4)] == (
        [] if commit else [(PRODUCER, 0)]
    )
    last = world.batches()[-1]
    assert last.is_control
    assert last.is_transactional
    assert last.producer_id == PRODUCER
    assert last.base_offset == 3
    log.check_invariants()


@pytest.mark.parametrize("commit", [True, False])
def test_marker_bytes_match_schema(commit: bool) -> None:
    fields = {"producer_id": 7, "producer_epoch": 2, "coordinator_epoch": 9, "timestamp_ms": START_MS}
    assert build_marker(commit=commit, **fields) == by_schema.build_marker(commit=commit, **fields)


@pytest.mark.clause(
    "X-6", "ProducerStateManagerTest.testCoordinatorFencing", "UnifiedLogTest.testZombieCoordinatorFenced"
)
def test_stale_coordinator_epoch_writes_no_marker() -> None:
    world = MarkerWorld()
    world.open()
    assert world.errors(coordinator=5) == NONE
    world.open(sequence=1)
    end = world.led[0].log.log_end_offset

    assert world.errors(coordinator=4) == TRANSACTION_COORDINATOR_FENCED

    assert world.led[0].log.log_end_offset == end
    assert world.led[0].log.last_stable_offset == end - 1
    assert world.errors(coordinator=5) == NONE


@pytest.mark.clause("UnifiedLogTest.testZombieCoordinatorFencedEmptyTransaction")
def test_stale_coordinator_epoch_is_rejected_without_open_transaction() -> None:
    world = MarkerWorld()
    assert world.errors(coordinator=2) == NONE
    assert world.errors(coordinator=1) == TRANSACTION_COORDINATOR_FENCED
    assert world.errors(coordinator=1, producer=8) == NONE


@pytest.mark.parametrize("refused", [{"epoch": -1}, {"epoch": -2}, {"coordinator": -2}, {"producer": -1}])
def test_negative_ids_of_unknown_producer_are_rejected(refused: dict[str, int]) -> None:
    world = MarkerWorld()
    errors = {
        "epoch": INVALID_PRODUCER_EPOCH,
        "coordinator": TRANSACTION_COORDINATOR_FENCED,
        "producer": [ErrorCode.invalid_request],
    }
    (name,) = refused
    assert world.errors(**refused) == errors[name]
    assert world.led[0].log.log_end_offset == 0


def test_coordinator_epoch_is_fenced_per_partition() -> None:
    world = MarkerWorld(partitions=2)
    assert world.errors(ONE, coordinator=5) == NONE
    assert world.end(ZERO, ONE, coordinator=3) == [
        {ZERO: ErrorCode.none, ONE: ErrorCode.transaction_coordinator_fenced}
    ]


@pytest.mark.clause("ProducerStateManagerTest.testCoordinatorFencedAfterReload")
def test_stale_coordinator_epoch_is_rejected_after_restart() -> None:
    world = MarkerWorld()
    assert world.errors(coordinator=2) == NONE
    world.restart(0)
    assert world.errors(coordinator=1) == TRANSACTION_COORDINATOR_FENCED
    assert world.errors(coordinator=2) == NONE


@pytest.mark.clause(
    "ProducerStateManagerTest.testOldEpochForControlRecord", "UnifiedLogTest.testEndTxnWithFencedProducerEpoch"
)
def test_marker_with_stale_producer_epoch_is_rejected() -> None:
    world = MarkerWorld()
    world.open(epoch=3)
    assert world.errors(epoch=2) == INVALID_PRODUCER_EPOCH
    assert world.led[0].log.log_end_offset == 1


def test_marker_keeps_producer_epoch_before_version_2() -> None:
    world = MarkerWorld()
    world.open(epoch=3)
    assert world.errors(epoch=3, version=1) == NONE
    world.open(epoch=3, sequence=1)
    assert world.errors(epoch=3, version=0) == NONE


def test_marker_bumps_producer_epoch_from_version_2() -> None:
    """KIP-890: a late marker of the last transaction must not end the next one."""
    world = MarkerWorld()
    world.open(epoch=3)
    assert world.errors(epoch=3, version=2) == INVALID_PRODUCER_EPOCH
    assert world.errors(epoch=4, version=2) == NONE
    world.open(epoch=4)
    assert world.errors(epoch=4, version=2) == INVALID_PRODUCER_EPOCH
    assert world.led[0].log.last_stable_offset == 2


@pytest.mark.clause("ProducerStateManagerTest.testIdempotentTransactionMarkerRetryTV2")
def test_duplicate_marker_of_version_2_is_accepted() -> None:
    """KAFKA-19999: the response to the first one was lost."""
    world = MarkerWorld()
    world.open(epoch=3)
    assert world.errors(epoch=4, version=2) == NONE
    assert world.errors(epoch=4, version=2) == NONE
    assert world.led[0].log.last_stable_offset == 3


def test_marker_at_last_epoch_is_rejected() -> None:
    world = MarkerWorld()
    world.open(epoch=32767)
    assert world.errors(epoch=32767, version=2) == NONE


def test_marker_with_bumped_epoch_fences_older_epoch() -> None:
    """The next batch starts at sequence 0."""
    world = MarkerWorld()
    assert world.errors(epoch=5) == NONE
    known = world.led[0].log.producers.by_id[PRODUCER]
    assert (known.producer_epoch, known.last_sequence) == (5, -1)


def test_partition_not_led_here_returns_error() -> None:
    world = MarkerWorld(partitions=2)
    world.lose(1)
    world.partitions.follow("events", world.led[1].topic_id, 1, world.led[1].log, 2, 1)
    unknown = [("events", 2), ("events", -1), ("nowhere", 0)]
    assert world.errors(ONE, *unknown, ZERO) == [
        ErrorCode.not_leader_or_follower,
        *[ErrorCode.unknown_topic_or_partition] * 3,
        ErrorCode.none,
    ]


def test_write_completes_when_marker_is_replicated() -> None:
    world = MarkerWorld(replicas=(1, 2, 3))
    world.open()
    responses = world.end()
    world.fetch(2, world.led[0], 2)
    assert responses == []
    assert world.led[0].log.last_stable_offset == 0
    world.fetch(3, world.led[0], 2)
    assert responses == [{ZERO: ErrorCode.none}]
    assert world.led[0].log.last_stable_offset == 2


def test_marker_below_min_insync_replicas_is_not_written() -> None:
    world = MarkerWorld(replicas=(1, 2, 3), min_isr=2)
    world.state(world.led[0], (1,), partition_epoch=1)
    assert world.errors() == [ErrorCode.not_enough_replicas]
    assert world.led[0].log.log_end_offset == 0


def test_marker_not_replicated_in_time_returns_request_timed_out() -> None:
    world = MarkerWorld(replicas=(1, 2, 3))
    responses = world.end()
    world.pass_ms(30_000 - 1)
    assert responses == []
    world.pass_ms(1)
    assert responses == [{ZERO: ErrorCode.request_timed_out}]


def test_lost_leadership_returns_not_leader() -> None:
    world = MarkerWorld(partitions=2, replicas=(1, 2, 3))
    responses = world.end(ZERO, ONE)
    world.lose(0)
    for follower in (2, 3):
        world.fetch(follower, world.led[1], 1)
    assert responses == [{ZERO: ErrorCode.not_leader_or_follower, ONE: ErrorCode.none}]


def test_markers_of_many_partitions_are_written_in_slices() -> None:
    at_once = LOOKUP_US_PER_SLICE // UNITS_PER_MARKER
    many = at_once + 1
    world = MarkerWorld(partitions=many)
    responses = world.end(*[("events", index) for index in range(many)])
    assert responses == []
    assert [each.log.log_end_offset for each in world.led] == [*[1] * at_once, 0]
    world.lose(0)
    world.pass_ms(0)
    assert set(responses[0].items()) == {
        (("events", index), ErrorCode.none if index else ErrorCode.not_leader_or_follower) for index in range(many)
    }


def test_duplicate_partition_gets_one_marker() -> None:
    world = MarkerWorld()
    assert world.errors(ZERO, ZERO) == NONE
    assert world.led[0].log.log_end_offset == 1


def test_group_coordinator_is_notified_of_markers_in_offsets_topic() -> None:
    world = MarkerWorld()
    world.lead_offsets(3)
    assert world.errors(ZERO, (OFFSETS_TOPIC, 3), epoch=2, commit=False) == NONE * 2
    assert world.appended == [(3, PRODUCER, 2, 0, False)]


def test_marker_is_rejected_while_offsets_load() -> None:
    world = MarkerWorld()
    partition = world.lead_offsets(3)
    world.loading.append(3)
    assert world.errors((OFFSETS_TOPIC, 3)) == [ErrorCode.not_leader_or_follower]
    assert (world.appended, partition.log.log_end_offset) == ([], 0)


def test_disk_error_returns_storage_error() -> None:
    world = MarkerWorld()
    world.disk.fail_after = 0
    assert world.errors() == [ErrorCode.kafka_storage_error]
    assert world.noted("append_failed")
    world.disk.fail_after = None
    assert world.errors() == NONE


def test_each_marker_is_noted() -> None:
    world = MarkerWorld()
    world.end(epoch=1, coordinator=4, commit=False)
    assert world.noted("transaction_marker") == [
        {
            "partition": "events-0",
            "offset": 0,
            "producer_id": PRODUCER,
            "producer_epoch": 1,
            "coordinator_epoch": 4,
            "result": "abort",
        }
    ]
