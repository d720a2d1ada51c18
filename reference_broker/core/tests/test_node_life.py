"""Start and stop of a node: clean and unclean, interrupted, in the directory of another node."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

from reference_broker.core.events import Synced
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld, batch, create_request, produce_request, sent_batch
from reference_broker.ports.disk import MemoryDisk
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE, StartRefused
from reference_broker.wire.apis import ApiKey


def filled(disk: MemoryDisk, topics: int = 1, **config: Any) -> NodeWorld:
    world = NodeWorld(disk, **config)
    for number in range(topics):
        world.create(f"t{number}", 2)
        for sequence in range(3):
            world.produce(f"t{number}", 0, sent_batch(7, sequence))
    return world


def stopped(world: NodeWorld) -> NodeWorld:
    world.shut_down()
    world.settle_until(lambda: world.node.stopped)
    assert world.node.stopped
    return world


@pytest.mark.clause("LogLoaderTest.testLogRecoveryIsCalledUponBrokerCrash", "LogLoaderTest.testCleanShutdownFile")
def test_start_after_clean_stop_keeps_all_records() -> None:
    disk = MemoryDisk()
    stopped(filled(disk))
    assert disk.exists(CLEAN_SHUTDOWN_FILE)
    world = NodeWorld(disk)
    assert not disk.exists(CLEAN_SHUTDOWN_FILE)
    assert world.log("t0").recovered.verified_bytes == 0
    assert world.log("t0").log_end_offset == 3
    assert world.produce("t0", 0, sent_batch(7, 2)).base_offset == 2


@pytest.mark.parametrize(
    "typo",
    [
        {"crucible_cluster_id": "mine", "controller_quorum_voters": "1@one:9092,2@two:9092"},
        {"crucible_cluster_id": "another"},
    ],
    ids=["voters", "cluster ID"],
)
def test_rejected_start_keeps_clean_shutdown_file(typo: dict[str, Any]) -> None:
    disk = MemoryDisk()
    stopped(filled(disk, crucible_cluster_id="mine"))
    mark = bytes(disk.files[CLEAN_SHUTDOWN_FILE])
    with pytest.raises(StartRefused):
        NodeWorld(disk, seed=1, **typo)
    assert bytes(disk.files[CLEAN_SHUTDOWN_FILE]) == mark
    again = NodeWorld(disk, seed=2)
    assert again.log("t0").recovered.verified_bytes == 0, "the next start trusts what was stopped cleanly"
    assert not disk.exists(CLEAN_SHUTDOWN_FILE)


def test_clean_shutdown_file_is_removed_durably_before_logs_change() -> None:
    disk = MemoryDisk()
    stopped(filled(disk))
    logs = {path: bytes(content) for path, content in disk.files.items() if path.endswith(".log")}
    world = NodeWorld(disk, seed=1, start=False)
    world.hold_syncs = True
    world.start()
    world.settle()
    assert not disk.exists(CLEAN_SHUTDOWN_FILE)
    assert not world.node.listening
    world.complete_sync()
    assert world.node.listening
    assert {path: bytes(content) for path, content in disk.files.items() if path.endswith(".log")} == logs


def test_start_after_unclean_stop_recovers_logs() -> None:
    disk = MemoryDisk()
    filled(disk)
    assert NodeWorld(disk).log("t0").recovered.verified_bytes > 0


def test_stop_waits_for_syncs_of_all_appends() -> None:
    world = filled(MemoryDisk())
    log = world.log("t0")
    unsynced = log.sync_point().paths
    world.hold_syncs = True
    world.shut_down()
    assert unsynced
    assert not world.node.ready
    assert not world.node.stopped
    assert not world.disk.exists(CLEAN_SHUTDOWN_FILE)
    world.complete_syncs()
    assert world.node.stopped
    assert log.sync_point().paths == ()


def test_stop_completes_produce_waiting_for_sync() -> None:
    world = filled(MemoryDisk(), log_flush_interval_messages="1")
    world.hold_syncs = True
    number = world.send(ApiKey.PRODUCE, 9, produce_request("t0", 0, sent_batch(7, 3)))
    world.shut_down()
    world.complete_syncs()
    assert number in world.replies
    assert world.node.stopped


def test_request_during_stop_closes_connection() -> None:
    world = filled(MemoryDisk())
    log = world.log("t0")
    world.hold_syncs = True
    world.shut_down()
    number = world.send(ApiKey.PRODUCE, 9, produce_request("t0", 0, batch()), connection=4)
    assert number not in world.replies
    assert "shutting down" in world.closed[4]
    world.complete_syncs()
    assert world.node.stopped
    assert log.log_end_offset == 3


def test_writes_during_stop_are_synced_before_clean_shutdown_file() -> None:
    world = filled(MemoryDisk())
    world.hold_syncs = True
    log = world.log("t0", 1)
    world.shut_down()
    log.append(world.now, batch(), 0)
    while world.syncs or world.fire_due():
        if world.syncs:
            world.complete_sync()
        assert not (log.sync_point().paths and world.disk.exists(CLEAN_SHUTDOWN_FILE))
    assert world.node.stopped


@pytest.mark.thorough
@pytest.mark.clause("LogLoaderTest.testLogRecoveryIsCalledUponBrokerCrash")
def test_stop_during_start_is_not_clean() -> None:
    """Otherwise logs that were not recovered yet would be trusted, torn tails included."""
    disk = MemoryDisk()
    filled(disk, topics=30)
    tail = f"t29-0/{0:020d}.log"
    del disk.files[tail][-5:]
    steps = 0
    while True:
        world = NodeWorld(disk.copy(), start=False)
        world.start()
        for _ in range(steps):
            world.step()
        if world.node.ready:
            break
        world.shut_down()
        world.settle()
        assert world.node.stopped
        assert not world.node.ready
        assert not world.disk.exists(CLEAN_SHUTDOWN_FILE)
        assert NodeWorld(world.disk, seed=9).log("t29").log_end_offset == 2
        steps += 1
    assert steps > 5


def test_directory_of_other_node_is_rejected() -> None:
    disk = MemoryDisk()
    stopped(filled(disk))
    with pytest.raises(StartRefused, match="belongs to node 1, not 2"):
        NodeWorld(disk, node_id=2)


def test_rejected_start_does_not_change_directory() -> None:
    disk = MemoryDisk()
    stopped(filled(disk))
    before = disk.copy().files
    with pytest.raises(StartRefused):
        NodeWorld(disk, node_id=2)
    assert disk.files == before


@pytest.mark.parametrize("changes", range(8))
def test_disk_error_during_start_ends_node(changes: int) -> None:
    disk = MemoryDisk()
    filled(disk)
    disk.fail_after = changes
    with pytest.raises(NodeFailed, match="made to fail"):
        NodeWorld(disk, seed=1)


def test_metadata_log_damaged_after_clean_stop_is_rejected() -> None:
    disk = MemoryDisk()
    stopped(filled(disk))
    content = disk.files[f"__cluster_metadata-0/{0:020d}.log"]
    for position in range(len(content) - 40, len(content)):
        damaged = disk.copy()
        damaged.files[f"__cluster_metadata-0/{0:020d}.log"][position] ^= 0xFF
        with pytest.raises(StartRefused, match="damaged"):
            NodeWorld(damaged, seed=1)


def test_deleted_records_stay_deleted_after_restart() -> None:
    world = filled(MemoryDisk())
    partition = DeleteRecordsPartition(partition_index=0, offset=2)  # type: ignore[arg-type]
    topic = DeleteRecordsTopic(name="t0", partitions=(partition,))  # type: ignore[arg-type]
    body = DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=1))  # type: ignore[arg-type]
    world.hold_syncs = True
    number = world.send(ApiKey.DELETE_RECORDS, 2, body)
    assert number in world.replies
    world.complete_syncs()
    assert world.disk.exists("t0-0/log-start-offset-checkpoint")
    assert world.log("t0").sync_point().paths == ()


def test_leftover_directories_are_deleted_before_topic_is_recreated() -> None:
    """Otherwise their deletion, which takes slices, would affect the new topic's files."""
    disk = MemoryDisk()
    world = NodeWorld(disk)
    world.create("t", 40)
    for index in range(40):
        world.produce("t", index, batch())
    left = disk.copy()
    world.delete("t")
    for path in list(disk.files):
        if path.startswith("__cluster_metadata-0/"):
            left.files[path] = disk.files[path]
    world = NodeWorld(left, seed=1, start=False)
    world.start()
    while not world.node.ready:
        if not world.step():
            world.mono_us = min(world.timers)[0]
    number = world.send(ApiKey.CREATE_TOPICS, 7, create_request("t", 40))
    while number not in world.replies:
        world.complete_syncs()
    for index in range(40):
        world.send(ApiKey.PRODUCE, 9, produce_request("t", index, batch(b"new")))
    world.settle()
    for index in range(40):
        assert left.exists(f"t-{index}/{0:020d}.log"), f"t-{index} was deleted with its namesake"
        assert world.log("t", index).log_end_offset == 1


def test_sync_of_deleted_topic_does_not_complete_recreated_one() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk, log_flush_interval_messages="1")
    world.create("t")
    world.produce("t", 0, batch())
    world.log("t").delete_records_before(1)
    world.hold_syncs = True
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()))
    world.hold_syncs = False
    held = world.syncs.popleft()
    world.delete("t")
    world.create("t")
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch()))
    world.log("t").advance_high_watermark(1)  # Its own sync waits behind the one that is held.
    world.log("t").delete_records_before(1)
    unsynced = "t-0/log-start-offset-checkpoint.new"
    assert disk.exists(unsynced)
    world.give(Synced(held[0]))
    assert disk.exists(unsynced)


def test_unrelated_directories_are_not_changed() -> None:
    disk = MemoryDisk()
    disk.write("notes-delete/readme", b"mine")
    disk.write("photos-2/readme", b"mine")
    filled(disk)
    NodeWorld(disk, seed=1)
    assert disk.exists("notes-delete/readme")
    assert disk.exists("photos-2/readme")


@pytest.mark.thorough
def test_leader_epochs_at_start_are_written_in_slices() -> None:
    disk = MemoryDisk()
    world = NodeWorld(disk)
    world.create("t", 5000)
    restarted = NodeWorld(disk, seed=1, start=False)
    restarted.start()
    steps = written = most = 0
    before = disk.appends
    while not restarted.node.ready:
        assert restarted.step()
        steps += 1
        written = disk.appends - before
        before = disk.appends
        most = max(most, written)
    assert most <= 2
    assert restarted.node.broker.partitions.by_name["t", 4999].leader_epoch == 2


def test_records_of_deleted_topic_do_not_reappear_in_recreated_one() -> None:
    """The node was stopped when its topic was deleted and recreated: its directory is of the old one."""
    disk = MemoryDisk()
    world = filled(disk)
    old = {path: bytes(data) for path, data in disk.files.items() if path.startswith("t0-")}
    world.delete("t0")
    world.create("t0", 2)
    world.settle()
    for path, data in old.items():
        disk.write(path, data)
    again = NodeWorld(disk)
    assert again.log("t0").log_end_offset == 0
    assert again.produce("t0", 0, sent_batch(7, 0)).base_offset == 0
    assert NodeWorld(disk).log("t0").log_end_offset == 1
