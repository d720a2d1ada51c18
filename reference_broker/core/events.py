"""What can happen to a node. The list is closed: see the table in reference_broker/core/README.md."""

from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.wire.tags import Tag


@dataclass(slots=True, frozen=True)
class Opened:
    """A client's connection was accepted. ``connection`` is a number never used twice by a driver."""

    connection: int
    peer: str


@dataclass(slots=True, frozen=True)
class Request:
    """One decoded request. A driver gives the next request of a connection only after the Reply to this one.

    ``body``: the latest-version value of the API (wire.messages), or wire.fetch / wire.produce values.
    ``tag``: what interceptors match; ``frame_bytes`` the size on the wire (0 in the simulator).
    """

    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str
    body: object
    tag: Tag
    frame_bytes: int = 0


@dataclass(slots=True, frozen=True)
class Closed:
    """The connection is gone; nothing more may be sent to it."""

    connection: int


@dataclass(slots=True, frozen=True)
class PeerUp:
    """The link to another node is usable."""

    peer: int


@dataclass(slots=True, frozen=True)
class PeerReply:
    """The answer to a Send. ``token`` is the Send's."""

    peer: int
    token: int
    body: object


@dataclass(slots=True, frozen=True)
class PeerDown:
    """The link to another node broke; sends without a reply are lost or not, nobody knows."""

    peer: int


@dataclass(slots=True, frozen=True)
class TimerFired:
    """A deadline set by SetTimer passed."""

    timer: int


@dataclass(slots=True, frozen=True)
class Synced:
    """All bytes appended to the Sync's paths before that Sync are durable."""

    token: int


@dataclass(slots=True, frozen=True)
class SyncFailed:
    """The disk could not make them durable; the node ends, since it no longer knows what it holds."""

    token: int
    reason: str


@dataclass(slots=True, frozen=True)
class TaskDone:
    """An Offload finished. ``result`` is the task's, or the exception that it raised."""

    token: int
    result: object


Event: TypeAlias = (
    Opened | Request | Closed | PeerUp | PeerReply | PeerDown | TimerFired | Synced | SyncFailed | TaskDone
)
