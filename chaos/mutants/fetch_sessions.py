"""Mutants of the fetch sessions (KIP-227) that both revisions have, and those of the final one."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

from chaos.checks.batches import batches_of
from chaos.mutants.mutant import Mutant
from reference_broker.sessions.eviction import Victim

SESSION = "reference_broker.sessions.fetch_session"
CACHE = "reference_broker.sessions.fetch_session_cache"
EVICTION = "reference_broker.sessions.eviction"
FINAL = "reference_broker.sessions.final_revision"
READING = "reference_broker.apis.records.fetch_reading"
WAITING = "reference_broker.apis.records.fetch_waiting"
LARGEST_EPOCH = 2**31 - 1
ONLY_FINAL = ("final",)
Function = Callable[..., Any]


def _change_mark_cleared_when_sent(original: Function) -> Function:
    def settle(self: Any, cached: Any, sent: Any, partitions: Any) -> None:
        original(self, cached, sent, partitions)
        if sent is not None and sent.records:
            self.assess(cached, 0)
            self.last_told.pop(cached, None)
            cached.change_number = 0

    return settle


def _epoch_not_advanced_when_response_lost(original: Function) -> Function:
    def accept_epoch(self: Any, request_epoch: int) -> bool:
        following = 1 if request_epoch == LARGEST_EPOCH else request_epoch + 1
        if self.number > 0 and following == self.epoch:
            self.epoch = request_epoch
        return bool(original(self, request_epoch))

    return accept_epoch


def _no_epoch_comparison(original: Function) -> Function:  # noqa: ARG001
    def accept_epoch(self: Any, request_epoch: int) -> bool:  # noqa: ARG001
        return True

    return accept_epoch


def _session_closed_on_wrong_epoch(original: Function) -> Function:
    def numbered(self: Any, session_id: int, number: int, revision: Any) -> Any:
        found = original(self, session_id, number, revision)
        if found is revision.wrong_number:
            self.close(session_id, "wrong epoch")
        return found

    return numbered


def _epoch_overflows_to_negative(original: Function) -> Function:  # noqa: ARG001
    def next_epoch(epoch: int) -> int:
        return -(2**31) if epoch == LARGEST_EPOCH else epoch + 1

    return next_epoch


def _epoch_wraps_to_zero(original: Function) -> Function:  # noqa: ARG001
    def next_epoch(epoch: int) -> int:
        return 0 if epoch == LARGEST_EPOCH else epoch + 1

    return next_epoch


def _counted_session_ids(original: Function) -> Function:  # noqa: ARG001
    def new_id(self: Any, largest_id: int) -> int:  # noqa: ARG001
        session_id = 1
        while session_id in self.sessions:
            session_id += 1
        return session_id

    return new_id


class _Always:
    """Instead of a generator of random numbers."""

    def __init__(self, number: int) -> None:
        self._number = number

    def randint(self, low: int, high: int) -> int:  # noqa: ARG002
        return self._number


def _cache_keyed_by_client_id(original: Function) -> Function:
    def admit(self: Any, draft: Any, now: Any) -> bool:
        number = 1 + crc32(draft.client_id.encode()) % (2**31 - 1)
        self.close(number, "its client came again")
        random, self.random = self.random, _Always(number)
        try:
            return bool(original(self, draft, now))
        finally:
            self.random = random

    return admit


def _least_recently_used_evicted(original: Function) -> Function:  # noqa: ARG001
    def victim(self: Any, newcomer: Any, wall_ms: int) -> Any:  # noqa: ARG001
        return Victim(min(self.sessions.values(), key=lambda each: (each.last_used_ms, each.session_id)), "b")

    return victim


def _forgotten_list_ignored(original: Function) -> Function:  # noqa: ARG001
    def forget(self: Any, topic: str, topic_id: bytes, indexes: Any) -> None:
        pass

    return forget


def _leader_epoch_not_checked(original: Function) -> Function:
    def leader_epoch_error(leader_epoch: int, request_epoch: int) -> Any:  # noqa: ARG001
        return original(leader_epoch, leader_epoch)

    return leader_epoch_error


def _no_rotation(original: Function) -> Function:  # noqa: ARG001
    def move_to_end(self: Any, cached: Any) -> None:
        pass

    return move_to_end


def _sent_data_moves_cached_offset(original: Function) -> Function:
    def settle(self: Any, told: Any) -> None:
        original(self, told)
        leaders, request = self.broker.replication.leaders, self.request
        for cached, data in told:
            batches = list(batches_of(bytes(data.records or b"")))
            if batches and request.replica_id >= 0 and cached.partition is not None:
                cached.fetch_offset = max(cached.fetch_offset, batches[-1][0].last_offset + 1)
                leaders.fetched(cached.partition, cached, request.replica_id, request.replica_epoch)
        leaders.tell()

    return settle


def _negative_idle_time_evicts(original: Function) -> Function:
    def is_idle(session: Any, wall_ms: int) -> bool:
        return bool(original(session, wall_ms)) or wall_ms < session.last_used_ms

    return is_idle


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "change_mark_cleared_when_sent",
        "what was sent once is not sent again before the fetcher names an offset, even if the answer was lost",
        "node",
        f"{SESSION}:FetchSession.settle",
        ("self", "cached", "sent", "partitions"),
        _change_mark_cleared_when_sent,
        ("F-14", "F-20", "G-5", "G-6"),
    ),
    Mutant(
        "epoch_not_advanced_when_response_lost",
        "the epoch moves on only when the next request arrives, so a re-sent one is accepted twice",
        "node",
        f"{SESSION}:FetchSession.accept_epoch",
        ("self", "request_epoch"),
        _epoch_not_advanced_when_response_lost,
        ("F-3", "F-10", "F-20"),
        ONLY_FINAL,
    ),
    Mutant(
        "no_epoch_comparison",
        "any epoch or number of a known session is accepted",
        "node",
        f"{SESSION}:FetchSession.accept_epoch",
        ("self", "request_epoch"),
        _no_epoch_comparison,
        ("F-10", "F-20", "G-3"),
    ),
    Mutant(
        "session_closed_on_wrong_epoch",
        "a wrong epoch or number does not only fail, it ends the session",
        "node",
        f"{CACHE}:FetchSessionCache._numbered",
        ("self", "session_id", "number", "revision"),
        _session_closed_on_wrong_epoch,
        ("F-10", "G-3"),
    ),
    Mutant(
        "cache_keyed_by_client_id",
        "a client's new session has the ID of its old one",
        "node",
        f"{CACHE}:FetchSessionCache.admit",
        ("self", "draft", "now"),
        _cache_keyed_by_client_id,
        ("F-2", "F-9", "G-1"),
    ),
    Mutant(
        "forgotten_list_ignored",
        "what a fetcher forgets stays in its session",
        "node",
        f"{SESSION}:FetchSession.forget",
        ("self", "topic", "topic_id", "indexes"),
        _forgotten_list_ignored,
        ("F-12",),
        ONLY_FINAL,
    ),
    Mutant(
        "least_recently_used_evicted",
        "a full cache gives up the session that was used least recently",
        "node",
        f"{CACHE}:FetchSessionCache.victim",
        ("self", "newcomer", "wall_ms"),
        _least_recently_used_evicted,
        ("F-18", "G-11"),
    ),
    Mutant(
        "epoch_overflows_to_negative",
        "after 2^31-1 comes -2^31",
        "node",
        f"{FINAL}:next_epoch",
        ("epoch",),
        _epoch_overflows_to_negative,
        ("F-3",),
        ONLY_FINAL,
    ),
    Mutant(
        "epoch_wraps_to_zero",
        "after 2^31-1 comes 0, which asks for a new session",
        "node",
        f"{FINAL}:next_epoch",
        ("epoch",),
        _epoch_wraps_to_zero,
        ("F-3", "F-6"),
        ONLY_FINAL,
    ),
    Mutant(
        "leader_epoch_not_checked",
        "whatever leader epoch a fetcher names is taken for the leader's",
        "node",
        f"{READING}:leader_epoch_error",
        ("leader_epoch", "request_epoch"),
        _leader_epoch_not_checked,
        ("F-13",),
        ONLY_FINAL,
    ),
    Mutant(
        "no_rotation",
        "a partition that returned data keeps its place in the list",
        "node",
        f"{SESSION}:FetchSession.move_to_end",
        ("self", "cached"),
        _no_rotation,
        ("F-15",),
        ONLY_FINAL,
    ),
    Mutant(
        "counted_session_ids",
        "session IDs are counted from 1 at each start",
        "node",
        f"{CACHE}:FetchSessionCache.new_id",
        ("self", "largest_id"),
        _counted_session_ids,
        ("F-2", "F-9", "G-1"),
    ),
    Mutant(
        "negative_idle_time_evicts",
        "a session last used in the future counts as long idle",
        "node",
        f"{EVICTION}:is_idle",
        ("session", "wall_ms"),
        _negative_idle_time_evicts,
        ("F-18", "G-11"),
    ),
    Mutant(
        "sent_data_moves_cached_offset",
        "what was sent to a fetcher counts as fetched by it",
        "node",
        f"{WAITING}:Fetch._settle",
        ("self", "told"),
        _sent_data_moves_cached_offset,
        ("F-22", "G-8"),
    ),
)
