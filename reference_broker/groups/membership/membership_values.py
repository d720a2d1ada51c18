"""What clients ask of membership and what they are told, apart from any version of the messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.groups.membership.member import MemberProtocol
from reference_broker.wire.errors import Error

UNKNOWN_MEMBER = ""
"""The member ID of one that has none yet."""
NO_GENERATION = -1
MOST_REASON_CHARACTERS = 255
"""Of a JoinGroup or LeaveGroup; clients send no more (KIP-800)."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup. ``needs_member_id``: the client can be told MEMBER_ID_REQUIRED (version 4 on, KIP-394);
    ``skips_assignment``: and that a leader need not assign (version 9, KIP-814)."""

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
    skips_assignment: bool = True


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader is told of a member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """``members``: for the leader only."""

    error: Error
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup. ``protocol_type`` and ``protocol`` are None before version 5 (KIP-559). ``assignments``: the leader's,
    by member ID."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: Error
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    """One member of a LeaveGroup: a static one may go by its instance alone (an empty member ID)."""

    member_id: str
    group_instance_id: str | None
    reason: str = ""


Joined: TypeAlias = Callable[[JoinAnswer], None]
Synced: TypeAlias = Callable[[SyncAnswer], None]
