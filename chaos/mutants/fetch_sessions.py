"""Mutants of fetch sessions (KIP-227): those of both revisions and of the final one, then those of the first one."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from dataclasses import replace
from typing import Any
from zlib import crc32

from chaos.checks.log.batches import batches_of
from chaos.mutants.mutant import Function, Mutant, mutant
from reference_broker.apis.records.first_revision import FirstRevisionSession
from reference_broker.ports.slicing import Sliced
from reference_broker.sessions.fetch_session_cache import EvictableSession
from reference_broker.wire.errors import DraftError, ErrorCode
from reference_broker.wire.fetch import INCREMENTAL_FETCH_RESPONSE

SESSION = "reference_broker.sessions.fetch_session"
CACHE = "reference_broker.sessions.fetch_session_cache"
FIRST = "reference_broker.apis.records.first_revision"
READING = "reference_broker.apis.records.fetch_partition"
FETCH = "reference_broker.apis.records.fetch"
LARGEST_EPOCH = 2**31 - 1
ONLY_FINAL = ("final",)


@mutant(f"{SESSION}:FetchSession.after_response")
def change_mark_cleared_when_sent(original: Function, self: Any, cached: Any, sent: Any, partitions: Any) -> None:
    """Records are not sent again before the fetcher names an offset, even if the response was lost (F-14, F-20, G-5,
    G-6)."""
    original(self, cached, sent, partitions)
    if sent is not None and sent.records:
        self.set_available_bytes(cached, 0)
        getattr(self, "last_sent", {}).pop(cached, None)  # of the first revision
        getattr(self, "dirty_sequence_numbers", {}).pop(cached, None)


@mutant(f"{SESSION}:FetchSession.expects_epoch", revisions=ONLY_FINAL)
def epoch_not_advanced_when_response_lost(original: Function, self: Any, request_epoch: int) -> bool:
    """The epoch advances only when the next request arrives, so a resent request is accepted (F-3, F-10, F-20)."""
    following = 1 if request_epoch == LARGEST_EPOCH else request_epoch + 1
    if self.accepted_requests > 0 and following == self.epoch:
        self.epoch = request_epoch
    return bool(original(self, request_epoch))


@mutant(f"{CACHE}:FetchSessionCache.lookup")
def no_epoch_comparison(original: Function, self: Any, session_id: int, request_epoch: int, kind: Any) -> Any:
    """Any epoch or number of a known session is accepted (F-10, F-20, G-3)."""
    result = original(self, session_id, request_epoch, kind)
    session = self.find(session_id, kind)
    is_known = session is not None and kind.is_epoch(request_epoch)
    return session if is_known and result is kind.wrong_epoch else result


@mutant(f"{CACHE}:FetchSessionCache.lookup")
def session_closed_on_wrong_epoch(original: Function, self: Any, session_id: int, request_epoch: int, kind: Any) -> Any:
    """A wrong epoch or number closes the session (F-10, G-3)."""
    result = original(self, session_id, request_epoch, kind)
    if result is kind.wrong_epoch:
        self.close(session_id, "wrong epoch")
    return result


class _Always:
    """A replacement for a random number generator that always returns the same number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def randint(self, low: int, high: int) -> int:  # noqa: ARG002
        return self._number


@mutant(f"{CACHE}:FetchSessionCache.admit", revisions=ONLY_FINAL)
def cache_keyed_by_client_id(original: Function, self: Any, candidate: Any, now: Any) -> bool:
    """A session's ID is derived from its client's ID, so a client's new session has the ID of its old one (F-2,
    F-9)."""
    return admitted_by_client_id(original, self, candidate, now)


def admitted_by_client_id(original: Function, self: Any, candidate: Any, now: Any) -> bool:
    number = 1 + crc32(candidate.client_id.encode()) % (2**31 - 1)
    self.close(number, "its client came again")
    random, self.random = self.random, _Always(number)
    try:
        return bool(original(self, candidate, now))
    finally:
        self.random = random


@mutant(f"{SESSION}:FetchSession.forget", revisions=ONLY_FINAL)
def forgotten_list_ignored(original: Function, self: Any, topic: str, topic_id: bytes, indexes: Any) -> None:
    """A partition that a fetcher forgets stays in its session (F-12)."""


@mutant(f"{CACHE}:FetchSessionCache.find_evictable")
def least_recently_used_evicted(original: Function, self: Any, candidate: Any, wall_ms: int, among: Any) -> Any:
    """A full cache evicts the least recently used session (F-18, G-11)."""
    return EvictableSession(min(among, key=lambda each: (each.last_used_ms, each.session_id)), "b")


@mutant(f"{SESSION}:next_epoch", revisions=ONLY_FINAL)
def epoch_overflows_to_negative(original: Function, epoch: int) -> int:
    """-2^31 follows 2^31-1 (F-3)."""
    return -(2**31) if epoch == LARGEST_EPOCH else epoch + 1


@mutant(f"{SESSION}:next_epoch", revisions=ONLY_FINAL)
def epoch_wraps_to_zero(original: Function, epoch: int) -> int:
    """0 follows 2^31-1, which requests a new session (F-3, F-6)."""
    return 0 if epoch == LARGEST_EPOCH else epoch + 1


@mutant("reference_broker.core.call_admission:ActiveCall.respond")
def responses_logged_without_session(
    original: Function, self: Any, body: Any, *, api_version: int | None = None
) -> None:
    """The lines of responses in trace and log have no session (F-23)."""
    request = self._request
    self._request = request._replace(tag=request.tag._replace(session_id=0, session_epoch=-1))
    original(self, body, api_version=api_version)


@mutant(f"{CACHE}:FetchSessionCache.admit")
def session_forgets_its_maker(original: Function, self: Any, candidate: Any, now: Any) -> bool:
    """A session does not store its consumer's client ID, and no line contains it (G-2)."""
    candidate.client_id = ""
    return bool(original(self, candidate, now))


@mutant("reference_broker.apis.records.partition_errors:leader_epoch_error", revisions=ONLY_FINAL)
def leader_epoch_not_checked(original: Function, leader_epoch: int, request_epoch: int) -> Any:
    """Any leader epoch of a fetcher is accepted (F-13)."""
    return original(leader_epoch, leader_epoch)


@mutant(f"{SESSION}:FetchSession.move_to_end", revisions=ONLY_FINAL)
def no_rotation(original: Function, self: Any, cached: Any) -> None:
    """A partition that returned data keeps its place in the list (F-15)."""


@mutant(f"{CACHE}:FetchSessionCache.new_id")
def counted_session_ids(original: Function, self: Any, largest_id: int) -> int:
    """Session IDs are counted from 1 at each start (F-2, F-9, G-1)."""
    session_id = 1
    while session_id in self.sessions:
        session_id += 1
    return session_id


@mutant(f"{CACHE}:is_idle")
def negative_idle_time_evicts(original: Function, session: Any, wall_ms: int) -> bool:
    """A session counts as idle if the clock was set back to before its last use (F-18, G-11)."""
    return bool(original(session, wall_ms)) or wall_ms < session.last_used_ms


@mutant(f"{READING}:read")
def no_batch_beyond_the_limit(
    original: Function, cached: Any, lookup: Any, isolation: Any, max_bytes: int, at_least_one: bool
) -> Any:
    """A batch that is larger than the limits is never sent, so no fetcher gets past it (F-16)."""
    return original(cached, lookup, isolation, max_bytes, False)


@mutant("reference_broker.apis.records.k01_fetch:_fetch_all", revisions=ONLY_FINAL)
def session_outlives_its_farewell(original: Function, broker: Any, call: Any, request: Any) -> Any:
    """A session that its fetcher closes keeps its slot (F-8)."""
    return original(broker, call, replace(request, session_id=0) if request.session_epoch == -1 else request)


@mutant(f"{FETCH}:Fetch._leave_session", revisions=ONLY_FINAL)
def session_outlives_its_last_partition(original: Function, self: Any) -> Any:
    """A session whose last partition is forgotten keeps its slot (F-7)."""
    return iter(())


@mutant(f"{FETCH}:Fetch._complete")
def returns_every_partition(original: Function, self: Any) -> Any:
    """Each incremental response contains every partition of its session (F-14, G-6)."""
    for cached in self.session.partitions.values():
        self.session.mark(cached)
        self._look_up(cached)
        cached.sent_high_watermark = -1
    return original(self)


@mutant(f"{SESSION}:FetchSession.belongs_in_response", revisions=ONLY_FINAL)
def only_records_count_as_changes(original: Function, self: Any, cached: Any, data: Any) -> bool:
    """A partition whose high watermark has changed is omitted from a response without room for its records (F-14)."""
    is_full = self.accepted_requests == 0
    return bool(data.records or data.error_code) or is_full


@mutant(f"{FETCH}:Fetch._record_sent")
def sent_data_moves_cached_offset(original: Function, self: Any, data: Any, marked: Any) -> Sliced[None]:
    """Records that were sent to a follower count as fetched by it (F-22, G-8)."""
    yield from original(self, data, marked)
    leaders, request = self.broker.replication.leaders, self.request
    for cached, sent in data.items():
        batches = list(batches_of(bytes(sent.records or b"")))
        if batches and request.replica_id >= 0 and cached.partition is not None:
            cached.fetch_offset = max(cached.fetch_offset, batches[-1][0].last_offset + 1)
            leaders.fetched(cached.partition, cached, request.replica_id, request.replica_epoch)
    leaders.notify_watchers()


@mutant(f"{SESSION}:FetchSession.touch")
def last_use_not_noted(original: Function, self: Any, now: Any) -> None:
    """The time of a session's last use stays that of its creation (F-1, F-18, G-11)."""
    before = self.last_used_ms
    original(self, now)
    self.last_used_ms = before or self.last_used_ms


@mutant(f"{CACHE}:FetchSessionCache._evictable_for")
def declined_while_slots_are_free(original: Function, self: Any, candidate: Any, wall_ms: int) -> Any:
    """The last slot is never used (F-5, F-17)."""
    return None if len(self.sessions) == self.slots - 1 else original(self, candidate, wall_ms)


@mutant(f"{CACHE}:FetchSessionCache._evictable_for")
def one_session_too_many(original: Function, self: Any, candidate: Any, wall_ms: int) -> Any:
    """There is one more session than slots (F-17)."""
    return [] if len(self.sessions) == self.slots else original(self, candidate, wall_ms)


@mutant(f"{CACHE}:is_evictable_by_privilege")
def followers_not_privileged(original: Function, session: Any, candidate: Any) -> bool:
    """A follower's session does not evict a consumer's (F-18, F-19)."""
    return False


@mutant(f"{CACHE}:is_evictable_by_size")
def larger_sessions_wait(original: Function, session: Any, candidate: Any, wall_ms: int) -> bool:
    """A larger session does not evict an old one (F-18)."""
    return False


@mutant(f"{CACHE}:FetchSessionCache._evict")
def evictions_not_counted(original: Function, self: Any, evictable: Any, candidate: Any, wall_ms: int) -> None:
    """An eviction is not counted in IncrementalFetchSessionEvictionsPerSec (F-21)."""
    original(self, evictable, candidate, wall_ms)
    self._evictions.value -= 1


@mutant(f"{FETCH}:Fetch._keep_session", revisions=ONLY_FINAL)
def session_without_request(original: Function, self: Any) -> bool:
    """Each full fetch gets a session, also one that requests none (F-4)."""
    self.request = replace(self.request, session_epoch=0)
    return bool(original(self))


@mutant(f"{CACHE}:FetchSessionCache.lookup", revisions=ONLY_FINAL)
def draft_errors_outside_drafts(original: Function, self: Any, session_id: int, request_epoch: int, kind: Any) -> Any:
    """A request of the final revision is rejected with an error code that only drafts have (D-2)."""
    result = original(self, session_id, request_epoch, kind)
    return DraftError.INVALID_FETCH_SESSION if isinstance(result, ErrorCode) else result


@mutant(
    "reference_broker.client.session_handler:FetchSessionHandler.handle_response", side="client", revisions=ONLY_FINAL
)
def session_kept_after_error(original: Function, self: Any, response: Any) -> Any:
    """A fetcher continues its session after a top-level error, and so receives no more changes (F-11)."""
    number = self.session_epoch
    found = original(self, response)
    if response.error_code and self.session_id:
        self.session_epoch = number
    return found


@mutant("reference_broker.sessions.fetch_session:CachedPartition.remember_sent")
def offsets_of_moved_records_count_as_sent(original: Function, self: Any, sent: Any) -> None:
    """The offsets in a response with OFFSET_MOVED_TO_TIERED_STORAGE count as sent, so the follower never gets the state
    of the partition after that (F-14)."""
    original(self, sent)
    if sent.error_code == ErrorCode.offset_moved_to_tiered_storage:
        self.sent_high_watermark, self.sent_log_start_offset = sent.high_watermark, sent.log_start_offset


LAYOUT = "reference_broker.wire.fetch_drafts"
LENGTH_AND_CORRELATION_ID = 8
"""The bytes before the body of a response's frame."""
ONLY_FIRST = ("first",)


@mutant(f"{FIRST}:FirstRevisionSession.accept_full", revisions=ONLY_FIRST)
def replaced_partitions_kept(original: Function, self: Any, now: Any) -> Any:
    """A full request adds partitions to its session, and removes none (G-4)."""
    for key, cached in original(self, now).items():
        cached.cached_in = self.partitions
        self.partitions[key] = cached
        self.recheck(cached)
    return {}


@mutant(f"{CACHE}:FetchSessionCache.admit", revisions=ONLY_FIRST)
def session_id_of_client_id(original: Function, self: Any, candidate: Any, now: Any) -> bool:
    """A session's ID is derived from its client's ID, so a client's new session has the ID of its old one (G-1)."""
    return admitted_by_client_id(original, self, candidate, now)


@mutant(f"{FIRST}:FirstRevisionSession.advance", revisions=ONLY_FIRST)
def sequence_number_in_32_bits(original: Function, self: Any, request_epoch: int) -> None:
    """-2^31 follows 2^31-1 (G-3)."""
    original(self, request_epoch)
    self.sequence_number = (self.sequence_number + 2**31) % 2**32 - 2**31


@mutant(f"{FIRST}:FirstRevisionSession.start", revisions=ONLY_FIRST)
def no_modulo_rotation(original: Function, self: Any) -> int:
    """Each response begins at the first partition (G-7)."""
    return 0


@mutant(f"{FIRST}:FirstRevisionSession.response_sent", revisions=ONLY_FIRST)
def number_not_carried_over(original: Function, self: Any, sent: Any, marked: Any, partitions: Any) -> Any:
    """A partition that the size limit excludes from response N is not marked for response N + 1 (G-5)."""
    omitted = dict.fromkeys(marked)
    for cached in self.partitions.values():
        if cached.available_bytes and cached not in sent:
            self.set_available_bytes(cached, 0)
            self.dirty_sequence_numbers[cached] = 0
            omitted.setdefault(cached)
    return original(self, sent, omitted, partitions)


@mutant(f"{FIRST}:_lookup", revisions=ONLY_FIRST)
def incremental_served_without_session(original: Function, sessions: Any, request: Any, named_session: Any) -> Any:
    """An incremental request of an unknown session is served (G-4, G-10)."""
    if named_session is not None:
        return original(sessions, request, named_session)
    session = FirstRevisionSession(sessions.arrivals, False, False, session_id=request.session_id)
    session.serves_full = False
    session.sequence_number = request.session_epoch - 1
    return session


@mutant(f"{FIRST}:FirstRevisionSession.has_parked", revisions=ONLY_FIRST)
def retransmission_refuses_the_waiting(original: Function, self: Any, request_epoch: int) -> bool:
    """If a request is resent while the first one is parked, the first one ends with InvalidFetchSession (G-3)."""
    return False


@mutant(f"{FIRST}:FirstRevisionSession.deny", revisions=ONLY_FIRST)
def denied_session_invites_incremental_fetches(original: Function, self: Any) -> Any:
    """The response of a session that caches nothing has INCREMENTAL_FETCH_OK set, and the session accepts incremental
    fetches (G-10)."""
    left = original(self)
    self.denied = False
    return left


@mutant(f"{FIRST}:FirstRevisionSession.response_flags", revisions=ONLY_FIRST)
def incremental_responses_not_marked(original: Function, self: Any) -> int:
    """No response is marked as incremental (G-9)."""
    return int(original(self)) & ~INCREMENTAL_FETCH_RESPONSE


@mutant(f"{FIRST}:error_response", revisions=ONLY_FIRST)
def errors_without_text(original: Function, error: Any, request: Any, session: Any) -> Any:
    """No error has a message beside it (G-9)."""
    return replace(original(error, request, session), error_string=None)


@mutant(f"{FIRST}:error_response", revisions=ONLY_FIRST)
def rejected_sessions_called_closed(original: Function, error: Any, request: Any, session: Any) -> Any:
    """A rejection has session ID 0 although the session exists (G-9)."""
    return original(error, request, None)


def _read_sooner(original: Function, version: int, frame: Any, offset: int) -> Any:
    whole = bytes(frame)
    at = _behind_text(whole, offset)
    turned = whole[:at] + whole[at + 1 : at + 9] + whole[at : at + 1] + whole[at + 9 :]
    return original(version, memoryview(turned), offset)


def _behind_text(frame: bytes, at: int) -> int:
    """Return the position of the session ID: behind the throttle time, the error and its text."""
    size = int.from_bytes(frame[at + 6 : at + 8], "big", signed=True)
    return at + 8 + max(size, 0)


_READS = Mutant("flags_read_before_the_session_id", f"{LAYOUT}:decode_draft_response", _read_sooner)


@mutant(f"{LAYOUT}:encode_draft_response", revisions=ONLY_FIRST, partner=_READS)
def flags_before_the_session_id(original: Function, version: int, correlation_id: int, response: Any) -> Any:
    """Responses have the flags before the session ID, and our clients decode them in this order (G-12)."""
    frame = b"".join(bytes(part) for part in original(version, correlation_id, response))
    at = _behind_text(frame, LENGTH_AND_CORRELATION_ID)
    return [frame[:at] + frame[at + 8 : at + 9] + frame[at : at + 8] + frame[at + 9 :]]
