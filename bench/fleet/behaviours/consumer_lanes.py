"""Carries the requests of a reference client over the lanes of a fleet client, with one connection for each lane.

It does what ``reference_broker.blocking.connections`` does, but with a driver's events and actions instead of
sockets. It reports each request to the history.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from bench.fleet.behaviours.journal import Journal, Operation
from bench.fleet.behaviours.protocol import (
    Address,
    ClientSettings,
    Connect,
    Connected,
    ConnectFailed,
    Disconnect,
    Disconnected,
    FleetEvent,
    Request,
    ResponseReceived,
    TimedOut,
)
from reference_broker.client.api_versions import (
    API_VERSIONS,
    API_VERSIONS_REQUEST,
    API_VERSIONS_VERSION,
    announced_in,
    announces_drafts,
    may_be_sent,
)
from reference_broker.client.group_consumer import COMMIT_LANE, COMMITTED_LANE, METADATA_LANE, GroupConsumer
from reference_broker.client.group_requests import GroupRequest
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transactional_producer import TransactionalProducer
from reference_broker.wire.apis import FIRST_DRAFT_VERSION

SPEAKS_DRAFTS: Final = (METADATA_LANE, COMMIT_LANE, COMMITTED_LANE)


@dataclass(slots=True)
class Lane:
    """One of a client's connections."""

    name: str
    number: int
    node: NodeAddress | None = None  # the node connected to
    announced: frozenset[str] | None = None  # features in the node's ApiVersions response; None before it
    request: GroupRequest | None = None  # waits for the connection or for its response
    opening: Operation | None = None  # the operation that connects
    negotiating: bool = False  # ApiVersions is in flight


class LaneClient(Protocol):
    """A client that sends on lanes: ``GroupConsumer`` or ``TransactionalProducer``."""

    def responded(self, lane: str, now_us: int, body: object) -> None: ...
    def failed(self, lane: str, now_us: int) -> None: ...


class LaneHistory:
    """Called for each request; here it records nothing. ``ConsumerHistory`` records all of them."""

    def sent(self, lane: str, request: GroupRequest) -> None:
        """A request goes out."""

    def response_received(self, lane: str, response: ResponseReceived) -> None:
        """The client is about to get this response."""

    def response_handled(self, lane: str) -> None:
        """The client has handled the response."""

    def lost(self, lane: str, reason: str) -> None:
        """The request gets no response."""


C = TypeVar("C", bound=LaneClient)


@dataclass(slots=True)
class ClientLanes(Generic[C]):
    """The lanes of one client. ``numbers`` yields the fleet client's lanes that were not used yet."""

    consumer: C
    history: LaneHistory
    journal: Journal
    settings: ClientSettings
    numbers: Iterator[int]
    _by_name: dict[str, Lane] = field(default_factory=dict)
    _by_number: dict[int, Lane] = field(default_factory=dict)

    def send(self, name: str, request: GroupRequest) -> None:
        """Send a request. Exactly one call of the consumer's ``responded`` or ``failed`` follows."""
        lane = self._by_name.get(name)
        if lane is None:
            lane = self._by_name[name] = Lane(name, next(self.numbers))
            self._by_number[lane.number] = lane
        assert lane.request is None, "two requests in flight on one lane"
        assert request.to is not None, "a request to nobody"
        lane.request = request
        if lane.node == request.to:
            self._go_on(lane, request)
        else:
            self._connect(lane, request.to)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return all(each.request is None for each in self._by_number.values())

    def handle(self, event: FleetEvent) -> None:
        """Handle what a lane waited for. Events of closed lanes are ignored."""
        if not isinstance(event, Connected | ConnectFailed | ResponseReceived | TimedOut | Disconnected):
            return
        lane = self._by_number.get(event.lane)
        if lane is None:
            return
        match event:
            case Connected():
                self._connected(lane)
            case ConnectFailed():
                self._end_opening(lane, event.reason)
                self._fail(lane)
            case ResponseReceived():
                self._take_response(lane, event)
            case TimedOut():
                self._disconnect(lane)
                self._lost(lane, "timeout")
            case Disconnected():
                lane.node = None
                self._lost(lane, "disconnected")

    def close(self) -> None:
        """Close every connection. What is in flight gets no response."""
        for lane in self._by_number.values():
            if lane.opening is not None:
                self._end_opening(lane, "closed")
            elif lane.request is not None and not lane.negotiating:
                self.history.lost(lane.name, "closed")
            self._disconnect(lane)
        self._by_name, self._by_number = {}, {}

    # -- one lane -----------------------------------------------------------------------------------------------

    def _connect(self, lane: Lane, node: NodeAddress) -> None:
        self._disconnect(lane)
        lane.opening = self.journal.begin("connect")
        lane.opening.node = node.node_id
        address = Address(node.host, node.port)
        dialled = self.settings.dial.get(address, address)
        self.journal.actions.append(Connect(dialled, self.settings.connect_timeout_us, lane.number))

    def _connected(self, lane: Lane) -> None:
        assert lane.request is not None, "a connection for no request"
        lane.node, lane.announced = lane.request.to, None
        self._end_opening(lane)
        self._go_on(lane, lane.request)

    def _end_opening(self, lane: Lane, error: str | None = None) -> None:
        opening, lane.opening = lane.opening, None
        assert opening is not None, "nobody connects"
        self.journal.end(opening, "fail" if error else "ok", error)

    def _go_on(self, lane: Lane, request: GroupRequest) -> None:
        """Send the request over the open connection. Some lanes first request ApiVersions."""
        if self._negotiates_first(lane, request) and lane.announced is None:
            lane.negotiating = True
            timeout_us = self.settings.request_timeout_us
            self._request(lane, API_VERSIONS, API_VERSIONS_VERSION, API_VERSIONS_REQUEST, timeout_us)
        elif not may_be_sent(request.api_key, request.api_version, lane.announced or frozenset()):
            self._fail(lane)
        else:
            self.history.sent(lane.name, request)
            self._request(lane, request.api_key, request.api_version, request.body, request.timeout_us)

    def _negotiates_first(self, lane: Lane, request: GroupRequest) -> bool:  # noqa: ARG002
        """Return whether this lane sends ApiVersions on a new connection, before it sends the request."""
        return True

    def _learn(self, lane: Lane, node: NodeAddress, versions: object) -> None:
        """Pass the node's ApiVersions response to the client."""

    def _request(self, lane: Lane, api_key: int, api_version: int, body: object, timeout_us: int) -> None:
        process = self.journal.process
        self.journal.actions.append(Request(api_key, api_version, process, body, timeout_us, lane.number))

    def _take_response(self, lane: Lane, event: ResponseReceived) -> None:
        request = lane.request
        assert request is not None, "a response to no request"
        assert lane.node is not None, "a response from nobody"
        if lane.negotiating:
            lane.negotiating, lane.announced = False, announced_in(event.body)
            self._learn(lane, lane.node, event.body)
            self._go_on(lane, request)
            return
        lane.request = None
        self.history.response_received(lane.name, event)
        self.consumer.responded(lane.name, self.journal.now.mono_us, event.body)
        self.history.response_handled(lane.name)

    def _lost(self, lane: Lane, reason: str) -> None:
        """The connection is closed, so a request in flight gets no response."""
        if lane.request is None:
            return
        if not lane.negotiating:
            self.history.lost(lane.name, reason)
        self._fail(lane)

    def _fail(self, lane: Lane) -> None:
        lane.request, lane.negotiating = None, False
        self.consumer.failed(lane.name, self.journal.now.mono_us)

    def _disconnect(self, lane: Lane) -> None:
        if lane.node is not None:
            lane.node = None
            self.journal.actions.append(Disconnect(lane.number))


class ConsumerLanes(ClientLanes[GroupConsumer]):
    """The lanes of a consumer. Those that speak drafts check whether the node serves them."""

    __slots__ = ()

    def _negotiates_first(self, lane: Lane, request: GroupRequest) -> bool:
        knows_epochs = self.consumer.config.metadata_epoch and lane.name in SPEAKS_DRAFTS
        return knows_epochs or request.api_version >= FIRST_DRAFT_VERSION

    def _learn(self, lane: Lane, node: NodeAddress, versions: object) -> None:  # noqa: ARG002
        self.consumer.metadata.learn_drafts(node, announces_drafts(versions))


class ProducerLanes(ClientLanes[TransactionalProducer]):
    """The lanes of a transactional producer, which needs the nodes' versions and features."""

    __slots__ = ()

    def _learn(self, lane: Lane, node: NodeAddress, versions: object) -> None:  # noqa: ARG002
        self.consumer.learn_versions(node, versions)
