"""Movement of a leader's high watermark, and the checkpoint file that stores it."""

import pytest

from reference_broker.ports.disk import MemoryDisk
from reference_broker.replication.high_watermarks import FILE_NAME, HighWatermarkCheckpoints, read_high_watermarks
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.leader_world import LAG_MS, LeaderWorld, broker_epoch_of, registered
from reference_broker.wire.errors import ErrorCode


class CountingWatcher:
    def __init__(self) -> None:
        self.notified = 0

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        self.notified += 1


@pytest.mark.clause("F-22")
def test_high_watermark_is_smallest_fetch_offset_of_isr() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 3)
    assert world.fetch(2, partition, 3) is ErrorCode.none
    assert partition.log.high_watermark == 0
    world.fetch(3, partition, 2)
    assert partition.log.high_watermark == 2
    world.fetch(3, partition, 3)
    assert partition.log.high_watermark == 3
    assert [note["offset"] for note in world.noted("high_watermark")] == [2, 3]


@pytest.mark.clause("F-22")
def test_sent_records_are_committed_only_after_next_fetch() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.fetch(2, partition, 0)
    world.fetch(3, partition, 0)
    world.append(partition, 2)
    world.pass_ms(100)
    world.contact(2)
    world.contact(3)
    assert partition.log.high_watermark == 0


def test_fetch_at_earlier_offset_does_not_lower_high_watermark() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 4)
    world.fetch(2, partition, 4)
    world.fetch(3, partition, 4)
    world.fetch(3, partition, 1)
    assert partition.log.high_watermark == 4


def test_leader_alone_in_isr_commits_at_once() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1,))
    world.append(partition, 2)
    assert partition.log.high_watermark == 2


@pytest.mark.parametrize("min_isr", [2, 3])
def test_isr_below_minimum_commits_nothing(min_isr: int) -> None:
    world = LeaderWorld(min_isr)
    partition = world.lead(isr=(1,))
    world.append(partition, 2)
    assert partition.log.high_watermark == 0


def test_minimum_is_capped_at_single_replica() -> None:
    world = LeaderWorld(min_isr=5)
    partition = world.lead(isr=(1,), replicas=(1,), records=3)
    assert (partition.followers, partition.log.high_watermark) == (None, 3)


def test_minimum_is_capped_at_replica_count() -> None:
    world = LeaderWorld(min_isr=5)
    partition = world.lead()
    world.append(partition)
    world.fetch(2, partition, 1)
    world.fetch(3, partition, 1)
    assert partition.log.high_watermark == 1


def test_caught_up_follower_holds_high_watermark_and_lost_one_does_not() -> None:
    """Otherwise a follower that catches up would never reach a high watermark that moves with the leader's end."""
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.pass_ms(2 * LAG_MS)
    world.append(partition, 5)
    world.fetch(2, partition, 5)
    assert partition.log.high_watermark == 5
    world.fetch(3, partition, 0)
    world.append(partition, 5)
    world.fetch(2, partition, 10)
    assert partition.log.high_watermark == 10
    world.fetch(3, partition, 9)  # The leader's end at its previous fetch, or more: caught up, and not yet in sync.
    world.append(partition, 5)
    world.fetch(2, partition, 15)
    assert partition.log.high_watermark == 10
    world.pass_ms(LAG_MS + 1)
    world.append(partition, 1)
    world.fetch(2, partition, 16)
    assert partition.log.high_watermark == 16


def test_new_leader_moves_high_watermark_once_isr_has_fetched() -> None:
    world = LeaderWorld()
    partition = world.lead(records=4, leader_epoch=7)
    assert (partition.log.high_watermark, world.followers(partition).epoch_start_offset) == (0, 4)
    world.fetch(2, partition, 4)
    assert partition.log.high_watermark == 0
    world.fetch(3, partition, 4)
    assert partition.log.high_watermark == 4
    assert world.noted("leads") == [
        {"partition": "events-0", "leader_epoch": 7, "isr": "1,2,3", "log_end_offset": 4, "high_watermark": 0}
    ]


def test_watchers_are_notified_after_all_partitions_of_fetch() -> None:
    world = LeaderWorld()
    partition, watcher = world.lead(isr=(1, 2)), CountingWatcher()
    world.append(partition)
    partition.watch(watcher)
    world.count(2, partition, 1)
    assert (partition.log.high_watermark, watcher.notified) == (1, 0)
    world.leaders.notify_watchers()
    partition.watch(watcher)
    world.leaders.notify_watchers()
    assert watcher.notified == 1


def test_fetch_of_non_replica_is_ignored() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2), replicas=(1, 2))
    world.append(partition)
    assert world.fetch(3, partition, 1) is ErrorCode.not_leader_or_follower
    assert partition.log.high_watermark == 0


def test_fetch_with_stale_broker_epoch_is_ignored() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.append(partition)
    assert world.fetch(2, partition, 1, epoch=broker_epoch_of(2) - 1) is ErrorCode.not_leader_or_follower
    assert partition.log.high_watermark == 0
    assert world.fetch(2, partition, 1, epoch=-1) is ErrorCode.none
    assert partition.log.high_watermark == 1


def test_ineligible_replica_does_not_hold_high_watermark() -> None:
    world = LeaderWorld()
    fenced = registered(3)
    world.controller.image = world.controller.image.__class__(
        brokers={1: registered(1), 2: registered(2), 3: fenced.__class__(3, 103, b"i" * 16, "127.0.0.1", 9092, True)}
    )
    partition = world.lead(isr=(1, 2))
    world.append(partition, 2)
    world.fetch(3, partition, 2)
    world.append(partition, 1)
    world.fetch(2, partition, 3)
    assert partition.log.high_watermark == 3


def test_replica_out_of_sync_at_election_does_not_hold_high_watermark() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2), records=10)
    world.fetch(3, partition, 0)
    world.fetch(2, partition, 10)
    assert partition.log.high_watermark == 10


def test_checkpoint_is_written_at_interval_if_changed() -> None:
    world = LeaderWorld()
    first, second = world.lead(0), world.lead(1, isr=(1,))
    world.append(second, 4)
    world.pass_ms(5000)
    assert read_high_watermarks(world.disk) == {("events", 0): 0, ("events", 1): 4}
    assert world.disk.read(FILE_NAME, 0, 100) == b"0\n2\nevents 0 0\nevents 1 4\n"
    world.pass_ms(50_000)
    assert len(world.noted("hw_checkpoint")) == 1
    world.append(first)
    world.fetch(2, first, 1)
    world.fetch(3, first, 1)
    world.leaders.high_watermarks.write()
    assert read_high_watermarks(world.disk)["events", 0] == 1


def test_failed_checkpoint_is_retried() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1,))
    world.append(partition, 4)
    world.disk.fail_after = 0
    world.pass_ms(5000)
    assert len(world.noted("hw_checkpoint_failed")) == 1
    world.disk.fail_after = None
    world.pass_ms(5000)
    assert read_high_watermarks(world.disk) == {("events", 0): 4}


def test_deleted_partition_is_removed_from_checkpoint() -> None:
    world = LeaderWorld()
    first, second = world.lead(0), world.lead(1)
    world.pass_ms(5000)
    first.is_topic_deleted = True
    world.leaders.stops_leading(first)
    world.high_watermarks.moved(second.log)
    world.leaders.high_watermarks.write()
    assert list(read_high_watermarks(world.disk)) == [("events", 1)]


@pytest.mark.clause(
    "OffsetCheckpointFileWithFailureHandlerTest.shouldPersistAndOverwriteAndReloadFile",
    "OffsetCheckpointFileWithFailureHandlerTest.shouldHandleMultipleLines",
)
def test_checkpoint_rows_stay_until_partitions_are_known_to_be_deleted() -> None:
    world = LeaderWorld()
    world.disk.write(FILE_NAME, b"0\n2\ngone-topic 0 5\nevents 1 9\n")
    marks = HighWatermarkCheckpoints(world.disk, world, 5000)  # type: ignore[arg-type]
    marks.keep_only(lambda topic, index: (topic, index) == ("events", 1))
    marks.moved(world.lead(0).log)
    marks.write()
    assert read_high_watermarks(world.disk) == {("events", 1): 9, ("events", 0): 0}


@pytest.mark.clause("OffsetCheckpointFileWithFailureHandlerTest.shouldReturnEmptyMapForEmptyFile")
@pytest.mark.parametrize(
    "content", [b"", b"0\n1\n", b"0\n1\nevents x 5\n", b"0\n1\nevents 1\n", b"0\n1\nevents 1 -4\n"]
)
def test_unreadable_checkpoint_counts_as_missing(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write(FILE_NAME, content)
    assert read_high_watermarks(disk) == {}
    assert read_high_watermarks(MemoryDisk()) == {}


def test_lag_is_measured_in_time_not_records() -> None:
    """A follower whose fetch reaches the leader's end at the previous fetch is in sync."""
    world = LeaderWorld()
    partition = world.lead()
    world.leaders.start()
    for second in range(4 * LAG_MS // 1000):
        end = world.append(partition, 10)
        world.fetch(2, partition, end)
        world.fetch(3, partition, end - 10)
        world.pass_ms(1000)
        assert not world.alter_requests, f"out of sync after {second} s"


def test_checkpoint_is_rewritten_for_deleted_partition_alone() -> None:
    """After a crash a topic of the same name would use the row, and acknowledge unreplicated records."""
    world = LeaderWorld()
    partition = world.lead(isr=(1,))
    world.append(partition, 4)
    world.pass_ms(5000)
    assert read_high_watermarks(world.disk) == {("events", 0): 4}
    partition.is_topic_deleted = True
    world.leaders.stops_leading(partition)
    world.pass_ms(100)
    assert read_high_watermarks(world.disk) == {}
    written = len(world.noted("hw_checkpoint"))
    world.pass_ms(50_000)
    assert len(world.noted("hw_checkpoint")) == written
    second = world.lead(1, isr=(1,))
    world.pass_ms(5000)
    assert read_high_watermarks(world.disk) == {("events", 1): 0}
    second.is_topic_deleted = True
    world.leaders.stops_leading(second)
    world.pass_ms(100)
    assert read_high_watermarks(world.disk) == {}


def test_start_removes_checkpoint_rows_of_partitions_deleted_meanwhile() -> None:
    world = LeaderWorld()
    world.disk.write(FILE_NAME, b"0\n2\ngone 0 5\nevents 1 9\n")
    marks = HighWatermarkCheckpoints(world.disk, world, 5000)  # type: ignore[arg-type]
    marks.keep_only(lambda topic, index: (topic, index) == ("events", 1))
    world.pass_ms(100)
    assert read_high_watermarks(world.disk) == {("events", 1): 9}
