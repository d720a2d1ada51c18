"""Batches with one field changed: both brokers respond alike, but for what ``DIFFERENT`` lists."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from bench.peers.clients import CREATE_VERSION, PRODUCE_VERSION, TIMEOUT_MS, connect
from bench.peers.systems import KAFKA, REFERENCE
from bench.probe.data import altered
from reference_broker.blocking.transport import Connection
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

TOPICS = {
    "delete": {},
    "compact": {"cleanup.policy": "compact"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
}
FAR_MS = 10**9
FIELDS = {
    "base_offset": (1, -1),
    "leader_epoch": (0, 5, -5),
    "last_offset_delta": (0, 3, -1, 2**31 - 1),
    "base_timestamp_ms": (-1, -2, 0),
    "max_timestamp_ms": (-1, -2, 0),
    "producer_id": (-2, 0),
    "producer_epoch": (-2, 0, 3, 32_767),
    "base_sequence": (-2, 0, 5, 2**31 - 1),
    "record_count": (0, -1, 2, 4, 2**31 - 1),
    "attributes": (0x08, 0x20, 0x40, 0x80, 0x100, 0x1000, -0x8000),
    "magic": (0, 1, 3, -1),
    "crc": (5,),
}
OF_PRODUCERS = ({"producer_epoch": -1}, {"producer_epoch": -2}, {"base_sequence": -1}, {"producer_epoch": 32_767})
INVALID_RECORD, INVALID_TIMESTAMP, TAKEN = "INVALID_RECORD", "INVALID_TIMESTAMP", "NONE"
BEFORE_MAGIC_2, NO_CODEC = (
    ("UNSUPPORTED_FOR_MESSAGE_FORMAT", INVALID_RECORD),
    ("UNSUPPORTED_COMPRESSION_TYPE", "UNKNOWN_SERVER_ERROR"),
)
DIFFERENT = {
    **{f"{topic}/magic={magic}": BEFORE_MAGIC_2 for topic in TOPICS for magic in (0, 1)},
    **{f"{topic}/attributes={codec}": NO_CODEC for topic in TOPICS for codec in (5, 6, 7)},
    **{f"{topic}/attributes=64": (INVALID_RECORD, TAKEN) for topic in TOPICS},
    **{f"{topic}/producer_epoch=-1": (INVALID_RECORD, TAKEN) for topic in TOPICS},
    **{f"{topic}/producer_epoch=-2": (INVALID_RECORD, "INVALID_PRODUCER_EPOCH") for topic in TOPICS},
    **{f"{topic}/transactional without an ID": (INVALID_RECORD, TAKEN) for topic in TOPICS},
    **{
        f"{topic}/{changed}": (INVALID_TIMESTAMP, TAKEN)
        for topic in ("delete", "compact")
        for changed in ("attributes=8", "base_timestamp_ms=-2", "max_timestamp_ms=-2", "max_timestamp_ms=far")
    },
}
"""Our response, and Apache Kafka's. ``bench/peers/refusals.toml`` has the reasons."""


def batches(new_producer: Callable[[], int]) -> Iterator[tuple[str, bytes, str | None]]:
    """Yield each batch with its name, and with the transactional ID that its request has."""
    now_ms = int(time.time() * 1000)
    records = [Record(timestamp_ms=now_ms, key=b"k%d" % number, value=b"v" * 50) for number in range(3)]
    for codec in (Compression.NONE, Compression.GZIP):
        plain = build(records, compression=codec)
        for field, values in FIELDS.items():
            for value in values:
                whole = value | int(codec) if field == "attributes" else value
                yield f"{field}={value}", altered(plain, **{field: whole}), None
        far = {"base_timestamp_ms": now_ms + FAR_MS}, {"max_timestamp_ms": now_ms + FAR_MS}
        for changed in far:
            yield f"{next(iter(changed))}=far", altered(plain, **changed), None
        yield "transactional without an ID", altered(plain, attributes=0x10 | int(codec)), "some-id"
    for codec_number in (5, 6, 7):
        yield f"attributes={codec_number}", altered(build(records), attributes=codec_number), None
    for changed in OF_PRODUCERS:
        sent = {"producer_id": new_producer(), "producer_epoch": 0, "base_sequence": 0, **changed}
        yield ", ".join(f"{name}={value}" for name, value in changed.items()), altered(build(records), **sent), None


def responses_of(port: int) -> dict[str, list[str]]:
    """Return the errors by topic and name. A name has one for each compression."""
    found: dict[str, list[str]] = {}
    numbers = iter(range(1000, 10_000))
    with connect(port) as connection:
        for topic, configs in TOPICS.items():
            topics_request = create_topics_request([new_topic(topic, 1, 1, configs)], TIMEOUT_MS)
            connection.call(ApiKey.CREATE_TOPICS, CREATE_VERSION, topics_request)
            for name, data, transactional_id in batches(lambda: next(numbers)):
                found.setdefault(f"{topic}/{name}", []).append(_error(connection, topic, data, transactional_id))
    return found


def _error(connection: Connection, topic: str, data: bytes, transactional_id: str | None) -> str:
    """A new topic is not led at once."""
    named = [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(0, data)])]
    request = ProduceRequest(-1, TIMEOUT_MS, named, transactional_id)
    deadline = time.monotonic() + 20
    while True:
        response = connection.call(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        assert isinstance(response, ProduceResponse)
        name = error_name(response.responses[0].partitions[0].error_code)
        if name not in ("UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER") or time.monotonic() > deadline:
            return name


@pytest.mark.peer
def test_batches_are_refused_like_in_kafka(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ours, theirs = (
            responses_of(stack.enter_context(system.launched(tmp_path / system.name, 1, {})).ports[0])
            for system in (REFERENCE, KAFKA)
        )
    differing = {
        name: next(pair for pair in zip(ours[name], theirs[name], strict=True) if pair[0] != pair[1])
        for name in ours
        if ours[name] != theirs[name]
    }
    assert differing == DIFFERENT
