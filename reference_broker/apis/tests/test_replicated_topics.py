"""Topics with several replicas: created, grown, their in-sync replicas changed, their leaders elected."""

from typing import Any
from uuid import UUID

import pytest
from kio.schema.alter_partition.v3.request import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from kio.schema.alter_partition.v3.response import AlterPartitionResponse
from kio.schema.alter_partition.v3.response import PartitionData as PartitionAnswer
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.static.primitive import i8, i16, i32, i64, u16

from reference_broker.apis.brokers import (
    k56_alter_partition,
    k62_broker_registration,
    k63_broker_heartbeat,
    k64_unregister_broker,
)
from reference_broker.apis.metadata import k03_metadata
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.test_topic_admin import create, grow, topic
from reference_broker.apis.topics import k43_elect_leaders
from reference_broker.metadata.image import PartitionImage
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.retired_fields import MetadataRequest


class Cluster(AdminWorld):
    """Node 1 and brokers 2 and 3."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.epochs = {1: self.lifecycle.registered_epoch}
        for broker_id in (2, 3):
            self.register(broker_id, broker_id)
            self.beat(broker_id)

    def register(self, broker_id: int, incarnation: int) -> None:
        """Register the broker after the session of an earlier incarnation has expired."""
        self.controller.heartbeats.forget(broker_id)
        response = self.request_registration(broker_id, incarnation)
        assert response.error_code is ErrorCode.none
        self.epochs[broker_id] = response.broker_epoch

    def request_registration(self, broker_id: int, incarnation: int) -> BrokerRegistrationResponse:
        body = BrokerRegistrationRequest(
            broker_id=BrokerId(broker_id),
            cluster_id="cluster",
            incarnation_id=UUID(int=incarnation),
            listeners=(Listener(name="PLAINTEXT", host="h", port=u16(9092), security_protocol=i16(0)),),
            features=(
                Feature(name="metadata.version", min_supported_version=i16(7), max_supported_version=i16(27)),
                Feature(
                    name="eligible.leader.replicas.version", min_supported_version=i16(0), max_supported_version=i16(1)
                ),
                Feature(name="transaction.version", min_supported_version=i16(0), max_supported_version=i16(2)),
            ),
            rack=None,
            log_dirs=(UUID(int=100 + broker_id),),
        )
        found: BrokerRegistrationResponse = self.request(k62_broker_registration, body)
        return found

    def beat(self, broker_id: int, want_fence: bool = False, want_shut_down: bool = False, offset: int = 10**6) -> None:
        body = BrokerHeartbeatRequest(
            broker_id=BrokerId(broker_id),
            broker_epoch=i64(self.epochs[broker_id]),
            current_metadata_offset=i64(offset),
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        assert self.request(k63_broker_heartbeat, body).error_code is ErrorCode.none

    def partition(self, index: int = 0, name: str = "t") -> PartitionImage:
        return self.controller.image.topics[name].partitions[index]

    def topic_id(self, name: str = "t") -> UUID:
        return UUID(bytes=self.controller.image.topics[name].topic_id)

    def change(
        self, isr: tuple[int, ...], *, leader: int = 1, epochs: dict[int, int] | None = None, **changed: int
    ) -> PartitionAnswer:
        """Request an ISR of partition 0 as its leader does. Return the response for that partition."""
        known = self.partition()
        fields: dict[str, Any] = {
            "partition_index": 0,
            "leader_epoch": known.leader_epoch,
            "partition_epoch": known.partition_epoch,
            "leader_recovery_state": 0,
            **changed,
        }
        sent = epochs or {}
        wanted = tuple(
            BrokerState(broker_id=BrokerId(each), broker_epoch=i64(sent.get(each, self.epochs.get(each, 9))))
            for each in isr
        )
        entry = PartitionData(new_isr_with_epochs=wanted, **fields)
        ((response,),) = (each.partitions for each in self.alter(leader, (entry,)).topics)
        return response

    def alter(
        self,
        leader: int,
        partitions: tuple[PartitionData, ...],
        topic_id: UUID | None = None,
        broker_epoch: int | None = None,
    ) -> AlterPartitionResponse:
        body = AlterPartitionRequest(
            broker_id=BrokerId(leader),
            broker_epoch=i64(self.epochs[leader] if broker_epoch is None else broker_epoch),
            topics=(TopicData(topic_id=topic_id or self.topic_id(), partitions=partitions),),
        )
        found: AlterPartitionResponse = self.request(k56_alter_partition, body)
        return found

    def elect(
        self, kind: int, *wanted: tuple[str, tuple[int, ...]], api_version: int | None = None
    ) -> tuple[str, dict[tuple[str, int], str]]:
        """``wanted``: (topic, partitions); none: all."""
        entries = tuple(
            TopicPartitions(topic=TopicName(name), partitions=tuple(map(i32, indexes))) for name, indexes in wanted
        )
        body = ElectLeadersRequest(election_type=i8(kind), topic_partitions=entries or None, timeout=NO_WAIT)
        response = self.request(k43_elect_leaders, body, api_version)
        results = {
            (result.topic, part.partition_id): part.error_code.name
            for result in response.replica_election_results
            for part in result.partition_result
        }
        return response.error_code.name, results


def with_topic(*assignments: tuple[int, ...], **config: str) -> Cluster:
    """Return a cluster with topic t."""
    world = Cluster(**config)
    wanted = topic(partitions=-1, replication_factor=-1, assignments=tuple(enumerate(assignments)))
    assert create(world, wanted)[0].error_code is ErrorCode.none
    return world


def test_created_topic_is_in_sync_and_leaders_are_spread() -> None:
    world = Cluster()
    (result,) = create(world, topic(partitions=6, replication_factor=3))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 6, 3)
    partitions = world.controller.image.topics["t"].partitions
    assert all(
        sorted(partition.replicas) == [1, 2, 3] and partition.isr == partition.replicas for partition in partitions
    )
    assert all(
        (partition.leader, partition.leader_epoch, partition.partition_epoch) == (partition.replicas[0], 0, 0)
        for partition in partitions
    )
    assert sorted(partition.leader for partition in partitions) == [1, 1, 2, 2, 3, 3]


def test_replication_factor_minus_one_is_default_and_too_large_is_rejected() -> None:
    world = Cluster(default_replication_factor="2")
    (result,) = create(world, topic(replication_factor=-1))
    assert (result.error_code, result.replication_factor) == (ErrorCode.none, 2)
    (refused,) = create(world, topic("u", replication_factor=4))
    assert refused.error_code is ErrorCode.invalid_replication_factor
    assert "4 cannot be reached because only 3" in (refused.error_message or "")


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopicsISRInvariants", "BrokerHeartbeatManagerTest.testUsableBrokerIterator"
)
def test_replicas_on_fenced_brokers_are_not_in_sync() -> None:
    world = Cluster()
    world.beat(3, want_fence=True)
    create(world, topic(partitions=4, replication_factor=3))
    for partition in world.controller.image.topics["t"].partitions:
        assert sorted(partition.replicas) == [1, 2, 3]
        assert partition.isr == tuple(broker for broker in partition.replicas if broker != 3)
        assert partition.leader == partition.replicas[0] != 3


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreatePartitionsISRInvariants",
    "ReplicationControlManagerTest.testManualPartitionAssignmentOnAllFencedBrokers",
    "ReplicationControlManagerTest.testCreatePartitionsFailsWithManualAssignmentWithAllFenced",
)
def test_assignment_to_fenced_brokers_only_is_rejected() -> None:
    world = with_topic((1, 2))
    world.beat(2, want_fence=True)
    world.beat(3, want_fence=True)
    wanted = topic("u", partitions=-1, replication_factor=-1, assignments=((0, (1, 2)), (1, (2, 3))))
    assert create(world, wanted)[0].error_code is ErrorCode.invalid_replica_assignment
    assert grow(world, "t", 2, assignments=((3, 2),)).error_code is ErrorCode.invalid_replica_assignment
    assert grow(world, "t", 2, assignments=((3, 1),)).error_code is ErrorCode.none
    assert (world.partition(1).leader, world.partition(1).isr) == (1, (1,))


@pytest.mark.clause(
    "ReplicationControlManagerTest.testValidateGoodManualPartitionAssignments",
    "ReplicationControlManagerTest.testValidateBadManualPartitionAssignments",
)
def test_added_partitions_keep_replication_factor() -> None:
    world = with_topic((1, 2), (2, 3))
    assert grow(world, "t", 5).error_code is ErrorCode.none
    assert [len(partition.replicas) for partition in world.controller.image.topics["t"].partitions] == [2] * 5
    assert grow(world, "t", 6, assignments=((1, 2, 3),)).error_code is ErrorCode.invalid_replica_assignment
    assert grow(world, "t", 6, assignments=((3, 1),)).error_code is ErrorCode.none
    assert world.partition(5).replicas == (3, 1)


@pytest.mark.clause("ReplicationControlManagerTest.testShrinkAndExpandIsr")
def test_alter_partition_changes_isr_in_leader_epoch() -> None:
    world = with_topic((1, 2, 3))
    smaller = world.change((1, 3))
    assert (smaller.error_code, smaller.leader_id, smaller.leader_epoch) == (ErrorCode.none, 1, 0)
    assert (smaller.isr, smaller.partition_epoch) == ((1, 3), 1)
    assert (world.partition().isr, world.partition().partition_epoch, world.partition().leader_epoch) == ((1, 3), 1, 0)
    assert world.change((1, 3, 2)).isr == (1, 3, 2)
    assert world.partition().isr == (1, 3, 2)
    assert world.change((1, 3, 2)).partition_epoch == 2, "nothing changed"


@pytest.mark.clause(
    "ReplicationControlManagerTest.testInvalidAlterPartitionRequests",
    "ReplicationControlManagerTest.testAlterPartitionShouldRejectBrokersWithStaleEpoch",
)
@pytest.mark.parametrize(
    ("isr", "fields", "error"),
    [
        ((1, 2), {"partition_index": 1}, "unknown_topic_or_partition"),
        ((1, 2), {"leader_epoch": 1}, "not_controller"),
        ((1, 2), {"partition_epoch": 2}, "not_controller"),
        ((1, 2), {"leader_epoch": 1, "partition_epoch": 0}, "not_controller"),
        ((1, 2), {"leader_epoch": -1}, "fenced_leader_epoch"),
        ((1, 2), {"leader_epoch": -1, "leader": 2}, "fenced_leader_epoch"),
        ((1, 2), {"leader": 2}, "invalid_request"),
        ((1, 2), {"leader": 2, "partition_epoch": 0}, "invalid_request"),
        ((1, 2), {"partition_epoch": 0}, "invalid_update_version"),
        ((1, 9), {"partition_epoch": 0}, "invalid_update_version"),
        ((1, 9), {}, "invalid_request"),
        ((1, 1), {}, "invalid_request"),
        ((), {}, "invalid_request"),
        ((2, 3), {}, "invalid_request"),
        ((1, 2), {"leader_recovery_state": 1}, "invalid_request"),
        ((1,), {"leader_recovery_state": 1}, "invalid_request"),
        ((1,), {"leader_recovery_state": 2}, "invalid_request"),
        ((1, 2), {"epochs": {2: 5}}, "ineligible_replica"),
        ((1, 2), {"epochs": {2: -1}}, "none"),
        ((1, 2, 3), {}, "none"),
    ],
)
def test_invalid_alter_partition_returns_error(isr: tuple[int, ...], fields: dict[str, Any], error: str) -> None:
    world = with_topic((1, 2, 3))
    world.change((1, 3))
    before = world.partition()
    assert world.change(isr, **fields).error_code.name == error
    assert (world.partition() == before) == (error != "none")


@pytest.mark.clause(
    "ReplicationControlManagerTest.testAlterPartitionShouldRejectFencedBrokers",
    "ReplicationControlManagerTest.testAlterPartitionShouldRejectBrokersWithStaleEpoch",
    "ReplicationControlManagerTest.testAlterPartitionShouldRejectShuttingDownBrokers",
)
@pytest.mark.parametrize("how", ["fenced", "leaving", "restarted", "gone"])
def test_broker_not_alive_is_ineligible_replica(how: str) -> None:
    world = with_topic((1, 2, 3))
    world.change((1, 3))
    if how == "restarted":
        old = world.epochs[2]
        world.register(2, 22)
        world.beat(2)
        world.epochs[2] = old
    elif how == "gone":
        assert (
            world.request(k64_unregister_broker, UnregisterBrokerRequest(broker_id=BrokerId(2))).error_code
            is ErrorCode.none
        )
    elif how == "leaving":
        world.beat(3, offset=0)
        world.beat(2, want_shut_down=True)
        assert not world.controller.image.brokers[2].fenced, "a follower has not reached that offset"
    else:
        world.beat(2, want_fence=True)
    assert world.change((1, 3, 2)).error_code is ErrorCode.ineligible_replica


def test_new_incarnation_is_registered_after_removal_from_isr() -> None:
    world = with_topic((2, 1, 3))
    world.controller.heartbeats.forget(2)
    world.metadata.quorum.failing = 1
    assert world.request_registration(2, 22).error_code is ErrorCode.kafka_storage_error
    assert (world.partition().leader, world.partition().isr) == (2, (2, 1, 3))
    assert world.controller.image.brokers[2].broker_epoch == world.epochs[2]
    world.register(2, 22)
    assert (world.partition().leader, world.partition().isr) == (1, (1, 3))
    world.beat(2)
    world.change((1, 3, 2))
    before = world.controller.image
    world.register(2, 22)
    assert world.controller.image.topics is before.topics, "a repeated registration"
    assert world.controller.image.brokers is before.brokers


def test_alter_partition_is_checked_against_pending_changes() -> None:
    world = with_topic((1, 2, 3))
    world.auto = False
    first = world.send(k56_alter_partition, _request(world, (1, 2)))
    second = world.send(k56_alter_partition, _request(world, (1, 3)))
    assert first.responses == second.responses == []
    world.settle()
    errors = [call.responses[0].topics[0].partitions[0].error_code.name for call in (first, second)]
    assert errors == ["none", "invalid_update_version"]
    assert world.partition().isr == (1, 2)


def test_broker_with_pending_fencing_is_ineligible_replica() -> None:
    world = with_topic((1, 2, 3))
    world.change((1, 3))
    world.auto = False
    world.beat(2, want_fence=True)
    call = world.send(k56_alter_partition, _request(world, (1, 3, 2)))
    assert not world.controller.image.brokers[2].fenced
    world.settle()
    assert call.responses[0].topics[0].partitions[0].error_code is ErrorCode.ineligible_replica


def _request(world: Cluster, isr: tuple[int, ...]) -> AlterPartitionRequest:
    known = world.partition()
    entry = PartitionData(
        partition_index=i32(0),
        leader_epoch=i32(known.leader_epoch),
        partition_epoch=i32(known.partition_epoch),
        new_isr_with_epochs=tuple(
            BrokerState(broker_id=BrokerId(each), broker_epoch=i64(world.epochs[each])) for each in isr
        ),
    )
    return AlterPartitionRequest(
        broker_id=BrokerId(1),
        broker_epoch=i64(world.epochs[1]),
        topics=(TopicData(topic_id=world.topic_id(), partitions=(entry,)),),
    )


@pytest.mark.clause(
    "ReplicationControlManagerTest.testAlterPartitionHandleUnknownTopicIdOrName",
    "ReplicationControlManagerTest.testInvalidAlterPartitionRequests",
)
def test_alter_partition_with_stale_broker_epoch_or_unknown_topic_is_rejected() -> None:
    world = with_topic((1, 2))
    response = world.alter(1, (), broker_epoch=world.epochs[1] - 1)
    assert (response.error_code, response.topics) == (ErrorCode.stale_broker_epoch, ())
    entry = PartitionData(partition_index=i32(0), leader_epoch=i32(0), partition_epoch=i32(0), new_isr_with_epochs=())
    response = world.alter(1, (entry,), topic_id=UUID(int=99))
    assert response.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id


def test_pending_alter_partition_returns_not_controller_when_leadership_is_lost() -> None:
    world = with_topic((1, 2))
    world.auto = False
    call = world.send(k56_alter_partition, _request(world, (1,)))
    world.metadata.lose()
    assert (call.responses[0].error_code, call.responses[0].topics) == (ErrorCode.not_controller, ())


def test_alter_partition_ends_recovery_after_unclean_election() -> None:
    world = with_topic((2, 1), unclean_leader_election_enable="true")
    world.change((2,), leader=2)
    world.beat(2, want_fence=True)
    known = world.partition()
    assert (known.leader, known.isr, known.leader_recovery_state) == (1, (1,), 1)
    assert world.change((1, 2), leader_recovery_state=1).error_code is ErrorCode.invalid_request
    assert world.change((1,), leader_recovery_state=0).leader_recovery_state == 0
    assert world.partition().leader_recovery_state == 0


@pytest.mark.clause("ReplicationControlManagerTest.testElectPreferredLeaders")
def test_preferred_election_elects_in_sync_preferred_leaders() -> None:
    world = with_topic((2, 1), (2, 1), (1, 2))
    world.beat(2, want_fence=True)
    world.beat(2)
    assert [world.partition(index).leader for index in range(3)] == [1, 1, 1]
    world.change((1, 2))
    assert world.elect(0, ("t", (0, 1, 2, 3)), ("no", (0,))) == (
        "none",
        {
            ("t", 0): "none",
            ("t", 1): "preferred_leader_not_available",
            ("t", 2): "election_not_needed",
            ("t", 3): "unknown_topic_or_partition",
            ("no", 0): "unknown_topic_or_partition",
        },
    )
    assert (world.partition().leader, world.partition().leader_epoch) == (2, 2)
    assert world.elect(0) == ("none", {("t", 1): "preferred_leader_not_available"})


@pytest.mark.clause("ReplicationControlManagerTest.testElectUncleanLeaders_WithoutElr")
def test_unclean_election_elects_leader_where_no_in_sync_replica_is_alive() -> None:
    world = with_topic((2, 1), (1, 2), (2, 3))
    world.change((2,), leader=2)
    world.beat(3, want_fence=True)
    world.beat(2, want_fence=True)
    assert [world.partition(index).leader for index in range(3)] == [-1, 1, -1]
    assert world.elect(1, ("t", (0, 1, 2))) == (
        "none",
        {("t", 0): "none", ("t", 1): "election_not_needed", ("t", 2): "eligible_leaders_not_available"},
    )
    known = world.partition()
    assert (known.leader, known.isr, known.leader_recovery_state) == (1, (1,), 1)


def test_unknown_election_type_is_rejected() -> None:
    world = with_topic((1, 2))
    assert world.elect(7, ("t", (0,))) == ("invalid_request", {("t", 0): "invalid_request"})


def test_elect_leaders_version_0_elects_preferred_leaders() -> None:
    world = with_topic((2, 1))
    world.beat(2, want_fence=True)
    world.beat(2)
    world.change((1, 2))
    assert world.elect(0, ("t", (0,)), api_version=0)[1] == {("t", 0): "none"}
    assert world.partition().leader == 2


def described(
    world: Cluster, api_version: int = 13
) -> tuple[str, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    name = None if api_version > 12 else TopicName("t")
    entry = MetadataRequestTopic(topic_id=None if name else world.topic_id(), name=name)
    body = MetadataRequest(topics=(entry,), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    (found,) = world.request(k03_metadata, body, api_version).topics[0].partitions
    return found.error_code.name, found.leader_id, found.replica_nodes, found.isr_nodes, found.offline_replicas


def test_metadata_returns_isr_and_offline_replicas_and_no_fenced_leader() -> None:
    world = with_topic((2, 1, 3))
    assert described(world) == ("none", 2, (2, 1, 3), (2, 1, 3), ())
    world.beat(3, want_fence=True)
    assert described(world) == ("none", 2, (2, 1, 3), (2, 1), (3,))
    assert described(world, 0) == ("replica_not_available", 2, (2, 1), (2, 1), (3,))
    world.change((2,), leader=2)
    world.beat(2, want_fence=True)
    assert described(world) == ("leader_not_available", -1, (2, 1, 3), (), (2, 3))
    assert described(world, 0)[0] == "leader_not_available"
