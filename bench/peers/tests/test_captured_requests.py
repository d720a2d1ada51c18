"""Produce requests as client libraries write them (``bench/peers/captured``), taken by a node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers.captured.capture import CLIENTS, FOLDER, RECORDS, TOPIC
from reference_broker.core.events import Request
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.records.record import read_records
from reference_broker.serve.request_decoder import decode
from reference_broker.wire.apis import VERSIONS
from reference_broker.wire.errors import error_name
from reference_broker.wire.produce import ProduceRequest

FILES = sorted(FOLDER.glob("*.bin"))
SERVED = {int(key): (lowest, highest) for key, (lowest, highest, _) in VERSIONS.items()}


def requests(path: Path, topic_id: bytes = b"") -> Iterator[tuple[str, Request]]:
    """Yield each frame as the node gets it, with its client ID. ``topic_id`` takes the place of the captured one."""
    data, position = path.read_bytes(), 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        frame, position = data[position + 4 : end], end
        topic = _decoded(frame).topics[0]
        if not topic.topic:
            assert frame.count(topic.topic_id) == 1
            frame = frame.replace(topic.topic_id, topic_id or topic.topic_id)
        event = decode(1, memoryview(frame), SERVED)
        yield event.client_id, event


def _decoded(frame: bytes) -> ProduceRequest:
    body = decode(1, memoryview(frame), SERVED).body
    assert isinstance(body, ProduceRequest)
    return body


def responses(world: NodeWorld, path: Path, codec: str) -> Iterator[tuple[str, Any]]:
    topic_id = world.create(TOPIC, compression_type=codec).topic_id.bytes
    for client_id, event in requests(path, topic_id):
        world.correlation_id += 1
        world.give(event._replace(correlation_id=world.correlation_id))
        world.settle()
        body: Any = world.replies[world.correlation_id].body
        yield client_id, body.responses[0].partitions[0]


@pytest.fixture
def world() -> NodeWorld:
    """A node whose clock is later than the captured timestamps."""
    return NodeWorld(log_message_timestamp_after_max_ms=str(2**63 - 1))


def test_each_client_is_captured() -> None:
    assert [file.stem.rpartition("-")[0] for file in FILES] == sorted(CLIENTS)


@pytest.mark.parametrize("codec", ["producer", "zstd"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_captured_produce_requests_are_accepted(world: NodeWorld, path: Path, codec: str) -> None:
    refused = {
        client_id: error_name(found.error_code)
        for client_id, found in responses(world, path, codec)
        if found.error_code
    }
    assert not refused


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_their_records_can_be_read(path: Path) -> None:
    by_client: dict[str, list[Any]] = {}
    for client_id, event in requests(path):
        assert isinstance(event.body, ProduceRequest)
        data = event.body.topics[0].partitions[0].records
        assert data is not None
        read = [(record.key, record.value, [*record.headers]) for record in read_records(data)]
        by_client.setdefault(client_id, []).extend(read)
    assert all(each == [*RECORDS] for each in by_client.values()), by_client
