"""Large requests are decoded, and large responses encoded, in slices: the event loop polls its sockets in between."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import GroupId, TopicName

from reference_broker.apis.registry import SERVED
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.core.node import Node
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.ports.node_ports import Now
from reference_broker.serve.connection import CLOSED, CLOSING
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.driver import Clock, Driver
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.request_scheduling import LargeMessages
from reference_broker.serve.tests.fake_connection import FakeConnection
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.frames import RequestHeader, write_request_header
from reference_broker.wire.messages import decode_response, empty_response, encode_request
from reference_broker.wire.request_limits import DEFAULT_MAX_ITEMS, ITEM_BYTES, MAX_ITEMS
from reference_broker.wire.retired_fields import MetadataRequest
from reference_broker.wire.tags import Tag

LONG_NAME = "x" * 40_000


class RecordingNode:
    """A node that keeps its requests."""

    listening = ready = stopped = False

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:  # noqa: ARG002
        if isinstance(event, Request):
            self.requests.append(event)
        return ()


class SteppedDriver:
    """``soon`` is what the event loop will call."""

    def __init__(self, folder: Path) -> None:
        self.log = StringIO()
        self.node = RecordingNode()
        self.loop = asyncio.new_event_loop()
        ignore: Any = lambda *_: None  # noqa: E731
        self.driver = Driver(
            cast("Node", self.node),
            FileDisk(folder, 16),
            Clock(0),
            LogLines(1, self.log),
            self.loop,
            SERVED,
            1000,
            10,
            ignore,
            ignore,
            ignore,
        )
        self.driver.watched = False
        self.soon: list[Any] = []
        self.driver.large_messages = LargeMessages(self.soon.append)

    def connected(self) -> Any:
        return FakeConnection(self.driver)

    def send(self, connection: Any, key: int, version: int, body: object) -> Request | None:
        frame = memoryview(b"".join(encode_request(key, version, 9, "c", body)))[4:]
        return self.frame(connection, frame)

    def frame(self, connection: Any, frame: memoryview) -> Request | None:
        connection.has_request = True
        return self.driver.decoded(connection, frame)

    def step(self) -> None:
        """Run the event loop's next pass."""
        self.soon.pop(0)()

    def settle(self) -> int:
        steps = 0
        while self.soon:
            self.step()
            steps += 1
        return steps

    def reasons(self) -> list[str]:
        return [json.loads(line)["reason"] for line in self.log.getvalue().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SteppedDriver]:
    world = SteppedDriver(tmp_path)
    yield world
    world.driver.end()
    world.loop.close()


def names(count: int) -> MetadataRequest:
    topics = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(f"t{number}")) for number in range(count))
    return MetadataRequest(topics=topics, include_topic_authorized_operations=False)


def test_large_request_is_decoded_in_several_passes_while_others_are_served(world: SteppedDriver) -> None:
    large, small = world.connected(), world.connected()
    assert world.send(large, ApiKey.METADATA, 9, names(20_000)) is None
    for _ in range(5):
        world.step()
        request = world.send(small, ApiKey.METADATA, 9, names(1))
        assert request is not None
        world.driver.handle_request(request)
    assert [each.connection for each in world.node.requests] == [small.number] * 5
    assert world.settle() > 10
    last = world.node.requests[-1]
    assert last.connection == large.number
    assert last.body == replace(names(20_000), allow_auto_topic_creation=True)
    assert last.frame_bytes > 100_000


@pytest.mark.thorough
def test_large_requests_are_decoded_one_by_one(world: SteppedDriver) -> None:
    connections = [world.connected() for _ in range(8)]
    for number, each in enumerate(connections):
        world.send(each, ApiKey.METADATA, 9, names(10_000 - number))
    assert len(world.soon) == 1
    half_made = 0
    while world.soon:
        world.step()
        delivered = {each.connection for each in world.node.requests}
        half = [each for each in connections if each.making_bytes and each.number not in delivered]
        half_made = max(half_made, len(half))
    assert half_made <= 2, "what came first has some slices meanwhile"
    assert len(world.node.requests) == len(connections)


@pytest.mark.thorough
def test_slightly_smaller_request_waits_for_one_being_decoded(world: SteppedDriver) -> None:
    """Otherwise requests that arrive by falling size would all be half made."""
    connections = [world.connected() for _ in range(8)]
    for number, each in enumerate(connections):
        world.send(each, ApiKey.METADATA, 9, names(10_000 - number))
        world.step()
    assert [each.making_bytes > 0 for each in connections] == [True] + [False] * 7


@pytest.mark.thorough
def test_much_smaller_request_is_decoded_before_larger_ones(world: SteppedDriver) -> None:
    large, small = [world.connected() for _ in range(9)], world.connected()
    for each in large:
        world.send(each, ApiKey.METADATA, 9, names(50_000))
    for _ in range(20):
        world.step()
    assert world.send(small, ApiKey.METADATA, 9, names(3000)) is None
    for _ in range(6):
        world.step()
    assert [each.connection for each in world.node.requests] == [small.number]


@pytest.mark.thorough
def test_request_of_node_is_decoded_before_those_of_clients(world: SteppedDriver) -> None:
    clients, node = [world.connected() for _ in range(9)], world.connected()
    node.of_node = True
    for each in clients:
        world.send(each, ApiKey.METADATA, 9, names(3000))
    assert world.send(node, ApiKey.METADATA, 9, names(20_000)) is None
    world.settle()
    first = [each.connection for each in world.node.requests].index(node.number)
    assert first <= 1, "only what came first has some slices meanwhile"


@pytest.mark.thorough
def test_response_is_encoded_before_requests_of_its_size_are_decoded(world: SteppedDriver) -> None:
    requesting, waiting = world.connected(), [world.connected() for _ in range(3)]
    for each in waiting:
        world.send(each, ApiKey.METADATA, 9, names(20_000))
    world.driver._responses.send(_response_to(requesting, groups(20_000)))
    while requesting.has_request:
        world.step()
    assert len(world.node.requests) <= 1


@pytest.mark.thorough
def test_endless_smaller_requests_do_not_starve_large_one(world: SteppedDriver) -> None:
    large, small = world.connected(), [world.connected() for _ in range(3)]
    world.send(large, ApiKey.METADATA, 9, names(20_000))
    for _ in range(300):
        for each in small:
            if not each.has_request:
                world.send(each, ApiKey.METADATA, 9, names(3000))
        world.step()
        for request in world.node.requests:
            world.driver.connections[request.connection].done()
    assert large.number in {each.connection for each in world.node.requests}


def test_memory_budget_counts_decoded_requests(world: SteppedDriver) -> None:
    connection = world.connected()
    world.send(connection, ApiKey.METADATA, 9, names(20_000))
    world.settle()
    share = world.driver.memory._shares[False]
    assert 20_000 * ITEM_BYTES <= share.total_bytes <= 20_000 * ITEM_BYTES * 1.2
    connection.done()
    assert share.recount() == 0


@pytest.mark.thorough
def test_waiting_frame_of_closed_connection_is_released_at_once(world: SteppedDriver) -> None:
    for _ in range(2):
        world.send(world.connected(), ApiKey.METADATA, 9, names(20_000))
    gone = world.connected()
    frame = memoryview(b"".join(encode_request(ApiKey.METADATA, 9, 9, "c", names(50_000)))[4:])
    assert world.frame(gone, frame) is None
    held = ref(frame)
    del frame
    assert held() is not None
    gone.lose()
    assert held() is None


def test_connection_recognised_as_node_after_slices_counts_with_nodes(
    world: SteppedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.driver, "_is_of_node", lambda _: True)
    connection = world.connected()
    frame = memoryview(b"".join(encode_request(ApiKey.METADATA, 9, 9, client_id_of(7, bytes(16)), names(20_000)))[4:])
    assert world.frame(connection, frame) is None
    world.settle()
    assert connection.of_node
    assert world.driver.memory._shares[False].total_bytes == 0
    assert world.driver.memory._shares[True].total_bytes == connection.making_bytes > 0


def test_request_rejected_by_node_after_slices_closes_connection(
    world: SteppedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Event) -> None:
        raise ProtocolError("not on this listener")

    connection = world.connected()
    world.send(connection, ApiKey.METADATA, 9, names(20_000))
    monkeypatch.setattr(world.driver, "_step", refuses)
    world.driver.watched = True
    world.settle()
    assert connection.life is CLOSING
    assert world.reasons() == ["not on this listener"]


def test_request_of_few_items_takes_one_pass(world: SteppedDriver) -> None:
    request = world.send(world.connected(), ApiKey.METADATA, 9, names(500))
    assert request is not None
    assert not world.soon


def test_decoding_is_abandoned_when_connection_closes(world: SteppedDriver) -> None:
    connection = world.connected()
    world.send(connection, ApiKey.METADATA, 9, names(20_000))
    world.step()
    connection.lose()
    assert world.settle() == 1
    assert world.node.requests == []


def test_malformed_large_request_closes_connection(world: SteppedDriver) -> None:
    connection = world.connected()
    good = b"".join(encode_request(ApiKey.METADATA, 9, 9, "c", names(20_000)))[4:]
    assert world.frame(connection, memoryview(good[:-2] + b"\xff\xff\xff\xff\xff\xff\xff\xff")) is None
    world.settle()
    assert connection.life is CLOSING
    assert world.node.requests == []
    assert len(world.reasons()) == 1


@pytest.mark.parametrize(("key", "version"), [(ApiKey.METADATA, 1), (ApiKey.DESCRIBE_GROUPS, 4)])
def test_request_with_too_many_items_is_rejected_before_decoding(
    world: SteppedDriver, key: ApiKey, version: int
) -> None:
    limit = MAX_ITEMS.get(key, DEFAULT_MAX_ITEMS)
    header = write_request_header(RequestHeader(key, version, 9, "c"))
    frame = header + (limit + 1).to_bytes(4, "big") + bytes(2 * limit + 3)
    with pytest.raises(ProtocolError, match=f"holds {limit + 1} items or more; the limit is {limit}"):
        world.frame(world.connected(), memoryview(frame))
    assert not world.soon


def groups(count: int, last: str = "") -> ListGroupsResponse:
    good: Any = empty_response(ApiKey.LIST_GROUPS, 5, ErrorCode.none)
    listed = [
        ListedGroup(group_id=GroupId(f"g{number}"), protocol_type="", group_state="Empty", group_type="classic")
        for number in range(count)
    ]
    if last:
        listed[-1] = replace(listed[-1], group_id=GroupId(last))
    response: ListGroupsResponse = replace(good, groups=tuple(listed))
    return response


def reply(world: SteppedDriver, connection: Any, version: int, body: object) -> None:
    request = world.send(connection, ApiKey.LIST_GROUPS, version, _list_groups())
    assert request is not None
    world.driver._responses.send(Reply(connection.number, 9, ApiKey.LIST_GROUPS, version, body, request.tag))


def _response_to(connection: Any, body: object) -> Reply:
    connection.has_request = True
    return Reply(connection.number, 9, ApiKey.LIST_GROUPS, 5, body, Tag(ApiKey.LIST_GROUPS, 5, "c"))


def _list_groups() -> ListGroupsRequest:
    return ListGroupsRequest(states_filter=(), types_filter=())


def test_large_response_is_sent_after_several_passes(world: SteppedDriver) -> None:
    connection = world.connected()
    reply(world, connection, 5, groups(20_000))
    assert connection.sent == b""
    assert connection.has_request
    assert world.settle() > 10
    assert decode_response(ApiKey.LIST_GROUPS, 5, memoryview(connection.sent)[4:])[1] == groups(20_000)
    assert not connection.has_request


def test_small_response_is_sent_at_once(world: SteppedDriver) -> None:
    connection = world.connected()
    reply(world, connection, 5, groups(900))
    assert connection.sent
    assert not world.soon


def test_unencodable_large_response_becomes_error(world: SteppedDriver) -> None:
    connection = world.connected()
    reply(world, connection, 2, groups(5000, last=LONG_NAME))
    world.settle()
    body: Any = decode_response(ApiKey.LIST_GROUPS, 2, memoryview(connection.sent)[4:])[1]
    assert body.error_code == ErrorCode.unknown_server_error
    assert not connection.has_request


def test_response_of_closed_connection_is_not_encoded(world: SteppedDriver) -> None:
    connection = world.connected()
    reply(world, connection, 5, groups(20_000))
    world.step()
    connection.life = CLOSED
    world.driver.handle_event(Closed(connection.number))
    assert world.settle() == 1
    assert connection.sent == b""
