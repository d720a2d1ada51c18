"""Any valid request of any served version, with any field at its limits, to a node with data.

The node has topics, a group, fetch sessions and registrations of other nodes. The request gets a response, or it is
parked and dropped with its connection. The response can be encoded, the state of the node stays consistent, its memory
stays bounded, and it can restart.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from reference_broker.apis.call import Call
from reference_broker.apis.registry import SERVED
from reference_broker.core.events import Reply
from reference_broker.core.tests.hostile_client import HostileClient, memory_of
from reference_broker.core.tests.hostile_records import bomb, raw_batch, raw_record
from reference_broker.core.tests.node_world import START_WALL_MS, NodeWorld, batch, fetch_request, sent_batch
from reference_broker.core.tests.test_groups_of_a_node import body as body_of
from reference_broker.core.tests.test_groups_of_a_node import coordinated, stable
from reference_broker.metadata.features import (
    ELR_FEATURE,
    METADATA_EPOCH_FEATURE,
    METADATA_VERSION_FEATURE,
    TRANSACTION_FEATURE,
)
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import DRAFTS, ApiKey
from reference_broker.wire.drafts import LAYOUTS
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    FULL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from reference_broker.wire.frames import RequestHeader, read_request_header, write_request_header
from reference_broker.wire.messages import (
    decode_request,
    decode_request_in_slices,
    decode_response,
    encode_request,
    encode_response,
    encode_response_in_slices,
    is_large_response,
)
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.request_limits import DEFAULT_MAX_ITEMS, LARGE_FRAME_BYTES, MAX_ITEMS, TooMuchError
from reference_broker.wire.schema import SchemaField, is_flexible_entity, schema_fields
from reference_broker.wire.tests.test_slices import finished, frame_of, holding, layout, of_arrays

MEMORY_BYTES = 64 * 2**20
EXAMPLES = max(settings().max_examples // 100, 1)
"""Examples for each API. The nightly session runs ten times as many."""
IS_NIGHTLY = settings().max_examples >= 1000
OF_NODES = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH)
"""Their effects on a quorum are tested in that room."""
VERSIONS = {
    int(key): [*range(low, high + 1), *(draft for of, draft in DRAFTS if of == key)]
    for key, (low, high) in SERVED.items()
    if key not in OF_NODES
}
NAMES = ("t", "t", "c", "g", "__consumer_offsets", "__cluster_metadata", "", ".", "a b/\u00fc", "x" * 249, "1", "-1")
WORDS = ("consumer", "range", "retention.ms", "cleanup.policy", "compact,delete", " " * 30_000 + "1000", "7", "classic")
LONG, LONGER = "x" * 32_767, "\u00fc" * 16_383
"""As long as a string may be, in characters and in bytes."""
BLOBS = (b"", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff", b"\xff" * 90, bytes(100_000))
FEATURES = (METADATA_VERSION_FEATURE, ELR_FEATURE, TRANSACTION_FEATURE, METADATA_EPOCH_FEATURE)
SMALL = (-2, -1, 0, 0, 1, 1, 2, 3, 10_000)
BATCHES = (
    batch(),
    batch(count=3),
    sent_batch(1, 0),
    sent_batch(1, 7),
    b"",
    batch()[:-1],
    b"\0" * 61,
    raw_batch(raw_record(2**66) + raw_record(-(2**66), 1), 2),
    raw_batch(raw_record(0, 5), 1),
    raw_batch(b"", 2**31 - 1, Compression.GZIP, body=b"garbage"),
    raw_batch(raw_record(key=None), 1, max_timestamp_ms=START_WALL_MS + 9),
    bomb(Compression.ZSTD, 50_000),
    bomb(Compression.SNAPPY, 5000),
)


@cache
def prepared() -> MemoryDisk:
    """Return the disk of a node with a topic, a compacted one, a group with a member and an offset, and two other
    brokers."""
    world = coordinated(crucible_metadata_epoch_enable="true")
    for broker_id in (2, 3):
        register(world, broker_id)
    world.create("t", 2)
    world.create("c", 1, cleanup_policy="compact")
    for each in (batch(), batch(count=3), sent_batch(1, 0)):
        world.produce("t", 0, each)
    world.produce("c", 0, batch())
    stable(world)
    assert isinstance(world.disk, MemoryDisk)
    return world.disk


def register(world: NodeWorld, broker_id: int) -> None:
    endpoint = {"name": "PLAINTEXT", "host": "h", "port": 9000 + broker_id, "security_protocol": 0}
    response = HostileClient(world).request(
        ApiKey.BROKER_REGISTRATION,
        1,
        broker_id=broker_id,
        cluster_id=world.node.broker.controller.cluster_id,
        incarnation_id=UUID(int=broker_id),
        listeners=[endpoint],
        features=[{"name": name, "min_supported_version": 0, "max_supported_version": 99} for name in FEATURES],
        log_dirs=(UUID(int=7),),
    )
    assert response.error_code == ErrorCode.none
    assert broker_id in world.node.broker.controller.image.brokers


def integers(bits: int, unsigned: bool) -> st.SearchStrategy[int]:
    least, most = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return st.sampled_from([*(each for each in SMALL if least <= each <= most), least, most])


def one_of_kind(field: SchemaField, flexible: bool, topic_ids: list[UUID]) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        return entities(field.struct, flexible, topic_ids)
    if field.kind.startswith(("int", "uint")):
        return integers(int(field.kind.lstrip("uint")), field.kind.startswith("u"))
    match field.kind:
        case "string":
            return st.sampled_from([*NAMES, *WORDS, LONG, LONG, LONG, *([LONGER, LONGER] if flexible else [])])
        case "bool":
            return st.booleans()
        case "uuid":
            return st.sampled_from([*topic_ids, UUID(bytes=bytes(range(16)))])
        case "bytes" | "records":
            return st.sampled_from(BLOBS)
        case "timedelta_i32" | "timedelta_i64":
            return integers(32, False).map(lambda ms: timedelta(milliseconds=ms))
        case "datetime_i64":
            return st.sampled_from([0, 1, 2**31]).map(lambda at: datetime.fromtimestamp(at, UTC))
        case "float64":
            return st.sampled_from([0.0, -1.0, 1e300])
    raise AssertionError(f"no value of kind {field.kind}")


def values_of(field: SchemaField, flexible: bool, topic_ids: list[UUID]) -> st.SearchStrategy[Any]:
    one = one_of_kind(field, flexible, topic_ids)
    if field.is_array:
        few = st.lists(one, max_size=3).map(tuple)
        again = one.map(lambda value: (value,) * 40)
        one = st.one_of(few, few, few, again)
    return st.one_of(one, one, one, st.none()) if field.nullable else one


def entities(kind: type, flexible: bool, topic_ids: list[UUID]) -> st.SearchStrategy[Any]:
    fields = {field.name: values_of(field, flexible, topic_ids) for field in schema_fields(kind)}
    return st.builds(kind, **fields)


def topics_of(version: int, topic_ids: list[UUID]) -> st.SearchStrategy[tuple[str, bytes]]:
    if version >= 13:
        return st.sampled_from([("", topic_id.bytes) for topic_id in topic_ids] + [("", bytes(range(16)))])
    return st.sampled_from(NAMES).map(lambda name: (name, NO_TOPIC_ID))


I32, I64 = integers(32, False), integers(64, False)


@st.composite
def fetches(draw: st.DrawFn, version: int, topic_ids: list[UUID]) -> FetchRequest:
    partition = st.builds(FetchPartition, I32, I64, I32, I32, I32, I64)
    named = topics_of(version, topic_ids)
    topic = st.builds(lambda at, some: FetchTopic(at[0], at[1], some), named, st.lists(partition))
    gone = st.builds(lambda at, some: ForgottenTopic(at[0], at[1], some), named, st.lists(I32))
    session = draw(st.sampled_from([(0, -1), (0, 0), (1, 1), (2**31 - 1, -1)])) if version >= 7 else (0, -1)
    return FetchRequest(
        draw(st.sampled_from([-1, -1, -2, 0, 2**31 - 1])),
        draw(I32),
        draw(I32),
        draw(I32),
        draw(st.sampled_from([0, 1, 127])),
        *session,
        draw(st.lists(topic, max_size=3)),
        draw(st.lists(gone, max_size=2)) if version >= 7 else [],
    )


@st.composite
def produces(draw: st.DrawFn, version: int, topic_ids: list[UUID]) -> ProduceRequest:
    partition = st.builds(ProducePartition, st.sampled_from([0, 0, 0, 1, -1, 2**31 - 1]), st.sampled_from(BATCHES))
    topic = st.builds(
        lambda at, some: ProduceTopic(at[0], at[1], some),
        topics_of(version, topic_ids),
        st.lists(partition, max_size=4),
    )
    acks = draw(st.sampled_from([-1, -1, 1, 0, 2, 2**15 - 1]))
    transactional_id = draw(st.sampled_from([None, None, None, "t"]))
    return ProduceRequest(acks, draw(I32), draw(st.lists(topic, max_size=3)), transactional_id)


@st.composite
def frames(draw: st.DrawFn, key: int, version: int, topic_ids: list[UUID]) -> bytes:
    """Draw a frame without its length."""
    if key in (ApiKey.FETCH, ApiKey.PRODUCE):
        body: object = draw((fetches if key == ApiKey.FETCH else produces)(version, topic_ids))
        return b"".join(encode_request(key, version, 9, "client", body))[4:]
    draft = LAYOUTS.get((key, version))
    kind = load_request_schema(key, version) if draft is None else draft[0]
    out = bytearray(write_request_header(RequestHeader(key, version, 9, "client")))
    encoder(kind, kind)(out, draw(entities(kind, is_flexible_entity(kind), topic_ids)))
    return bytes(out)


def started(disk: MemoryDisk) -> NodeWorld:
    world = NodeWorld(
        disk,
        offsets_topic_num_partitions="3",
        group_initial_rebalance_delay_ms="0",
        crucible_metadata_epoch_enable="true",
    )
    assert world.node.ready
    return world


def read(key: int, version: int, frame: bytes) -> object:
    """Return the body, decoded as by a node, or None for a frame beyond its limits."""
    view = memoryview(frame)
    offset = read_request_header(view)[1]
    if len(frame) <= LARGE_FRAME_BYTES:
        return decode_request(key, version, view, offset)
    try:
        return finished(decode_request_in_slices(key, version, view, offset))[0][0]
    except TooMuchError:
        return None


def written(reply: Reply) -> bytes:
    """Return the response's frame without its length, encoded as by a node."""
    given = reply.api_key, reply.api_version, 9, reply.body
    is_large = is_large_response(reply.api_key, reply.api_version, reply.body)
    buffers = finished(encode_response_in_slices(*given))[0] if is_large else encode_response(*given)
    return b"".join(buffers)[4:]


def send(world: NodeWorld, connection: int, key: int, version: int, frame: bytes) -> None:
    """Send a request. If it is parked, close its connection after a second."""
    body = read(key, version, frame)
    if body is None:
        return
    number = world.send(key, version, body, connection)
    world.settle()
    if number not in world.replies and connection not in world.closed:
        world.advance(1000)
    reply = world.replies.pop(number, None)
    if reply is not None and reply.body is not None:
        decode_response(key, reply.api_version, memoryview(written(reply)))
    world.close(connection)


def measured(world: NodeWorld, connection: int, key: int, version: int, frame: bytes) -> None:
    """Send a request, and check that the node's peak memory is bounded."""
    with memory_of() as cost:
        send(world, connection, key, version, frame)
    limit = MEMORY_BYTES + 4 * len(frame)
    assert cost.peak_bytes <= limit, (ApiKey(key).name, version, len(frame), cost.peak_bytes)


def with_state() -> NodeWorld:
    """Return a node with live other brokers, an open fetch session of each revision and a parked fetch."""
    world = started(prepared().copy())
    for version in (12, 1000):
        opening = replace(fetch_request("t", 0, 0, max_wait_ms=0), session_epoch=0, fetch_type=FULL_FETCH)
        opened = world.request(ApiKey.FETCH, version, opening, connection=version)
        assert opened.error_code == ErrorCode.none
        assert opened.session_id
    world.send(ApiKey.FETCH, 12, fetch_request("t", 1, 0, 2**31 - 1), connection=8)
    return world


def check(world: NodeWorld) -> None:
    """Check that the node's state is consistent, and that it serves other requests and can restart."""
    world.advance(5000)
    world.node.broker.groups.validate()
    for partition in world.node.broker.partitions.by_name.values():
        partition.log.check_invariants()
    assert world.request(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0), connection=9).error_code == ErrorCode.none
    started(world.disk.copy())


@pytest.mark.thorough
@pytest.mark.parametrize("key", VERSIONS, ids=lambda key: ApiKey(key).name)
@given(data=st.data())
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_any_requests_are_handled_and_node_restarts(key: int, data: st.DataObject) -> None:
    world = with_state()
    topic_ids = [UUID(bytes=name) for name in world.node.broker.partitions.topic_names]
    for connection, version in enumerate(VERSIONS[key], 100):
        send(world, connection, key, version, data.draw(frames(key, version, topic_ids)))
    version = data.draw(st.sampled_from(VERSIONS[key]))
    measured(world, 99, key, version, data.draw(frames(key, version, topic_ids)))
    check(world)


LONG_ARRAYS = [each for each in of_arrays() if each[0] not in OF_NODES]


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version", "path"), LONG_ARRAYS)
def test_each_array_may_be_as_long_as_its_limit(key: int, version: int, path: tuple[str, ...]) -> None:
    limit = MAX_ITEMS.get(key, DEFAULT_MAX_ITEMS)
    held = (limit if IS_NIGHTLY else min(limit, 1000)) - len(path) + 1
    world = with_state()
    measured(world, 99, key, version, frame_of(key, version, holding(layout(key, version), path, held))[0].tobytes())
    check(world)


@pytest.mark.parametrize("planted", ["memory", "response", "state"])
def test_misbehaving_node_is_detected(planted: str) -> None:
    world = with_state()
    kept: list[bytes] = []

    def broken(call: Call, body: object) -> None:
        del body
        if planted == "memory":
            kept.append(bytes(MEMORY_BYTES + 4096))
        elif planted == "state":
            world.log("t").recovery_point = 99
        call.respond(None if planted != "response" else "no response")

    world.node._dispatcher._bound[ApiKey.HEARTBEAT] = (object, broken)
    frame = b"".join(encode_request(ApiKey.HEARTBEAT, 4, 9, "c", body_of(ApiKey.HEARTBEAT, group_id="g")))[4:]

    def play() -> None:
        measured(world, 99, ApiKey.HEARTBEAT, 4, frame)
        check(world)

    with pytest.raises((AssertionError, AttributeError)):  # The latter comes from encoding text as a response.
        play()
