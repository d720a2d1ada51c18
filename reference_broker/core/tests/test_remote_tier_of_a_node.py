"""A whole node with a remote tier: records are copied, deleted locally, and read from the tier."""

import gc
from typing import Any

import pytest

from bench.fleet.behaviours.bodies import set_topic_configs_request
from reference_broker.core.tests.node_world import NodeWorld, batch, delete_request
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import iterate
from reference_broker.remote_log.objects import ObjectKind, name_of
from reference_broker.remote_log.reading.reader import RemoteRecords
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic

TIER: dict[str, Any] = {
    "remote_log_storage_system_enable": "true",
    "remote_log_manager_task_interval_ms": "500",
    "log_retention_check_interval_ms": "1000",
}
TOPIC: dict[str, Any] = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}
VALUE = bytes(300_000)


def produced(world: NodeWorld, count: int) -> None:
    for _ in range(count):
        assert world.produce("events", 0, batch(VALUE)).error_code == ErrorCode.none


def read_back(world: NodeWorld, offset: int) -> list[int]:
    """Return the offsets of the batches that the tier has from ``offset`` on."""
    remote_log, log = world.node.broker.remote_log, world.log("events")
    assert remote_log is not None
    offsets: list[int] = []
    while offset < log.local_log_start_offset:
        results: list[Any] = []
        remote_log.reader.read(log, 0, offset, 1 << 20, results.append)
        world.node._end_event()
        world._take(world.node._take_effects())
        world.settle()
        (found,) = results
        offsets += [header.base_offset for _, header in iterate(found.records)]
        offset = offsets[-1] + 1
    return offsets


def test_records_are_copied_deleted_locally_and_stay_readable() -> None:
    world = NodeWorld(**TIER)
    assert world.create("events", **TOPIC).error_code == ErrorCode.none
    produced(world, 20)
    world.advance(10_000)
    log = world.log("events")
    assert log.log_start_offset == 0
    assert log.local_log_start_offset == log.bases[-1] > 10
    assert read_back(world, 0) == list(range(log.local_log_start_offset))
    kinds = [name.kind for key in world.store.objects if (name := name_of(key)) is not None]
    assert kinds.count(ObjectKind.LOG) == kinds.count(ObjectKind.PRODUCER_SNAPSHOT) > 5


def test_restarted_node_loads_remote_metadata_and_continues() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk, **TIER)
    world.create("events", **TOPIC)
    produced(world, 20)
    world.advance(10_000)
    local_start = world.log("events").local_log_start_offset
    again = NodeWorld(disk, **TIER)
    again.store = world.store
    again.advance(30_000)
    assert again.log("events").local_log_start_offset == local_start
    assert again.log("events").copied_end_offset == local_start
    produced(again, 10)
    again.advance(10_000)
    assert again.log("events").local_log_start_offset > local_start
    assert read_back(again, 0) == list(range(again.log("events").local_log_start_offset))


def test_node_without_tier_has_no_metadata_topic_and_no_store_calls() -> None:
    world = NodeWorld()
    world.create("events", segment_bytes="1048576")
    produced(world, 10)
    world.advance(60_000)
    assert world.node.broker.remote_log is None
    assert "__remote_log_metadata" not in world.node.broker.loader.image.topics
    assert not world.store.objects


def test_unused_tier_has_no_metadata_topic() -> None:
    world = NodeWorld(**TIER)
    world.create("events")
    produced(world, 10)
    world.advance(60_000)
    assert "__remote_log_metadata" not in world.node.broker.loader.image.topics
    assert not world.store.objects


@pytest.mark.clause("RemoteTopicCrudTest.testEnableRemoteLogOnExistingTopicTest")
def test_enabling_remote_storage_copies_topic() -> None:
    """The first tiered topic makes the node create the topic of the metadata, while the change is being published."""
    world = NodeWorld(**TIER)
    world.create("events", segment_bytes="1048576")
    produced(world, 10)
    change = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
    (result,) = world.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, set_topic_configs_request(["events"], change)
    ).responses
    assert result.error_code == ErrorCode.none
    world.advance(10_000)
    assert world.log("events").local_log_start_offset == world.log("events").bases[-1] > 0


@pytest.mark.thorough
def test_remote_records_are_released_with_response() -> None:
    """Records of many MiB in a reference cycle would stay until a garbage collection, which is seldom."""
    world = NodeWorld(**TIER)
    world.create("events", **TOPIC)
    produced(world, 20)
    world.advance(10_000)
    topic_id = world.node.broker.partitions.by_name["events", 0].topic_id
    topic = FetchTopic("", topic_id, [FetchPartition(0, 0, 1 << 20)])
    gc.collect()
    gc.disable()
    try:
        response = world.request(ApiKey.FETCH, 17, FetchRequest(topics=[topic]))
        assert response.responses[0].partitions[0].records
        del response
        world.effects.clear()
        world.replies.clear()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [each for each in gc.garbage if isinstance(each, RemoteRecords)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_remote_metadata_topic_is_deletable_only_without_tier() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk, **TIER)
    world.create("events", **TOPIC)
    produced(world, 10)
    world.advance(5_000)
    request = delete_request("__remote_log_metadata")
    (refused,) = world.request(ApiKey.DELETE_TOPICS, 6, request).responses
    assert refused.error_code is ErrorCode.topic_deletion_disabled
    assert "remote.log.storage.system.enable" in str(refused.error_message)
    assert read_back(world, 0)
    (deleted,) = NodeWorld(disk).request(ApiKey.DELETE_TOPICS, 6, request).responses
    assert not deleted.error_code
