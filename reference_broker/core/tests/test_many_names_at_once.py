"""Requests with 10,000 topics, partitions or groups, as Kafka's clients send them: the node responds to each, and
serves others meanwhile where the work is done in slices."""

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.describe_topic_partitions.v0.request import Cursor

from reference_broker.core.tests.hostile_client import slices_of
from reference_broker.core.tests.node_world import NodeWorld, batch
from reference_broker.core.tests.test_groups_of_a_node import coordinated
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request_in_slices, encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.request_limits import MAX_ITEMS
from reference_broker.wire.tests.test_slices import finished, frame_of, holding, layout

LONGEST_MS = 40
"""A slice takes some 5 ms. A busy machine may need several times as long."""
MANY = 10_000
NAMES = [f"n{number:05}" for number in range(MANY)]


def named(key: int, version: int, path: tuple[str, ...], field: str) -> Any:
    """Return a request with one item at ``path`` for each name. An inner array has one item in each."""
    body = holding(layout(key, version), path, 1)
    (one,) = getattr(body, path[0])
    items = NAMES if isinstance(one, str) else [replace(one, **{field: name}) for name in NAMES]
    return replace(body, **{path[0]: tuple(items)})


def response_to(world: NodeWorld, key: int, version: int, frame: memoryview) -> Any:
    body, _ = finished(decode_request_in_slices(key, version, frame, read_request_header(frame)[1]))[0]
    number = world.send(key, version, body, 7)
    world.settle()
    return world.replies[number].body


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "version", "path", "field"),
    [
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, ("topics",), "name"),
        (ApiKey.LIST_OFFSETS, 10, ("topics", "partitions"), "name"),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, ("topics", "partitions"), "topic"),
        (ApiKey.DELETE_RECORDS, 2, ("topics", "partitions"), "name"),
        (ApiKey.FIND_COORDINATOR, 6, ("coordinator_keys",), ""),
        (ApiKey.DESCRIBE_GROUPS, 6, ("groups",), ""),
        (ApiKey.DELETE_GROUPS, 2, ("groups_names",), ""),
        (ApiKey.OFFSET_FETCH, 9, ("groups", "topics"), "group_id"),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 5, ("transactions", "topics", "partitions"), "transactional_id"),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, ("transactional_ids",), ""),
        (ApiKey.DESCRIBE_PRODUCERS, 0, ("topics", "partition_indexes"), "name"),
    ],
)
def test_many_names_are_processed_in_slices(key: ApiKey, version: int, path: tuple[str, ...], field: str) -> None:
    world = coordinated()
    with slices_of(world) as cost:
        response = response_to(world, key, version, frame_of(key, version, named(key, version, path, field))[0])
    assert cost.slices > 5
    rows = next(value for value in (getattr(response, name) for name in response.__slots__) if isinstance(value, tuple))
    assert all(name in [getattr(row, slot) for slot in row.__slots__] for name, row in zip(NAMES, rows, strict=True))


@pytest.mark.thorough
def test_offset_fetch_of_maximum_topics_takes_slices() -> None:
    key, version, path = ApiKey.LIST_OFFSETS, 10, ("topics", "partitions")
    body: Any = holding(layout(key, version), path, 1)
    (one,) = body.topics
    topics = tuple(replace(one, name=f"n{number}") for number in range(MAX_ITEMS[key] // 2))
    world = coordinated()
    with slices_of(world) as cost:
        number = world.send(key, version, replace(body, topics=topics), 7)
        world.settle()
    response: Any = world.replies[number].body
    assert [topic.name for topic in response.topics] == [topic.name for topic in topics]
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "version", "path", "field"),
    [
        (ApiKey.OFFSET_COMMIT, 9, ("topics", "partitions"), "name"),
        (ApiKey.OFFSET_DELETE, 0, ("topics", "partitions"), "name"),
        (ApiKey.CREATE_TOPICS, 7, ("topics", "configs"), "name"),
        (ApiKey.CREATE_PARTITIONS, 3, ("topics",), "name"),
        (ApiKey.DELETE_TOPICS, 6, ("topics",), "name"),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ("resources", "configs"), "resource_name"),
        (ApiKey.ALTER_CONFIGS, 2, ("resources", "configs"), "resource_name"),
    ],
)
def test_many_names_get_results(key: ApiKey, version: int, path: tuple[str, ...], field: str) -> None:
    assert (
        response_to(coordinated(), key, version, frame_of(key, version, named(key, version, path, field))[0])
        is not None
    )


def test_produce_of_one_megabyte_with_many_batches() -> None:
    world, small = NodeWorld(), batch(b"")
    world.create("t", 10)
    count = (1 << 20) // (len(small) + 10)
    parts = [ProducePartition(number % 10, small) for number in range(count)]
    body = ProduceRequest(-1, 1000, [ProduceTopic("t", bytes(16), parts)])
    frame = memoryview(b"".join(encode_request(ApiKey.PRODUCE, 9, 9, "c", body)))[4:]
    (topic,) = response_to(world, ApiKey.PRODUCE, 9, frame).responses
    assert count > 10_000
    assert {partition.error_code for partition in topic.partitions} == {ErrorCode.none}


def test_paged_description_returns_each_topic_once() -> None:
    """Each page requests all names again, with a cursor."""
    world = NodeWorld()
    for name in ("b", "a", "c"):
        world.create(name, 3)
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    body = holding(layout(key, 0), ("topics",), 1)
    (one,) = body.topics
    wanted = tuple(replace(one, name=name) for name in ("c", "a", "b", "bb"))
    listed, cursor = [], None
    for _ in range(9):
        page = response_to(
            world, key, 0, frame_of(key, 0, replace(body, topics=wanted, response_partition_limit=2, cursor=cursor))[0]
        )
        listed += [(topic.name, row.partition_index) for topic in page.topics for row in topic.partitions]
        if page.next_cursor is None:
            break
        cursor = Cursor(topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index)
    assert listed == [(name, index) for name in "abc" for index in range(3)]
