"""A bug in the handler of a request: it ends the node, or fails that request alone if the driver contains bugs."""

from collections.abc import Iterator
from typing import Any

import pytest

from reference_broker.apis.call import Call
from reference_broker.apis.registry import SERVED
from reference_broker.core.call_admission import failed_request
from reference_broker.core.events import Request
from reference_broker.core.tests.node_world import NodeWorld, batch
from reference_broker.wire.apis import DRAFTS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import decode_response, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag

UNKNOWN_SERVER_ERROR = int(ErrorCode.unknown_server_error)
NO_ID = bytes(16)


class BugError(Exception):
    pass


class FakeCall:
    """A ``Call`` that records its end."""

    def __init__(self) -> None:
        self.closed = False
        self.body: Any = None
        self.reason = ""

    def respond(self, body: object | None) -> None:
        self.closed, self.body = True, body

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason


def every_version() -> Iterator[tuple[int, int]]:
    for key, (low, high) in SERVED.items():
        yield from dict.fromkeys((key, version) for version in range(low, high + 1))
    yield from DRAFTS


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version"), sorted(dict.fromkeys(every_version())))
def test_failed_request_of_each_version_returns_encodable_error_or_closes(key: int, version: int) -> None:
    call: Any = FakeCall()
    failed_request(call, Request(1, 1, key, version, "c", None, Tag(key, version, "c")))
    assert call.closed
    if call.body is None:
        assert call.reason
        return
    frame = b"".join(encode_response(key, version, 9, call.body))
    number, body = decode_response(key, version, memoryview(frame)[4:])
    assert number == 9
    assert getattr(body, "error_code") == UNKNOWN_SERVER_ERROR  # noqa: B009  (each API has its own class)


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT])
def test_failed_request_with_error_field_gets_response(key: int) -> None:
    call: Any = FakeCall()
    failed_request(call, Request(1, 1, key, SERVED[key][1], "c", None, _tag()))
    assert call.body.error_code == UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("acks", "responds"), [(-1, True), (1, True), (0, False)])
def test_failed_produce_returns_error_of_each_partition_unless_acks_zero(acks: int, responds: bool) -> None:
    call: Any = FakeCall()
    body = ProduceRequest(acks, 1000, [ProduceTopic("t", NO_ID, [ProducePartition(each, None) for each in (4, 7)])])
    failed_request(call, Request(1, 1, ApiKey.PRODUCE, 9, "c", body, _tag()))
    if not responds:
        assert call.reason
        return
    partitions = call.body.responses[0].partitions
    assert [(partition.partition, partition.error_code) for partition in partitions] == [
        (4, UNKNOWN_SERVER_ERROR),
        (7, UNKNOWN_SERVER_ERROR),
    ]


def _tag() -> Tag:
    return Tag(0, 0, "c")


def breaks(world: NodeWorld, key: int, after_response: bool = False) -> None:
    def broken(call: Call, body: object) -> None:
        del body
        if after_response:
            call.respond(None)
        raise BugError

    world.node._dispatcher._bound[key] = (object, broken)


def test_bug_is_raised_unless_driver_contains_it() -> None:
    world = NodeWorld()
    breaks(world, ApiKey.FETCH)
    with pytest.raises(BugError):
        world.request(ApiKey.FETCH, 12, FetchRequest())


@pytest.mark.parametrize("after_response", [False, True])
def test_contained_bug_fails_only_its_request(after_response: bool) -> None:
    world = NodeWorld()
    world.create("t", 1)
    breaks(world, ApiKey.FETCH, after_response)
    bugs: list[tuple[int, str]] = []
    world.node.on_bug = lambda request, bug: bugs.append((getattr(request, "api_key", -1), type(bug).__name__))
    response = world.request(ApiKey.FETCH, 12, FetchRequest())
    assert (response is None) if after_response else (response.error_code == UNKNOWN_SERVER_ERROR)
    assert bugs == [(ApiKey.FETCH, "BugError")]
    failures = world.node.metrics.counter(
        "kafka.network", "RequestMetrics", "ErrorsPerSec", request="Fetch", error="UNKNOWN_SERVER_ERROR"
    )
    assert failures.value == 1
    world.produce("t", 0, batch(count=2))
    assert world.node._calls == {}


def test_assertion_error_is_contained_like_any_bug() -> None:
    world = NodeWorld()

    def broken(call: Call, body: object) -> None:
        del call, body
        raise AssertionError("state is wrong")

    world.node._dispatcher._bound[ApiKey.FETCH] = (object, broken)
    world.node.on_bug = lambda *_: None
    assert world.request(ApiKey.FETCH, 12, FetchRequest()).error_code == UNKNOWN_SERVER_ERROR
