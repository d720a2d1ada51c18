"""Requests that create, delete and grow topics, as tests send them."""

from typing import Any

from kio.schema.create_partitions.v3.request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.create_partitions.v3.response import CreatePartitionsTopicResult
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v7.response import CreatableTopicResult
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32

from reference_broker.apis.tests.admin_world import A_SECOND, NO_WAIT, AdminWorld
from reference_broker.apis.topics import k19_create_topics, k20_delete_topics, k37_create_partitions


def topics_of(response: Any) -> list[tuple[str, str, int]]:
    return [(each.name, each.error_code.name, len(each.partitions)) for each in response.topics]


def create_topics_request(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=(topic(name),), timeout=NO_WAIT)


def topic(
    name: str = "t",
    partitions: int = 1,
    replication_factor: int = 1,
    configs: tuple[tuple[str, str | None], ...] = (),
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(replication_factor),
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=i32(i), broker_ids=tuple(map(BrokerId, b)))
            for i, b in assignments
        ),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs),
    )


def create_topics(
    world: AdminWorld, *topics: CreatableTopic, validate_only: bool = False
) -> tuple[CreatableTopicResult, ...]:
    body = CreateTopicsRequest(topics=topics, timeout=A_SECOND, validate_only=validate_only)
    found: tuple[CreatableTopicResult, ...] = world.request(k19_create_topics, body).topics
    return found


def delete_topics(
    world: AdminWorld, *states: DeleteTopicState, api_version: int = 6
) -> tuple[DeletableTopicResult, ...]:
    body = DeleteTopicsRequest(topics=states, timeout=A_SECOND)
    found: tuple[DeletableTopicResult, ...] = world.request(k20_delete_topics, body, api_version).responses
    return found


def by_name(name: str) -> DeleteTopicState:
    return DeleteTopicState(name=TopicName(name), topic_id=None)


def create_partitions_request(
    name: str, count: int, assignments: tuple[tuple[int, ...], ...] | None = None, validate_only: bool = False
) -> CreatePartitionsRequest:
    entry = CreatePartitionsTopic(
        name=TopicName(name),
        count=i32(count),
        assignments=None
        if assignments is None
        else tuple(CreatePartitionsAssignment(broker_ids=tuple(map(BrokerId, ids))) for ids in assignments),
    )
    return CreatePartitionsRequest(topics=(entry,), timeout=NO_WAIT, validate_only=validate_only)


def create_partitions(
    world: AdminWorld,
    name: str,
    count: int,
    assignments: tuple[tuple[int, ...], ...] | None = None,
    validate_only: bool = False,
) -> CreatePartitionsTopicResult:
    body = create_partitions_request(name, count, assignments, validate_only)
    results: tuple[CreatePartitionsTopicResult, ...] = world.request(k37_create_partitions, body).results
    (result,) = results
    return result
