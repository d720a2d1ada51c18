"""A parked fetch completes at the end of the event that woke it, with all changes of the event."""

from typing import Any

from reference_broker.core.tests.node_world import NodeWorld, batch, fetch_request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

READER = 50
"""The connection of the fetch."""


def waiting(world: NodeWorld) -> int:
    """Return a fetch of both partitions of a new topic."""
    world.create("t", 2)
    request = fetch_request("t", 0, 0, 60_000)
    [other] = fetch_request("t", 1).topics[0].partitions
    topic = FetchTopic("t", request.topics[0].topic_id, [*request.topics[0].partitions, other])
    body = type(request)(max_wait_ms=60_000, min_bytes=1, topics=[topic])
    number = world.send(ApiKey.FETCH, 12, body, READER)
    assert number not in world.replies
    return number


def responses(world: NodeWorld, number: int) -> dict[int, Any]:
    body: Any = world.replies[number].body
    return {partition.partition: partition for topic in body.responses for partition in topic.partitions}


def test_fetch_completed_by_deletion_has_error_of_all_partitions() -> None:
    world = NodeWorld()
    number = waiting(world)
    world.delete("t")
    gone = ErrorCode.unknown_topic_or_partition
    assert {index: response.error_code for index, response in responses(world, number).items()} == {0: gone, 1: gone}


def test_fetch_completed_by_produce_has_records_of_all_partitions() -> None:
    world = NodeWorld()
    number = waiting(world)
    appended = [ProducePartition(index, batch()) for index in (0, 1)]
    world.request(ApiKey.PRODUCE, 9, ProduceRequest(-1, 1000, [ProduceTopic("t", bytes(16), appended)]))
    assert {index: bool(response.records) for index, response in responses(world, number).items()} == {0: True, 1: True}
