"""Events during a pass of the cleaner on a node: another policy, deletion of a damaged log, a failing disk."""

from dataclasses import dataclass

import pytest

from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.core.tests.test_log_cleaner import (
    BACKOFF_MS,
    a_world,
    fill,
    gauge,
    log_of,
    notes,
    offsets,
    set_policy,
)
from reference_broker.ports.disk import DiskError, MemoryDisk


@dataclass(slots=True)
class PartlyFullDisk(MemoryDisk):
    """A disk where changes below ``full`` fail."""

    full: str = "nowhere"

    def _change(self, path: str) -> None:
        if path.startswith(self.full):
            raise DiskError(f"{path}: no space left")
        MemoryDisk._change(self, path)


def leftovers(world: NodeWorld) -> list[str]:
    return [path for path in world.disk.files if path.endswith((".cleaned", ".swap"))]


@pytest.mark.clause("LogCleanerTest.testCleanSegmentsWithAbort")
def test_topic_no_longer_compacted_loses_no_records() -> None:
    world = a_world(log_cleaner_io_max_bytes_per_second="500")
    fill(world)
    world.advance(BACKOFF_MS)
    world.settle_until(lambda: bool(leftovers(world)), 60_000)
    set_policy(world, "t", "delete")
    before = offsets(log_of(world))
    world.advance(10 * BACKOFF_MS)
    assert len(notes(world, "cleaning_given_up")) == 1
    assert offsets(log_of(world)) == before
    assert leftovers(world) == []
    set_policy(world, "t", "compact")
    world.advance(10 * BACKOFF_MS)
    assert len(notes(world, "log_cleaned")) == 1


@pytest.mark.clause("LogCleanerIntegrationTest.testMarksPartitionsAsOfflineAndPopulatesUncleanableMetrics")
def test_damaged_log_is_counted_until_topic_deletion() -> None:
    world = a_world()
    fill(world)
    world.disk.files[log_of(world).segments[0].path][100] ^= 1
    world.advance(BACKOFF_MS)
    assert gauge(world, "LogCleanerManager", "uncleanable-partitions-count") == 1
    world.delete("t")
    world.advance(BACKOFF_MS)
    assert gauge(world, "LogCleanerManager", "uncleanable-partitions-count") == 0


def test_failing_log_does_not_block_cleaning_of_others() -> None:
    disk = PartlyFullDisk()
    world = NodeWorld(disk, log_segment_bytes="2000")
    for topic in "uv":
        world.create(topic, cleanup_policy="compact")
    world.create("t", cleanup_policy="compact")
    fill(world)
    world.advance(BACKOFF_MS)
    for topic in "tuv":
        fill(world, 120, topic)
    disk.full = "u-0/"
    world.advance(3 * BACKOFF_MS)
    assert notes(world, "cleaning_failed")
    assert [note["partition"] for note in notes(world, "log_cleaned")] == ["t-0", "v-0", "t-0"]
    disk.full = "nowhere"
    world.advance(2 * BACKOFF_MS)
    assert [note["partition"] for note in notes(world, "log_cleaned")] == ["t-0", "v-0", "t-0", "u-0"]


@pytest.mark.thorough
def test_disk_error_during_swap_ends_node() -> None:
    ended = 0
    for operations in range(1, 40):
        world = a_world()
        fill(world)
        before = offsets(log_of(world))
        world.disk.fail_after = operations
        try:
            world.advance(BACKOFF_MS)
        except NodeFailed:
            ended += 1
            world.disk.fail_after = None
            world = NodeWorld(world.disk, log_segment_bytes="2000")
            found = offsets(log_of(world))
            assert found[-5:] == before[-5:]
            assert leftovers(world) == []
    assert ended
