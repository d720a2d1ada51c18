"""Connections to other nodes: one for each (peer, channel), dialled by the first ``Send``, requests pipelined in order.

A request needs no task and no future; each dial needs one short task. The node gets ``PeerUp`` when a connection was
accepted, ``PeerReply`` for each reply, and one ``PeerDown`` that ends everything without a reply.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Event, PeerDown, PeerReply, PeerUp, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.serve.log_lines import LogLines, describe_bug
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import Error, ErrorCode, ProtocolError, error_name, known_error
from reference_broker.wire.frames import FrameReader
from reference_broker.wire.messages import decode_response, encode_request

Address: TypeAlias = tuple[str, int]
"""Host and port."""

FindAddress: TypeAlias = Callable[[int, Channel], Address | None]
"""Returns the address of a node for a channel, or None if it is unknown. It is called for each dial."""

TO_CONTROLLERS = (Channel.RAFT, Channel.CONTROLLER, Channel.FORWARD)

REPLY_OVERHEAD_BYTES = 16 << 20
"""The size of another node's reply beside records: enough for some 200,000 partitions."""


def largest_reply_bytes(config: BrokerConfig) -> int:
    """Return the limit for a reply of another node: what a fetch requests or, if larger, one batch of a request.

    ``socket.request.max.bytes`` alone may be less than a follower fetches. The follower would then retry for ever.
    """
    return max(config.replica_fetch_response_max_bytes, config.socket_request_max_bytes) + REPLY_OVERHEAD_BYTES


def dial_map(config: BrokerConfig, node_id: int, registered: Callable[[int], Address | None]) -> FindAddress:
    """Return the function that finds the addresses of other nodes.

    Voters are where ``controller.quorum.voters`` says. Brokers are where ``crucible.peers`` says, or else where they
    are registered. If controllers have a listener of their own, the voters' addresses are only for requests to
    controllers. ``registered`` finds the address that a broker registered, as far as this node knows the metadata.
    """
    voters: Mapping[int, Address] = {each.node_id: (each.host, each.port) for each in config.voters(node_id)}
    peers: Mapping[int, Address] = {each.node_id: (each.host, each.port) for each in config.peers()}
    separate = bool(config.listener_plan().controllers)

    def find(peer: int, channel: Channel) -> Address | None:
        if separate and channel in TO_CONTROLLERS:
            return voters.get(peer)
        fixed = peers.get(peer) if separate else voters.get(peer) or peers.get(peer)
        return fixed or registered(peer)

    return find


FIXES: Mapping[int, str] = {
    ErrorCode.inconsistent_cluster_id: "it belongs to another cluster: give every node the same crucible.cluster.id, "
    "or this one another data directory",
    ErrorCode.inconsistent_voter_set: "it knows other voters: give every node the same IDs in controller.quorum.voters",
    ErrorCode.invalid_voter_key: "it is another voter than this node takes it for: correct its address in "
    "controller.quorum.voters",
    ErrorCode.duplicate_broker_registration: "it takes this node's earlier process for alive until "
    "broker.session.timeout.ms has passed since its last heartbeat: wait (if this goes on, another broker has this "
    "node's ID: give each node an ID of its own)",
    ErrorCode.invalid_registration: "it refuses this broker's registration: both must be of one version of Crucible",
    ErrorCode.unsupported_version: "it speaks or uses newer versions: both must be of one version of Crucible",
}


def refusal(body: object) -> Error | None:
    """Return the error of a response, or of its only partition, that retries will not change."""
    code = _code(body)
    if code == ErrorCode.none:
        topics = getattr(body, "topics", None)
        partitions = getattr(topics[0], "partitions", None) if topics else None
        code = _code(partitions[0]) if partitions else code
    return known_error(code) if code in FIXES else None


def _code(part: Any) -> int:
    return int(getattr(part, "error_code", ErrorCode.none))


MAX_OUTSTANDING = 1024
"""The number of requests of a channel without a reply; one more breaks the connection."""
MAX_UNSENT_BYTES = 16 << 20
"""The bytes of requests that a peer may leave unread; more breaks the connection."""
SHORTEST_LIFE_S = 0.02
"""The least time from a dial to its PeerDown, so that a node that retries at once with a refusing peer does not
spin."""


class _Outstanding(NamedTuple):
    token: int
    correlation_id: int
    api_key: int
    api_version: int
    deadline_s: float
    """Measured on the event loop's clock."""


@dataclass(slots=True)
class Peers:
    """The channels to all other nodes."""

    find_address: FindAddress
    loop: asyncio.AbstractEventLoop
    log: LogLines
    give: Callable[[Event], None]
    """Takes events one at a time. It is never called while ``send`` runs."""
    max_frame_bytes: int
    _channels: dict[tuple[int, Channel], "PeerChannel"] = field(default_factory=dict)

    def send(self, effect: Send) -> None:
        """Send a request, after connecting if needed. A peer without an address is down."""
        key = (effect.peer, effect.channel)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = PeerChannel(self, *key)
        channel.send(effect)

    def close(self) -> None:
        """Close all connections. No event is given after it."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


class PeerChannel:
    """One channel to one peer.

    At most one of these is set: ``_dialling`` (a connection is being made), ``_link`` (it is up) and ``_resting`` (it
    broke, and PeerDown follows). If none is set, the next send dials.
    """

    def __init__(self, owner: Peers, peer: int, channel: Channel) -> None:
        self.outstanding: deque[_Outstanding] = deque()
        """The sends without a reply, oldest first."""
        self._owner = owner
        self._peer = peer
        self._channel = channel
        self._correlation_id = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._dialled_s = 0.0
        self._dialling: asyncio.Task[None] | None = None
        self._link: _Link | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        """When ``_timer`` is due. uvloop makes a Handle without ``when`` for less than half a millisecond."""
        self._refusals: dict[int, Error | None] = {}
        """The refusals that were logged, by API key."""
        self._reported_down = False
        """True once the failure is logged. The next line follows the next reply."""
        self._closed = False

    def send(self, effect: Send) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        deadline_s = self._owner.loop.time() + effect.timeout_ms / 1000
        self.outstanding.append(
            _Outstanding(effect.token, self._correlation_id, effect.api_key, effect.api_version, deadline_s)
        )
        if self._resting is not None:
            return  # The PeerDown that follows ends this send, too.
        try:
            buffers = encode_request(
                effect.api_key, effect.api_version, self._correlation_id, effect.client_id, effect.body
            )
        except Exception as bug:
            self.broke(f"our {api_name(effect.api_key)} request cannot be encoded: {describe_bug(bug)}")
            return
        frame = b"".join(buffers)
        self._await_replies(deadline_s)
        if self._link is not None:
            self._link.transport.write(frame)
            unsent_bytes = self._link.transport.get_write_buffer_size()
        else:
            self._unsent.append(frame)
            self._unsent_bytes += len(frame)
            unsent_bytes = self._unsent_bytes
        if len(self.outstanding) > MAX_OUTSTANDING or unsent_bytes > MAX_UNSENT_BYTES:
            self.broke(f"{len(self.outstanding)} requests without a reply, {unsent_bytes} bytes not taken")
        elif self._link is None and self._dialling is None:
            self._dial()

    def close(self) -> None:
        self._closed = True
        if self._resting is not None:
            self._resting.cancel()
        self._release()

    # Connecting

    def _dial(self) -> None:
        self._dialled_s = self._owner.loop.time()
        address = self._owner.find_address(self._peer, self._channel)
        if address is None:
            self.broke("no address is known for it")
            return
        self._dialling = self._owner.loop.create_task(self._connect(*address))

    async def _connect(self, host: str, port: int) -> None:
        link = _Link(self, self._owner.max_frame_bytes)
        try:
            await self._owner.loop.create_connection(lambda: link, host, port)
        except OSError as failure:
            if self._dialling is asyncio.current_task():
                self.broke(failure.strerror or str(failure))

    def connected(self, link: "_Link") -> None:
        """The peer, or a proxy before it, has accepted the connection."""
        if self._closed or self._dialling is None:
            link.transport.abort()  # The channel broke in the same instant.
            return
        self._dialling = None
        self._link = link
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        link.transport.writelines(unsent)
        self._owner.give(PeerUp(self._peer, self._channel))

    # Replies

    def received(self, frame: memoryview) -> None:
        """Handle a reply. Raise ProtocolError."""
        if not self.outstanding:
            raise ProtocolError("a reply to nothing")
        sent = self.outstanding[0]
        correlation_id, body = _decoded(sent, frame)
        if correlation_id != sent.correlation_id:
            raise ProtocolError(f"a reply to request {correlation_id}, not {sent.correlation_id}")
        self.outstanding.popleft()
        self._log_refusal(refusal(body), sent.api_key)
        if self._reported_down:
            self._reported_down = False
            self._owner.log.info("peer_responds", peer=self._peer, channel=self._channel.name)
        self._owner.give(PeerReply(self._peer, self._channel, sent.token, body))

    def _log_refusal(self, error: Error | None, api_key: int) -> None:
        """Log a refusal once, until the request is accepted or refused for another reason."""
        known = self._refusals.get(api_key)
        if error is known:
            return
        self._refusals[api_key] = error
        if error is not None:
            facts = {"peer": self._peer, "channel": self._channel.name, "api": api_name(api_key)}
            self._owner.log.warn("peer_refuses", error=error_name(error), reason=FIXES[error], **facts)

    def is_current(self, link: "_Link") -> bool:
        return self._link is link

    def _await_replies(self, deadline_s: float) -> None:
        if self._timer is None or deadline_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = deadline_s
            self._timer = self._owner.loop.call_at(deadline_s, self._late)

    def _late(self) -> None:
        self._timer = None
        if not self.outstanding:
            return
        earliest_s = min(sent.deadline_s for sent in self.outstanding)
        if earliest_s <= self._owner.loop.time():
            self.broke("no reply in time")
        else:
            self._await_replies(earliest_s)

    # The end of a connection

    def broke(self, reason: str) -> None:
        """Drop the connection, whatever its state. PeerDown follows in a separate event."""
        if self._closed or self._resting is not None:
            return
        if not self._reported_down:
            self._reported_down = True
            facts = {"peer": self._peer, "channel": self._channel.name, "pending": len(self.outstanding)}
            self._owner.log.warn("peer_down", reason=reason, **facts)
        self._release()
        rest_s = max(0.0, self._dialled_s + SHORTEST_LIFE_S - self._owner.loop.time())
        self._resting = self._owner.loop.call_later(rest_s, self._down)

    def _down(self) -> None:
        self._resting = None
        self.outstanding.clear()
        self._owner.give(PeerDown(self._peer, self._channel))

    def _release(self) -> None:
        self._unsent, self._unsent_bytes = [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._dialling is not None:
            dialling, self._dialling = self._dialling, None
            dialling.cancel()
        if self._link is not None:
            link, self._link = self._link, None
            link.transport.abort()


def _decoded(sent: _Outstanding, frame: memoryview) -> tuple[int, object]:
    try:
        return decode_response(sent.api_key, sent.api_version, frame)
    except ProtocolError:
        raise
    except Exception as bug:
        # Nothing of the node's state was touched, so a bug in a codec costs no more than a bad frame.
        raise ProtocolError(f"our codec failed: {type(bug).__name__}: {bug}") from bug


class _Link(asyncio.Protocol):
    """One connection of a channel. What it receives is handled until the channel drops it."""

    def __init__(self, channel: PeerChannel, max_frame_bytes: int) -> None:
        self._channel = channel
        self._reader = FrameReader(max_frame_bytes)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._channel.connected(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while self._channel.is_current(self):
                frame = self._reader.next_frame()
                if frame is None:
                    return
                self._channel.received(frame)
        except ProtocolError as broken:
            self._channel.broke(f"malformed: {broken}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._channel.is_current(self):
            self._channel.broke("closed" if exc is None else f"lost ({exc})")
