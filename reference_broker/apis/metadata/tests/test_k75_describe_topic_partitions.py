"""DescribeTopicPartitions: pages of partitions."""

from typing import Any

from kio.schema.describe_topic_partitions.v0.request import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.metadata import k75_describe_topic_partitions
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.topic_requests import create_topics, topic, topics_of


def test_partition_pages_follow_cursor() -> None:
    world = AdminWorld()
    create_topics(world, topic("a", 3), topic("b", 3))
    seen, cursor, pages = [], None, 0
    while True:
        body = DescribeTopicPartitionsRequest(topics=(), response_partition_limit=i32(2), cursor=cursor)
        page = world.request(k75_describe_topic_partitions, body)
        seen += [(each.name, partition.partition_index) for each in page.topics for partition in each.partitions]
        pages += 1
        if page.next_cursor is None:
            break
        cursor = Cursor(topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index)
    assert (seen, pages) == ([(name, index) for name in "ab" for index in range(3)], 3)


def test_invalid_cursor_returns_invalid_request() -> None:
    world = AdminWorld()
    create_topics(world, topic("a", 3), topic("b", 3))

    def page(cursor: Cursor, *names: str, limit: int = 2000) -> Any:
        topics = tuple(TopicRequest(name=TopicName(name)) for name in names)
        body = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=i32(limit), cursor=cursor)
        return world.request(k75_describe_topic_partitions, body)

    def at(name: str, index: int) -> Cursor:
        return Cursor(topic_name=TopicName(name), partition_index=i32(index))

    refused = page(at("a", -1), "b", "a")
    assert topics_of(refused) == [("b", "invalid_request", 0), ("a", "invalid_request", 0)]
    assert topics_of(page(at("c", 0), "a", "b")) == [("a", "invalid_request", 0), ("b", "invalid_request", 0)]
    assert topics_of(page(at("aa", 0), "b", "a")) == [("b", "invalid_request", 0), ("a", "invalid_request", 0)]
    assert topics_of(page(at("a", -1))) == []
    assert topics_of(page(at("aa", 0))) == [("b", "none", 3)], "all topics: the cursor's one may be deleted meanwhile"
    short = page(at("a", 1), "a", "none", limit=2)
    assert topics_of(short) == [("a", "none", 2)]
    assert (short.next_cursor.topic_name, short.next_cursor.partition_index) == ("none", 0), "a missing one counts, too"
    after_deletion = page(at("aa", 2), "aa", "b")
    assert topics_of(after_deletion) == [("aa", "unknown_topic_or_partition", 0), ("b", "none", 3)], (
        "b from its beginning"
    )


def test_described_partitions_have_empty_lists_instead_of_null() -> None:
    world = AdminWorld()
    create_topics(world, topic("a"))
    names = tuple(TopicRequest(name=TopicName(name)) for name in ("nope", "a", ".."))
    response = world.request(k75_describe_topic_partitions, DescribeTopicPartitionsRequest(topics=names))
    assert topics_of(response) == [
        ("..", "invalid_topic_exception", 0),
        ("a", "none", 1),
        ("nope", "unknown_topic_or_partition", 0),
    ]
    (partition,) = response.topics[1].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == ((), (), ())
