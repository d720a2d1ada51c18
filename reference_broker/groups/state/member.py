"""A member of a group, as its latest JoinGroup and the leader's latest assignment describe it."""

from dataclasses import dataclass
from typing import NamedTuple


class MemberProtocol(NamedTuple):
    """A way to assign partitions that a member knows (``range``), and what the member tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class Member:
    """One member, dynamic or static. The group that has it may change its ID (``Group.replace_static``)."""

    member_id: str
    group_instance_id: str | None
    """The ID of a static member (KIP-345), which stays the same when the member starts again."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """The protocols in the order of the member's preference."""
    assignment: bytes = b""
    """Bytes that only clients can read. They are empty where the member has no assignment."""
    is_new: bool = False
    """Its first JoinGroup has not been answered. It does not know its ID and can send no heartbeats."""
    awaits_join: bool = False
    """A JoinGroup of the member waits for the next generation. Only ``Group`` changes this, because it counts."""
    awaits_sync: bool = False
    """A SyncGroup of the member waits for the assignment."""

    @property
    def is_excused(self) -> bool:
        """The member waits for an answer, so it sends no heartbeats. A new member is never excused: nothing else would
        tell that its client is gone, and its JoinGroup would wait for ever."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def metadata(self, protocol: str | None) -> bytes:
        """Returns what the member said for a protocol. It is empty for a protocol that the member does not know."""
        for each in self.protocols:
            if each.name == protocol:
                return each.metadata
        return b""

    def vote(self, candidates: dict[str, int]) -> str:
        """Returns the first of its protocols that is a candidate. Every member knows every candidate."""
        return next(each.name for each in self.protocols if each.name in candidates)
