"""What a node asks of its driver. The list is closed: see the table in reference_broker/core/README.md.

A driver carries out the effects of one event in order. Effects are named tuples, as events are.
"""

from typing import NamedTuple, TypeAlias

from reference_broker.ports.channels import Channel
from reference_broker.ports.store import StoreOperation
from reference_broker.wire.tags import Tag


class Reply(NamedTuple):
    """The answer to one Request. With ``body`` None no frame is sent (produce with acks=0); the request is done."""

    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    body: object | None
    tag: Tag


class Close(NamedTuple):
    """Close the connection after what was sent before. ``reason`` is one line for the log."""

    connection: int
    reason: str


class Send(NamedTuple):
    """A request to another node, in order with the others of its channel.

    The answer is a PeerReply with the same token or a PeerDown of the channel. The driver breaks the connection when
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
    """The request's client ID: what this node calls itself to others."""


class SetTimer(NamedTuple):
    """Give TimerFired(timer) once now.mono_us >= deadline_us. A timer number is set anew only after it fired."""

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
