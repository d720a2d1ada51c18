"""Which incremental fetch session a new one may replace while all slots are taken (KIP-227).

The rules use the sessions' current values and the minimum time of the old session's revision. This is deliberately
unlike Kafka, which sorts sessions by what they were when last used, and which lets equal or larger consumers' sessions
live only if they are younger than the limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from reference_broker.sessions.fetch_session import FetchSession


@dataclass(frozen=True, slots=True)
class Victim:
    """``rule`` is a, b or c, as below."""

    session: FetchSession
    rule: str


def idle_ms(session: FetchSession, wall_ms: int) -> int:
    """It is negative after the wall clock stepped back, which is no reason to evict."""
    return wall_ms - session.last_used_ms


def age_ms(session: FetchSession, wall_ms: int) -> int:
    return wall_ms - session.created_ms


def is_idle(session: FetchSession, wall_ms: int) -> bool:
    """Rule (b)."""
    return idle_ms(session, wall_ms) > session.revision.min_eviction_ms


def outranked_by(session: FetchSession, newcomer: FetchSession) -> bool:
    """Rule (a): a follower's session may take a consumer's."""
    return newcomer.privileged and not session.privileged


def outgrown_by(session: FetchSession, newcomer: FetchSession, wall_ms: int) -> bool:
    """Rule (c): a larger session may take an old one, a follower's too."""
    is_old = age_ms(session, wall_ms) > session.revision.min_eviction_ms
    return is_old and len(newcomer.partitions) > len(session.partitions)


def first_to_go(session: FetchSession) -> tuple[bool, int, int]:
    """The order among sessions that rules (a) and (c) allow: consumers, then the smallest, then the lowest ID."""
    return (session.privileged, len(session.partitions), session.session_id)


def find_victim(sessions: Iterable[FetchSession], newcomer: FetchSession, wall_ms: int) -> Victim | None:
    """The session that is idle longest by (b), else the first to go by (a) and (c). Costs one walk over all sessions.

    None means that the newcomer gets no session.
    """
    longest_idle: FetchSession | None = None
    first: FetchSession | None = None
    for session in sessions:
        if is_idle(session, wall_ms):
            if longest_idle is None or _used_before(session, longest_idle):
                longest_idle = session
        elif (outranked_by(session, newcomer) or outgrown_by(session, newcomer, wall_ms)) and (
            first is None or first_to_go(session) < first_to_go(first)
        ):
            first = session
    if longest_idle is not None:
        return Victim(longest_idle, "b")
    if first is not None:
        return Victim(first, "a" if outranked_by(first, newcomer) else "c")
    return None


def _used_before(session: FetchSession, other: FetchSession) -> bool:
    return (session.last_used_ms, session.session_id) < (other.last_used_ms, other.session_id)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A newcomer found no victim, from ``from_ms`` until just before ``until_ms``.

    Until then a newcomer that is not larger and not more privileged finds none either, as long as no session leaves,
    joins, changes size or goes back in time.
    """

    privileged: bool
    partitions: int
    from_ms: int
    until_ms: int

    def holds_for(self, newcomer: FetchSession, wall_ms: int) -> bool:
        return (
            self.from_ms <= wall_ms < self.until_ms
            and newcomer.privileged <= self.privileged
            and len(newcomer.partitions) <= self.partitions
        )


def refusal(sessions: Iterable[FetchSession], newcomer: FetchSession, wall_ms: int) -> Refusal:
    """What a newcomer without a victim tells about the next ones. Costs one walk over all sessions."""
    until_ms = 1 << 63
    for session in sessions:
        min_ms = session.revision.min_eviction_ms
        until_ms = min(until_ms, session.last_used_ms + min_ms + 1)
        if age_ms(session, wall_ms) <= min_ms:
            until_ms = min(until_ms, session.created_ms + min_ms + 1)
    return Refusal(newcomer.privileged, len(newcomer.partitions), wall_ms, until_ms)
