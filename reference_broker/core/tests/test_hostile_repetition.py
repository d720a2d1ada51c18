"""Small requests that name the same entity repeatedly: a response is not many times larger than the existing data."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import TopicName

from reference_broker.apis.groups.k15_describe_groups import MAX_MEMBER_BYTES
from reference_broker.apis.tests.messages import message_from
from reference_broker.core.tests.hostile_client import HostileClient, slices_of
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.core.tests.test_groups_of_a_node import coordinated
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.retired_fields import MetadataRequest

ASSIGNMENT_BYTES = 900_000
LONGEST_MS = 40
"""A slice takes some 5 ms. A busy machine may need several times as long."""


def large_group(client: HostileClient, group_id: str) -> None:
    """Make a group whose only member has a large assignment."""
    fields: dict[str, Any] = {
        "group_id": group_id,
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    joined = client.request(ApiKey.JOIN_GROUP, 2, **fields)
    assert joined.error_code == ErrorCode.none
    synced = client.request(
        ApiKey.SYNC_GROUP,
        3,
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"a" * ASSIGNMENT_BYTES}],
    )
    assert synced.error_code == ErrorCode.none


def test_group_named_many_times_is_described_once() -> None:
    client = HostileClient(coordinated())
    large_group(client, "g")
    described = client.request(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",) * 500).groups
    assert [len(each.members[0].member_assignment) for each in described] == [ASSIGNMENT_BYTES]


def test_groups_beyond_response_limit_get_error() -> None:
    client = HostileClient(coordinated())
    names = [f"g{number}" for number in range(MAX_MEMBER_BYTES // ASSIGNMENT_BYTES + 2)]
    for name in names:
        large_group(client, name)
    described = client.request(ApiKey.DESCRIBE_GROUPS, 6, groups=(*names, "small")).groups
    refused = [each.group_id for each in described if each.error_code == ErrorCode.policy_violation]
    assert refused == names[-2:]
    assert described[-1].error_code == ErrorCode.group_id_not_found
    alone = client.request(ApiKey.DESCRIBE_GROUPS, 5, groups=(refused[0],)).groups
    assert alone[0].group_state == "Stable"


def test_offset_requested_many_times_is_returned_once() -> None:
    world = coordinated()
    world.create("t")
    client = HostileClient(world)
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4000}
    topics = [{"name": "t", "partitions": [offset]}]
    committed = client.request(
        ApiKey.OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    assert committed.topics[0].partitions[0].error_code == ErrorCode.none
    named = {"name": "t", "partition_indexes": (0,) * 1000}
    group = {"group_id": "g", "topics": [named] * 10, "member_id": None}
    found = client.request(ApiKey.OFFSET_FETCH, 8, groups=[group] * 10, require_stable=False).groups
    assert [(each.group_id, [(topic.name, len(topic.partitions)) for topic in each.topics]) for each in found] == [
        ("g", [("t", 1)])
    ]
    assert found[0].topics[0].partitions[0].metadata == "m" * 4000


@pytest.mark.thorough
@pytest.mark.parametrize("version", [0, 1, 4, 9, 12, 1000])
def test_metadata_of_many_names_takes_slices(version: int) -> None:
    world = NodeWorld(auto_create_topics_enable="true")
    world.create("t", 3)
    names = ["t", *(f"missing-{number}" for number in range(20_000)), "t", "not a name"]
    topics = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names)
    body = MetadataRequest(topics=topics, include_topic_authorized_operations=False, allow_auto_topic_creation=False)
    client = HostileClient(world)
    with slices_of(world) as cost:
        response = client.send(ApiKey.METADATA, version, body)
    assert [len(topic.partitions) for topic in response.topics] == [3, *[0] * 20_001]
    assert cost.slices > 15
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.thorough
def test_metadata_with_too_many_names_closes_connection() -> None:
    entry = MetadataRequestTopic(topic_id=None, name=TopicName("t"))
    body = MetadataRequest(topics=(entry,) * 100_001, include_topic_authorized_operations=False)
    client = HostileClient(NodeWorld())
    assert client.send(ApiKey.METADATA, 9, body) is None
    assert client.send(ApiKey.METADATA, 9, MetadataRequest(topics=(), include_topic_authorized_operations=False))


@pytest.mark.thorough
def test_metadata_of_all_topics_takes_slices() -> None:
    world = NodeWorld()
    for number in range(4):
        world.create(f"t{number}", 1000)
    client = HostileClient(world)
    body = MetadataRequest(topics=None, include_topic_authorized_operations=False)
    assert [len(topic.partitions) for topic in client.send(ApiKey.METADATA, 9, body).topics] == [1000] * 4


def test_describe_configs_of_many_topics_takes_slices_and_omits_duplicates() -> None:
    world = NodeWorld()
    for number in range(3):
        world.create(f"t{number}")
    names = [f"t{number % 3}" for number in range(6000)]
    resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names]
    client = HostileClient(world)
    with slices_of(world) as cost:
        results = client.request(
            ApiKey.DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True, include_documentation=True
        ).results
    assert [result.resource_name for result in results] == ["t0", "t1", "t2"]
    assert cost.longest_ms < LONGEST_MS


def test_shared_configs_take_no_memory_per_topic() -> None:
    world = NodeWorld()
    for number in range(60):
        world.create(f"t{number}")
    named = tuple(
        message_from(
            DescribeConfigsResource, {"resource_type": 2, "resource_name": f"t{number}", "configuration_keys": None}
        )
        for number in range(60)
    )
    response = world.request(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=named))
    first, *others = response.results
    assert len(first.configs) > 15
    assert all(config is two for other in others for config, two in zip(first.configs, other.configs, strict=True))


def test_topic_requested_by_id_and_names_is_returned_once() -> None:
    world = NodeWorld()
    world.create("t", 100)
    topic_id = UUID(bytes=world.node.broker.controller.image.topics["t"].topic_id)
    topics = tuple(MetadataRequestTopic(topic_id=topic_id, name=TopicName(f"n{number}")) for number in range(100))
    body = MetadataRequest(topics=topics, include_topic_authorized_operations=False)
    response = HostileClient(world).send(ApiKey.METADATA, 12, body)
    assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("t", 100)]


def test_fetch_response_is_limited_to_one_slice_of_reading() -> None:
    """Reading a response is one slice of work. Clients may request 50 MiB at once, and most do."""
    world = NodeWorld()
    world.create("t")
    for _ in range(8):
        assert world.produce("t", 0, build([Record(value=bytes(1_000_000))])).error_code == ErrorCode.none
    topic = FetchTopic("t", NO_TOPIC_ID, [FetchPartition(0, 0, 50 << 20)])
    response: Any = HostileClient(world).send(ApiKey.FETCH, 12, FetchRequest(max_bytes=50 << 20, topics=[topic]))
    assert 0 < len(response.responses[0].partitions[0].records) <= 4 << 20
