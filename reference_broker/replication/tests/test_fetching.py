"""A follower's fetches: the partitions they name, the effect of their responses on the log, and of errors."""

import pytest

from reference_broker.records.record import Record, build
from reference_broker.replication.follower.fetcher import NAMED_PER_FETCH
from reference_broker.replication.tests.follower_world import (
    BROKER_EPOCH,
    TOPIC_ID,
    FollowerWorld,
    named,
    offsets,
    one_record,
    records,
)
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, PartitionData


def test_fetch_has_replica_offset_and_leader_epoch() -> None:
    world = FollowerWorld()
    world.follow(0, epoch=4, records=3)
    _, request = world.fetch()
    (wanted,) = named(request)
    assert (request.replica_id, request.replica_epoch, request.session_epoch) == (2, BROKER_EPOCH, 0)
    assert (wanted.fetch_offset, wanted.current_leader_epoch, wanted.last_fetched_epoch) == (3, 4, 0)
    assert request.topics[0].topic_id == TOPIC_ID


def test_fetched_records_are_appended_and_high_watermark_follows_leader() -> None:
    world = FollowerWorld()
    log = world.follow()
    sent, _ = world.fetch()
    world.respond(sent, records(0, 0, 3, high_watermark=2))
    assert (log.log_end_offset, log.high_watermark) == (3, 2)
    assert world.moved == [log]
    sent, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [3]
    world.respond(sent, PartitionData(0, 0, 99, log_start_offset=1))
    assert (log.high_watermark, log.log_start_offset) == (3, 1), "no further than its own end"


def test_new_broker_epoch_opens_new_session_with_all_partitions() -> None:
    world = FollowerWorld()
    for index in range(3):
        world.follow(index)
    sent, request = world.fetch()
    world.respond(sent, *(PartitionData(index, 0, 0) for index in range(3)))
    sent, request = world.fetch()
    assert named(request) == [], "they are at rest"
    world.broker_epoch += 1
    world.respond(sent)
    sent, request = world.fetch()
    assert request.replica_epoch == BROKER_EPOCH + 1
    assert request.session_epoch == 0
    assert len(named(request)) == 3


@pytest.mark.clause("F-22")
def test_idle_partitions_are_named_once() -> None:
    world = FollowerWorld()
    for index in range(2500):
        world.follow(index)
    sent, request = world.fetch()
    sizes = [len(named(request))]
    while not sizes or sizes[-1]:
        assert request.max_wait_ms == (0 if sum(sizes) < 2500 else 50 if sizes[-1] else 500)
        world.respond(sent)
        world.pass_ms(1)
        sent, request = world.fetch()
        sizes.append(len(named(request)))
    assert sizes == [*(NAMED_PER_FETCH,) * (2500 // NAMED_PER_FETCH), 2500 % NAMED_PER_FETCH, 0]
    events = world.events
    for _ in range(20):
        world.respond(sent)
        sent, request = world.fetch()
        assert not request.topics
    assert world.events == events, "an empty response needs no event but its own"


def test_only_changed_partitions_are_named_again() -> None:
    world = FollowerWorld()
    for index in range(5):
        world.follow(index)
    sent, _ = world.fetch()
    world.respond(sent)
    sent, _ = world.fetch()
    world.respond(sent, records(3, 0, 1, high_watermark=0))
    _, request = world.fetch()
    assert [each.partition for each in named(request)] == [3]


def test_not_leader_error_is_retried_soon_without_blocking_others() -> None:
    world = FollowerWorld()
    world.follow(0)
    log = world.follow(1)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.not_leader_or_follower, -1), records(1, 0, 1, high_watermark=1))
    sent, request = world.fetch()
    assert [each.partitions for each in request.forgotten] == [[0]]
    assert log.high_watermark == 1
    world.respond(sent)
    waiting, request = world.fetch()
    assert 10 <= request.max_wait_ms <= 21, "it comes back before the usual time is over"
    world.pass_ms(20)
    world.respond(waiting)
    sent, request = world.fetch()
    assert request.max_wait_ms == 50
    assert [each.partition for each in named(request)] == [0]
    assert world.notes_of("replica_fetch_error") == [
        {"partition": "t-0", "leader": 1, "error": ErrorCode.not_leader_or_follower}
    ]


def test_repeated_errors_back_off_up_to_configured_maximum() -> None:
    world = FollowerWorld({"replica.fetch.backoff.ms": "100"})
    world.follow(0)
    pauses = []
    for _ in range(6):
        sent, request = world.fetch()
        assert [each.partition for each in named(request)] == [0]
        since_us = world.mono_us
        world.respond(sent, PartitionData(0, ErrorCode.unknown_topic_id, -1))
        while not (world.sent and named(world.sent[-1].body)):
            if world.sent:
                world.respond(world.sent.pop())
            world.pass_ms(1)
        pauses.append((world.mono_us - since_us) // 1000)
    assert pauses[:3] == sorted(pauses[:3])
    assert pauses[0] < 30
    assert all(100 <= pause <= 104 for pause in pauses[3:])


def test_fenced_partition_waits_for_newer_metadata() -> None:
    world = FollowerWorld()
    world.follow(0, epoch=1)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.fenced_leader_epoch, -1))
    sent, request = world.fetch()
    assert request.forgotten
    world.respond(sent)
    world.pass_ms(60_000)
    assert not world.sent
    world.follow(0, epoch=2)
    _, request = world.fetch()
    assert [each.current_leader_epoch for each in named(request)] == [2]


def test_response_for_earlier_leader_epoch_is_ignored() -> None:
    world = FollowerWorld()
    log = world.follow(0, epoch=1)
    sent, _ = world.fetch()
    world.follow(0, epoch=2)
    world.respond(sent, records(0, 0, 2, high_watermark=2, epoch=1))
    assert log.log_end_offset == 0
    _, request = world.fetch()
    assert [each.current_leader_epoch for each in named(request)] == [2]


def test_damaged_records_are_not_appended_and_delay_only_their_partition() -> None:
    world = FollowerWorld()
    log = world.follow(0)
    sent, _ = world.fetch()
    damaged = bytearray(one_record(0) + one_record(1))
    damaged[-1] ^= 1
    world.respond(sent, PartitionData(0, 0, 2, log_start_offset=0, records=bytes(damaged)))
    assert log.log_end_offset == 0
    assert [note["partition"] for note in world.notes_of("replica_append_failed")] == ["t-0"]
    sent, request = world.fetch()
    assert request.forgotten
    world.respond(sent)
    world.pass_ms(25)
    sent, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [0]
    world.respond(sent, records(0, 0, 2, high_watermark=2))
    assert log.log_end_offset == 2


def test_batch_with_later_epoch_than_leader_is_not_appended() -> None:
    """No checksum covers the epoch of a batch. The batches before it stay."""
    world = FollowerWorld()
    log = world.follow(epoch=3)
    sent, _ = world.fetch()
    data = one_record(0, 3) + one_record(1, 9)
    world.respond(sent, PartitionData(0, 0, 2, log_start_offset=0, records=data))
    assert (log.log_end_offset, log.latest_epoch) == (1, 3)
    assert [note["partition"] for note in world.notes_of("replica_append_failed")] == ["t-0"]
    sent, _ = world.fetch()
    world.respond(sent)
    world.pass_ms(25)
    _, request = world.fetch()
    assert [(each.fetch_offset, each.last_fetched_epoch) for each in named(request)] == [(1, 3)]


def test_lost_response_opens_new_session_with_all_partitions() -> None:
    world = FollowerWorld()
    for index in range(3):
        world.follow(index)
    sent, _ = world.fetch()
    world.respond(sent)
    sent, request = world.fetch()
    assert not named(request)
    sent.failed()
    world.pass_ms(20)
    _, request = world.fetch()
    assert (request.session_epoch, len(named(request))) == (0, 3)


def test_unreachable_leader_is_not_retried_without_followed_partitions() -> None:
    world = FollowerWorld()
    world.follow(0)
    sent, _ = world.fetch()
    world.fetchers.stops_following(TOPIC_ID, 0)
    sent.failed()
    world.pass_ms(60_000)
    assert not world.sent
    world.follow(0, leader=3, epoch=1)
    world.fetch(leader=3)


def test_new_leader_ends_backoff() -> None:
    world = FollowerWorld()
    world.follow(0)
    for _ in range(8):
        sent, _ = world.fetch()
        sent.failed()
        world.pass_ms(1_000)
    sent, _ = world.fetch()
    sent.failed()
    world.pass_ms(1)
    assert not world.sent
    world.follow(0, epoch=1)
    world.fetch()


def test_flush_messages_makes_records_durable_before_next_fetch() -> None:
    world = FollowerWorld(hold_syncs=True)
    log = world.follow(0)
    log.config = type(log.config)(flush_messages=1)
    sent, _ = world.fetch()
    world.respond(sent, records(0, 0, 1, high_watermark=0))
    world.pass_ms(5)
    assert not world.sent
    world.syncs.pop()()
    _, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [1]
    assert log.synced_offset == 1


def test_recovered_records_are_durable_before_next_fetch() -> None:
    world = FollowerWorld(hold_syncs=True)
    log = world.follow(0, records=2)
    log.config = type(log.config)(flush_messages=1)
    world.fetch()
    world.follow(0, leader=3, epoch=1)
    world.pass_ms(5)
    assert not world.sent
    world.syncs.pop()()
    assert [each.fetch_offset for each in named(world.fetch(leader=3)[1])] == [2]
    assert log.synced_offset == 2


def test_nothing_is_appended_after_stop() -> None:
    world = FollowerWorld()
    log = world.follow(0)
    sent, _ = world.fetch()
    world.fetchers.halt()
    world.respond(sent, records(0, 0, 1, high_watermark=1))
    world.pass_ms(1000)
    assert log.log_end_offset == 0
    assert not world.sent


def test_divergence_truncates_to_common_offset() -> None:
    world = FollowerWorld()
    log = world.follow(0, epoch=3, records=6, epochs=(0, 0, 1, 1, 1, 2))
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 3, diverging_epoch=EpochEndOffset(1, 4)))
    sent, request = world.fetch()
    (wanted,) = named(request)
    assert (log.log_end_offset, wanted.fetch_offset, wanted.last_fetched_epoch) == (4, 4, 1)
    assert world.notes_of("truncated") == [{"partition": "t-0", "offset": 4}]
    assert not world.notes_of("truncated_below_high_watermark")
    world.respond(sent, records(0, 4, 1, high_watermark=5, epoch=3))
    assert log.epochs.epochs == [0, 1, 3]


def test_truncation_is_durable_before_next_fetch() -> None:
    """So an append never waits for the disk, and one sync serves all partitions of a response."""
    world = FollowerWorld(hold_syncs=True)
    log = world.follow(0, epoch=3, records=6, epochs=(0, 0, 1, 1, 1, 2))
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 3, diverging_epoch=EpochEndOffset(1, 4)))
    world.pass_ms(5)
    assert not world.sent
    assert log.durability.unsettled_cut
    world.syncs.pop()()
    assert not log.durability.unsettled_cut
    world.fetch()


def test_high_watermark_of_diverging_response_applies_once_logs_agree() -> None:
    """The leader has sent the divergence, so its next response omits the partition if nothing else is new (F-14)."""
    world = FollowerWorld()
    log = world.follow(0, epoch=3, records=6, epochs=(0, 0, 1, 1, 1, 2))
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 3, diverging_epoch=EpochEndOffset(1, 4)))
    assert log.high_watermark == 0, "what is left may still diverge"
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 3, diverging_epoch=EpochEndOffset(0, 2)))
    assert (log.log_end_offset, log.high_watermark) == (2, 0)
    sent, _ = world.fetch()
    world.respond(sent)
    assert log.high_watermark == 2


def test_high_watermark_of_diverging_response_is_dropped_with_session() -> None:
    world = FollowerWorld()
    log = world.follow(0, epoch=3, records=6, epochs=(0, 0, 1, 1, 1, 2))
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 3, diverging_epoch=EpochEndOffset(1, 4)))
    sent, _ = world.fetch()
    sent.failed()
    world.pass_ms(2000)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 1, diverging_epoch=EpochEndOffset(0, 2)))
    sent, _ = world.fetch()
    world.respond(sent)
    assert log.high_watermark == 1


def test_truncation_below_high_watermark_is_noted() -> None:
    world = FollowerWorld()
    log = world.follow(0, epoch=3, records=4)
    log.advance_high_watermark(4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 1, diverging_epoch=EpochEndOffset(0, 2)))
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    assert world.notes_of("truncated_below_high_watermark") == [{"partition": "t-0", "offset": 2, "high_watermark": 4}]
    assert world.moved == [log]


@pytest.mark.parametrize(("end", "start", "expected_end", "expected_start"), [(2, 0, 2, 0), (9, 6, 6, 6)])
def test_out_of_range_looks_up_leaders_log_start_and_end(
    end: int, start: int, expected_end: int, expected_start: int
) -> None:
    world = FollowerWorld()
    log = world.follow(0, records=4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.offset_out_of_range, -1))
    for offset in (end,) if end < 4 else (end, start):
        sent = world.only_request(ApiKey.LIST_OFFSETS)
        assert sent.body.replica_id == 2
        sent.replied(offsets(offset))
    _, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [expected_end]
    assert (log.log_end_offset, log.log_start_offset) == (expected_end, expected_start)


def test_offset_back_in_leaders_range_is_fetched_after_backoff() -> None:
    world = FollowerWorld()
    log = world.follow(0, records=4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.offset_out_of_range, -1))
    for offset in (9, 1):
        world.only_request(ApiKey.LIST_OFFSETS).replied(offsets(offset))
    sent, request = world.fetch()
    assert request.forgotten
    world.respond(sent)
    world.pass_ms(20)
    _, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [4]
    assert log.log_end_offset == 4


@pytest.mark.clause("F-20")
def test_leader_log_start_inside_batch_is_followed_from_that_batch() -> None:
    """DeleteRecords moves a log start to any offset; the response to a fetch from there has the whole batch."""
    world = FollowerWorld()
    log = world.follow(0)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.offset_out_of_range, -1))
    for offset in (60, 55):
        world.only_request(ApiKey.LIST_OFFSETS).replied(offsets(offset))
    sent, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [55]
    world.respond(sent, PartitionData(0, 0, 60, log_start_offset=55, records=one_batch(50, 10)))
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (55, 60, 60)
    sent, request = world.fetch()
    assert [each.fetch_offset for each in named(request)] == [60]
    world.respond(sent, PartitionData(0, 0, 70, log_start_offset=55, records=one_batch(50, 20)))
    assert (log.log_start_offset, log.log_end_offset) == (55, 60), "a log with records keeps its start"


@pytest.mark.parametrize("first", [30, 56])
def test_batch_not_reaching_empty_logs_end_is_not_appended(first: int) -> None:
    world = FollowerWorld()
    log = world.follow(0)
    log.truncate_fully_and_start_at(55, world.now())
    sent, _ = world.fetch()
    data = one_batch(first, 10) if first < 55 else one_batch(first, 1)
    world.respond(sent, PartitionData(0, 0, 60, log_start_offset=55, records=data))
    assert (log.log_start_offset, log.log_end_offset) == ((55, 55) if first < 55 else (55, 57))


def test_disk_error_of_log_start_delays_only_its_partition() -> None:
    world = FollowerWorld()
    world.follow(0, records=4).advance_high_watermark(4)
    other = world.follow(1)
    sent, _ = world.fetch()
    world.disk.fail_after = 0
    world.respond(sent, PartitionData(0, 0, 4, log_start_offset=2), PartitionData(1, 0, 0, log_start_offset=0))
    assert [note["partition"] for note in world.notes_of("replica_append_failed")] == ["t-0"]
    world.disk.fail_after = None
    sent, request = world.fetch()
    assert request.forgotten
    world.respond(sent, records(1, 0, 1, high_watermark=1))
    assert other.log_end_offset == 1
    world.pass_ms(25)
    sent, request = world.fetch()
    while 0 not in [each.partition for each in named(request)]:
        world.respond(sent)
        sent, request = world.fetch()
    world.respond(sent, PartitionData(0, 0, 4, log_start_offset=2))
    assert world.logs[0].log_start_offset == 2


def test_divergence_without_truncation_backs_off() -> None:
    world = FollowerWorld()
    world.follow(0, epoch=3, records=4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 3, diverging_epoch=EpochEndOffset(0, 9)))
    sent, request = world.fetch()
    assert request.forgotten
    assert [note["partition"] for note in world.notes_of("replica_append_failed")] == ["t-0"]


def test_fetch_wait_is_not_negative() -> None:
    world = FollowerWorld()
    world.follow(0)
    world.follow(1)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.not_leader_or_follower, -1), PartitionData(1, 0, 0))
    sent, _ = world.fetch()
    world.mono_us += 30_000  # The timer that brings the partition back is late.
    world.respond(sent)
    assert world.sent[-1].body.max_wait_ms == 0


def one_batch(first: int, count: int) -> bytes:
    made = [Record(timestamp_ms=START_MS, value=b"v") for _ in range(count)]
    return bytes(build(made, base_offset=first, leader_epoch=0))
