"""Carries the requests of a reference client over the channels of a fleet client, with one connection for each channel.

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
from reference_broker.client.group_consumer import COMMIT_CHANNEL, COMMITTED_CHANNEL, METADATA_CHANNEL, GroupConsumer
from reference_broker.client.group_requests import GroupRequest
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transactional_producer import TransactionalProducer
from reference_broker.wire.apis import FIRST_DRAFT_VERSION

SPEAKS_DRAFTS: Final = (METADATA_CHANNEL, COMMIT_CHANNEL, COMMITTED_CHANNEL)


@dataclass(slots=True)
class Channel:
    """One of a client's connections."""

    name: str
    number: int
    node: NodeAddress | None = None  # the node connected to
    announced: frozenset[str] | None = None  # features in the node's ApiVersions response; None before it
    request: GroupRequest | None = None  # waits for the connection or for its response
    opening: Operation | None = None  # the operation that connects
    negotiating: bool = False  # ApiVersions is in flight


class ChannelClient(Protocol):
    """A client that sends on channels: ``GroupConsumer`` or ``TransactionalProducer``."""

    def responded(self, channel: str, now_us: int, body: object) -> None: ...
    def failed(self, channel: str, now_us: int) -> None: ...


class ChannelHistory:
    """Called for each request; here it records nothing. ``ConsumerHistory`` records all of them."""

    def sent(self, channel: str, request: GroupRequest) -> None:
        """A request goes out."""

    def response_received(self, channel: str, response: ResponseReceived) -> None:
        """The client is about to get this response."""

    def response_handled(self, channel: str) -> None:
        """The client has handled the response."""

    def lost(self, channel: str, reason: str) -> None:
        """The request gets no response."""


C = TypeVar("C", bound=ChannelClient)


@dataclass(slots=True)
class ClientChannels(Generic[C]):
    """The channels of one client."""

    consumer: C
    history: ChannelHistory
    journal: Journal
    settings: ClientSettings
    numbers: Iterator[int]  # yields numbers of the fleet client's unused channels
    _by_name: dict[str, Channel] = field(default_factory=dict)
    _by_number: dict[int, Channel] = field(default_factory=dict)

    def send(self, name: str, request: GroupRequest) -> None:
        """Send a request. Exactly one call of the consumer's ``responded`` or ``failed`` follows."""
        channel = self._by_name.get(name)
        if channel is None:
            channel = self._by_name[name] = Channel(name, next(self.numbers))
            self._by_number[channel.number] = channel
        assert channel.request is None, "two requests in flight on one channel"
        assert request.to is not None, "a request to nobody"
        channel.request = request
        if channel.node == request.to:
            self._go_on(channel, request)
        else:
            self._connect(channel, request.to)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return all(channel.request is None for channel in self._by_number.values())

    def handle(self, event: FleetEvent) -> None:
        """Handle what a channel waited for. Events of closed channels are ignored."""
        if not isinstance(event, Connected | ConnectFailed | ResponseReceived | TimedOut | Disconnected):
            return
        channel = self._by_number.get(event.channel)
        if channel is None:
            return
        match event:
            case Connected():
                self._connected(channel)
            case ConnectFailed():
                self._end_opening(channel, event.reason)
                self._fail(channel)
            case ResponseReceived():
                self._take_response(channel, event)
            case TimedOut():
                self._disconnect(channel)
                self._lost(channel, "timeout")
            case Disconnected():
                channel.node = None
                self._lost(channel, "disconnected")

    def close(self) -> None:
        """Close every connection. What is in flight gets no response."""
        for channel in self._by_number.values():
            if channel.opening is not None:
                self._end_opening(channel, "closed")
            elif channel.request is not None and not channel.negotiating:
                self.history.lost(channel.name, "closed")
            self._disconnect(channel)
        self._by_name, self._by_number = {}, {}

    # -- one channel -----------------------------------------------------------------------------------------------

    def _connect(self, channel: Channel, node: NodeAddress) -> None:
        self._disconnect(channel)
        channel.opening = self.journal.begin("connect")
        channel.opening.node = node.node_id
        address = Address(node.host, node.port)
        dialled = self.settings.dial.get(address, address)
        self.journal.actions.append(Connect(dialled, self.settings.connect_timeout_us, channel.number))

    def _connected(self, channel: Channel) -> None:
        assert channel.request is not None, "a connection for no request"
        channel.node, channel.announced = channel.request.to, None
        self._end_opening(channel)
        self._go_on(channel, channel.request)

    def _end_opening(self, channel: Channel, error: str | None = None) -> None:
        opening, channel.opening = channel.opening, None
        assert opening is not None, "nobody connects"
        self.journal.end(opening, "fail" if error else "ok", error)

    def _go_on(self, channel: Channel, request: GroupRequest) -> None:
        """Send the request over the open connection. Some channels first request ApiVersions."""
        if self._negotiates_first(channel, request) and channel.announced is None:
            channel.negotiating = True
            timeout_us = self.settings.request_timeout_us
            self._request(channel, API_VERSIONS, API_VERSIONS_VERSION, API_VERSIONS_REQUEST, timeout_us)
        elif not may_be_sent(request.api_key, request.api_version, channel.announced or frozenset()):
            self._fail(channel)
        else:
            self.history.sent(channel.name, request)
            self._request(channel, request.api_key, request.api_version, request.body, request.timeout_us)

    def _negotiates_first(self, channel: Channel, request: GroupRequest) -> bool:  # noqa: ARG002
        """Return whether this channel sends ApiVersions on a new connection, before it sends the request."""
        return True

    def _learn(self, channel: Channel, node: NodeAddress, versions: object) -> None:
        """Pass the node's ApiVersions response to the client."""

    def _request(self, channel: Channel, api_key: int, api_version: int, body: object, timeout_us: int) -> None:
        process = self.journal.process
        self.journal.actions.append(Request(api_key, api_version, process, body, timeout_us, channel.number))

    def _take_response(self, channel: Channel, event: ResponseReceived) -> None:
        request = channel.request
        assert request is not None, "a response to no request"
        assert channel.node is not None, "a response from nobody"
        if channel.negotiating:
            channel.negotiating, channel.announced = False, announced_in(event.body)
            self._learn(channel, channel.node, event.body)
            self._go_on(channel, request)
            return
        channel.request = None
        self.history.response_received(channel.name, event)
        self.consumer.responded(channel.name, self.journal.now.mono_us, event.body)
        self.history.response_handled(channel.name)

    def _lost(self, channel: Channel, reason: str) -> None:
        """The connection is closed, so a request in flight gets no response."""
        if channel.request is None:
            return
        if not channel.negotiating:
            self.history.lost(channel.name, reason)
        self._fail(channel)

    def _fail(self, channel: Channel) -> None:
        channel.request, channel.negotiating = None, False
        self.consumer.failed(channel.name, self.journal.now.mono_us)

    def _disconnect(self, channel: Channel) -> None:
        if channel.node is not None:
            channel.node = None
            self.journal.actions.append(Disconnect(channel.number))


class ConsumerChannels(ClientChannels[GroupConsumer]):
    """The channels of a consumer. Those that use draft versions check whether the node serves them."""

    __slots__ = ()

    def _negotiates_first(self, channel: Channel, request: GroupRequest) -> bool:
        knows_epochs = self.consumer.config.metadata_epoch and channel.name in SPEAKS_DRAFTS
        return knows_epochs or request.api_version >= FIRST_DRAFT_VERSION

    def _learn(self, channel: Channel, node: NodeAddress, versions: object) -> None:  # noqa: ARG002
        self.consumer.metadata.learn_drafts(node, announces_drafts(versions))


class ProducerChannels(ClientChannels[TransactionalProducer]):
    """The channels of a transactional producer, which needs the nodes' versions and features."""

    __slots__ = ()

    def _learn(self, channel: Channel, node: NodeAddress, versions: object) -> None:  # noqa: ARG002
        self.consumer.learn_versions(node, versions)
