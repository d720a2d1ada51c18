"""CreatePartitions: results, every error, durability."""

import pytest
from kio.schema.create_partitions.v3.request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.three_brokers import with_topic
from reference_broker.apis.tests.topic_requests import (
    create_partitions,
    create_partitions_request,
    create_topics,
    topic,
)
from reference_broker.apis.topics import k37_create_partitions
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("ReplicationControlManagerTest.testCreatePartitions")
def test_create_partitions_adds_partitions() -> None:
    world = AdminWorld()
    create_topics(world, topic("t", 2))
    assert create_partitions(world, "t", 5).error_code == ErrorCode.none
    assert len(world.controller.image.topics["t"].partitions) == 5
    assert ("t", 4) in world.broker.partitions.by_name
    assert create_partitions(world, "t", 6, validate_only=True).error_code == ErrorCode.none
    assert create_partitions(world, "t", 6, assignments=((1,),)).error_code == ErrorCode.none
    assert len(world.restart(seed=3).controller.image.topics["t"].partitions) == 6


@pytest.mark.clause("ReplicationControlManagerTest.testCreatePartitions")
@pytest.mark.parametrize(
    ("name", "count", "assignments", "error"),
    [
        ("nope", 5, None, ErrorCode.unknown_topic_or_partition),
        ("t", 2, None, ErrorCode.invalid_partitions),
        ("t", 1, None, ErrorCode.invalid_partitions),
        ("t", 4, ((1,),), ErrorCode.invalid_replica_assignment),
        ("t", 3, ((9,),), ErrorCode.invalid_replica_assignment),
        ("t", 3, ((),), ErrorCode.invalid_replica_assignment),
        ("t", 1_000_001, None, ErrorCode.policy_violation),
    ],
)
def test_invalid_create_partitions_returns_error(
    name: str, count: int, assignments: tuple[tuple[int, ...]] | None, error: ErrorCode
) -> None:
    world = AdminWorld()
    create_topics(world, topic("t", 2))
    result = create_partitions(world, name, count, assignments)
    assert (result.error_code, bool(result.error_message)) == (error, True)
    assert len(world.controller.latest.topics["t"].partitions) == 2


def test_duplicate_topic_in_create_partitions_is_rejected() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    entry = CreatePartitionsTopic(name=TopicName("t"), count=i32(3), assignments=None)
    body = CreatePartitionsRequest(topics=(entry, entry), timeout=NO_WAIT, validate_only=False)
    (result,) = world.request(k37_create_partitions, body).results
    assert result.error_code == ErrorCode.invalid_request


def test_create_partitions_beyond_limit_is_rejected() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    assert create_partitions(world, "t", 10_002).error_code == ErrorCode.policy_violation
    assert create_partitions(world, "t", 2**31 - 1).error_code == ErrorCode.policy_violation
    assert len(world.controller.image.topics["t"].partitions) == 1


@pytest.mark.clause("T-10")
def test_duplicate_create_partitions_returns_not_controller_when_leadership_is_lost() -> None:
    world = AdminWorld()
    create_topics(world, topic())
    world.auto = False
    calls = [world.send(k37_create_partitions, create_partitions_request("t", 2)) for _ in range(2)]
    world.metadata.lose()
    assert [call.responses[0].results[0].error_code for call in calls] == [ErrorCode.not_controller] * 2


@pytest.mark.clause(
    "ReplicationControlManagerTest.testValidateGoodManualPartitionAssignments",
    "ReplicationControlManagerTest.testValidateBadManualPartitionAssignments",
)
def test_added_partitions_keep_replication_factor() -> None:
    world = with_topic((1, 2), (2, 3))
    assert create_partitions(world, "t", 5).error_code is ErrorCode.none
    assert [len(partition.replicas) for partition in world.controller.image.topics["t"].partitions] == [2] * 5
    assert create_partitions(world, "t", 6, assignments=((1, 2, 3),)).error_code is ErrorCode.invalid_replica_assignment
    assert create_partitions(world, "t", 6, assignments=((3, 1),)).error_code is ErrorCode.none
    assert world.partition(5).replicas == (3, 1)
