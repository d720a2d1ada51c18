"""Metadata: topics, automatic creation, cached descriptions."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest, TopicRequest
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import TopicName

from reference_broker.apis.metadata import k03_metadata, k75_describe_topic_partitions
from reference_broker.apis.metadata.described_topics import DescribedTopics
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.three_brokers import Cluster, with_topic
from reference_broker.apis.tests.topic_requests import (
    by_name,
    create_partitions,
    create_topics,
    create_topics_request,
    delete_topics,
    topic,
    topics_of,
)
from reference_broker.apis.topics import k19_create_topics
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.image import BrokerImage
from reference_broker.ports.slicing import run_to_end
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import MetadataTopic1000
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.retired_fields import MetadataRequest

ALL = object()


def metadata(
    world: AdminWorld,
    names: Any = ALL,
    ids: tuple[UUID | None, ...] = (),
    version: int = 13,
    auto: bool = False,
    operations: bool = False,
) -> Any:
    """Return the response in the given version, or the newest."""
    topics = None
    if names is not ALL:
        topics = tuple(MetadataRequestTopic(name=TopicName(name), topic_id=None) for name in names)
    if ids:
        topics = tuple(MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids)
    body = MetadataRequest(
        topics=topics, allow_auto_topic_creation=auto, include_topic_authorized_operations=operations
    )
    return world.request(k03_metadata, body, version)


def without_brokers(cache: MetadataCache) -> MetadataCache:
    return replace(cache, brokers=())


def described(
    world: Cluster, api_version: int = 13
) -> tuple[str, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    name = None if api_version > 12 else TopicName("t")
    entry = MetadataRequestTopic(topic_id=None if name else world.topic_id(), name=name)
    body = MetadataRequest(topics=(entry,), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    (found,) = world.request(k03_metadata, body, api_version).topics[0].partitions
    return found.error_code.name, found.leader_id, found.replica_nodes, found.isr_nodes, found.offline_replicas


def test_metadata_of_all_topics_has_brokers_cluster_and_controller() -> None:
    world = AdminWorld()
    create_topics(world, topic("a", 2), topic("b"))
    response = metadata(world)
    assert topics_of(response) == [("a", "none", 2), ("b", "none", 1)]
    assert [(broker.node_id, broker.host, broker.port) for broker in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert (response.cluster_id, response.controller_id) == (world.controller.cluster_id, 1)
    partition = response.topics[0].partitions[1]
    assert (partition.partition_index, partition.leader_id, partition.leader_epoch) == (1, 1, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((1,), (1,), ())


@pytest.mark.parametrize(("version", "count"), [(0, 2), (1, 0), (13, 0)])
def test_empty_topic_list_means_all_only_in_version_0(version: int, count: int) -> None:
    world = AdminWorld()
    create_topics(world, topic("a"), topic("b"))
    assert len(metadata(world, (), version=version).topics) == count


def test_topics_by_name_are_in_request_order_without_duplicates() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"), topic("b"))
    assert topics_of(metadata(world, ("b", "nope", "a", "b", "no good"))) == [
        ("b", "none", 1),
        ("nope", "unknown_topic_or_partition", 0),
        ("a", "none", 1),
        ("no good", "invalid_topic_exception", 0),
    ]
    assert "nope" not in world.controller.latest.topics


def test_topics_by_id_from_version_12() -> None:
    world = AdminWorld()
    (made,) = create_topics(world, topic("a"))
    known, unknown = metadata(world, ids=(made.topic_id, UUID(int=5))).topics
    assert (known.name, known.topic_id, known.error_code) == ("a", made.topic_id, ErrorCode.none)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, UUID(int=5), ErrorCode.unknown_topic_id)
    assert metadata(world, ids=(made.topic_id,), version=11).topics[0].error_code == ErrorCode.invalid_request


def test_missing_topic_is_auto_created_if_broker_and_client_allow_it() -> None:
    world = AdminWorld(num_partitions="3")
    assert topics_of(metadata(world, ("new", ".."), auto=True)) == [
        ("new", "unknown_topic_or_partition", 0),
        ("..", "invalid_topic_exception", 0),
    ]
    assert topics_of(metadata(world, ("new",))) == [("new", "none", 3)]
    off = AdminWorld(auto_create_topics_enable="false")
    metadata(off, ("new",), auto=True)
    assert "new" not in off.controller.latest.topics


def test_auto_created_topics_of_one_request_are_limited() -> None:
    """Each creation is a change of the metadata of its own: a list of 100,000 names would block other requests."""
    world = AdminWorld()
    names = tuple(f"t{number}" for number in range(250))
    first = topics_of(metadata(world, ("..", *names), auto=True))
    assert first == [("..", "invalid_topic_exception", 0)] + [(name, "unknown_topic_or_partition", 0) for name in names]
    assert tuple(world.controller.latest.topics) == names[:100]
    metadata(world, names, auto=True)
    metadata(world, names, auto=True)
    assert tuple(world.controller.latest.topics) == names


def test_metadata_log_topic_is_not_auto_created() -> None:
    world, name = AdminWorld(), "__cluster_metadata"
    assert topics_of(metadata(world, (name,), auto=True)) == [(name, "unknown_topic_or_partition", 0)]
    assert name not in world.controller.latest.topics


def test_authorized_operations_of_topic_only_on_request() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"))
    assert metadata(world).topics[0].topic_authorized_operations == -(2**31)
    assert metadata(world, operations=True).topics[0].topic_authorized_operations == 3576


@pytest.mark.parametrize(("version", "bits"), [(7, -(2**31)), (8, 8096), (9, 8096), (10, 8096), (11, -(2**31))])
def test_cluster_authorized_operations_in_versions_8_to_10(version: int, bits: int) -> None:
    world = AdminWorld()
    for wanted, expected_bits in ((False, -(2**31)), (True, bits)):
        sent = MetadataRequest(
            topics=(),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=wanted,
        )
        frame = b"".join(encode_request(ApiKey.METADATA, version, 7, "c", sent))[4:]
        body = decode_request(ApiKey.METADATA, version, memoryview(frame), read_request_header(memoryview(frame))[1])
        sent_frame = encode_response(ApiKey.METADATA, version, 7, world.request(k03_metadata, body, version))
        response: Any = decode_response(ApiKey.METADATA, version, memoryview(b"".join(sent_frame))[4:])[1]
        assert response.cluster_authorized_operations == expected_bits


def test_authorized_operations_are_returned_for_unknown_topics() -> None:
    world = AdminWorld()
    names = ("none", "__cluster_metadata", "..")
    for auto in (False, True):
        for operations, bits in ((False, -(2**31)), (True, 3576)):
            response = metadata(world, names, auto=auto, operations=operations)
            assert [each.topic_authorized_operations for each in response.topics] == [bits] * 3
    described = DescribeTopicPartitionsRequest(topics=(TopicRequest(name=TopicName("nope")),))
    (topic,) = world.request(k75_describe_topic_partitions, described).topics
    assert topic.topic_authorized_operations == 3576


def test_topic_description_is_cached_until_topic_changes() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"), topic("b"))
    first, again = metadata(world), metadata(world, operations=True)
    assert again.topics[0].partitions is first.topics[0].partitions
    create_partitions(world, "a", 2)
    later = metadata(world)
    assert topics_of(later) == [("a", "none", 2), ("b", "none", 1)]
    assert later.topics[1].partitions is first.topics[1].partitions


def test_cached_description_of_deleted_topic_is_dropped() -> None:
    world, responses = AdminWorld(), DescribedTopics()

    def find_all() -> None:
        cache = world.broker.metadata
        for each in cache.topics.values():
            run_to_end(responses.find(cache, each, 0))

    create_topics(world, topic("a"), topic("b"))
    find_all()
    delete_topics(world, by_name("a"))
    create_topics(world, topic("c"))
    find_all()
    assert list(responses.by_name) == ["b", "c"]


def test_description_of_brokers_is_cached_until_they_change() -> None:
    broker = BrokerImage(1, 5, bytes(16), "host", 9092, fenced=False, listeners=(("IN", "in", 1), ("OUT", "out", 2)))
    cache, responses = MetadataCache("cluster", brokers=(broker,)), DescribedTopics()
    (inside,) = first = responses.live_brokers(cache, "IN")
    (outside,) = responses.live_brokers(cache, "OUT")
    assert ((inside.host, inside.port), (outside.host, outside.port)) == (("in", 1), ("out", 2))
    assert responses.live_brokers(replace(cache, controller_id=2), "IN") is first
    assert responses.live_brokers(replace(cache, brokers=(replace(broker, fenced=True),)), "IN") == ()


def test_topic_description_of_draft_is_cached_until_topic_changes() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"), topic("b"))
    metadata(world, operations=True)
    first, again = metadata(world, version=1000), metadata(world, ("a", "b", "gone"), version=1000)
    assert {type(each) for each in again.topics} == {MetadataTopic1000}
    assert [(each.name, each.error_code, len(each.partitions)) for each in again.topics] == [
        ("a", ErrorCode.none, 1),
        ("b", ErrorCode.none, 1),
        ("gone", ErrorCode.unknown_topic_or_partition, 0),
    ]
    assert again.topics[0] is first.topics[0]
    create_partitions(world, "a", 2)
    later = metadata(world, version=1000)
    assert [len(each.partitions) for each in later.topics] == [2, 1]
    assert later.topics[1] is first.topics[1]


@pytest.mark.clause("M-4")
def test_metadata_1001_returns_topic_ids_and_leader_epochs() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"))
    page, later = (metadata(world, ("a", "gone"), version=version) for version in (1000, 1001))
    known = world.metadata.loader.image.topics["a"]
    assert later.topics[0].topic_id.bytes == known.topic_id
    assert [partition.leader_epoch for partition in later.topics[0].partitions] == [known.partitions[0].leader_epoch]
    assert not hasattr(page.topics[0], "topic_id")
    assert (later.metadata_epoch, later.topics[1].error_code) == (page.metadata_epoch, page.topics[1].error_code)


def test_uncommitted_topic_is_not_returned() -> None:
    world = AdminWorld()
    world.auto = False
    world.send(k19_create_topics, create_topics_request("a"))
    assert topics_of(metadata(world, ("a",))) == [("a", "unknown_topic_or_partition", 0)]
    world.settle()
    assert topics_of(metadata(world, ("a",))) == [("a", "none", 1)]


def test_partition_without_live_leader_returns_leader_not_available() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"))
    world.broker.metadata = without_brokers(world.broker.metadata)
    (partition,) = metadata(world).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)
    assert partition.offline_replicas == (1,)


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
