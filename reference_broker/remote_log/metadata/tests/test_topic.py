"""Nodes agree on remote segments through ``__remote_log_metadata``, whatever happens to its leaders and responses."""

from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.core.tests.node_world import delete_request
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.ports.node_ports import Channel
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build, read_all
from reference_broker.remote_log.metadata.events import encode
from reference_broker.remote_log.metadata.metadata_topic_client import DAMAGED_FETCHES, MetadataReader
from reference_broker.remote_log.metadata.tests.metadata_cluster import MetadataCluster
from reference_broker.remote_log.metadata.tests.remote_events import DELETED, DELETING, FINISHED, STARTED, copy_of, step
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


@pytest.fixture
def world() -> MetadataCluster:
    world = MetadataCluster()
    world.ready()
    return world


def others(number: int) -> list[int]:
    return [index for index in range(3) if index != number]


def records_in(world: MetadataCluster) -> list[bytes]:
    """Return the values in the metadata topic's partition that keeps partition 0, as its leader has them."""
    data = world.bytes_of(world.keeper(), REMOTE_LOG_METADATA_TOPIC, world.index())
    return [bytes(record.value or b"") for _, record in read_all(data)]


def test_metadata_topic_is_created_with_configs_of_kafka(world: MetadataCluster) -> None:
    world.watch(1)
    world.run(1_000)
    assert len(world.state_of_topic) == 3
    assert all(len(each.replicas) == 3 for each in world.state_of_topic)
    log = world.partition(REMOTE_LOG_METADATA_TOPIC, 0).log
    assert log.config.retention_ms == -1
    assert not log.config.is_compacted


@pytest.mark.parametrize(("nodes", "wanted", "min_isr"), [(3, "2", 2), (3, "1", 1), (3, "9", 3), (1, "2", 1)])
def test_event_needs_min_insync_replicas(nodes: int, wanted: str, min_isr: int) -> None:
    """With one, a power loss would remove the events of segments that are deleted locally already (KIP-1235)."""
    world = MetadataCluster(nodes, rlmm_config_remote_log_metadata_topic_min_isr=wanted)
    world.ready()
    world.watch(0)
    assert world.log(world.keeper(), REMOTE_LOG_METADATA_TOPIC, world.index()).config.min_insync_replicas == min_isr
    assert world.write(0, copy_of(1, 0, 9)) is ErrorCode.none


def test_default_min_insync_replicas_is_two(world: MetadataCluster) -> None:
    world.watch(0)
    assert world.log(world.keeper(), REMOTE_LOG_METADATA_TOPIC, world.index()).config.min_insync_replicas == 2


@pytest.mark.clause("TopicBasedRemoteLogMetadataManagerTest.testWithNoAssignedPartitions")
def test_topic_is_neither_created_nor_read_before_first_watch(world: MetadataCluster) -> None:
    world.run(5_000)
    assert REMOTE_LOG_METADATA_TOPIC not in world.members[0].node.broker.loader.image.topics
    assert not [send for _, send in world.sends if send.channel in (Channel.REMOTE_LOG_READ, Channel.REMOTE_LOG_WRITE)]


@pytest.mark.clause("TopicBasedRemoteLogMetadataManagerTest.testNewPartitionUpdates")
def test_event_reaches_every_watching_node(world: MetadataCluster) -> None:
    world.watch(0, 1, 2)
    first = copy_of(1, 0, 9)
    assert world.write(0, first) is ErrorCode.none
    assert world.write(0, step(first, FINISHED)) is ErrorCode.none
    world.run(1_000)
    for number in range(3):
        assert [each.end_offset for each in world.segments(number).listed()] == [9]


def test_write_completes_when_event_is_replicated_and_applied_locally(world: MetadataCluster) -> None:
    world.watch(0, 1, 2)
    leader = world.keeper()
    for number in others(leader):
        world.kill(number)
    errors = world.start_write(leader, copy_of(1, 0, 9))
    world.run(4_000)
    assert not errors
    assert not len(world.segments(leader))


@pytest.mark.clause("TopicBasedRemoteLogMetadataManagerRestartTest.testRLMMAPIsAfterRestart")
def test_restarted_node_reads_earlier_events(world: MetadataCluster) -> None:
    world.watch(0, 1)
    first = copy_of(1, 0, 9)
    world.write(0, first)
    world.write(0, step(first, FINISHED))
    world.kill(0)
    world.run(100)
    world.start(0)
    world.ready()
    world.watch(0)
    assert [each.end_offset for each in world.segments(0).listed()] == [9]
    assert world.write(0, step(first, DELETING)) is ErrorCode.none


@pytest.mark.clause("ConsumerTaskTest.testMaybeMarkUserPartitionsAsReady")
def test_later_watcher_reads_all_events_before_ready(world: MetadataCluster) -> None:
    world.watch(0)
    first = copy_of(1, 0, 9)
    world.write(0, first)
    world.write(0, step(first, FINISHED))
    world.at(2, lambda topic: topic.watch(first.topic_id, first.topic, 0))
    assert not world.topics[2].is_ready(first.topic_id, 0)
    world.run_until(lambda: world.topics[2].is_ready(first.topic_id, 0))
    assert [each.state for each in world.segments(2).listed()] == [FINISHED]


@pytest.mark.clause(
    "TopicBasedRemoteLogMetadataManagerMultipleSubscriptionsTest.testMultiplePartitionSubscriptions",
    "ConsumerTaskTest.testAddAssignmentsForPartitions",
    "ConsumerTaskTest.testCanReprocessSkippedRecords",
)
def test_second_watched_partition_is_read_from_start_and_first_is_not(world: MetadataCluster) -> None:
    """Both are in the same partition of the topic."""
    world.watch(0)
    other = next(number for number in range(1, 100) if world.index(number) == world.index(0))
    first = copy_of(1, 0, 9)
    world.write(0, first)
    world.watch(1)
    world.watch(1, partition=other)
    world.write(1, copy_of(5, 0, 3, partition=other))
    world.write(0, step(first, FINISHED))
    world.run(1_000)
    assert world.segments(1).get(first.segment_id).state is FINISHED  # type: ignore[union-attr]
    assert len(world.segments(1, other)) == 1
    assert len(world.segments(1)) == 1


@pytest.mark.clause("ConsumerTaskTest.testRemoveAssignmentsForPartitions")
def test_partition_watched_twice_is_kept_until_both_unwatch(world: MetadataCluster) -> None:
    world.watch(0)
    world.watch(0)
    first = copy_of(1, 0, 9)
    world.write(0, first)
    world.at(0, lambda topic: topic.unwatch(first.topic_id, 0))
    assert len(world.segments(0)) == 1
    world.at(0, lambda topic: topic.unwatch(first.topic_id, 0))
    assert not world.topics[0].is_ready(first.topic_id, 0)
    assert world.write(0, copy_of(2, 0, 9)) is ErrorCode.not_leader_or_follower
    world.watch(0)
    assert len(world.segments(0)) == 1


def test_pending_write_fails_when_watch_ends(world: MetadataCluster) -> None:
    world.watch(0)
    first = copy_of(1, 0, 9)
    errors = world.start_write(0, first)
    world.at(0, lambda topic: topic.unwatch(first.topic_id, 0))
    world.run(100)
    assert errors == [ErrorCode.not_leader_or_follower]
    world.run(5_000)
    assert len(errors) == 1


@pytest.mark.clause("P-11")
def test_write_of_former_leader_is_fenced(world: MetadataCluster) -> None:
    world.watch(0, 1)
    old, new = copy_of(1, 0, 9, by=3), copy_of(2, 0, 9, by=4)
    assert world.write(0, old) is ErrorCode.none
    assert world.write(1, new) is ErrorCode.none
    assert world.write(0, step(old, FINISHED)) is ErrorCode.fenced_leader_epoch
    assert world.write(1, step(new, FINISHED)) is ErrorCode.none
    assert world.write(0, step(new, DELETING, by=3)) is ErrorCode.fenced_leader_epoch
    assert [each.segment_id for each in world.segments(0).listed()] == [new.segment_id]


@pytest.mark.clause("ConsumerTaskTest.testConsumerShouldNotCloseOnRetriableError")
def test_events_survive_leader_change_of_topic(world: MetadataCluster) -> None:
    world.watch(0, 1, 2)
    first = world.keeper()
    writer = others(first)[0]
    done = []
    for number in range(1, 21):
        done.append(world.start_write(writer, copy_of(number, number * 10, number * 10 + 9)))
        if number == 10:
            world.run(1)
            world.kill(first)
    world.run_until(lambda: all(done))
    assert {error for errors in done for error in errors} <= {ErrorCode.none, ErrorCode.resource_not_found}
    assert world.keeper() != first
    world.start(first)
    world.ready()
    world.watch(first)
    world.run(1_000)
    known = [world.segments(number).unfinished() for number in range(3)]
    assert known[0] == known[1] == known[2]
    written = {node_id for node_id, errors in enumerate(done, 1) if errors == [ErrorCode.none]}
    assert len(known[0]) == len(written)


def test_lost_produce_response_does_not_apply_event_twice(world: MetadataCluster) -> None:
    """The event is in the topic twice then. The second one is ignored, even after the copy was removed."""
    world.watch(0, 1, 2)
    keeper = world.keeper()
    writer = others(keeper)[0]
    first = copy_of(1, 0, 9)
    world.slow[Channel.REMOTE_LOG_READ] = 400_000
    errors = world.start_write(writer, first)
    world.run_until(lambda: len(records_in(world)) == 1)
    world._break(world.members[writer], (keeper, Channel.REMOTE_LOG_WRITE))
    world.run_until(lambda: len(records_in(world)) == 2)
    assert not errors, "it was written again before it was read"
    world.slow.clear()
    world.run_until(lambda: bool(errors))
    assert errors == [ErrorCode.none]
    one, two = records_in(world)
    assert one == two
    world.run(1_000)
    for number in range(3):
        assert [each.state for each in world.segments(number).unfinished()] == [STARTED]
    for state in (FINISHED, DELETING):
        assert world.write(writer, step(first, state)) is ErrorCode.none
    assert world.write(writer, step(first, DELETED)) is ErrorCode.none
    for value in (one, encode(step(first, FINISHED))):
        world.produce(REMOTE_LOG_METADATA_TOPIC, value, world.index())
    world.run(1_000)
    assert [len(world.segments(number)) for number in range(3)] == [0, 0, 0]


def test_event_without_leader_times_out() -> None:
    world = MetadataCluster(rlmm_config_remote_log_metadata_consume_wait_ms="3000")
    world.ready()
    world.watch(0, 1, 2)
    keeper = world.keeper()
    writer = others(keeper)[0]
    errors = world.start_write(writer, copy_of(1, 0, 9))
    for number in others(writer):
        world.kill(number)
    world.run(2_900)
    assert not errors
    world.run(200)
    assert errors == [ErrorCode.request_timed_out]


def test_invalid_event_is_skipped_with_note(world: MetadataCluster) -> None:
    world.watch(0)
    world.produce(REMOTE_LOG_METADATA_TOPIC, b"not an event", world.index())
    assert world.write(0, copy_of(1, 0, 9)) is ErrorCode.none
    (note,) = world.notes("remote_log_record_skipped")
    assert note["partition"] == world.index()
    assert len(world.segments(0)) == 1


def test_new_node_reads_from_log_start(world: MetadataCluster) -> None:
    """Old events may be deleted, by the topic's retention or by DeleteRecords."""
    world.watch(0)
    first = copy_of(1, 0, 9)
    world.write(0, first)
    second = copy_of(2, 10, 19)
    world.write(0, second)
    for number in range(3):
        log = world.log(number, REMOTE_LOG_METADATA_TOPIC, world.index())
        log.delete_records_before(1)
    world.watch(1)
    assert [each.segment_id for each in world.segments(1).unfinished()] == [second.segment_id]


def test_topic_deletion_in_use(world: MetadataCluster) -> None:
    world.watch(0, 1)
    first = copy_of(1, 0, 9)
    assert world.write(0, first) is ErrorCode.none
    world.request(world.controller, ApiKey.DELETE_TOPICS, 6, delete_request(REMOTE_LOG_METADATA_TOPIC))
    images = [each.node.broker.loader for each in world.living]
    world.run_until(lambda: all(REMOTE_LOG_METADATA_TOPIC not in image.image.topics for image in images))
    assert world.write(0, step(first, FINISHED)) is ErrorCode.unknown_topic_or_partition
    world.at(1, lambda topic: topic.unwatch(first.topic_id, 0))
    assert not world.topics[1].is_ready(first.topic_id, 0)
    world.run(5_000)


@pytest.mark.parametrize("partitions", [1, 7])
def test_recreated_topic_with_other_partition_count_is_read_from_start(world: MetadataCluster, partitions: int) -> None:
    """The events of the first topic are lost, and nothing else."""
    world.watch(0, 1)
    lost = copy_of(1, 0, 9)
    assert world.write(0, lost) is ErrorCode.none
    world.request(world.controller, ApiKey.DELETE_TOPICS, 6, delete_request(REMOTE_LOG_METADATA_TOPIC))
    assert world.create(REMOTE_LOG_METADATA_TOPIC, partitions, 3).error_code == ErrorCode.none
    world.run_until(lambda: world.topics[0].is_ready(lost.topic_id, 0))
    for number in range(12):
        world.watch(0, 1, partition=number)
        assert world.write(0, copy_of(number + 2, 0, 9, partition=number)) is ErrorCode.none
    both = [world.topics[0], world.topics[1]]
    world.run_until(lambda: all(len(each.of(lost.topic_id, number)) == 1 for each in both for number in range(12)))
    assert all(each.of(lost.topic_id, 0).get(lost.segment_id) is None for each in both)


def test_batch_damaged_in_transit_is_fetched_again() -> None:
    batch = bytes(build([Record(timestamp_ms=0, value=b"event")]))
    damaged = batch[:-1] + bytes([batch[-1] ^ 1])
    watched, partition = SimpleNamespace(next_offset=0), SimpleNamespace(damaged=(-1, 0))
    sent: Any = SimpleNamespace(partition=partition, watched={0: watched})
    taken: list[int] = []
    paused: list[object] = []
    skipped: list[int] = []
    reader: Any = SimpleNamespace(
        _apply_record=lambda _, record: taken.append(record.offset),
        _pause=paused.append,
        _skipped=lambda _, offset, __: skipped.append(offset),
    )
    run_to_end(MetadataReader._apply_batches(reader, sent, memoryview(damaged)))
    assert taken == []
    assert skipped == []
    assert watched.next_offset == 0
    assert len(paused) == 1
    run_to_end(MetadataReader._apply_batches(reader, sent, memoryview(batch)))
    assert (taken, watched.next_offset) == ([0], 1)
    for _ in range(DAMAGED_FETCHES - 1):
        run_to_end(MetadataReader._apply_batches(reader, sent, memoryview(damaged)))
    assert skipped == [0]
