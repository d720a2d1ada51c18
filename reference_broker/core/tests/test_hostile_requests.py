"""Any valid request of any version that is served, with any field at its limits, to a node that has topics, a group and
a fetch session: it is answered, or it waits and is forgotten with its connection. The answer can be written, what the
node knows agrees, its memory stays bounded, and it can start again.
"""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from reference_broker.apis.registry import SERVED
from reference_broker.core.tests.hostile_client import memory_of
from reference_broker.core.tests.hostile_records import bomb, raw_batch, raw_record
from reference_broker.core.tests.node_world import START_WALL_MS, NodeWorld, batch, fetch_request, sent_batch
from reference_broker.core.tests.test_groups_of_a_node import coordinated, stable
from reference_broker.ports.memory_disk import MemoryDisk
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import DRAFTS, ApiKey
from reference_broker.wire.drafts import LAYOUTS
from reference_broker.wire.encoding import encoder
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from reference_broker.wire.headers import RequestHeader, read_request_header, write_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.schema import SchemaField, is_flexible_entity, schema_fields

MEMORY_BYTES = 64 * 2**20
EXAMPLES = settings().max_examples // 10
"""The nightly session asks for ten times as many."""
OF_NODES = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH)
"""What they may do to a quorum is judged by the tests of that room."""
VERSIONS = [
    (key, version)
    for key, (low, high) in SERVED.items()
    if key not in OF_NODES
    for version in (*range(low, high + 1), *(draft for of, draft in DRAFTS if of == key))
]
NAMES = ("t", "t", "c", "g", "__consumer_offsets", "__cluster_metadata", "", ".", "a b/\u00fc", "x" * 249, "1", "-1")
WORDS = ("consumer", "range", "retention.ms", "cleanup.policy", "compact,delete", " " * 30_000 + "1000", "7", "classic")
LONG, LONGER = "x" * 32_767, "\u00fc" * 20_000
"""Only flexible versions can carry the second one."""
BLOBS = (b"", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff", b"\xff" * 90, bytes(100_000))
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
    """The disk of a node with a topic, a compacted one, and a group with a member and an offset."""
    world = coordinated()
    world.create("t", 2)
    world.create("c", 1, cleanup_policy="compact")
    for each in (batch(), batch(count=3), sent_batch(1, 0)):
        world.produce("t", 0, each)
    world.produce("c", 0, batch())
    stable(world)
    assert isinstance(world.disk, MemoryDisk)
    return world.disk


def integers(bits: int, unsigned: bool) -> st.SearchStrategy[int]:
    least, most = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return st.sampled_from([*(each for each in SMALL if least <= each <= most), least, most])


def one_of_kind(each: SchemaField, flexible: bool, topic_ids: list[UUID]) -> st.SearchStrategy[Any]:
    if each.struct is not None:
        return entities(each.struct, flexible, topic_ids)
    if each.kind.startswith(("int", "uint")):
        return integers(int(each.kind.lstrip("uint")), each.kind.startswith("u"))
    match each.kind:
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
    raise AssertionError(f"no value of kind {each.kind}")


def values_of(each: SchemaField, flexible: bool, topic_ids: list[UUID]) -> st.SearchStrategy[Any]:
    one = one_of_kind(each, flexible, topic_ids)
    if each.is_array:
        few = st.lists(one, max_size=3).map(tuple)
        again = one.map(lambda value: (value,) * 40)
        one = st.one_of(few, few, few, again)
    return st.one_of(one, one, one, st.none()) if each.nullable else one


def entities(kind: type, flexible: bool, topic_ids: list[UUID]) -> st.SearchStrategy[Any]:
    fields = {each.name: values_of(each, flexible, topic_ids) for each in schema_fields(kind)}
    return st.builds(kind, **fields)


def topics_of(version: int, topic_ids: list[UUID]) -> st.SearchStrategy[tuple[str, bytes]]:
    if version >= 13:
        return st.sampled_from([("", one.bytes) for one in topic_ids] + [("", bytes(range(16)))])
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
def frames(draw: st.DrawFn, topic_ids: list[UUID]) -> tuple[int, int, bytes]:
    """API key, version, and the frame without its length."""
    key, version = draw(st.sampled_from(VERSIONS))
    if key in (ApiKey.FETCH, ApiKey.PRODUCE):
        body: object = draw((fetches if key == ApiKey.FETCH else produces)(version, topic_ids))
        return key, version, b"".join(encode_request(key, version, 9, "client", body))[4:]
    draft = LAYOUTS.get((key, version))
    kind = load_request_schema(key, version) if draft is None else draft[0]
    out = bytearray(write_request_header(RequestHeader(key, version, 9, "client")))
    encoder(kind, kind)(out, draw(entities(kind, is_flexible_entity(kind), topic_ids)))
    return key, version, bytes(out)


def started(disk: MemoryDisk) -> NodeWorld:
    world = NodeWorld(disk, offsets_topic_num_partitions="3", group_initial_rebalance_delay_ms="0")
    assert world.node.ready
    return world


def send(world: NodeWorld, connection: int, key: int, version: int, frame: bytes) -> None:
    """A request that waits is given a second, and then its client hangs up."""
    view = memoryview(frame)
    body = decode_request(key, version, view, read_request_header(view)[1])
    number = world.send(key, version, body, connection)
    world.settle()
    if number not in world.replies and connection not in world.closed:
        world.advance(1000)
    reply = world.replies.get(number)
    if reply is not None and reply.body is not None:
        answer = memoryview(b"".join(encode_response(key, reply.api_version, 9, reply.body)))[4:]
        decode_response(key, reply.api_version, answer)
    world.close(connection)


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_any_requests_are_handled_and_the_node_goes_on_and_starts_again(data: st.DataObject) -> None:
    world = started(prepared().copy())
    topic_ids = [UUID(bytes=one) for one in world.node.broker.partitions.topic_names]
    opened = world.ask(ApiKey.FETCH, 12, fetch_request("t", 0, 0, max_wait_ms=0), connection=7)
    assert opened.error_code == 0
    for connection in range(100, 120):
        send(world, connection, *data.draw(frames(topic_ids)))
    key, version, frame = data.draw(frames(topic_ids))
    with memory_of() as cost:
        send(world, 120, key, version, frame)
    assert cost.peak_bytes <= MEMORY_BYTES + 4 * len(frame), (ApiKey(key).name, version, len(frame), cost.peak_bytes)
    world.advance(5000)
    world.node.broker.groups.validate()
    for partition in world.node.broker.partitions.by_name.values():
        partition.log.check_invariants()
    assert world.ask(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0), connection=8).error_code == 0
    started(world.disk.copy())
