"""AlterPartition: in-sync replicas, as leaders propose them."""

from typing import Any
from uuid import UUID

import pytest
from kio.schema.alter_partition.v3.request import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from kio.schema.types import BrokerId
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.static.primitive import i32, i64

from reference_broker.apis.brokers import (
    k56_alter_partition,
    k64_unregister_broker,
)
from reference_broker.apis.tests.three_brokers import Cluster, with_topic
from reference_broker.wire.errors import ErrorCode


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
