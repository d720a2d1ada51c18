"""The expected responses to fetches, recomputed each time by walking over everything.

Each rule is from the clause that it names, or from Kafka where it says so. Nothing is taken from the handlers. Records
come from the batches of the fake logs, which are the test's own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reference_broker.apis.records.tests.fetch_naive_values import (
    MIN_MS,
    FirstSession,
    Part,
    Session,
    State,
    Waiting,
    expect_error,
    is_urgent,
    line,
    normal,
)
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import FetchRequest


class Naive:
    """``abandoned``: calls that must have got a response with this top-level error by now."""

    def __init__(self, world: FetchWorld) -> None:
        self.world = world
        self.sessions: dict[int, Session] = {}
        self.waiting: list[Waiting] = []
        self.abandoned: dict[FakeCall, int] = {}
        self.evictions = 0
        self.first = NaiveFirst(self)

    # requests

    def request(self, call: FakeCall, request: FetchRequest) -> None:
        """Check what the handler did with the request."""
        if call.api_version >= 1000:
            return self.first.request(call, request)
        by_id = call.api_version >= 13  # KIP-516
        if request.session_epoch in (0, -1):  # F-4, F-5, F-6, F-8
            if self.sessions.get(request.session_id, Session(False, False)).min_ms == MIN_MS:
                self.drop(request.session_id)
            session = Session(by_id, request.replica_id >= 0)
        else:
            found = self.sessions.get(request.session_id)
            if found is None or found.min_ms != MIN_MS or request.session_epoch < 1:
                return expect_error(call, ErrorCode.fetch_session_id_not_found)  # F-9
            if found.epoch != request.session_epoch:
                return expect_error(call, ErrorCode.invalid_fetch_session_epoch)  # F-10
            if found.by_id != by_id:
                return expect_error(call, ErrorCode.fetch_session_topic_id_error)  # Kafka: KIP-516
            session = found
            self.abandon(session, ErrorCode.invalid_fetch_session_epoch)  # Kafka: its epoch is not the session's now
            session.epoch = session.epoch % (2**31 - 1) + 1  # F-3
            session.used_ms = self.world.broker.now.wall_ms
        self.apply(session, request)
        if request.session_epoch > 0 and not session.parts:  # F-7
            self.drop(request.session_id)
            session = Session(by_id, request.replica_id >= 0)
            self.apply(session, replace(request, forgotten=[]))  # Kafka: its partitions are served without a session
        fetch = Waiting(call, request, session, self.world.broker.now.mono_us + request.max_wait_ms * 1000)
        states = [self.state(session, part, request) for part in session.parts]
        urgent = any(is_urgent(part, state) for part, state in zip(session.parts, states, strict=True))
        if urgent or self.has_enough(fetch) or request.max_wait_ms <= 0 or not session.parts:
            self.check_response(fetch)
        else:
            assert call.waiting, "a response without anything to report"
            self.waiting.append(fetch)
        return None

    def apply(self, session: Session, request: FetchRequest) -> None:
        """F-12 and F-13: a named partition is overwritten, a forgotten one removed. Kafka: forgetting wins."""
        for part in session.parts:
            part.named = False
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.topic_id if session.by_id else topic.topic, partition.partition)
                held = next((part for part in session.parts if part.key == key), None)
                part = held or Part(key, topic.topic)
                if held is None:
                    session.parts.append(part)
                part.offset, part.max_bytes, part.named = partition.fetch_offset, partition.partition_max_bytes, True
                part.leader_epoch, part.last_epoch = partition.current_leader_epoch, partition.last_fetched_epoch
        gone = [
            (topic.topic_id if session.by_id else topic.topic, index)
            for topic in request.forgotten
            for index in topic.partitions
        ]
        session.parts = [part for part in session.parts if part.key not in gone]

    # between requests

    def happened(self, responded: list[FakeCall], touched: Any = None, arrived: bool = False) -> None:
        """``responded``: calls that this event completed, in order; ``touched``: the partition that changed."""
        if touched is not None:
            self.first.touched(touched, arrived)
        due = [fetch for fetch in self.waiting if self.is_due(fetch, touched, arrived)]
        for call in responded:
            fetch = next((fetch for fetch in due if fetch.call is call), None)
            if fetch is not None and call.response.error_code == 0:
                self.waiting.remove(fetch)
                due.remove(fetch)
                self.check_response(fetch)
        for call in responded:
            if call.response.error_code:
                assert self.abandoned.pop(call) == call.response.error_code
        overdue = [fetch for fetch in due if fetch in self.waiting]
        assert not overdue, f"{len(overdue)} fetches should have been completed"
        assert not self.abandoned, "an abandoned fetch is still parked"
        assert all(fetch.call.waiting for fetch in self.waiting), "a response too early"

    def is_due(self, fetch: Waiting, touched: Any, arrived: bool) -> bool:
        if fetch.deadline_us <= self.world.broker.now.mono_us:
            return True
        for part in fetch.session.parts:
            if touched is not None and self.concerns(fetch.session, part, touched, arrived):
                state = self.state(fetch.session, part, fetch.request)
                if is_urgent(part, state) or self.has_enough(fetch):
                    return True
        return False

    def concerns(self, session: Session, part: Part, touched: Any, arrived: bool) -> bool:
        if part.key[1] != touched.index:
            return False
        if not session.by_id:
            return bool(part.key[0] == touched.topic)
        return part.key[0] == touched.topic_id or (arrived and part.name == touched.topic)

    def hung_up(self, call: FakeCall) -> None:
        self.waiting = [fetch for fetch in self.waiting if fetch.call is not call]

    # responses

    def check_response(self, fetch: Waiting) -> None:
        """Check that the call has its response now, with exactly the expected partitions."""
        if isinstance(fetch.session, FirstSession):
            return self.first.check_response(fetch)
        session, request = fetch.session, fetch.request
        sent = self.expected(session, request)
        number = next((number for number, one in self.sessions.items() if one is session), 0)
        if request.session_epoch == 0 and not number:
            number = self.create(session, fetch.call.response.session_id)  # F-5
        assert normal(fetch.call.response) == (0, number, [line(session, *what) for what in sent])
        for part, state, records in sent:
            part.sent_watermark, part.sent_log_start = state.watermark, state.log_start  # F-13
            if state.error:  # F-14: after an error the next state is sent, whatever offsets the error came with.
                part.sent_watermark = part.sent_log_start = -1
            part.sent_error, part.sent_divergence = state.error, state.divergence
            if records:  # F-15
                session.parts.remove(part)
                session.parts.append(part)
        return None

    def expected(self, session: Session, request: FetchRequest) -> list[tuple[Part, State, bytes]]:
        """F-14: what differs from the state last sent, data, errors and divergence. In the list's order (F-15)."""
        read = self.read(session, request, session.parts)
        sent = []
        for part in session.parts:
            state, records = self.state(session, part, request), read.get(part, b"")
            changed = (state.watermark, state.log_start) != (part.sent_watermark, part.sent_log_start)
            if records or changed or state.error or state.divergence:
                sent.append((part, state, records))
        return sent

    def read(self, session: Session, request: FetchRequest, parts: list[Part]) -> dict[Part, bytes]:
        """Return whole batches, partition by partition in this order (F-15): as many as fit into the partition's limit
        and the remaining response limit (F-14). The first batch of a response needs no room (F-16)."""
        read: dict[Part, bytes] = {}
        left = request.max_bytes
        for part in parts:
            room, taken = min(part.max_bytes, left), b""
            for batch in self.batches(session, part, request):
                if len(taken) + len(batch) > room and (read or taken):
                    break
                taken += batch
            if taken:
                read[part] = taken
                left = max(0, left - len(taken))
        return read

    def batches(self, session: Session, part: Part, request: FetchRequest) -> list[bytes]:
        """Return the batches from the fetch offset up to the last readable one."""
        state = self.state(session, part, request)
        if not state.available:
            return []
        held = self.led(session, part).log.batches
        return [each.data for each in held if each.last_offset >= part.offset and each.base_offset < state.end]

    def has_enough(self, fetch: Waiting) -> bool:
        """Return whether the fetch has min_bytes, which is at most max_bytes, within each partition's limit (Kafka)."""
        parts = fetch.session.parts
        if isinstance(fetch.session, FirstSession):
            parts = [part for part in parts if fetch.session.owes(part)]
        there = sum(self.state(fetch.session, part, fetch.request).available for part in parts)
        return there >= min(fetch.request.min_bytes, fetch.request.max_bytes)

    def led(self, session: Session, part: Part) -> Any:
        known: Mapping[Any, Any] = self.world.partitions.by_id if session.by_id else self.world.partitions.by_name
        return known.get(part.key)

    def state(self, session: Session, part: Part, request: FetchRequest) -> State:
        """Return the state of one partition, with Kafka's checks in Kafka's order (F-13; KIP-320, KIP-516)."""
        partition = self.led(session, part)
        if partition is None:
            return State(self.why_missing(session, part))
        part.name = partition.topic
        if part.leader_epoch >= 0 and part.leader_epoch != partition.leader_epoch:
            return State(74 if part.leader_epoch < partition.leader_epoch else 75)
        log = partition.log
        if part.offset < log.log_start_offset:
            return State(1)
        state = State(0, log.high_watermark, log.last_stable_offset, log.log_start_offset)
        if part.last_epoch >= 0:
            end = log.end_offset_for_epoch(part.last_epoch)
            if end.end_offset < 0:
                return State(1)
            if end.epoch < part.last_epoch or end.end_offset < part.offset:
                state.divergence = (end.epoch, end.end_offset)
                return state
        if part.offset > log.log_end_offset:
            return State(1)
        if request.replica_id >= 0 and part.offset < log.local_log_start_offset:  # KIP-405: it begins behind the tier.
            return State(109, log.high_watermark, log.last_stable_offset, log.log_start_offset)
        state.end = log.last_stable_offset if request.isolation_level else log.high_watermark
        if request.replica_id >= 0:
            state.end = log.log_end_offset
        if part.offset < min(state.end, log.local_log_start_offset):
            return State(1)  # This node has no tier any more.
        if part.offset < state.end:
            state.there = log.bytes_between(part.offset, state.end)
            state.available = max(1, min(part.max_bytes, state.there))  # F-16: a limit of 0 gives a batch, too
        return state

    def why_missing(self, session: Session, part: Part) -> int:
        image = self.world.controller.image
        if session.by_id:
            topic = image.topic_by_id(part.key[0])
            if topic is None:
                again = image.topics.get(part.name)  # Kafka looks for the partition of that name before the ID.
                return 100 if again is None else 103 if part.key[1] < len(again.partitions) else 3
            part.name = topic.name
        else:
            topic = image.topics.get(part.key[0])
        if topic is None or part.key[1] >= len(topic.partitions):
            return 3
        epoch = topic.partitions[part.key[1]].leader_epoch  # This node has a replica of all, and will soon lead it.
        return 6 if part.leader_epoch in (-1, epoch) else 74 if part.leader_epoch < epoch else 75

    # slots

    def create(self, session: Session, number: int) -> int:
        """F-17, F-2, G-11."""
        now = self.world.broker.now.wall_ms
        if len(self.sessions) >= self.world.slots:
            evicted = self.to_evict(session, now)
            if evicted is None:
                return 0
            self.drop(evicted)
            self.evictions += 1
        assert 1 <= number <= (2**31 - 1 if session.min_ms == MIN_MS else 2**63 - 1)
        assert number not in self.sessions
        session.created_ms = session.used_ms = now
        self.sessions[number] = session
        return number

    def to_evict(self, new: Session, now: int) -> int | None:
        """F-18, rule (b) before rules (a) and (c)."""
        idle = {number: old for number, old in self.sessions.items() if now - old.used_ms > old.min_ms}
        if idle:
            return min(idle, key=lambda number: (idle[number].used_ms, number))
        others = {
            number: old
            for number, old in self.sessions.items()
            if (new.follower and not old.follower)
            or (now - old.created_ms > old.min_ms and len(new.parts) > len(old.parts))
        }
        return min(others, key=lambda n: (others[n].follower, len(others[n].parts), n)) if others else None

    def drop(self, number: int) -> None:
        session = self.sessions.pop(number, None)
        if session is not None:
            first = isinstance(session, FirstSession)
            self.abandon(session, DraftError.INVALID_FETCH_SESSION if first else ErrorCode.fetch_session_id_not_found)

    def abandon(self, session: Session, error: int) -> None:
        for fetch in [fetch for fetch in self.waiting if fetch.session is session]:
            self.waiting.remove(fetch)
            self.abandoned[fetch.call] = error


class NaiveFirst:
    """The first revision, in the slots of ``naive``."""

    def __init__(self, naive: Naive) -> None:
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
            if any(
                (topic.topic, partition.partition) not in keys
                for topic in request.topics
                for partition in topic.partitions
            ):
                return refused(call, ErrorCode.invalid_request, known)  # G-4
            self.begin_incremental(session, request)
        return self.respond_or_park(session, call, request)

    def begin_full(self, session: FirstSession | None, request: FetchRequest) -> FirstSession:
        if session is None:
            session = FirstSession(False, request.replica_id >= 0)
        else:
            self.overtake(session, request)
            session.used_ms = self.naive.world.broker.now.wall_ms
            session.parts, session.last_sent = [], []
        session.full, session.responded = True, False
        session.reader = reader(request)
        self.naive.apply(session, request)
        return session

    def begin_incremental(self, session: FirstSession, request: FetchRequest) -> None:
        self.overtake(session, request)
        session.used_ms = self.naive.world.broker.now.wall_ms
        named = [part for part in session.parts if part.named]
        if request.session_epoch > session.number:
            assert session.responded
            session.number, session.epoch = request.session_epoch, request.session_epoch + 1
            session.responded, session.last_sent, named = False, [], []
        session.full = False
        self.naive.apply(session, request)
        now_named = [part for part in session.parts if part.named]
        newly_read = now_named
        if session.reader != reader(request):  # Another end to read to: all with data behind it have something to send.
            session.reader = reader(request)
            newly_read = session.parts
        for part in session.parts:
            part.named = part.named or part in named
        for part in newly_read:
            if self.naive.state(session, part, request).available:
                part.dirty = max(part.dirty, session.number)

    def overtake(self, session: FirstSession, request: FetchRequest) -> None:
        """Complete the parked fetches of the session that this request overtakes.

        A request with the number of a parked one is a retransmission, and both get a response (G-3). Full requests have
        no number (0), so there only an equal request is one. Any other proves that the fetcher has abandoned the parked
        one.
        """
        for fetch in [fetch for fetch in self.naive.waiting if fetch.session is session]:
            if fetch.request.session_epoch == request.session_epoch and (
                request.session_epoch or fetch.request == request
            ):
                self.naive.waiting.remove(fetch)
                self.check_response(fetch)
        self.naive.abandon(session, DraftError.INVALID_FETCH_SESSION)

    def respond_or_park(self, session: FirstSession, call: FakeCall, request: FetchRequest) -> None:
        naive = self.naive
        fetch = Waiting(call, request, session, naive.world.broker.now.mono_us + request.max_wait_ms * 1000)
        urgent = any(is_urgent(part, naive.state(session, part, request)) for part in session.parts)
        if urgent or naive.has_enough(fetch) or request.max_wait_ms <= 0 or not session.parts:
            self.check_response(fetch)
        else:
            assert call.waiting, "a response without anything to report"
            naive.waiting.append(fetch)

    def touched(self, partition: Any, arrived: bool) -> None:
        """Make the partition dirty: every change of it does."""
        sessions = [*self.naive.sessions.values(), *(fetch.session for fetch in self.naive.waiting)]
        for session in sessions:
            if not isinstance(session, FirstSession):
                continue
            for part in session.parts:
                if self.naive.concerns(session, part, partition, arrived):
                    part.dirty = max(part.dirty, session.upcoming)

    def check_response(self, fetch: Waiting) -> None:
        naive, session, request = self.naive, fetch.session, fetch.request
        assert isinstance(session, FirstSession)
        sent = self.expected(session, request)
        number = next((number for number, one in naive.sessions.items() if one is session), 0)
        if not number:
            number = naive.create(session, fetch.call.response.session_id)
        expected = [line(session, part, state, records) for part, state, records in sent]
        assert normal(fetch.call.response) == (0, number, expected), f"number {session.number}"
        assert fetch.call.response.response_flags == (not session.full) + 2 * (number != 0)
        self.after(session, sent)

    def expected(self, session: FirstSession, request: FetchRequest) -> list[tuple[Part, State, bytes]]:
        naive, ring = self.naive, session.ring()
        read = naive.read(session, request, [part for part in ring if session.owes(part)])
        sent = []
        for part in ring:
            state, records = naive.state(session, part, request), read.get(part, b"")
            failing = bool(state.error or state.divergence)
            if session.full or records or failing or part in session.last_sent:
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
        session.responded, session.last_sent = True, [] if session.full else parts
        if session.full:
            session.parts.sort(key=lambda part: part.key)


def reader(request: FetchRequest) -> tuple[bool, bool]:
    return request.replica_id >= 0, request.isolation_level == 1 and request.replica_id < 0


def refused(call: FakeCall, error: Error, session_id: int) -> None:
    assert normal(call.response) == (error, session_id, [])
