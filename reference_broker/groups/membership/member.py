"""A member of a group, as its latest JoinGroup and the leader's latest assignment say."""

from dataclasses import dataclass
from typing import NamedTuple


class MemberProtocol(NamedTuple):
    """A way to assign that a member knows (``range``), and what it has to tell the leader for that."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class Member:
    """``protocols``: in the order of the member's preference. ``assignment``: opaque bytes, empty where it has none."""

    member_id: str
    group_instance_id: str | None
    """Of a static member (KIP-345): what stays the same when the member starts again."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """Its first JoinGroup has not been answered: it does not know its ID and can send no heartbeats."""
    awaits_join: bool = False
    """A JoinGroup of it waits for the generation to begin. Changed by ``Group`` only, which counts."""
    awaits_sync: bool = False
    """A SyncGroup of it waits for the assignment."""

    @property
    def is_excused(self) -> bool:
        """It waits for an answer, so that it sends no heartbeats. A new one is not waited for without end."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def metadata(self, protocol: str | None) -> bytes:
        """What it said for a protocol; empty where it does not know it."""
        for each in self.protocols:
            if each.name == protocol:
                return each.metadata
        return b""

    def vote(self, candidates: dict[str, int]) -> str:
        """The first of its protocols that is a candidate. All members know every candidate, so there is one."""
        return next(each.name for each in self.protocols if each.name in candidates)
