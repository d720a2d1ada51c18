"""When a leader's high watermark moves, and the file that remembers it."""

import pytest

from reference_broker.ports.disk import MemoryDisk
from reference_broker.replication.high_watermarks import FILE_NAME, HighWatermarks, read_high_watermarks
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.leader_world import LAG_MS, World, broker_epoch_of, registered
from reference_broker.wire.errors import ErrorCode


class Watcher:
    def __init__(self) -> None:
        self.notified = 0

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        self.notified += 1


@pytest.mark.clause("F-22")
def test_the_high_watermark_is_what_every_in_sync_replica_has_fetched_beyond() -> None:
    world = World()
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
def test_what_was_sent_but_not_fetched_beyond_is_not_committed() -> None:
    world = World()
    partition = world.lead()
    world.fetch(2, partition, 0)
    world.fetch(3, partition, 0)
    world.append(partition, 2)
    world.pass_ms(100)
    world.contact(2)
    world.contact(3)
    assert partition.log.high_watermark == 0


def test_a_follower_that_goes_back_does_not_take_the_high_watermark_with_it() -> None:
    world = World()
    partition = world.lead()
    world.append(partition, 4)
    world.fetch(2, partition, 4)
    world.fetch(3, partition, 4)
    world.fetch(3, partition, 1)
    assert partition.log.high_watermark == 4


def test_alone_in_sync_the_leader_commits_what_it_appends() -> None:
    world = World()
    partition = world.lead(isr=(1,))
    world.append(partition, 2)
    assert partition.log.high_watermark == 2


@pytest.mark.parametrize("min_isr", [2, 3])
def test_below_min_insync_replicas_nothing_is_committed(min_isr: int) -> None:
    world = World(min_isr)
    partition = world.lead(isr=(1,))
    world.append(partition, 2)
    assert partition.log.high_watermark == 0


def test_one_replica_is_all_that_is_needed_whatever_min_insync_replicas_requires() -> None:
    world = World(min_isr=5)
    partition = world.lead(isr=(1,), replicas=(1,), records=3)
    assert (partition.followers, partition.log.high_watermark) == (None, 3)


def test_more_replicas_than_there_are_cannot_be_requested() -> None:
    world = World(min_isr=5)
    partition = world.lead()
    world.append(partition)
    world.fetch(2, partition, 1)
    world.fetch(3, partition, 1)
    assert partition.log.high_watermark == 1


def test_a_follower_about_to_join_holds_the_high_watermark_and_a_long_lost_one_does_not() -> None:
    """Else one that catches up would never reach a high watermark that goes on with the leader's end."""
    world = World()
    partition = world.lead(isr=(1, 2))
    world.pass_ms(2 * LAG_MS)
    world.append(partition, 5)
    world.fetch(2, partition, 5)
    assert partition.log.high_watermark == 5
    world.fetch(3, partition, 0)
    world.append(partition, 5)
    world.fetch(2, partition, 10)
    assert partition.log.high_watermark == 10
    world.fetch(3, partition, 9)  # The leader's end at its fetch before, and more: caught up, and not yet in sync.
    world.append(partition, 5)
    world.fetch(2, partition, 15)
    assert partition.log.high_watermark == 10
    world.pass_ms(LAG_MS + 1)
    world.append(partition, 1)
    world.fetch(2, partition, 16)
    assert partition.log.high_watermark == 16


def test_a_new_leader_moves_it_once_every_in_sync_replica_has_fetched() -> None:
    world = World()
    partition = world.lead(records=4, leader_epoch=7)
    assert (partition.log.high_watermark, world.followers(partition).epoch_start_offset) == (0, 4)
    world.fetch(2, partition, 4)
    assert partition.log.high_watermark == 0
    world.fetch(3, partition, 4)
    assert partition.log.high_watermark == 4
    assert world.noted("leads") == [
        {"partition": "events-0", "leader_epoch": 7, "isr": "1,2,3", "log_end_offset": 4, "high_watermark": 0}
    ]


def test_watchers_are_notified_of_it_only_when_the_fetch_has_counted_all_its_partitions() -> None:
    world = World()
    partition, watcher = world.lead(isr=(1, 2)), Watcher()
    world.append(partition)
    partition.watch(watcher)
    world.count(2, partition, 1)
    assert (partition.log.high_watermark, watcher.notified) == (1, 0)
    world.leaders.notify_watchers()
    partition.watch(watcher)
    world.leaders.notify_watchers()
    assert watcher.notified == 1


def test_a_fetch_of_a_node_without_a_replica_counts_nothing() -> None:
    world = World()
    partition = world.lead(isr=(1, 2), replicas=(1, 2))
    world.append(partition)
    assert world.fetch(3, partition, 1) is ErrorCode.not_leader_or_follower
    assert partition.log.high_watermark == 0


def test_a_fetch_of_an_earlier_incarnation_counts_nothing() -> None:
    world = World()
    partition = world.lead(isr=(1, 2))
    world.append(partition)
    assert world.fetch(2, partition, 1, epoch=broker_epoch_of(2) - 1) is ErrorCode.not_leader_or_follower
    assert partition.log.high_watermark == 0
    assert world.fetch(2, partition, 1, epoch=-1) is ErrorCode.none
    assert partition.log.high_watermark == 1


def test_a_replica_that_may_not_join_does_not_hold_it() -> None:
    world = World()
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


def test_one_that_was_out_of_sync_when_the_leadership_began_does_not_hold_it() -> None:
    world = World()
    partition = world.lead(isr=(1, 2), records=10)
    world.fetch(3, partition, 0)
    world.fetch(2, partition, 10)
    assert partition.log.high_watermark == 10


def test_the_file_is_written_at_the_interval_and_only_when_something_moved() -> None:
    world = World()
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


def test_a_disk_that_fails_loses_no_high_watermark_and_is_tried_again() -> None:
    world = World()
    partition = world.lead(isr=(1,))
    world.append(partition, 4)
    world.disk.fail_after = 0
    world.pass_ms(5000)
    assert len(world.noted("hw_checkpoint_failed")) == 1
    world.disk.fail_after = None
    world.pass_ms(5000)
    assert read_high_watermarks(world.disk) == {("events", 0): 4}


def test_a_deleted_partition_leaves_the_file() -> None:
    world = World()
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
def test_rows_of_an_earlier_life_stay_until_their_partitions_are_known_to_be_gone() -> None:
    world = World()
    world.disk.write(FILE_NAME, b"0\n2\ngone-topic 0 5\nevents 1 9\n")
    marks = HighWatermarks(world.disk, world, 5000)  # type: ignore[arg-type]
    marks.keep_only(lambda topic, index: (topic, index) == ("events", 1))
    marks.moved(world.lead(0).log)
    marks.write()
    assert read_high_watermarks(world.disk) == {("events", 1): 9, ("events", 0): 0}


@pytest.mark.clause("OffsetCheckpointFileWithFailureHandlerTest.shouldReturnEmptyMapForEmptyFile")
@pytest.mark.parametrize(
    "content", [b"", b"0\n1\n", b"0\n1\nevents x 5\n", b"0\n1\nevents 1\n", b"0\n1\nevents 1 -4\n"]
)
def test_an_unreadable_file_or_row_counts_as_missing(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write(FILE_NAME, content)
    assert read_high_watermarks(disk) == {}
    assert read_high_watermarks(MemoryDisk()) == {}


def test_lag_is_counted_in_time_not_in_records() -> None:
    """A follower that reaches, with each fetch, where the leader was at the one before is in sync."""
    world = World()
    partition = world.lead()
    world.leaders.start()
    for second in range(4 * LAG_MS // 1000):
        end = world.append(partition, 10)
        world.fetch(2, partition, end)
        world.fetch(3, partition, end - 10)
        world.pass_ms(1000)
        assert not world.alter_requests, f"out of sync after {second} s"


def test_a_row_of_a_deleted_partition_leaves_the_file_though_nothing_else_moves() -> None:
    """A topic of the same name would take it for its own after a crash, and acknowledge what is not replicated."""
    world = World()
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


def test_rows_that_went_while_the_node_was_away_leave_the_file_soon_after_its_start() -> None:
    world = World()
    world.disk.write(FILE_NAME, b"0\n2\ngone 0 5\nevents 1 9\n")
    marks = HighWatermarks(world.disk, world, 5000)  # type: ignore[arg-type]
    marks.keep_only(lambda topic, index: (topic, index) == ("events", 1))
    world.pass_ms(100)
    assert read_high_watermarks(world.disk) == {("events", 1): 9}
