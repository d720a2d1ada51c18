"""What can happen to a node. The list is closed: see the table in reference_broker/core/README.md.

Events are named tuples, which are cheap to make at every step. Tell them apart by their class: two events of different
classes may be equal by content.
"""

from typing import NamedTuple, TypeAlias

from reference_broker.ports.channels import Channel
from reference_broker.ports.store import StoreAnswer, StoreFailure
from reference_broker.wire.tags import Tag


class Opened(NamedTuple):
    """A client's connection was accepted. ``connection`` is a number never used twice by a driver. ``listener`` is the
    name of the listener that accepted it, or empty if the node has only one."""

    connection: int
    peer: str
    listener: str = ""


class Request(NamedTuple):
    """One decoded request. A driver gives the next request of a connection only after the Reply to this one.

    ``body`` is the latest-version value of the API (wire.messages), or a wire.fetch or wire.produce value. ``tag`` is
    what interceptors match. ``frame_bytes`` is the size on the wire (0 in the simulator).
    """

    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str
    body: object
    tag: Tag
    frame_bytes: int = 0


class Closed(NamedTuple):
    """The connection is gone; nothing more may be sent to it."""

    connection: int


class PeerUp(NamedTuple):
    """A channel to another node is usable: a connection that a Send asked for was accepted."""

    peer: int
    channel: Channel


class PeerReply(NamedTuple):
    """The answer to a Send. ``token`` is the Send's."""

    peer: int
    channel: Channel
    token: int
    body: object


class PeerDown(NamedTuple):
    """A channel to another node broke, was refused or hit a Send's timeout.

    Nobody knows whether its sends without a reply are lost. The next Send connects anew.
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
    """The disk could not make them durable; the node ends, since it no longer knows what it holds."""

    token: int
    reason: str


class StoreDone(NamedTuple):
    """The object store has done what the StoreCall asks for. ``answer`` depends on the operation."""

    token: int
    answer: StoreAnswer


class StoreFailed(NamedTuple):
    """The object store has not done it, or nobody knows."""

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
