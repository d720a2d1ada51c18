"""Requests and responses of the classic group protocol: as the coordinator handles them in any version."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reference_broker.wire.errors import Error

UNKNOWN_MEMBER = ""
"""The member ID of a client that has none yet."""
NO_GENERATION = -1
MAX_REASON_CHARACTERS = 255
"""The longest reason of a JoinGroup or LeaveGroup that clients send (KIP-800)."""


class MemberProtocol(NamedTuple):
    """A protocol (assignor) that a member supports, such as ``range``, and its metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    reason: str = ""
    needs_member_id: bool = True
    """The client supports MEMBER_ID_REQUIRED (version 4 on, KIP-394)."""
    skips_assignment: bool = True
    """The client supports ``skip_assignment`` (version 9 on, KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member in the leader's response to JoinGroup."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """The response to JoinGroup."""

    error: Error
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """Only the leader's response has them."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    """None before version 5, as ``protocol`` (KIP-559)."""
    protocol: str | None
    assignments: dict[str, bytes]
    """By member ID. Only the leader sends them."""


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The response to SyncGroup."""

    error: Error
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    """One member of a LeaveGroup. A static member may be named by its instance alone, with an empty member ID."""

    member_id: str
    group_instance_id: str | None
    reason: str = ""


JoinCallback: TypeAlias = Callable[[JoinResponse], None]
"""Responds to a JoinGroup. Called once."""
SyncCallback: TypeAlias = Callable[[SyncResponse], None]
"""Responds to a SyncGroup. Called once."""
