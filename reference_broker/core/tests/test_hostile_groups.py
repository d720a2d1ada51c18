"""Group requests of any content, order and version: each gets a response or is parked, each response can be encoded,
and
the node keeps running."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from reference_broker.apis.tests.messages import message_from
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.core.tests.test_groups_of_a_node import coordinated
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import RequestHeader, read_request_header, write_request_header
from reference_broker.wire.messages import body_class, decode_request, decode_response, encode_response
from reference_broker.wire.schema import SchemaField, schema_fields

APIS = (
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)
LONG, TOO_LONG = "\u00fc" * 16_383, "\u00fc" * 20_000
"""More bytes than texts may have in versions that are not flexible."""
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


class Sender:
    """A client that knows the member IDs that the node assigned."""

    def __init__(self, world: NodeWorld) -> None:
        self.world = world
        self.member_ids = ["nobody", ""]

    def send(self, key: ApiKey, version: int, body: Any, connection: int) -> Any:
        """Return the decoded response, or None if the request is parked."""
        number = self.world.send(key, version, body, connection)
        self.world.settle()
        return self.read(key, number)

    def read(self, key: ApiKey, number: int) -> Any:
        reply = self.world.replies.get(number)
        if reply is None or reply.body is None:
            return None
        frame = memoryview(b"".join(encode_response(key, reply.api_version, 9, reply.body)))[4:]
        body: Any = decode_response(key, reply.api_version, frame)[1]
        if key is ApiKey.JOIN_GROUP and body.member_id not in ("", LONG):
            self.member_ids.append(body.member_id)
        return body


@st.composite
def requests(draw: st.DrawFn) -> tuple[ApiKey, int, dict[str, Any]]:
    key = draw(st.sampled_from(APIS + (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP) * 4))
    version = draw(st.integers(*VERSIONS[key][:2]))
    schema = load_request_schema(key, version)
    fields = draw(values(schema, schema.__flexible__))
    names = {field.name for field in schema_fields(schema)}
    good = {name: value for name, value in GOOD.items() if name in names}
    return key, version, {**fields, **good} if draw(st.sampled_from([True] * 7 + [False])) else fields


def values(schema: type, is_flexible: bool) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({field.name: value(field, is_flexible) for field in schema_fields(schema)})


def value(field: SchemaField, is_flexible: bool) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        one: st.SearchStrategy[Any] = values(field.struct, is_flexible)
    elif field.kind == "string":
        one = st.sampled_from(KNOWN.get(field.name, ["g", "h", "t", "", "range", "consumer"]))
        if is_flexible:
            one = st.one_of(one, one, one, one, one, st.just("long"))
    elif field.kind.startswith(("int", "uint")):
        least = 0 if field.kind.startswith("u") else -2
        bits = int(field.kind.removeprefix("u").removeprefix("int"))
        ends = st.sampled_from([-(2 ** (bits - 1)) * (least < 0), 2 ** (bits - 1) - 1])
        few = st.sampled_from([1, 1, 2, -1]) if "generation" in field.name else st.integers(least, 2)
        one = st.one_of(few, few, few, few, ends)
    elif field.kind == "bytes":
        one = st.sampled_from([b"", SUBSCRIPTION, SUBSCRIPTION[:-5], b"\xff" * 9])
    elif field.kind == "bool":
        one = st.booleans()
    else:
        assert field.kind in ("timedelta_i32", "timedelta_i64"), field.kind
        one = st.sampled_from([6000, 10_000, 0, -1, 2**31 - 1, -(2**31)]).map(lambda ms: timedelta(milliseconds=ms))
    if field.is_array:
        one = st.lists(one, max_size=3)
    return st.one_of(one, one, st.none()) if field.nullable else one


KNOWN = {
    "group_id": ["g", "h", ""],
    "protocol_type": ["consumer", "consumer", "", "connect"],
    "protocol_name": ["range", "other"],
    "member_id": ["0", "0", "0", "1", "2", "3", "4"],
    "group_instance_id": ["i", "j"],
}
"""A member ID of n is the n-th last one that was assigned."""
GOOD: dict[str, Any] = {
    "group_id": "g",
    "session_timeout": timedelta(seconds=10),
    "rebalance_timeout": timedelta(seconds=10),
    "protocol_type": "consumer",
    "protocol_name": "range",
    "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
}
"""Most requests have these values."""


def built(schema: type, fields: dict[str, Any], member_ids: list[str]) -> Any:
    found: dict[str, Any] = {}
    for field in schema_fields(schema):
        one = fields[field.name]
        if field.name == "member_id" and one in KNOWN["member_id"]:
            one = member_ids[-1 - int(one) % len(member_ids)]
        elif one == "long":
            one = LONG
        elif field.struct is not None and one is not None and field.is_array:
            one = tuple(built(field.struct, item, member_ids) for item in one)
        elif field.is_array and one is not None:
            one = tuple(LONG if item == "long" else item for item in one)
        found[field.name] = one
    return schema(**found)


@pytest.mark.thorough
@given(st.lists(st.tuples(requests(), st.sampled_from([0, 0, 0, 1, 3000, 30_000])), min_size=20, max_size=40))
@settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_any_group_requests_get_responses_and_node_keeps_running(
    steps: list[tuple[tuple[ApiKey, int, dict[str, Any]], int]],
) -> None:
    world = coordinated()
    world.create("t", 2)
    sender = Sender(world)
    waiting: list[tuple[ApiKey, int]] = []
    for connection, ((key, version, fields), pause_ms) in enumerate(steps, 100):
        schema = load_request_schema(key, version)
        out = bytearray(write_request_header(RequestHeader(key, version, 9, "c")))
        encoder(schema, schema)(out, built(schema, fields, sender.member_ids))
        frame = memoryview(bytes(out))
        body = decode_request(key, version, frame, read_request_header(frame)[1])
        if sender.send(key, version, body, connection) is None:
            waiting.append((key, world.correlation_id))
        world.advance(pause_ms)
    world.advance(320_000)
    for key, number in waiting:
        assert number in world.replies or world.node.broker.groups.metrics.groups.value
        sender.read(key, number)
    assert request(world, ApiKey.LIST_GROUPS).error_code == ErrorCode.none


def request(world: NodeWorld, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
    number = VERSIONS[key][1] if version is None else version
    return Sender(world).send(key, number, message_from(body_class(key, "request"), fields), 7)


def response_to(world: NodeWorld, key: ApiKey, **fields: Any) -> Any:
    """Return the response to a body that was not encoded, which would have rejected its texts."""
    return world.request(key, VERSIONS[key][1], message_from(body_class(key, "request"), fields), 7)


@pytest.mark.parametrize(
    "more",
    [
        {"group_instance_id": TOO_LONG},
        {"protocol_type": TOO_LONG},
        {"protocols": [{"name": TOO_LONG, "metadata": b""}]},
    ],
)
def test_texts_too_long_for_older_versions_are_rejected(more: dict[str, Any]) -> None:
    world = coordinated()
    fields = {
        "group_id": "g",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **more,
    }
    joined = response_to(world, ApiKey.JOIN_GROUP, **fields)
    assert joined.error_code == ErrorCode.invalid_request
    assert request(world, ApiKey.DESCRIBE_GROUPS, 4, groups=("g",)).groups[0].group_state == "Dead"
    assert request(world, ApiKey.LIST_GROUPS, 0).groups == ()


def test_group_id_too_long_for_record_returns_invalid_group_id() -> None:
    response = response_to(coordinated(), ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=(TOO_LONG, "g"))
    assert [coordinator.error_code for coordinator in response.coordinators] == [
        ErrorCode.invalid_group_id,
        ErrorCode.none,
    ]
