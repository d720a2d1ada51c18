"""Any well-formed request gets a response or closes its connection, and the node keeps running."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

from reference_broker.apis.registry import SERVED
from reference_broker.core.tests.node_world import NodeWorld, batch, sent_batch
from reference_broker.wire.apis import DRAFTS, ApiKey
from reference_broker.wire.drafts import LAYOUTS
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from reference_broker.wire.frames import RequestHeader, read_request_header, write_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.schema import SchemaField, schema_fields

ROUNDS = 40
"""Requests of each API and version."""
WORDS = ("t", "t", "u", "", ".", "__cluster_metadata", "a b/\u00fc", "x" * 300, "1", "retention.ms", "-5")
BATCHES = (batch(), batch(count=3), sent_batch(1, 0), sent_batch(1, 7), b"", batch()[:-1], b"\0" * 61, b"\xff" * 90)
SMALL = (-2, -1, 0, 0, 0, 1, 1, 2, 3, 1000)


class Anything:
    """Values of every kind, often ones with a meaning at the node. ``topic_ids``: of its topics."""

    def __init__(self, random: Random, topic_ids: Sequence[bytes]) -> None:
        self.random = random
        self.topic_ids = [*topic_ids, NO_TOPIC_ID, bytes(range(16))]

    def frame(self, api_key: int, version: int) -> memoryview:
        """Return a frame without its length."""
        if api_key in (ApiKey.FETCH, ApiKey.PRODUCE):
            body = self.fetch(version) if api_key == ApiKey.FETCH else self.produce(version)
            return memoryview(b"".join(encode_request(api_key, version, 9, "c", body)))[4:]
        draft = LAYOUTS.get((api_key, version))
        kind = load_request_schema(api_key, version) if draft is None else draft[0]
        out = bytearray(write_request_header(RequestHeader(api_key, version, 9, "c")))
        encoder(kind, kind)(out, self.entity(kind))
        return memoryview(bytes(out))

    def entity(self, kind: type) -> Any:
        return kind(**{field.name: self.field(field) for field in schema_fields(kind)})

    def field(self, schema_field: SchemaField) -> object:
        if schema_field.nullable and self.random.random() < 0.2:
            return None
        if schema_field.is_array:
            return tuple(self.one(schema_field) for _ in range(self.random.choice([0, 1, 1, 2, 3])))
        return self.one(schema_field)

    def one(self, field: SchemaField) -> object:
        if field.struct is not None:
            return self.entity(field.struct)
        kind = field.kind
        if kind.startswith(("int", "uint")):
            return self.integer(int(kind.removeprefix("u").removeprefix("int")), kind.startswith("u"))
        match kind:
            case "string":
                return self.random.choice(WORDS)
            case "bool":
                return self.random.random() < 0.5
            case "uuid":
                return UUID(bytes=self.topic_id())
            case "bytes" | "records":
                return self.random.choice(BATCHES)
            case "timedelta_i32" | "timedelta_i64":
                return timedelta(milliseconds=self.integer(32, False))
            case "datetime_i64":
                return datetime.fromtimestamp(abs(self.integer(32, False)), UTC)
            case "float64":
                return self.random.random()
            case "error_code":
                return self.random.choice([ErrorCode.none, ErrorCode.unknown_topic_or_partition])
        raise AssertionError(f"no value of kind {kind}")

    def integer(self, bits: int, unsigned: bool) -> int:
        if unsigned:
            return self.random.choice([0, 1, 7, (1 << bits) - 1])
        ends = (-(1 << bits - 1), (1 << bits - 1) - 1)
        return self.random.choice([*(each for each in SMALL if ends[0] <= each <= ends[1]), *ends])

    def topic_id(self) -> bytes:
        return self.random.choice(self.topic_ids)

    def topic(self, version: int) -> tuple[str, bytes]:
        return ("", self.topic_id()) if version >= 13 else (self.random.choice(WORDS), NO_TOPIC_ID)

    def some(self) -> range:
        return range(self.random.choice([0, 1, 1, 2, 3]))

    def i32(self) -> int:
        return self.integer(32, False)

    def fetch(self, version: int) -> FetchRequest:
        return FetchRequest(
            self.random.choice([-1, -1, 0, self.i32()]),
            self.i32(),
            self.i32(),
            self.i32(),
            self.random.choice([0, 1]),
            self.random.choice([0, self.i32()]),
            self.random.choice([-1, 0, 1, self.i32()]),
            [FetchTopic(*self.topic(version), [self.fetched() for _ in self.some()]) for _ in self.some()],
            [ForgottenTopic(*self.topic(version), [self.i32() for _ in self.some()]) for _ in self.some()],
        )

    def fetched(self) -> FetchPartition:
        return FetchPartition(self.i32(), self.integer(64, False), self.i32(), self.i32(), self.i32(), self.i32())

    def produce(self, version: int) -> ProduceRequest:
        topics = [ProduceTopic(*self.topic(version), [self.produced() for _ in self.some()]) for _ in self.some()]
        return ProduceRequest(
            self.random.choice([-1, -1, 0, 1, 2]), self.i32(), topics, self.random.choice([None, None, "t"])
        )

    def produced(self) -> ProducePartition:
        return ProducePartition(self.i32(), self.random.choice([None, *BATCHES]))


@pytest.mark.thorough
@pytest.mark.parametrize("api_key", sorted(SERVED), ids=lambda key: ApiKey(key).name)
def test_every_request_gets_response_or_closes_connection(api_key: int) -> None:
    random = Random(api_key)
    low, high = SERVED[api_key]
    drafts = [version for key, version in DRAFTS if key == api_key]
    for version in dict.fromkeys((*range(low, high + 1), *drafts)):
        world = NodeWorld(auto_create_topics_enable="true")
        for name in ("t", "u"):
            world.create(name, 2)
        world.produce("t", 0, batch(count=3))
        anything = Anything(random, list(world.node.broker.partitions.topic_names))
        for connection in range(ROUNDS):
            frame = anything.frame(api_key, version)
            body = decode_request(api_key, version, frame, read_request_header(frame)[1])
            number = world.send(api_key, version, body, connection)
            world.settle()
            if number not in world.replies and connection not in world.closed:
                world.advance(2**31)
            reply = world.replies.get(number)
            assert reply is not None or connection in world.closed
            if reply is not None and reply.body is not None:
                encoded = memoryview(b"".join(encode_response(api_key, reply.api_version, 9, reply.body)))[4:]
                decode_response(api_key, reply.api_version, encoded)
        assert world.request(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0)).error_code == ErrorCode.none
