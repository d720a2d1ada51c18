"""Mutants of the fetch sessions (KIP-227, final revision)."""

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.wire.errors import Error

SESSION = "reference_broker.model.fetch_session"
CACHE = "reference_broker.model.fetch_session_cache"
EVICTION = "reference_broker.model.fetch_eviction"
LARGEST_EPOCH = 2**31 - 1
Function = Callable[..., Any]


def _change_mark_cleared_when_sent(original: Function) -> Function:
    def settle(self: Any, cached: Any, sent: Any, partitions: Any) -> None:
        original(self, cached, sent, partitions)
        if sent is not None and sent.records:
            self.assess(cached, 0)

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
    def lookup(self: Any, session_id: int, request_epoch: int, uses_topic_ids: bool) -> Any:
        found = original(self, session_id, request_epoch, uses_topic_ids)
        if found is Error.INVALID_FETCH_SESSION_EPOCH:
            self.close(session_id, "wrong epoch")
        return found

    return lookup


def _epoch_overflows_to_negative(original: Function) -> Function:  # noqa: ARG001
    def next_epoch(epoch: int) -> int:
        return -(2**31) if epoch == LARGEST_EPOCH else epoch + 1

    return next_epoch


def _epoch_wraps_to_zero(original: Function) -> Function:  # noqa: ARG001
    def next_epoch(epoch: int) -> int:
        return 0 if epoch == LARGEST_EPOCH else epoch + 1

    return next_epoch


def _counted_session_ids(original: Function) -> Function:  # noqa: ARG001
    def new_id(self: Any) -> int:
        session_id = 1
        while session_id in self.sessions:
            session_id += 1
        return session_id

    return new_id


def _negative_idle_time_evicts(original: Function) -> Function:
    def is_idle(session: Any, wall_ms: int) -> bool:
        return bool(original(session, wall_ms)) or wall_ms < session.last_used_ms

    return is_idle


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "change_mark_cleared_when_sent",
        "what was sent once is not sent again before the fetcher names an offset, even if the answer was lost",
        "node", f"{SESSION}:FetchSession.settle", ("self", "cached", "sent", "partitions"),
        _change_mark_cleared_when_sent, ("F-14", "F-20"),
    ),
    Mutant(
        "epoch_not_advanced_when_response_lost",
        "the epoch moves on only when the next request arrives, so a re-sent one is accepted twice",
        "node", f"{SESSION}:FetchSession.accept_epoch", ("self", "request_epoch"),
        _epoch_not_advanced_when_response_lost, ("F-3", "F-10", "F-20"),
    ),
    Mutant(
        "no_epoch_comparison", "any epoch of a known session is accepted",
        "node", f"{SESSION}:FetchSession.accept_epoch", ("self", "request_epoch"),
        _no_epoch_comparison, ("F-10", "F-20"),
    ),
    Mutant(
        "session_closed_on_wrong_epoch", "a wrong epoch does not only fail, it ends the session",
        "node", f"{CACHE}:FetchSessionCache.lookup", ("self", "session_id", "request_epoch", "uses_topic_ids"),
        _session_closed_on_wrong_epoch, ("F-10",),
    ),
    Mutant(
        "epoch_overflows_to_negative", "after 2^31-1 comes -2^31",
        "node", f"{SESSION}:next_epoch", ("epoch",), _epoch_overflows_to_negative, ("F-3",),
    ),
    Mutant(
        "epoch_wraps_to_zero", "after 2^31-1 comes 0, which asks for a new session",
        "node", f"{SESSION}:next_epoch", ("epoch",), _epoch_wraps_to_zero, ("F-3", "F-6"),
    ),
    Mutant(
        "counted_session_ids", "session IDs are counted from 1 at each start",
        "node", f"{CACHE}:FetchSessionCache.new_id", ("self",), _counted_session_ids, ("F-2", "F-9"),
    ),
    Mutant(
        "negative_idle_time_evicts", "a session last used in the future counts as long idle",
        "node", f"{EVICTION}:is_idle", ("session", "wall_ms"), _negative_idle_time_evicts, ("F-18",),
    ),
)  # fmt: skip
