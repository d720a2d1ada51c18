"""Mutants of fetch sessions that no scenario names: what a session keeps, marks and watches, and who takes its slot."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.apis.records.fetch import DUE, PARKED
from reference_broker.sessions.cached_partition import is_lasting
from reference_broker.sessions.fetch_session_cache import age_ms
from reference_broker.wire.errors import ErrorCode

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
            self.changed.pop(cached, None)


@mutant(f"{CACHE}._recount")
def refusal_outlives_change(original: Function, self: Any, added: int) -> None:
    """A refused newcomer is remembered although sessions came, left or changed size since, so that a newcomer that may
    evict one of them now is declined (F-18)."""
    refusal = self._refusal
    original(self, added)
    self._refusal = refusal


@mutant(f"{SESSION}.after_response")
def error_sent_once(original: Function, self: Any, cached: Any, sent: Any, partitions: Any) -> None:
    """An error, a divergence or a preferred read replica that lasts is in one response only. A fetcher that comes back
    to the same leader, because its metadata was old, gets nothing more of that partition (F-14)."""
    was_marked = cached in self.changed
    original(self, cached, sent, partitions)
    if sent is not None and is_lasting(sent) and not was_marked:
        self.changed.pop(cached, None)
        cached.watch(partitions)


@mutant(f"{CACHE}._remove")
def parked_fetch_outlives_its_session(original: Function, self: Any, session: Any) -> Any:
    """A session that is evicted or closed does not end its parked fetch. That one times out, and its response has the
    ID of a session that is gone (F-9)."""
    fetch, session.fetch = session.fetch, None
    removed = original(self, session)
    session.fetch = fetch
    return removed


@mutant("reference_broker.sessions.cached_partition:CachedPartition.remember")
def cached_log_start_never_updated(original: Function, self: Any, wanted: Any, topic_id: bytes) -> None:
    """A session keeps the fetcher's log start offset from the first request that named the partition, so that
    DeleteRecords never learns that a follower has deleted the records (F-13)."""
    before = self.log_start_offset
    original(self, wanted, topic_id)
    if self.named_number >= 0:
        self.log_start_offset = before


@mutant("reference_broker.sessions.fetch_session_cache:outgrown_by")
def equal_size_evicts(original: Function, session: Any, newcomer: Any, wall_ms: int) -> bool:
    """A newcomer with as many partitions evicts an old session, not only one with more (F-18)."""
    is_old = age_ms(session, wall_ms) > session.revision.min_eviction_ms
    return is_old and len(newcomer.partitions) >= len(session.partitions)


@mutant("reference_broker.apis.records.fetch:Fetch._marked")
def parked_fetch_watches_once(original: Function, self: Any, cached: Any) -> None:
    """A parked fetch looks at the first change of a partition only. If that is an append, the high watermark that
    passes it later wakes nobody (F-14)."""
    if not self.stage.looks_up_changes or (self.at_work and self._is_refused(cached)):
        return
    self._look_up(cached)
    if self.stage is PARKED and self._is_completable():
        self._enter(DUE)
        self.broker.outside.at_end(self._complete_due)


@mutant(f"{SESSION}.response_sent")
def changes_during_long_response_lost(original: Function, self: Any) -> None:
    """Partitions that are marked while a response is being made lose their mark when it is sent, so that the next
    response lacks the change (F-14, F-20, G-5)."""
    self.changed = {}
    original(self)


@mutant("reference_broker.sessions.first_revision:FirstRevision.advance", revisions=("first",))
def retransmission_sends_only_news(original: Function, self: Any, session: Any, number: int) -> None:
    """A repeated request gets what changed since its first response, and not the partitions of that response, which may
    be lost (G-6)."""
    if number != session.number:
        original(self, session, number)


FETCH = "reference_broker.apis.records.fetch"
PARTITION = "reference_broker.apis.records.fetch_partition"


@mutant(f"{FETCH}:Fetch._is_completable")
def arrivals_end_no_wait(original: Function, self: Any) -> bool:
    """Data that arrive end no wait, so that each parked fetch lasts its max_wait_ms (F-14)."""
    return bool(original(self)) and not (self.stage is PARKED and not self.urgent)


@mutant(f"{FETCH}:Fetch._park")
def parked_longer_than_requested(original: Function, self: Any) -> None:
    """A fetch waits 200 ms longer than it requested (F-14)."""
    self.request = replace(self.request, max_wait_ms=self.request.max_wait_ms + 200)
    original(self)


@mutant(f"{CACHE}._overtaken")
def overtaken_fetch_stays_parked(original: Function, self: Any, session: Any, repeated: bool) -> bool:
    """A later request of the session leaves the parked one to its timer (F-3, G-3)."""
    session.unpark()
    return True


@mutant("reference_broker.apis.records.led_partitions:leader_epoch_error")
def newer_leader_epoch_fenced(original: Function, leader_epoch: int, request_epoch: int) -> Any:
    """A fetcher that knows a newer leader epoch is fenced, and looks for a leader that it knows already (F-13)."""
    error = original(leader_epoch, request_epoch)
    return ErrorCode.fenced_leader_epoch if error is ErrorCode.unknown_leader_epoch else error


@mutant(f"{PARTITION}:offsets_of")
def stable_offset_sent_too_high(original: Function, log: Any) -> tuple[int, int, int]:
    """A response has the high watermark in place of the last stable offset (F-14, X-4)."""
    high_watermark, _, log_start = original(log)
    return high_watermark, high_watermark, log_start


@mutant(f"{PARTITION}:read")
def partition_limit_ignored(
    original: Function, cached: Any, lookup: Any, reader: Any, max_bytes: int, at_least_one: bool
) -> Any:
    """The records of a partition may exceed its limit and that of the response (F-16)."""
    return original(cached, lookup, reader, 10 * max_bytes, at_least_one)


@mutant("reference_broker.sessions.cached_partition:CachedPartition.remember")
def cached_last_epoch_kept(original: Function, self: Any, wanted: Any, topic_id: bytes) -> None:
    """A session keeps the last fetched epoch from the first request that named the partition (F-13)."""
    before = self.last_fetched_epoch
    original(self, wanted, topic_id)
    if self.named_number >= 0:
        self.last_fetched_epoch = before


@mutant("reference_broker.replication.follower.fetcher:Fetcher._apply_one")
def follower_keeps_its_log_start_to_itself(original: Function, self: Any, name: Any, data: Any) -> None:
    """A follower names a partition only after records or an error, so that its leader never learns a log start that
    moved without them (F-12)."""
    was_named = name in self._to_name
    original(self, name, data)
    if not data.records and not data.error_code and data.diverging_epoch is None and not was_named:
        self._to_name.pop(name, None)


@mutant("reference_broker.sessions.cached_partition:CachedPartition.remember")
def seek_back_not_noted(original: Function, self: Any, wanted: Any, topic_id: bytes) -> None:
    """A fetcher that goes back to an earlier offset gets nothing of what it names again (F-13)."""
    before = self.fetch_offset
    original(self, wanted, topic_id)
    if self.named_number >= 0:
        self.fetch_offset = max(before, wanted.fetch_offset)


@mutant("reference_broker.sessions.final_revision:FinalRevision.reports", revisions=("final",))
def moved_log_start_is_no_news(original: Function, self: Any, session: Any, cached: Any, data: Any) -> bool:
    """A partition whose log start offset alone has changed is left out of the next response (F-14)."""
    known = cached.sent_log_start_offset
    cached.sent_log_start_offset = data.log_start_offset
    try:
        return bool(original(self, session, cached, data))
    finally:
        cached.sent_log_start_offset = known


@mutant("reference_broker.ports.slicing:_in_slices")
def last_slice_left_out(
    original: Function, items: Collection[Any], size: int, do: Callable[[Any], object]
) -> Generator[None, None, None]:
    """Work on so many partitions that it takes several slices ends before its last one. A request that names many
    does not add or update them all, and a response lacks some (F-13, F-14)."""
    yield from original(list(items)[: (len(items) - 1) // size * size], size, do)


@mutant("reference_broker.replication.follower.fetcher:Fetcher._apply_one")
def follower_names_one_partition_of_a_response(original: Function, self: Any, name: Any, data: Any) -> None:
    """After a response with records of several partitions a follower names only the first of them, and is sent the
    records of the others again (F-12)."""
    before = dict(self._to_name)
    original(self, name, data)
    if before and data.records:
        self._to_name = before
