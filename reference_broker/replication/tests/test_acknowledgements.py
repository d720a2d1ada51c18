"""acks=all and DeleteRecords: when requests complete, and with which errors."""

from dataclasses import replace

import pytest

from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.leader_world import LAG_MS, LeaderWorld, registered
from reference_broker.wire.errors import Error, ErrorCode


def commit(world: LeaderWorld, *partitions: object) -> None:
    for partition in partitions:
        for follower in (2, 3):
            world.fetch(follower, partition, partition.log.log_end_offset)  # type: ignore[attr-defined,arg-type]


def test_acks_all_completes_when_last_partition_is_replicated() -> None:
    world = LeaderWorld()
    first, second = world.lead(0), world.lead(1)
    world.produce("p", first, second)
    commit(world, first)
    assert world.acked == {}
    commit(world, second)
    assert world.acked == {"p": {}}


def test_high_watermark_completes_requests_in_offset_order() -> None:
    world = LeaderWorld()
    partition = world.lead()
    for name in "abc":
        world.produce(name, partition)
    world.fetch(2, partition, 3)
    world.fetch(3, partition, 2)
    assert list(world.acked) == ["a", "b"]
    world.fetch(3, partition, 3)
    assert list(world.acked) == ["a", "b", "c"]


def test_replicated_offset_completes_at_once_and_retry_waits_for_original() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.produce("first", partition)
    world.produce("other", partition)
    world.wait("retry", [(partition, 1)])
    world.fetch(2, partition, 1)
    world.fetch(3, partition, 1)
    assert list(world.acked) == ["first", "retry"]
    world.wait("late retry", [(partition, 1)])
    assert world.acked["late retry"] == {}


def test_duplicate_partition_waits_for_later_offset() -> None:
    world = LeaderWorld()
    partition = world.lead()
    end = world.append(partition, 5)
    world.wait("p", [(partition, end), (partition, 2)])
    world.fetch(2, partition, 2)
    world.fetch(3, partition, 2)
    assert world.acked == {}
    commit(world, partition)
    assert world.acked == {"p": {}}


def test_timeout_fails_only_unreplicated_partitions() -> None:
    world = LeaderWorld()
    first, second = world.lead(0), world.lead(1)
    world.produce("p", first, second, timeout_ms=300)
    commit(world, first)
    world.pass_ms(299)
    assert world.acked == {}
    world.pass_ms(1)
    assert world.acked == {"p": {"events-1": ErrorCode.request_timed_out}}
    commit(world, second)


@pytest.mark.parametrize("order", [(100, 200, 300), (300, 200, 100), (200, 300, 100)])
def test_each_request_has_own_timeout(order: tuple[int, ...]) -> None:
    world = LeaderWorld()
    partition = world.lead()
    for timeout_ms in order:
        world.produce(str(timeout_ms), partition, timeout_ms=timeout_ms)
    seen = []
    for _ in range(3):
        world.pass_ms(100)
        seen.append(len(world.acked))
    assert (seen, list(world.acked)) == ([1, 2, 3], ["100", "200", "300"])
    assert world.followers(partition).acks == []


def test_one_timer_serves_all_parked_requests() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.pass_ms(10_000)
    for number in range(500):
        world.produce(str(number), partition, timeout_ms=30_000)
        commit(world, partition)
    assert len(world.acked) == 500
    assert len(world.timers) <= 2  # This one, and the high watermarks' file.


def test_completed_requests_are_not_kept_until_timeout() -> None:
    """An earlier one that is still parked must not keep those after it."""
    world = LeaderWorld()
    stuck, busy = world.lead(0), world.lead(1)
    world.produce("stuck", stuck, timeout_ms=60_000)
    for number in range(2000):
        world.produce(str(number), busy, timeout_ms=60_000)
        commit(world, busy)
    assert len(world.leaders._acks._deadlines) < 300


def test_lost_leadership_or_deleted_topic_completes_parked_requests() -> None:
    world = LeaderWorld()
    first, second = world.lead(0), world.lead(1)
    world.produce("p", first)
    world.produce("q", second)
    world.leaders.stops_leading(first)
    second.is_topic_deleted = True
    world.leaders.stops_leading(second)
    assert world.acked == {
        "p": {"events-0": ErrorCode.not_leader_or_follower},
        "q": {"events-1": ErrorCode.unknown_topic_or_partition},
    }
    world.pass_ms(2000)


def test_isr_below_minimum_after_append_returns_not_enough_replicas_after_append() -> None:
    world = LeaderWorld(min_isr=2)
    partition = world.lead()
    world.produce("p", partition)
    commit(world, partition)
    world.state(partition, (1,), partition_epoch=1)
    world.wait("q", [(partition, 1)])
    assert world.acked == {"p": {}, "q": {"events-0": ErrorCode.not_enough_replicas_after_append}}


def test_acks_all_waits_while_isr_is_below_minimum() -> None:
    world = LeaderWorld(min_isr=2)
    partition = world.lead()
    world.produce("p", partition, timeout_ms=100_000)
    world.state(partition, (1,), partition_epoch=1)
    world.pass_ms(LAG_MS)
    assert world.acked == {}
    world.fetch(2, partition, 1)
    world.respond()
    assert world.acked == {"p": {}}


def test_isr_shrink_completes_parked_requests() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.leaders.start()
    world.produce("p", partition, timeout_ms=100_000)
    world.fetch(2, partition, 1)
    world.pass_ms(2 * LAG_MS)
    assert world.acked == {}
    world.respond()
    assert world.acked == {"p": {}}


def cut_at_3() -> tuple[LeaderWorld, Partition]:
    """Return a world with four records that all replicas have, and whose leader's log starts at 3."""
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 4)
    commit(world, partition)
    partition.log.delete_records_before(3)
    return world, partition


def test_delete_records_waits_for_log_start_of_live_replicas() -> None:
    world, partition = cut_at_3()
    done: list[dict[object, Error]] = []
    world.leaders.await_deletion([(partition, 3)], 1000, done.append)  # type: ignore[arg-type]
    world.fetch(2, partition, 4, log_start=3)
    assert (done, world.leaders.low_watermark(partition)) == ([], 0)
    world.fetch(3, partition, 4, log_start=3)
    assert (done, world.leaders.low_watermark(partition)) == ([{}], 3)


def test_delete_records_ignores_dead_replicas_and_times_out() -> None:
    world, partition = cut_at_3()
    done: list[dict[object, Error]] = []
    world.leaders.await_deletion([(partition, 3)], 1000, done.append)  # type: ignore[arg-type]
    world.pass_ms(1000)
    assert done == [{partition: ErrorCode.request_timed_out}]
    world.controller.image = world.controller.image.__class__(brokers={1: world.controller.image.brokers[1]})
    world.leaders.await_deletion([(partition, 3)], 1000, done.append)  # type: ignore[arg-type]
    assert done[1:] == [{}]


def test_delete_records_completes_when_lagging_follower_dies() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.append(partition, 4)
    commit(world, partition)
    world.fetch(2, partition, 4, log_start=3)
    partition.log.delete_records_before(3)
    done: list[dict[object, Error]] = []
    world.leaders.await_deletion([(partition, 3)], 10_000, done.append)  # type: ignore[arg-type]
    world.show_broker(registered(2))
    assert done == []
    world.show_broker(replace(registered(3), fenced=True))
    assert done == [{}]


@pytest.mark.parametrize("deleted", [False, True])
def test_request_after_resignation_is_not_acknowledged(deleted: bool) -> None:
    """During a sync in between, the log started to follow another leader: its high watermark is of other records."""
    world = LeaderWorld()
    partition, other = world.lead(0), world.lead(1)
    end = world.append(partition)
    partition.is_topic_deleted = deleted
    world.leaders.stops_leading(partition)
    partition.log.advance_high_watermark(end)
    world.wait("p", [(partition, end)])
    error = ErrorCode.unknown_topic_or_partition if deleted else ErrorCode.not_leader_or_follower
    assert world.acked == {"p": {"events-0": error}}
    world.wait("q", [(partition, end), (other, world.append(other))])
    commit(world, other)
    assert world.acked["q"] == {"events-0": error}


def test_abandoned_request_is_dropped_and_others_continue() -> None:
    world = LeaderWorld()
    first, second = world.lead(0), world.lead(1)
    abandons = []
    for name in "abc":
        offsets = [(partition, world.append(partition)) for partition in (first, second)]
        abandons.append(world.wait(name, offsets, timeout_ms=1 << 31))
    commit(world, second)
    for abandon in (abandons[0], abandons[2]):
        assert abandon is not None
        abandon()
    assert [len(world.followers(each).acks) for each in (first, second)] == [1, 0]
    commit(world, first)
    assert world.acked == {"b": {}}


def test_abandoned_delete_records_is_dropped() -> None:
    world, partition = cut_at_3()
    done: list[dict[object, Error]] = []
    abandon = world.leaders.await_deletion([(partition, 3)], 1000, done.append)  # type: ignore[arg-type]
    assert abandon is not None
    abandon()
    assert world.followers(partition).deletions == []
    world.pass_ms(2000)
    assert done == []


def test_delete_records_fails_when_leadership_is_lost() -> None:
    world, partition = cut_at_3()
    done: list[dict[object, Error]] = []
    world.leaders.await_deletion([(partition, 3)], 1000, done.append)  # type: ignore[arg-type]
    world.leaders.stops_leading(partition)
    assert done == [{partition: ErrorCode.not_leader_or_follower}]
