"""A leader whose snapshot was damaged on its disk, and a node that needs it: whole nodes on disks in memory."""

from typing import Any

import pytest

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.ports.disk import MemoryDisk
from reference_broker.quorum.snapshots.format import snapshot_path
from reference_broker.quorum.snapshots.serving import SnapshotChecks

SMALL: dict[str, Any] = {
    "metadata_log_max_record_bytes_between_snapshots": "2000",
    "metadata_log_segment_bytes": "1024",
    "metadata_max_retention_bytes": "2000",
    "crucible_metadata_snapshot_keep_ms": "0",
}


def with_a_damaged_leader() -> tuple[ClusterWorld, int]:
    """Return a cluster without one follower, whose directory is empty when it restarts, and the follower's number."""
    world = ClusterWorld(**SMALL)
    world.ready()
    leader = world.controller
    away = next(number for number in range(3) if number != leader)
    world.kill(away)
    for number in range(20):
        world.create(f"t{number}", partitions=4, replicas=2)
    world.run(3000)
    assert world.controller == leader
    node = world.members[leader].node
    newest = node.broker.snapshots.latest
    assert newest is not None
    assert node.broker.quorum_node.log.start_offset > 0, "the log must not reach back to its beginning"
    world.disks[leader].files[snapshot_path(newest)][150] ^= 1
    world.disks[away] = MemoryDisk()
    return world, away


@pytest.mark.thorough
def test_leader_detects_damaged_snapshot_and_makes_new_one() -> None:
    world, away = with_a_damaged_leader()
    world.start(away)
    world.ready()
    assert len(world.notes("snapshot_damaged")) == 1
    assert not world.notes("download_discarded"), "no damaged byte was sent"
    assert len(world.members[away].node.broker.loader.image.topics) == 20


def test_follower_backs_off_from_damaged_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower once fetched the same bytes fifty times a second."""
    world, away = with_a_damaged_leader()
    monkeypatch.setattr(SnapshotChecks, "_is_due", lambda *_: False)
    world.start(away)
    world.run(60_000)
    assert 5 <= len(world.notes("download_postponed")) <= 15
    world.create("another", partitions=40, replicas=2)
    world.ready()  # The leader has made a new, intact snapshot meanwhile.


def test_follower_with_full_disk_backs_off_and_resumes() -> None:
    world, away = with_a_damaged_leader()
    world.start(away)
    world.disks[away].fail_after = 3
    world.run(60_000)
    assert 5 <= len(world.notes("download_failed")) <= 15
    world.disks[away].fail_after = None
    world.ready()
