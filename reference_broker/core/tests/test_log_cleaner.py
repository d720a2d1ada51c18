"""The cleaner on a whole node: the logs it selects, when, and passes that are interrupted."""

from typing import Any

import pytest
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.static.primitive import i8

from reference_broker.core.events import Note, SetTimer
from reference_broker.core.log_cleaner import CompactedTopics
from reference_broker.core.tests.node_world import START_WALL_MS, NodeWorld
from reference_broker.log.cleaner.tests.cleaner_world import contents
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.node_ports import later
from reference_broker.ports.slicing import CLEANED_TOPICS_PER_SLICE
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey

BACKOFF_MS = 15_000


def a_world(**config: Any) -> NodeWorld:
    world = NodeWorld(log_segment_bytes="2000", **config)
    world.create("t", cleanup_policy="compact")
    return world


def log_of(world: NodeWorld, topic: str = "t") -> UnifiedLog:
    return world.node.broker.partitions.by_name[topic, 0].log


def fill(world: NodeWorld, rounds: int = 40, topic: str = "t") -> None:
    for number in range(rounds):
        record = Record(timestamp_ms=START_WALL_MS, key=b"k%d" % (number % 5), value=b"v%d" % number * 20)
        world.produce(topic, 0, build([record]))


def offsets(log: UnifiedLog) -> list[int]:
    return [record.offset for _, record in contents(log)]


def notes(world: NodeWorld, what: str) -> list[dict[str, Any]]:
    return [dict(effect.fields) for effect in world.effects if isinstance(effect, Note) and effect.what == what]


def gauge(world: NodeWorld, kind: str, name: str) -> int:
    return world.node.metrics.gauge("kafka.log", kind, name).value


def test_dirty_log_is_cleaned_once_after_backoff() -> None:
    world = a_world()
    fill(world)
    log = log_of(world)
    assert len(log.segments) > 2
    closed = log.bases[-1]
    world.advance(BACKOFF_MS)
    found = offsets(log)
    assert len([offset for offset in found if offset < closed]) == 5
    assert [offset for offset in found if offset >= closed] == list(range(closed, 40))
    [note] = notes(world, "log_cleaned")
    assert (note["partition"], note["end_offset"]) == ("t-0", closed)
    assert 0 < gauge(world, "LogCleaner", "cleaner-recopy-percent") < 50
    timers = len([effect for effect in world.effects if isinstance(effect, SetTimer)])
    world.advance(10 * BACKOFF_MS)
    assert len(notes(world, "log_cleaned")) == 1
    assert len([effect for effect in world.effects if isinstance(effect, SetTimer)]) < timers + 10 * 42
    assert gauge(world, "LogCleanerManager", "time-since-last-run-ms") >= 9 * BACKOFF_MS


def cleaned_now(world: NodeWorld, topic: str = "t") -> list[str]:
    """Request a pass in an event, and return why it ended, once it has."""
    ended: list[str] = []
    topic_id = world.node.broker.loader.image.topics[topic].topic_id
    later(world.node.broker.ports, 0, lambda: world.node.clean_now(topic_id, 0, ended.append))
    world.produce(topic, 0, build([Record(timestamp_ms=START_WALL_MS, key=b"last", value=b"")]))
    world.advance(1)
    return ended


def test_log_is_cleaned_on_demand_and_the_next_round_is_due_as_before() -> None:
    world = a_world(log_cleaner_backoff_ms=str(10 * BACKOFF_MS))
    fill(world)
    log = log_of(world)
    closed = log.bases[-1]
    world.advance(9 * BACKOFF_MS)
    assert cleaned_now(world) == [""]
    assert len([offset for offset in offsets(log) if offset < closed]) == 5
    assert len(notes(world, "log_cleaned")) == 1
    fill(world)
    world.advance(2 * BACKOFF_MS)
    assert len(notes(world, "log_cleaned")) == 2, "the cleaner's own round comes when it is due"


def test_log_without_dirty_records_needs_no_pass() -> None:
    world = a_world()
    assert cleaned_now(world) == [""]
    assert notes(world, "log_cleaned") == []


@pytest.mark.clause("LogCleanerManagerTest.testGrabFilthiestCompactedLogReturnsLogWithDirtiestRatio")
def test_log_with_largest_dirty_ratio_is_cleaned_first() -> None:
    world = a_world(log_cleaner_min_cleanable_ratio="0.8")
    world.create("u", cleanup_policy="compact")
    world.create("never", cleanup_policy="delete")
    fill(world)
    world.advance(BACKOFF_MS)
    fill(world, 60)
    fill(world, 60, "u")
    fill(world, 60, "never")
    world.advance(BACKOFF_MS)
    assert [note["partition"] for note in notes(world, "log_cleaned")] == ["t-0", "u-0", "t-0"]
    fill(world, 12)
    world.advance(BACKOFF_MS)
    assert len(notes(world, "log_cleaned")) == 3
    assert 0 < gauge(world, "LogCleanerManager", "max-dirty-percent") < 80


def test_disabled_cleaner_cleans_nothing() -> None:
    world = a_world(log_cleaner_enable="false")
    fill(world)
    world.advance(4 * BACKOFF_MS)
    assert offsets(log_of(world)) == list(range(40))


def test_topic_is_cleaned_once_policy_is_compact() -> None:
    world = NodeWorld(log_segment_bytes="2000")
    world.create("t")
    fill(world)
    world.advance(BACKOFF_MS)
    assert offsets(log_of(world)) == list(range(40))
    set_policy(world, "t", "compact")
    world.advance(BACKOFF_MS)
    assert len(offsets(log_of(world))) < 20


def set_policy(world: NodeWorld, topic: str, policy: str) -> None:
    setting = AlterableConfig(name="cleanup.policy", config_operation=i8(0), value=policy)
    resource = AlterConfigsResource(resource_type=i8(2), resource_name=topic, configs=(setting,))
    world.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    )


@pytest.mark.clause(
    "LogCleanerManagerTest.testGrabFilthiestCompactedLogIgnoresUncleanablePartitions",
    "LogCleanerIntegrationTest.testMarksPartitionsAsOfflineAndPopulatesUncleanableMetrics",
)
def test_damaged_log_is_noted_once_and_not_cleaned() -> None:
    world = a_world()
    fill(world)
    world.disk.files[log_of(world).segments[0].path][100] ^= 1
    world.advance(10 * BACKOFF_MS)
    [note] = notes(world, "cleaning_uncleanable")
    assert note["partition"] == "t-0"
    assert "CRC" in note["reason"]
    assert gauge(world, "LogCleanerManager", "uncleanable-partitions-count") == 1
    assert notes(world, "log_cleaned") == []


def test_full_disk_does_not_end_cleaner() -> None:
    world = a_world()
    fill(world)
    before = offsets(log_of(world))
    world.disk.fail_after = 0
    world.advance(BACKOFF_MS)
    assert len(notes(world, "cleaning_failed")) == 1
    assert offsets(log_of(world)) == before
    world.disk.fail_after = None
    world.advance(BACKOFF_MS)
    assert len(notes(world, "log_cleaned")) == 1


@pytest.mark.clause("LogCleanerManagerTest.testConcurrentLogCleanupAndTopicDeletion")
@pytest.mark.parametrize("again", [False, True])
def test_topic_deleted_during_pass_ends_it(again: bool) -> None:
    world = a_world()
    fill(world)
    world.hold_syncs = True
    world.advance(BACKOFF_MS)
    assert world.syncs, "of what it becomes"
    world.hold_syncs = False
    world.delete("t")
    if again:
        world.create("t", cleanup_policy="compact")
        fill(world, 3)
    world.advance(BACKOFF_MS)
    assert notes(world, "cleaning_given_up")
    assert not [path for path in world.disk.files if path.startswith("t-0/") and "cleaned" in path]
    if again:
        assert offsets(log_of(world)) == [0, 1, 2]
    else:
        assert not world.disk.exists("t-0")


def test_cleaner_io_is_throttled() -> None:
    world = a_world(log_cleaner_io_max_bytes_per_second="1000")
    fill(world, 100)
    bytes_ = log_of(world).size_bytes
    world.advance(BACKOFF_MS + bytes_ - 1000)
    assert notes(world, "log_cleaned") == []
    world.advance(3 * bytes_)
    assert len(notes(world, "log_cleaned")) == 1


def test_shutdown_abandons_pass() -> None:
    world = a_world()
    fill(world)
    before = offsets(log_of(world))
    world.hold_syncs = True
    world.advance(BACKOFF_MS)
    world.hold_syncs = False
    world.shut_down()
    world.advance(20_000)
    assert world.node.stopped
    world = NodeWorld(world.disk, log_segment_bytes="2000")
    found = offsets(log_of(world))
    assert found == before or len(found) < len(before)
    assert not [path for path in world.disk.files if "cleaned" in path.rpartition(".")[2] or path.endswith(".swap")]
    fill(world, 10)
    world.advance(2 * BACKOFF_MS)
    assert len(offsets(log_of(world))) < 40


def test_changed_default_policy_is_applied_in_slices() -> None:
    """A topic's own policy stays, one that is created meanwhile has the new one, and the last change wins."""
    partition = PartitionImage((1,), (1,), 1, 0, 0)
    many = {
        f"t{number}": TopicImage(f"t{number}", bytes(16), (partition,))
        for number in range(2 * CLEANED_TOPICS_PER_SLICE + 1)
    }
    own = {(TOPIC_RESOURCE, "t0"): {"cleanup.policy": "delete"}}
    topics = CompactedTopics("delete", MetadataImage(topics=many, configs=own))
    work = topics.default_changed("compact")
    next(work)
    assert len(topics.names) == CLEANED_TOPICS_PER_SLICE - 1
    assert len([*work]) == 1
    assert topics.names.keys() == many.keys() - {"t0"}
    late = topics.default_changed("delete")
    next(late)
    assert [*topics.default_changed("compact")] == [None, None]
    assert len([*late]) == 1
    assert topics.names.keys() == many.keys() - {"t0"}
