"""MaxLag equals the largest lag of all followed partitions, after every response."""

from random import Random

import pytest

from reference_broker.client.partitions import TopicPartition
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.replication.follower.followed import FetchLag, FollowedPartition
from reference_broker.replication.tests.follower_world import FollowerWorld, named, records
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, PartitionData


def followed(index: int) -> FollowedPartition:
    log = run_to_end(open_log(MemoryDisk(), f"t-{index}", LogConfig(), Now(0, 0), True))
    return FollowedPartition(TopicPartition("t", index), b"t" * 16, log, 1, 0)


@pytest.mark.parametrize("seed", range(10))
def test_max_lag_is_exact_after_each_step(seed: int) -> None:
    random, gauge = Random(seed), Gauge()
    lag = FetchLag(gauge)
    partitions = [followed(index) for index in range(8)]
    expected = dict.fromkeys(partitions, 0)
    for _ in range(2000):
        one = random.choice(partitions)
        if random.random() < 0.2:
            lag.drop(one)
            expected[one] = 0
        else:
            expected[one] = random.choice((0, 0, 1, 2, 3, 50))
            lag.update(one, expected[one])
        assert gauge.value == max(expected.values())


def test_lagging_partition_does_not_retain_lags_of_others() -> None:
    lag, stuck, other = FetchLag(Gauge()), followed(0), followed(1)
    lag.update(stuck, 1000)
    for number in range(10_000):
        lag.update(other, number % 7)
    assert len(lag._furthest) < 200


def test_fetcher_updates_lag_with_each_response_until_unfollowed() -> None:
    world = FollowerWorld()
    world.follow(0)
    world.follow(1)
    first, request = world.fetch()
    assert len(named(request)) == 2
    world.respond(first, records(0, 0, 2, high_watermark=5), records(1, 0, 1, high_watermark=1))
    assert world.max_lag.value == 3
    second, _ = world.fetch()
    world.respond(second, records(0, 2, 3, high_watermark=5), PartitionData(1, ErrorCode.none, 9, log_start_offset=0))
    assert world.max_lag.value == 8
    third, _ = world.fetch()
    diverging = PartitionData(0, ErrorCode.none, 40, diverging_epoch=EpochEndOffset(0, 4))
    world.respond(third, diverging, PartitionData(1, ErrorCode.not_leader_or_follower, 70))
    assert world.max_lag.value == 8, "neither response has the leader's log end of this line"
    world.fetchers.stops_following(b"t" * 16, 1)
    assert world.max_lag.value == 0
