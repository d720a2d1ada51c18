"""The interface between a node and its driver: events in, effects out, and hooks between them.

Both lists are closed (``Event``, ``Effect``). A driver hands over one event at a time and
carries out its effects in order. Events and effects are named tuples, which are cheap to make at every step. Tell them
apart by their class: two of different classes may be equal by content.

The core holds no test code: fault injection and tracing are hooks of the driver (live and simulated alike).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from reference_broker.ports.node_ports import Channel, Now
from reference_broker.ports.store import StoreFailure, StoreOperation, StoreResult
from reference_broker.wire.tags import Tag


class Opened(NamedTuple):
    """A client's connection was accepted."""

    connection: int
    """A number that a driver never uses twice."""
    peer: str
    listener: str = ""
    """The name of the listener that accepted it, or empty if the node has only one."""


class Request(NamedTuple):
    """One decoded request. A driver gives the next request of a connection only after the Reply to this one."""

    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str
    body: object
    """The latest-version value of the API (wire.messages), or a wire.fetch or wire.produce value."""
    tag: Tag
    """The part of the event that interceptors match."""
    frame_bytes: int = 0
    """The size on the wire (0 in the simulator)."""


class Closed(NamedTuple):
    """The connection is gone; nothing more may be sent to it."""

    connection: int


class PeerUp(NamedTuple):
    """A channel to another node is usable: the connection that a Send needs was accepted."""

    peer: int
    channel: Channel


class PeerReply(NamedTuple):
    """The reply to a Send."""

    peer: int
    channel: Channel
    token: int
    """The Send's."""
    body: object


class PeerDown(NamedTuple):
    """A channel to another node broke, was refused or hit a Send's timeout.

    It is unknown whether its sends without a reply are lost. The next Send reconnects.
    """

    peer: int
    channel: Channel


class TimerFired(NamedTuple):
    """A deadline set by SetTimer passed."""

    timer: int


class Synced(NamedTuple):
    """All bytes appended to the Sync's paths before that Sync are durable."""

    token: int


class SyncFailed(NamedTuple):
    """The disk could not make them durable; the node ends, since it no longer knows what its files contain."""

    token: int
    reason: str


class StoreDone(NamedTuple):
    """The object store has carried out the StoreCall."""

    token: int
    result: StoreResult


class StoreFailed(NamedTuple):
    """The object store has not carried out the StoreCall, or that is unknown."""

    token: int
    failure: StoreFailure


Event: TypeAlias = (
    Opened
    | Request
    | Closed
    | PeerUp
    | PeerReply
    | PeerDown
    | TimerFired
    | Synced
    | SyncFailed
    | StoreDone
    | StoreFailed
)


class Reply(NamedTuple):
    """The response to one Request."""

    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    body: object | None
    """With None no frame is sent (produce with acks=0), and the request is done."""
    tag: Tag


class Close(NamedTuple):
    """Close the connection after what was sent before."""

    connection: int
    reason: str
    """One line for the log."""


class Send(NamedTuple):
    """A request to another node, in order with the others of its channel.

    It ends with a PeerReply with the same token or a PeerDown of the channel. The driver breaks the connection when
    ``timeout_ms`` pass without the reply.
    """

    peer: int
    channel: Channel
    token: int
    api_key: int
    api_version: int
    body: object
    tag: Tag
    timeout_ms: int
    client_id: str
    """The client ID of this node."""


class SetTimer(NamedTuple):
    """Give TimerFired(timer) once now.mono_us >= deadline_us. A timer number is set again only after it fired."""

    timer: int
    deadline_us: int


class Sync(NamedTuple):
    """Make all bytes appended so far to these paths durable, then give Synced(token)."""

    token: int
    paths: tuple[str, ...]


class StoreCall(NamedTuple):
    """Carry out the operation on the object store, then give StoreDone(token) or StoreFailed(token), exactly one."""

    token: int
    operation: StoreOperation


class Note(NamedTuple):
    """A line of the trace: what happened inside, for checks and for people. Values are ints or strings."""

    what: str
    fields: tuple[tuple[str, int | str], ...] = ()


Effect: TypeAlias = Reply | Close | Send | SetTimer | Sync | StoreCall | Note


class Hooks(Protocol):
    """Called around every ``node.handle``, in the order in which they were given."""

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        """Return the events for the node instead of ``event``: empty drops it, two duplicate it."""
        ...

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:
        """Return the effects for the driver instead of ``effects``, which ``event`` led to."""
        ...
