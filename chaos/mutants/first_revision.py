"""Mutants of the fetch sessions' first revision alone."""

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Mutant

SESSION = "reference_broker.sessions.fetch_session"
CACHE = "reference_broker.sessions.fetch_session_cache"
REVISION = "reference_broker.sessions.first_revision"
ONLY_FIRST = ("first",)
Function = Callable[..., Any]


def _replaced_partitions_kept(original: Function) -> Function:
    def accept_full(self: Any, now: Any) -> None:
        kept = dict(self.partitions)
        original(self, now)
        for key, cached in kept.items():
            cached.live = True
            self.partitions[key] = cached
            self.look_at(cached)

    return accept_full


def _sequence_number_in_32_bits(original: Function) -> Function:
    def advance(self: Any, session: Any, number: int) -> None:
        original(self, session, number)
        session.number = (session.number + 2**31) % 2**32 - 2**31

    return advance


def _no_modulo_rotation(original: Function) -> Function:  # noqa: ARG001
    def start(self: Any, session: Any) -> int:  # noqa: ARG001
        return 0

    return start


def _number_not_carried_over(original: Function) -> Function:
    def answered(self: Any) -> Any:
        marked = original(self)
        if self.revision.name == "first":
            for cached in self.partitions.values():
                if cached.available_bytes:
                    self.assess(cached, 0)
                    cached.change_number = 0
                    marked.setdefault(cached)
        return marked

    return answered


def _incremental_served_without_session(original: Function) -> Function:
    def lookup_first(self: Any, session_id: int, sequence_number: int) -> Any:
        if self.find(session_id, self.first) is not None:
            return original(self, session_id, sequence_number)
        session = self.draft("", -1, False, self.first)
        session.session_id = session_id
        session.answers_full = False
        session.number = sequence_number - 1
        return session

    return lookup_first


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "replaced_partitions_kept",
        "a full request adds to what its session caches, and takes nothing away",
        "node",
        f"{SESSION}:FetchSession.accept_full",
        ("self", "now"),
        _replaced_partitions_kept,
        ("G-4",),
        ONLY_FIRST,
    ),
    Mutant(
        "sequence_number_in_32_bits",
        "after 2^31-1 comes -2^31",
        "node",
        f"{REVISION}:FirstRevision.advance",
        ("self", "session", "number"),
        _sequence_number_in_32_bits,
        ("G-3",),
        ONLY_FIRST,
    ),
    Mutant(
        "no_modulo_rotation",
        "each answer begins at the first partition",
        "node",
        f"{REVISION}:FirstRevision.start",
        ("self", "session"),
        _no_modulo_rotation,
        ("G-7",),
        ONLY_FIRST,
    ),
    Mutant(
        "number_not_carried_over",
        "what the limit leaves out of answer N is not marked for N + 1",
        "node",
        f"{SESSION}:FetchSession.answered",
        ("self",),
        _number_not_carried_over,
        ("G-5",),
        ONLY_FIRST,
    ),
    Mutant(
        "incremental_served_without_session",
        "an incremental request of an unknown session is served all the same",
        "node",
        f"{CACHE}:FetchSessionCache.lookup_first",
        ("self", "session_id", "sequence_number"),
        _incremental_served_without_session,
        ("G-4", "G-10"),
        ONLY_FIRST,
    ),
)
