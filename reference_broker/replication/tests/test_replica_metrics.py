"""Metrics of led partitions equal the results of a walk over them, after every step."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.leader_world import LAG_MS, LeaderWorld
from reference_broker.wire.errors import ErrorCode

GAUGES = ("LeaderCount", "UnderReplicatedPartitions", "UnderMinIsrPartitionCount", "AtMinIsrPartitionCount")
METERS = ("IsrShrinksPerSec", "IsrExpandsPerSec", "FailedIsrUpdatesPerSec")


def shown(world: LeaderWorld, *names: str) -> tuple[int, ...]:
    values = {named.mbean: named.metric for named in world.metrics.rows()}
    metrics = [values[f"kafka.server:type=ReplicaManager,name={name}"] for name in names]
    return tuple(metric.value for metric in metrics)  # type: ignore[union-attr]


def walked(led: list[Partition]) -> tuple[int, ...]:
    """Return the counts as Kafka's ReplicaManager computes them."""
    under_replicated = under_min = at_min = 0
    for partition in led:
        followers = partition.followers
        isr, replicas = (1, 1) if followers is None else (len(followers.isr), 1 + len(followers.states))
        wanted = min(partition.log.config.min_insync_replicas, replicas)
        under_replicated += isr < replicas
        under_min += isr < wanted
        at_min += isr == wanted
    return len(led), under_replicated, under_min, at_min


class RandomLeader:
    """A leader whose partitions, in-sync replicas, logs and settings change at random."""

    def __init__(self, seed: int) -> None:
        self.random, self.world = Random(seed), LeaderWorld(min_isr=2)
        self.led: list[Partition] = []
        self.led_ever = 0
        self.world.leaders.start()
        self.lead()

    def step(self) -> None:
        """Do one of the things that can move a gauge."""
        if not self.led:
            self.lead()
        steps: list[Callable[[], None]] = [
            self.lead,
            self.resign,
            self.apply_newer_metadata,
            self.fetch,
            self.fetch,
            self.respond_to_alter_partition,
            self.respond_to_alter_partition,
            self.reconfigure,
            self.append,
            self.pass_lag_time,
        ]
        self.random.choice(steps)()

    def lead(self) -> None:
        replicas = self.random.choice([(1,), (1, 2), (1, 2, 3)])
        isr = replicas[: self.random.randint(1, 3)]
        self.led.append(self.world.lead(self.led_ever, isr=isr, replicas=replicas))
        self.led_ever += 1

    def resign(self) -> None:
        partition = self.led.pop(self.random.randrange(len(self.led)))
        partition.is_topic_deleted = self.random.random() < 0.5
        self.world.leaders.stops_leading(partition)

    def apply_newer_metadata(self) -> None:
        partition = self.random.choice(self.led)
        if partition.followers is None:
            return
        replicas = self.random.choice([(1, 2), (1, 2, 3)])
        partition_epoch = partition.partition_epoch + self.random.randint(0, 2)
        leader_epoch = partition.leader_epoch + self.random.randint(0, 1)
        isr = replicas[: self.random.randint(1, 3)]
        self.world.state(partition, isr, replicas=replicas, leader_epoch=leader_epoch, partition_epoch=partition_epoch)

    def fetch(self) -> None:
        partition = self.random.choice(self.led)
        self.world.fetch(self.random.choice((2, 3)), partition, self.random.randint(0, partition.log.log_end_offset))

    def respond_to_alter_partition(self) -> None:
        self.world.pass_ms(0)
        if self.world.alter_requests:
            errors = [ErrorCode.none, ErrorCode.none, ErrorCode.ineligible_replica]
            self.world.respond(self.random.choice(errors))

    def reconfigure(self) -> None:
        partition = self.random.choice(self.led)
        partition.log.config = replace(partition.log.config, min_insync_replicas=self.random.randint(1, 4))
        self.world.leaders.reconfigured(partition)

    def append(self) -> None:
        self.world.append(self.random.choice(self.led))

    def pass_lag_time(self) -> None:
        self.world.pass_ms(LAG_MS)


STEPS = 200


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_gauges_are_exact_after_each_step(seed: int) -> None:
    leader = RandomLeader(seed)
    for _ in range(STEPS):
        leader.step()
        assert shown(leader.world, *GAUGES) == walked(leader.led)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_each_gauge_is_above_zero_at_some_step_and_zero_at_the_end(seed: int) -> None:
    leader = RandomLeader(seed)
    largest = dict.fromkeys(GAUGES, 0)
    for _ in range(STEPS):
        leader.step()
        for name, value in zip(GAUGES, shown(leader.world, *GAUGES), strict=True):
            largest[name] = max(largest[name], value)
    assert all(largest.values()), "otherwise the random steps show nothing about a gauge"

    while leader.led:
        leader.resign()
    assert shown(leader.world, *GAUGES) == (0, 0, 0, 0)


def test_isr_expansion_is_counted_once_for_response_and_metadata() -> None:
    world = LeaderWorld()
    by_response, by_metadata = world.lead(0, isr=(1, 2)), world.lead(1, isr=(1, 2))
    world.fetch(3, by_response, 0)
    world.fetch(3, by_metadata, 0)
    world.pass_ms(0)
    world.state(by_metadata, (1, 3, 2), partition_epoch=1)
    assert shown(world, *METERS) == (0, 1, 0)
    world.respond()
    world.state(by_response, (1, 2, 3), partition_epoch=1)
    assert shown(world, *METERS) == (0, 2, 0)


def test_only_isr_shrinks_of_own_proposals_are_counted() -> None:
    world = LeaderWorld()
    partition = world.lead()
    world.leaders.start()
    world.append(partition)
    world.fetch(2, partition, 1)
    world.pass_ms(2 * LAG_MS)
    world.respond()
    assert shown(world, *METERS) == (1, 0, 0)
    world.state(partition, (1,), partition_epoch=2)
    world.state(partition, (1, 2, 3), partition_epoch=3)
    assert shown(world, *METERS) == (1, 0, 0)
    world.state(partition, (1, 2), partition_epoch=4)
    world.fetch(3, partition, 1)
    world.pass_ms(0)
    world.state(partition, (1,), partition_epoch=5)
    assert shown(world, *METERS) == (1, 0, 0), "the controller took one out before the other came in"


def test_each_failed_isr_update_is_counted() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2))
    world.fetch(3, partition, 0)
    world.lose_request()
    world.pass_ms(50)
    world.respond(top=ErrorCode.not_controller)
    assert shown(world, *METERS) == (0, 0, 0)
    for failures, error in enumerate((ErrorCode.unknown_server_error, ErrorCode.ineligible_replica), 1):
        world.pass_ms(50)
        world.respond(error)
        assert shown(world, *METERS) == (0, 0, failures)


def test_lowered_min_insync_replicas_moves_high_watermark_at_once() -> None:
    world = LeaderWorld(min_isr=2)
    partition = world.lead(isr=(1,))
    world.produce("p", partition, timeout_ms=100_000)
    assert (partition.log.high_watermark, world.acked) == (0, {})
    partition.log.config = LogConfig(min_insync_replicas=1)
    world.leaders.reconfigured(partition)
    assert (partition.log.high_watermark, world.acked) == (1, {"p": {}})


def test_offline_replica_count_is_zero() -> None:
    assert shown(LeaderWorld(), "OfflineReplicaCount") == (0,)
