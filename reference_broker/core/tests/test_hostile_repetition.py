"""Small requests that name the same thing again and again: an answer is never many times as large as what there is."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from reference_broker.apis.groups.k15_describe_groups import MOST_MEMBER_BYTES
from reference_broker.core.tests.hostile_client import HostileClient
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.core.tests.test_groups_of_a_node import coordinated
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

ASSIGNMENT_BYTES = 900_000


def large_group(client: HostileClient, group_id: str) -> None:
    """A group whose one member has a large assignment."""
    said: dict[str, Any] = {
        "group_id": group_id,
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    joined = client.ask(ApiKey.JOIN_GROUP, 2, **said)
    assert joined.error_code == ErrorCode.none
    synced = client.ask(
        ApiKey.SYNC_GROUP,
        3,
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"a" * ASSIGNMENT_BYTES}],
    )
    assert synced.error_code == ErrorCode.none


def test_a_group_that_is_named_many_times_is_described_once() -> None:
    client = HostileClient(coordinated())
    large_group(client, "g")
    described = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",) * 500).groups
    assert [len(each.members[0].member_assignment) for each in described] == [ASSIGNMENT_BYTES]


def test_groups_that_do_not_fit_one_answer_are_told_so() -> None:
    client = HostileClient(coordinated())
    names = [f"g{number}" for number in range(MOST_MEMBER_BYTES // ASSIGNMENT_BYTES + 2)]
    for name in names:
        large_group(client, name)
    described = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=(*names, "small")).groups
    refused = [each.group_id for each in described if each.error_code == ErrorCode.policy_violation]
    assert refused == names[-2:]
    assert described[-1].error_code == ErrorCode.group_id_not_found
    alone = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=(refused[0],)).groups
    assert alone[0].group_state == "Stable"


def test_an_offset_that_is_asked_for_many_times_is_told_once() -> None:
    world = coordinated()
    world.create("t")
    client = HostileClient(world)
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4000}
    topics = [{"name": "t", "partitions": [offset]}]
    committed = client.ask(
        ApiKey.OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    assert committed.topics[0].partitions[0].error_code == ErrorCode.none
    named = {"name": "t", "partition_indexes": (0,) * 1000}
    group = {"group_id": "g", "topics": [named] * 10, "member_id": None}
    found = client.ask(ApiKey.OFFSET_FETCH, 8, groups=[group] * 10, require_stable=False).groups
    assert [(each.group_id, [(one.name, len(one.partitions)) for one in each.topics]) for each in found] == [
        ("g", [("t", 1)])
    ]
    assert found[0].topics[0].partitions[0].metadata == "m" * 4000


def test_a_topic_that_is_asked_for_by_one_id_and_many_names_is_told_once() -> None:
    world = NodeWorld()
    world.create("t", 100)
    topic_id = UUID(bytes=world.node.broker.controller.image.topics["t"].topic_id)
    asked = tuple(MetadataRequestTopic(topic_id=topic_id, name=TopicName(f"n{number}")) for number in range(100))
    body = MetadataRequest(topics=asked, include_topic_authorized_operations=False)
    answer = HostileClient(world).say(ApiKey.METADATA, 12, body)
    assert [(one.name, len(one.partitions)) for one in answer.topics] == [("t", 100)]
