"""Group coordinators of several nodes: the offsets topic, commits, and their survival of coordinators."""

from typing import Any

import pytest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from reference_broker.coordination.partitioner import partition_of
from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error
from reference_broker.wire.retired_fields import OffsetCommitRequest

PARTITIONS = 4


class GroupsWorld(ClusterWorld):
    """Three nodes, the topic ``t`` with two partitions, four partitions of the offsets topic."""

    def __init__(self, **config: str) -> None:
        super().__init__(3, offsets_topic_num_partitions=str(PARTITIONS), **config)
        self.ready()
        self.create("t", 2)

    def find(self, number: int, group: str) -> tuple[Error, int]:
        body = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group,))
        coordinator = self.request(number, ApiKey.FIND_COORDINATOR, 6, body).coordinators[0]
        return known_error(int(coordinator.error_code)), int(coordinator.node_id)

    def coordinator(self, group: str) -> int:
        """Return the coordinator once a live node reports one."""
        found: list[int] = []

        def is_known() -> bool:
            number = next(n for n, member in self.members.items() if member.alive)
            error, node = self.find(number, group)
            found[:] = [node]
            if error is ErrorCode.none and self.members[node].alive:
                return True
            self.run(50)
            return False

        for _ in range(400):
            if is_known():
                return found[0]
        raise AssertionError(f"{group} gets no coordinator")

    def send_commit(self, number: int, group: str, *offsets: int) -> int:
        partitions = tuple(
            OffsetCommitRequestPartition(
                partition_index=i32(at),
                committed_offset=i64(offset),
                committed_leader_epoch=i32(0),
                committed_metadata="",
            )
            for at, offset in enumerate(offsets)
        )
        topics = (OffsetCommitRequestTopic(name=TopicName("t"), partitions=partitions),)
        return self.send(
            number, ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest(group_id=GroupId(group), member_id="", topics=topics)
        )

    def errors_of(self, token: int) -> list[Error]:
        self.run_until(lambda: token in self.replies)
        return [
            known_error(int(partition.error_code))
            for topic in self.replies[token].topics
            for partition in topic.partitions
        ]

    def commit(self, group: str, *offsets: int) -> None:
        """Commit as a client does, with retries until it is accepted."""
        for _ in range(200):
            errors = self.errors_of(self.send_commit(self.coordinator(group), group, *offsets))
            if errors == [ErrorCode.none] * len(offsets):
                return
            self.run(50)
        raise AssertionError("the commit is not accepted")

    def fetched(self, group: str) -> dict[int, int]:
        """Return the offsets of topic ``t`` from its coordinator, once it has loaded."""
        wanted = OffsetFetchRequestGroup(group_id=GroupId(group), topics=None)
        for _ in range(200):
            response: Any = self.request(
                self.coordinator(group), ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=(wanted,))
            ).groups[0]
            if int(response.error_code) == ErrorCode.none:
                return {
                    int(partition.partition_index): int(partition.committed_offset)
                    for topic in response.topics
                    for partition in topic.partitions
                }
            self.run(50)
        raise AssertionError("no response of the coordinator")


def test_offsets_topic_is_created_once_with_replica_on_each_node() -> None:
    world = GroupsWorld()
    for number in range(3):
        assert world.find(number, "g")[0] is ErrorCode.coordinator_not_available
    coordinator = world.coordinator("g")
    assert coordinator == world.leader(OFFSETS_TOPIC, partition_of("g", PARTITIONS))
    topic = world.members[0].node.broker.loader.image.topics[OFFSETS_TOPIC]
    assert [sorted(partition.replicas) for partition in topic.partitions] == [[0, 1, 2]] * PARTITIONS


def test_only_coordinator_accepts_commits() -> None:
    world = GroupsWorld()
    coordinator = world.coordinator("g")
    world.commit("g", 5)
    for number in range(3):
        expected = ErrorCode.none if number == coordinator else ErrorCode.not_coordinator
        assert world.errors_of(world.send_commit(number, "g", 6)) == [expected]
    assert world.fetched("g") == {0: 6}


def test_commits_survive_coordinator() -> None:
    world = GroupsWorld()
    groups = [f"group-{number}" for number in range(8)]
    for number, group in enumerate(groups):
        world.commit(group, number, 100 + number)
    first = world.coordinator(groups[0])
    world.kill(first)
    assert world.coordinator(groups[0]) != first
    for number, group in enumerate(groups):
        assert world.fetched(group) == {0: number, 1: 100 + number}
    world.commit(groups[0], 7)
    world.start(first)
    world.ready()
    assert world.fetched(groups[0]) == {0: 7, 1: 100}


@pytest.mark.thorough
@pytest.mark.parametrize("delay_us", range(0, 1200, 150))
def test_acknowledged_commit_is_not_lost_and_other_one_is_all_or_nothing(delay_us: int) -> None:
    """The coordinator dies this long after the commit arrived."""
    world = GroupsWorld()
    world.commit("g", 1, 1)
    coordinator = world.coordinator("g")
    token = world.send_commit(coordinator, "g", 2, 2)
    end_us = world.mono_us + delay_us
    world.run_until(lambda: world.mono_us >= end_us or token in world.replies)
    acknowledged = token in world.replies
    world.kill(coordinator)
    found = world.fetched("g")
    assert found in ([{0: 2, 1: 2}] if acknowledged else [{0: 1, 1: 1}, {0: 2, 1: 2}])


def test_isolated_coordinator_acknowledges_no_commit() -> None:
    """The coordinator does not know that another one has taken over."""
    world = GroupsWorld(replica_lag_time_max_ms="30000")
    world.commit("g", 1)
    old = world.coordinator("g")
    for number in range(3):
        if number != old:
            world.sever(old, number)
    token = world.send_commit(old, "g", 2)
    world.run_until(
        lambda: any(
            n != old
            and member.node.broker.loader.image.topics[OFFSETS_TOPIC].partitions[partition_of("g", PARTITIONS)].leader
            not in (old, -1)
            for n, member in world.members.items()
        )
    )
    assert world.errors_of(token) in ([ErrorCode.coordinator_not_available], [ErrorCode.not_coordinator])
    world.heal()
    world.run(5000)
    world.commit("g", 3)
    assert world.fetched("g") == {0: 3}
    assert world.errors_of(world.send_commit(old, "g", 4)) in ([ErrorCode.not_coordinator], [ErrorCode.none])


def test_offsets_survive_restart_of_all_nodes() -> None:
    world = GroupsWorld()
    world.commit("g", 5, 6)
    for number in range(3):
        world.kill(number)
    for number in range(3):
        world.start(number)
    world.ready()
    assert world.fetched("g") == {0: 5, 1: 6}
