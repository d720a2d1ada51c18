"""FindCoordinator, and the internal topics that it creates."""

import pytest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8

from reference_broker.apis.groups import k10_find_coordinator
from reference_broker.apis.groups.tests.offset_requests import find_coordinators
from reference_broker.apis.metadata import k03_metadata
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.transactions.tests.transaction_requests import find_coordinator
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.retired_fields import MetadataRequest


def test_find_coordinator_creates_offsets_topic_then_returns_coordinator() -> None:
    world = AdminWorld(offsets_topic_num_partitions="7", offsets_topic_segment_bytes="12345")
    assert find_coordinators(world, "g", "h") == [
        ("g", "coordinator_not_available", -1, "", -1),
        ("h", "coordinator_not_available", -1, "", -1),
    ]
    assert find_coordinators(world, "g", "h") == [
        ("g", "none", 1, "127.0.0.1", 9092),
        ("h", "none", 1, "127.0.0.1", 9092),
    ]
    image = world.controller.image
    topic = image.topics[OFFSETS_TOPIC]
    assert (len(topic.partitions), topic.partitions[0].replicas) == (7, (1,))
    assert image.topic_configs(OFFSETS_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "12345",
    }


def test_many_find_coordinator_requests_create_topic_once() -> None:
    world = AdminWorld()
    world.auto = False
    for _ in range(3):
        world.send(k10_find_coordinator, FindCoordinatorRequest(key_type=i8(0), coordinator_keys=("g",)))
    assert world.broker.groups.is_creating
    world.settle()
    assert not world.broker.groups.is_creating
    assert len(world.controller.image.topics[OFFSETS_TOPIC].partitions) == 50


def test_metadata_request_creates_offsets_topic_with_configured_partitions() -> None:
    """Automatic creation by Metadata: another number of partitions would separate groups from their coordinators."""
    world = AdminWorld(offsets_topic_num_partitions="7", num_partitions="3")
    topic = MetadataRequestTopic(topic_id=None, name=TopicName(OFFSETS_TOPIC))
    world.request(k03_metadata, MetadataRequest(topics=(topic,), include_topic_authorized_operations=False))
    world.settle()
    assert len(world.controller.image.topics[OFFSETS_TOPIC].partitions) == 7
    assert world.controller.image.topic_configs(OFFSETS_TOPIC)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(("kind", "error"), [(2, "invalid_request"), (9, "invalid_request")])
def test_find_coordinator_for_other_key_types_creates_nothing(kind: int, error: str) -> None:
    world = AdminWorld()
    assert find_coordinators(world, "g", kind=kind) == [("g", error, -1, "", -1)]
    assert world.controller.image.topics == {}


@pytest.mark.parametrize(
    ("kind", "error"), [(0, "coordinator_not_available"), (1, "coordinator_not_available"), (9, "invalid_request")]
)
def test_find_coordinator_without_coordinator_returns_error(kind: int, error: str) -> None:
    body = FindCoordinatorRequest(key_type=i8(kind), coordinator_keys=("g1", "g2"))
    response = AdminWorld().request(k10_find_coordinator, body)
    assert [
        (coordinator.key, coordinator.error_code.name, coordinator.node_id) for coordinator in response.coordinators
    ] == [
        ("g1", error, -1),
        ("g2", error, -1),
    ]


@pytest.mark.parametrize(
    ("version", "key", "error"),
    [
        (6, "g:AAAAAAAAAAAAAAAAAAAAAg:0", "coordinator_not_available"),
        (5, "g:AAAAAAAAAAAAAAAAAAAAAg:0", "invalid_request"),
        (0, "g:AAAAAAAAAAAAAAAAAAAAAg:0", "invalid_request"),
        (6, "g", "invalid_request"),
        (6, " :AAAAAAAAAAAAAAAAAAAAAg:0", "invalid_request"),
        (6, "g:t:0", "invalid_request"),
        (6, "g:AAAAAAAAAAAAAAAAAAAAAg:x", "invalid_request"),
        (6, "", "invalid_request"),
    ],
)
def test_share_group_keys_are_validated_from_their_first_version(version: int, key: str, error: str) -> None:
    body = FindCoordinatorRequest(key_type=i8(2), coordinator_keys=(key,))
    (coordinator,) = AdminWorld().request(k10_find_coordinator, body, version).coordinators
    assert (coordinator.error_code.name, coordinator.node_id) == (error, -1)


@pytest.mark.parametrize(("version", "message"), [(1, "NONE"), (3, "NONE"), (4, ""), (6, "")])
def test_error_message_of_found_coordinator_by_version(version: int, message: str) -> None:
    world = AdminWorld()
    body = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=("g",))
    world.request(k10_find_coordinator, body)
    world.settle()
    (coordinator,) = world.request(k10_find_coordinator, body, version).coordinators
    assert (coordinator.error_code, coordinator.error_message) == (ErrorCode.none, message)


@pytest.mark.clause("X-2")
def test_first_find_coordinator_creates_transaction_topic() -> None:
    world = AdminWorld(transaction_state_log_num_partitions="7")
    assert find_coordinator(world, "a", "b") == [("coordinator_not_available", -1)] * 2
    assert find_coordinator(world, "a", "b") == [("none", 1)] * 2
    image = world.controller.image
    assert len(image.topics[TRANSACTION_TOPIC].partitions) == 7
    assert image.topic_configs(TRANSACTION_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert OFFSETS_TOPIC not in image.topics
    assert find_coordinator(world, "") == [("none", 1)], "as in Kafka, although no producer can take it"
