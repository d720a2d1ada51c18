"""Second set: fetch sessions of both revisions, what they cache, count and evict."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.ports.slicing import Sliced

CACHE = "reference_broker.sessions.fetch_session_cache"
CACHED = "reference_broker.sessions.fetch_session:CachedPartition"
FIRST = "reference_broker.apis.records.first_revision:FirstRevisionSession"
ONLY_FIRST = ("first",)


# --- what is cached ---------------------------------------------------------------------------------------------------


@mutant(f"{CACHED}.bind")
def removed_partition_stays_bound(original: Function, self: Any, partitions: Any) -> Any:
    """A session goes on reading the partition that it found first, although this node no longer leads it, or its topic
    was deleted, so that it gets no NOT_LEADER_OR_FOLLOWER (F-13, F-14)."""
    return original(self, partitions) if self.partition is None else self.partition


@mutant(f"{CACHED}.remember")
def cached_max_bytes_never_updated(original: Function, self: Any, requested: Any, topic_id: bytes) -> None:
    """A session keeps the partition's maxBytes of the first request that named it, and ignores those of later ones
    (F-13, G-13)."""
    before = self.max_bytes
    original(self, requested, topic_id)
    if self.named_by_request >= 0:
        self.max_bytes = before


# --- what is counted and evicted --------------------------------------------------------------------------------------


@mutant(f"{CACHE}:FetchSessionCache.resized")
def forgotten_partitions_stay_counted(original: Function, self: Any, session: Any) -> None:
    """The count of cached partitions follows a session that grows, but not one that forgets partitions (F-21)."""
    if len(session.partitions) > session.counted:
        original(self, session)


@mutant(f"{CACHE}:FetchSessionCache.admit")
def age_of_session_never_noted(original: Function, self: Any, candidate: Any, now: Any) -> bool:
    """The time at which a session was created is not noted, so that each counts as older than the minimum, and a larger
    one evicts it at once (F-18)."""
    admitted: bool = original(self, candidate, now)
    candidate.created_ms = 0
    return admitted


@mutant(f"{CACHE}:_used_before")
def oldest_idle_session_evicted(original: Function, session: Any, other: Any) -> bool:
    """Of several idle sessions the one that was created first is evicted, and not the one that was idle longest
    (F-18)."""
    return bool((session.created_ms, session.session_id) < (other.created_ms, other.session_id))


@mutant(f"{CACHE}:eviction_key")
def followers_evicted_among_consumers(original: Function, session: Any) -> tuple[bool, int, int]:
    """Among the sessions that an older age and a smaller size make evictable, the smallest is evicted, whether it is a
    follower's or a consumer's (F-18, F-19)."""
    return (False, len(session.partitions), session.session_id)


# --- the first revision -----------------------------------------------------------------------------------------------


@mutant(f"{FIRST}.upcoming_sequence_number", revisions=ONLY_FIRST)
def change_belongs_to_sent_response(original: Function, self: Any) -> int:
    """A change after a response gets the dirty number of that response, so that the next one omits a high watermark or
    a log start that moved (G-5, G-6)."""
    number: int = self.sequence_number
    return number


@mutant(f"{FIRST}.accept_full", revisions=ONLY_FIRST)
def full_request_restarts_the_sequence(original: Function, self: Any, now: Any) -> Any:
    """A full request with a session's ID sets its sequence number back to 0, so that the next incremental request is
    refused (G-4)."""
    removed = original(self, now)
    self.sequence_number, self.epoch = 0, 1
    return removed


@mutant(f"{FIRST}.full_response_sent", revisions=ONLY_FIRST)
def partitions_keep_the_requests_order(original: Function, self: Any) -> Sliced[None]:
    """Incremental responses have the partitions in the order of the full request, and not by name and index (G-7)."""
    self.last_sent = {}
    return
    yield
