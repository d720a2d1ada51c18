"""Mutants of fetch sessions that no scenario names: what a session keeps, marks and watches, and who takes its slot."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Iterable
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.apis.records.fetch import DUE, LOOKING_UP, PARKED
from reference_broker.sessions.fetch_session import is_lasting
from reference_broker.sessions.fetch_session_cache import age_ms

SESSION = "reference_broker.sessions.fetch_session:FetchSession"
CACHE = "reference_broker.sessions.fetch_session_cache:FetchSessionCache"


@mutant(f"{SESSION}.forget")
def forgotten_partition_keeps_its_bytes(
    original: Function, self: Any, topic: str, topic_id: bytes, indexes: Iterable[int]
) -> None:
    """The readable bytes of a forgotten partition still count for its session, so that no later fetch waits (F-12,
    F-14)."""
    for index in indexes:
        cached = self.partitions.pop(self.key(topic, topic_id, index), None)
        if cached is not None:
            cached.leave()
            self.marked.pop(cached, None)


@mutant(f"{CACHE}._recount")
def refusal_outlives_change(original: Function, self: Any, added: int) -> None:
    """A refused candidate is remembered although sessions came, left or changed size since, so that one that may evict
    one of them now is declined (F-18)."""
    refusal = self._refusal
    original(self, added)
    self._refusal = refusal


@mutant(f"{SESSION}.after_response")
def error_sent_once(original: Function, self: Any, cached: Any, sent: Any, partitions: Any) -> None:
    """An error, a divergence or a preferred read replica that lasts is in one response only. A fetcher that comes back
    to the same leader, because its metadata was old, gets nothing more of that partition (F-14)."""
    was_marked = cached in self.marked
    original(self, cached, sent, partitions)
    if sent is not None and is_lasting(sent) and not was_marked:
        self.marked.pop(cached, None)
        cached.watch(partitions)


@mutant(f"{CACHE}._remove")
def parked_fetch_outlives_its_session(original: Function, self: Any, session: Any) -> Any:
    """A session that is evicted or closed does not end its parked fetch. That one times out, and its response has the
    ID of a session that is gone (F-9)."""
    fetch, session.fetch = session.fetch, None
    removed = original(self, session)
    session.fetch = fetch
    return removed


@mutant("reference_broker.sessions.fetch_session:CachedPartition.remember")
def cached_log_start_never_updated(original: Function, self: Any, requested: Any, topic_id: bytes) -> None:
    """A session keeps the fetcher's log start offset from the first request that named the partition, so that
    DeleteRecords never learns that a follower has deleted the records (F-13)."""
    before = self.log_start_offset
    original(self, requested, topic_id)
    if self.named_by_request >= 0:
        self.log_start_offset = before


@mutant("reference_broker.sessions.fetch_session_cache:is_evictable_by_size")
def equal_size_evicts(original: Function, session: Any, candidate: Any, wall_ms: int) -> bool:
    """A candidate with as many partitions evicts an old session, not only one with more (F-18)."""
    is_old = age_ms(session, wall_ms) > session.min_eviction_ms
    return is_old and len(candidate.partitions) >= len(session.partitions)


@mutant("reference_broker.apis.records.fetch:Fetch._look_up_changed")
def parked_fetch_watches_once(original: Function, self: Any, cached: Any) -> None:
    """A parked fetch looks at the first change of a partition only. If that is an append, the high watermark that
    passes it later wakes nobody (F-14)."""
    if not self.stage.looks_up_changes or (self.stage is LOOKING_UP and self._is_refused(cached)):
        return
    self._look_up(cached)
    if self.stage is PARKED and self._is_completable():
        self._enter(DUE)
        self.broker.ports.at_end(self._complete_due)


@mutant("reference_broker.apis.records.fetch_response:ResponseBuilder.response")
def changes_during_long_response_lost(original: Function, self: Any, broker: Any, call: Any) -> Any:
    """Partitions that are marked while a response is being made lose their mark when it is sent, so that the next
    response lacks the change (F-14, F-20, G-5)."""
    self.session.marked = {}
    return original(self, broker, call)


@mutant("reference_broker.apis.records.first_revision:FirstRevisionSession.advance", revisions=("first",))
def retransmission_sends_only_changes(original: Function, self: Any, request_epoch: int) -> None:
    """A repeated request gets what changed since its first response, and not the partitions of that response, which may
    be lost (G-6)."""
    if request_epoch != self.sequence_number:
        original(self, request_epoch)
