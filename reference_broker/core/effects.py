"""What a node asks of its driver. The list is closed: see the table in reference_broker/core/README.md.

A driver carries out the effects of one event in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.wire.tags import Tag


@dataclass(slots=True, frozen=True)
class Reply:
    """The answer to one Request. ``body`` None: no frame is sent (produce with acks=0), the request is done."""

    connection: int
    correlation_id: int
    api_key: int
    api_version: int
    body: object | None
    tag: Tag


@dataclass(slots=True, frozen=True)
class Close:
    """Close the connection after what was sent before. ``reason``: one line for the log."""

    connection: int
    reason: str


@dataclass(slots=True, frozen=True)
class Send:
    """A request to another node; answered by PeerReply with the same token, or by PeerDown."""

    peer: int
    token: int
    api_key: int
    api_version: int
    body: object
    tag: Tag


@dataclass(slots=True, frozen=True)
class SetTimer:
    """Give TimerFired(timer) once now.mono_us >= deadline_us. A timer number is set anew only after it fired."""

    timer: int
    deadline_us: int


@dataclass(slots=True, frozen=True)
class Sync:
    """Make all bytes appended so far to these paths durable, then give Synced(token)."""

    token: int
    paths: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Offload:
    """Run ``task`` outside the core (it touches nothing of the node's), then give TaskDone(token, result)."""

    token: int
    task: Callable[[], object]


@dataclass(slots=True, frozen=True)
class Note:
    """A line of the trace: what happened inside, for checks and for people. Values are ints or strings."""

    what: str
    fields: tuple[tuple[str, int | str], ...] = ()


Effect: TypeAlias = Reply | Close | Send | SetTimer | Sync | Offload | Note
