"""What fetches of the first revision must be answered, computed anew each time, from the clauses' words (G)."""

from typing import TYPE_CHECKING, Any

from reference_broker.apis.tests.fetch_naive_values import (
    FirstSession,
    Part,
    State,
    Waiting,
    is_urgent,
    line,
    normal,
)
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import FetchRequest

if TYPE_CHECKING:
    from reference_broker.apis.tests.fetch_naive import Naive


class NaiveFirst:
    """The first revision, in the slots of ``naive``."""

    def __init__(self, naive: "Naive") -> None:
        self.naive = naive

    def request(self, call: FakeCall, request: FetchRequest) -> None:
        found = self.naive.sessions.get(request.session_id)
        session = found if isinstance(found, FirstSession) else None
        known = request.session_id if session is not None else 0
        if request.fetch_type == 0:
            if request.session_epoch != 0 or (request.session_id and session is None):
                return refused(call, DraftError.INVALID_FETCH_SESSION, known)  # G-3, G-10
            session = self.begin_full(session, request)
        else:
            if session is None or request.session_epoch < 1:
                return refused(call, DraftError.INVALID_FETCH_SESSION, known)  # G-4, G-10
            if request.session_epoch not in (session.number, session.number + 1):
                return refused(call, DraftError.INVALID_FETCH_SESSION, known)  # G-3
            keys = [part.key for part in session.parts]
            if any((topic.topic, one.partition) not in keys for topic in request.topics for one in topic.partitions):
                return refused(call, ErrorCode.invalid_request, known)  # G-4
            self.begin_incremental(session, request)
        return self.answer_or_wait(session, call, request)

    def begin_full(self, session: FirstSession | None, request: FetchRequest) -> FirstSession:
        if session is None:
            session = FirstSession(False, request.replica_id >= 0)
        else:
            self.overtake(session, request)
            session.used_ms = self.naive.world.broker.now.wall_ms
            session.parts, session.last_told = [], []
        session.full, session.answered = True, False
        session.reader = reader(request)
        self.naive.apply(session, request)
        return session

    def begin_incremental(self, session: FirstSession, request: FetchRequest) -> None:
        self.overtake(session, request)
        session.used_ms = self.naive.world.broker.now.wall_ms
        named = [part for part in session.parts if part.named]
        if request.session_epoch > session.number:
            assert session.answered
            session.number, session.epoch = request.session_epoch, request.session_epoch + 1
            session.answered, session.last_told, named = False, [], []
        session.full = False
        self.naive.apply(session, request)
        now_named = [part for part in session.parts if part.named]
        if session.reader != reader(request):
            session.reader = reader(request)
            for part in session.parts:
                part.dirty = max(part.dirty, session.upcoming)
        for part in session.parts:
            part.named = part.named or part in named
        for part in now_named:
            if self.naive.state(session, part, request).available:
                part.dirty = max(part.dirty, session.number)

    def overtake(self, session: FirstSession, request: FetchRequest) -> None:
        """A request with the number of one that waits is a retransmission, and both are answered (G-3). Full requests
        have no number (0), so there only the same request is one. Any other proves that the fetcher has given up the
        one that waits."""
        for fetch in [fetch for fetch in self.naive.waiting if fetch.session is session]:
            if fetch.request.session_epoch == request.session_epoch and (
                request.session_epoch or fetch.request == request
            ):
                self.naive.waiting.remove(fetch)
                self.answered(fetch)
        self.naive.abandon(session, DraftError.INVALID_FETCH_SESSION)

    def answer_or_wait(self, session: FirstSession, call: FakeCall, request: FetchRequest) -> None:
        naive = self.naive
        fetch = Waiting(call, request, session, naive.world.broker.now.mono_us + request.max_wait_ms * 1000)
        urgent = any(is_urgent(part, naive.state(session, part, request)) for part in session.parts)
        if urgent or naive.has_enough(fetch) or request.max_wait_ms <= 0 or not session.parts:
            self.answered(fetch)
        else:
            assert call.waiting, "answered although there is nothing to say"
            naive.waiting.append(fetch)

    def touched(self, partition: Any, arrived: bool) -> None:
        """Everything that changes about a partition makes it dirty."""
        sessions = [*self.naive.sessions.values(), *(fetch.session for fetch in self.naive.waiting)]
        for session in sessions:
            if not isinstance(session, FirstSession):
                continue
            for part in session.parts:
                if self.naive.concerns(session, part, partition, arrived):
                    part.dirty = max(part.dirty, session.upcoming)

    def answered(self, fetch: Waiting) -> None:
        naive, session, request = self.naive, fetch.session, fetch.request
        assert isinstance(session, FirstSession)
        sent = self.say(session, request)
        number = next((number for number, one in naive.sessions.items() if one is session), 0)
        if not number:
            number = naive.create(session, fetch.call.answer.session_id)
        expected = [line(session, part, state, records) for part, state, records in sent]
        assert normal(fetch.call.answer) == (0, number, expected), f"number {session.number}"
        assert fetch.call.answer.response_flags == (not session.full) + 2 * (number != 0)
        self.after(session, sent)

    def say(self, session: FirstSession, request: FetchRequest) -> list[tuple[Part, State, bytes]]:
        naive, ring = self.naive, session.ring()
        read = naive.read(session, request, [part for part in ring if session.owes(part)])
        sent = []
        for part in ring:
            state, records = naive.state(session, part, request), read.get(part, b"")
            failing = bool(state.error or state.divergence)
            if session.full or records or failing or part in session.last_told:
                sent.append((part, state, records))
            elif session.owes(part) and not state.available:
                sent.append((part, state, b""))
        return sent

    def after(self, session: FirstSession, sent: list[tuple[Part, State, bytes]]) -> None:
        following = session.number + 1
        parts = [part for part, _, _ in sent]
        for part in session.parts:
            if part not in parts and session.owes(part):
                part.dirty = following
        for part, state, records in sent:
            part.sent_error, part.sent_divergence = state.error, state.divergence
            if state.error or state.divergence or state.there > len(records):
                part.dirty = following
            else:
                part.dirty = 0 if session.full else max(part.dirty, session.number)
        session.answered, session.last_told = True, [] if session.full else parts
        if session.full:
            session.parts.sort(key=lambda part: part.key)


def reader(request: FetchRequest) -> tuple[bool, bool]:
    return request.replica_id >= 0, request.isolation_level == 1 and request.replica_id < 0


def refused(call: FakeCall, error: Error, session_id: int) -> None:
    assert normal(call.answer) == (error, session_id, [])
