"""The remote objects of a deleted topic are removed, whichever node dies meanwhile; those of other topics stay."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.core.tests.node_world import delete_request
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.ports.disk import Disk
from reference_broker.ports.store import FailureKind, MemoryStore, StoreFailure, StoreOperation, StoreResult
from reference_broker.records.record import read_all
from reference_broker.remote_log.expiring import deleted_partitions
from reference_broker.remote_log.expiring.deleted_partitions import DeletedPartitions
from reference_broker.remote_log.metadata.events import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    decode,
    encode,
)
from reference_broker.remote_log.metadata.tests.metadata_cluster import MetadataCluster
from reference_broker.remote_log.metadata.tests.remote_events import FINISHED, TOPIC, copy_of, step
from reference_broker.remote_log.objects import ObjectKind, folder_of, keys_of
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

PARTITIONS = 3
INTERVAL_US = 500_000


class Deleting(MetadataCluster):
    """A cluster whose nodes look for deleted topics."""

    def start(self, number: int, **config: str) -> None:
        super().start(number, **config)
        node = self.members[number].node
        broker = node.broker
        ports: Any = broker.ports
        deleted = DeletedPartitions(
            ports,
            number,
            self.topics[number],
            lambda: broker.loader.image,
            broker.partitions,
            INTERVAL_US,
        )
        ports.set_timer(self.mono_us + 1, deleted.start)
        self._take(self.members[number], node._take_effects())

    def topic_id(self, name: str) -> bytes:
        return bytes(self.members[0].node.broker.loader.image.topics[name].topic_id)

    def copy(self, number: int, topic_id: bytes, partition: int) -> RemoteLogSegmentMetadata:
        """Copy a segment as node 0: its events and its objects."""
        segment = copy_of(number, 0, 9, partition=partition, topic_id=topic_id, attempt=1)
        self.watch(0, partition=partition, topic_id=topic_id)
        assert self.write(0, segment) is ErrorCode.none
        for key in keys_of(segment):
            self.store.objects[key] = b"object"
        assert self.write(0, step(segment, FINISHED)) is ErrorCode.none
        return segment

    def delete_topic(self, name: str) -> None:
        self.request(self.controller, ApiKey.DELETE_TOPICS, 6, delete_request(name))

    def left_in(self, topic_id: bytes) -> list[str]:
        folders = [folder_of(TOPIC, topic_id, index) for index in range(PARTITIONS)]
        return [key for key in self.store.objects if key.rpartition("/")[0] in folders]

    def deletions(self, topic_id: bytes, partition: int) -> list[RemotePartitionDeleteState]:
        index = self.index(partition, topic_id)
        data = self.bytes_of(self.keeper_of(topic_id, partition), REMOTE_LOG_METADATA_TOPIC, index)
        events = [decode(bytes(record.value or b"")) for _, record in read_all(data)]
        mine = [event for event in events if (event.topic_id, event.partition) == (topic_id, partition)]
        return [each.state for each in mine if isinstance(each, RemotePartitionDeleteMetadata)]

    def keeper_of(self, topic_id: bytes, partition: int) -> int:
        return self.leader(REMOTE_LOG_METADATA_TOPIC, self.index(partition, topic_id))

    def is_over(self, topic_id: bytes) -> bool:
        last = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        return all(last in self.deletions(topic_id, index) for index in range(PARTITIONS))


class Away(MemoryStore):
    """A store that no node can reach."""

    def carry_out(self, operation: StoreOperation, disk: Disk) -> StoreResult | StoreFailure:  # noqa: ARG002
        return StoreFailure(FailureKind.UNAVAILABLE, "away")


def tiered(world: Deleting) -> bytes:
    world.ready()
    assert world.create(TOPIC, PARTITIONS).error_code == ErrorCode.none
    assert world.create("other", PARTITIONS).error_code == ErrorCode.none
    topic_id = world.topic_id(TOPIC)
    for index in range(PARTITIONS):
        world.copy(1 + index, topic_id, index)
    world.run(1_000)
    return topic_id


@pytest.mark.clause("RemoteLogMetadataManagerTest.testRemotePartitionDeletion", "RemoteTopicCrudTest.testTopicDeletion")
def test_deleted_topic_loses_all_objects_and_states_are_written() -> None:
    world = Deleting()
    topic_id = tiered(world)
    world.run(5_000)
    assert len(world.left_in(topic_id)) == PARTITIONS * len(ObjectKind), "a living topic keeps what it has"
    other = world.topic_id("other")
    kept = world.copy(9, other, 0)
    world.store.objects[keys_of(copy_of(8, 0, 9, topic_id=topic_id))[0]] = b"an object of which nothing is known"
    world.delete_topic(TOPIC)
    world.run_until(lambda: world.is_over(topic_id))
    assert not world.left_in(topic_id)
    assert set(keys_of(kept)) <= set(world.store.objects)
    for index in range(PARTITIONS):
        assert world.deletions(topic_id, index) == list(RemotePartitionDeleteState)
    world.run(5_000)
    for index in range(PARTITIONS):
        assert world.deletions(topic_id, index) == list(RemotePartitionDeleteState), "it is removed once"


@pytest.mark.thorough
@pytest.mark.parametrize("after_ms", [0, 100, 400, 500, 550, 600, 650, 700, 800, 900, 1000, 1200])
def test_removal_survives_death_of_node_at_any_time(after_ms: int) -> None:
    world = Deleting()
    topic_id = tiered(world)
    world.delete_topic(TOPIC)
    world.run(after_ms)
    dead = world.keeper_of(topic_id, 0)
    world.kill(dead)
    world.run(15_000)
    world.start(dead)
    world.ready()
    world.run_until(lambda: world.is_over(topic_id))
    assert not world.left_in(topic_id)


def test_objects_of_deleted_topic_are_found_after_full_restart() -> None:
    world = Deleting()
    topic_id = tiered(world)
    world.delete_topic(TOPIC)
    for number in range(3):
        world.kill(number)
    assert world.left_in(topic_id)
    for number in range(3):
        world.start(number)
    world.ready()
    world.run_until(lambda: world.is_over(topic_id))
    assert not world.left_in(topic_id)


def test_failed_removal_is_retried() -> None:
    world = Deleting()
    topic_id = tiered(world)
    whole, world.store = world.store, Away()
    world.store.objects = whole.objects
    world.delete_topic(TOPIC)
    world.run(5_000)
    assert world.left_in(topic_id)
    assert world.notes("remote_partition_not_removed")
    world.store = whole
    world.run_until(lambda: world.is_over(topic_id))
    assert not world.left_in(topic_id)


def test_topic_unknown_to_node_is_not_deleted() -> None:
    """The metadata of the copy shows that its writer knew a newer version of the cluster's metadata."""
    world = Deleting()
    world.ready()
    unknown = b"n" * 16
    ahead = world.members[0].node.broker.loader.image.provenance.offset + 1_000
    world.watch(0, topic_id=unknown)
    segment = replace(copy_of(1, 0, 9, topic_id=unknown), metadata_offset=ahead)
    world.produce(REMOTE_LOG_METADATA_TOPIC, encode(segment), world.index(topic_id=unknown))
    key = keys_of(segment)[0]
    world.store.objects[key] = b"object"
    world.run(5_000)
    assert key in world.store.objects
    while world.members[0].node.broker.loader.image.provenance.offset < ahead:
        world.create(f"t{world.mono_us}", 50, 1)
    world.run_until(lambda: key not in world.store.objects)
    world.run(2_000)
    assert world.deletions(unknown, 0) == list(RemotePartitionDeleteState)


@pytest.mark.parametrize("restarts", [False, True])
def test_object_stored_after_removal_is_removed_too(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node was paused while it stored it."""
    monkeypatch.setattr(deleted_partitions, "SWEEP_INTERVAL_US", 3_600_000_000 if restarts else 5_000_000)
    world = Deleting()
    topic_id = tiered(world)
    world.delete_topic(TOPIC)
    world.run_until(lambda: world.is_over(topic_id))
    world.run(1_000)
    late = keys_of(copy_of(8, 0, 9, topic_id=topic_id))[0]
    world.store.objects[late] = b"late"
    if restarts:
        keeper = world.keeper_of(topic_id, 0)
        world.kill(keeper)
        world.start(keeper)
        world.ready()
    world.run_until(lambda: late not in world.store.objects)
    assert world.deletions(topic_id, 0) == list(RemotePartitionDeleteState), "nothing more is written"


def test_removed_partition_is_swept_for_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remembered deleted topics do not grow for ever."""
    monkeypatch.setattr(deleted_partitions, "SWEEP_INTERVAL_US", 2_000_000)
    monkeypatch.setattr(deleted_partitions, "SWEPT_FOR_MS", 4_000)
    world = Deleting()
    topic_id = tiered(world)
    world.delete_topic(TOPIC)
    world.run_until(lambda: world.is_over(topic_id))
    world.run(8_000)
    late = keys_of(copy_of(8, 0, 9, topic_id=topic_id))[0]
    world.store.objects[late] = b"late"
    world.run(10_000)
    assert late in world.store.objects
