"""Metrics of three whole nodes, through the death of one and its restart."""

from reference_broker.core.tests.cluster_world import ClusterWorld

MANAGER = "kafka.server:type=ReplicaManager,name="
CONTROLLER = "kafka.controller:type=KafkaController,name="


def shown(world: ClusterWorld, number: int, name: str) -> int:
    rows = world.members[number].node.metrics.rows()
    return next(named.metric.value for named in rows if named.mbean == name)  # type: ignore[union-attr]


def living(world: ClusterWorld) -> list[int]:
    return [number for number, member in world.members.items() if member.alive]


def total(world: ClusterWorld, name: str) -> int:
    return sum(shown(world, number, MANAGER + name) for number in living(world))


def test_cluster_metrics_follow_partitions() -> None:
    world = ClusterWorld(3, replica_lag_time_max_ms="2000")
    world.ready()
    world.create("t", partitions=6, min_insync_replicas="2")
    world.run(1000)
    assert [total(world, name) for name in ("LeaderCount", "PartitionCount")] == [6, 18]
    assert [total(world, name) for name in ("UnderReplicatedPartitions", "AtMinIsrPartitionCount")] == [0, 0]
    dead = next(number for number in world.members if number != world.controller)
    led = shown(world, dead, MANAGER + "LeaderCount")
    assert led == 2
    world.kill(dead)
    world.run_until(lambda: all(world.leader("t", index) not in (-1, dead) for index in range(6)))
    world.run(1000)
    assert [total(world, name) for name in ("LeaderCount", "PartitionCount")] == [6, 12]
    assert [total(world, name) for name in ("UnderReplicatedPartitions", "AtMinIsrPartitionCount")] == [6, 6]
    assert total(world, "UnderMinIsrPartitionCount") == 0
    for number in living(world):
        assert shown(world, number, CONTROLLER + "PreferredReplicaImbalanceCount") == led
        assert shown(world, number, CONTROLLER + "OfflinePartitionsCount") == 0
    before = total(world, "IsrExpandsPerSec")
    world.start(dead)
    world.run_until(lambda: all(len(world.state("t", index).isr) == 3 for index in range(6)))
    world.run(1000)
    assert total(world, "IsrExpandsPerSec") - before == 6
    assert [total(world, name) for name in ("UnderReplicatedPartitions", "AtMinIsrPartitionCount")] == [0, 0]
    for number in living(world):
        lag = "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica"
        assert shown(world, number, lag) == 0
