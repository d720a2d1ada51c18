"""The work of one fetch on its session, in slices.

Nearly always the first slice is all of it, so the fetch is answered, or waits, in the event that it came with. If more
is left, the fetch is ``at_work`` until it waits or everything is settled. This is what may happen in between:

* The session's next request comes: it is handled when the work is over, as if it had arrived then. So no request finds
  a session half changed. A fetch of the first revision that is sent again finds the first one answered, or waiting
  (G-3).
* A partition changes, is deleted, or gets another leader: all that were looked at hear of it. Before the answer begins
  the partition is looked at again. Later it keeps its mark for the next answer, and is looked at again if it has yet to
  be read. So what an answer says of a partition was true at some moment after the request came, and what it does not
  say follows. Nothing in a fetch relates one partition to another.
* The connection closes before the answer: a draft is dropped. A session takes up what the request names, since it has
  accepted it. Nothing is sent, so every mark stays.
* The session is closed or evicted: the fetch is refused, or was answered before, and its work ends.
* A follower's progress counts when its partition is looked at, as of the time at which the session accepted the
  request. Until the request's partitions are named, a partition that it names counts as fetched at its older offset.
  That is what the follower had just before, and the difference is no more than a request that is under way for longer.
  Where a named partition failed, its progress did not count. So the follower is told of that, also if the partition is
  well by now: it names a partition again only after an error, or when its offset has moved.
* A bug closes the session, since nobody knows which marks are left. Its fetcher begins anew.

Puts fetch responses together.

One accepted fetch. It is answered at once, or when enough can be read, something fails, or its time is over.

It waits only on its session; a full fetch waits on the draft of one. A partition that changes marks itself there, and
only that partition is looked at. An answer costs what is marked plus what is sent.

Its work is done in slices; what may happen between them is in ``fetch_work``.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.apis.broker import (
    HasConfig,
    HasController,
    HasFetchSessions,
    HasNow,
    HasOutside,
    HasRemoteLog,
    HasReplication,
)
from reference_broker.apis.call import Call, contained_slices
from reference_broker.apis.records.fetch_partition import (
    Look,
    Reader,
    RemoteReads,
    failed,
    look,
    offsets_of,
    rack_of,
    read,
    reader_of,
    told_of,
)
from reference_broker.apis.records.led_partitions import LooksUpPartitions, endpoints_of
from reference_broker.ports.node_ports import Slices, later, run_slices
from reference_broker.sessions.fetch_session import CachedPartition, FetchSession, Waiter, direction
from reference_broker.sessions.slices import Work, after, in_slices, in_turn, sort
from reference_broker.wire.apis import FETCH_TOMBSTONE_HORIZON, FIRST_DRAFT_VERSION
from reference_broker.wire.errors import DraftError, Error, ErrorCode, known_error
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    NO_TOPIC_ID,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    PartitionData,
)

_OVER = object()


LEADERS_FROM = 16
"""The version from which an answer tells the leader where the fetcher was wrong about it (KIP-951)."""


Told: TypeAlias = Collection[tuple[CachedPartition, PartitionData]]
"""What an answer tells of each partition, in its order."""


@dataclass(slots=True)
class Telling:
    """What an answer tells, which is put together piece by piece. A topic in two places of the list is named twice.

    Versions that name the leaders of partitions that are led elsewhere tell their addresses, too.
    """

    api_version: int
    session: FetchSession
    topics: list[FetchTopicResponse] = field(default_factory=list)
    leaders: dict[int, None] | None = None
    _topic: tuple[str, bytes] | None = None
    _partitions: list[PartitionData] = field(init=False)
    """Those of the last topic."""

    def add(self, told: Told) -> None:
        """Topics and partitions come in the answer's order."""
        names_leaders = LEADERS_FROM <= self.api_version < FIRST_DRAFT_VERSION
        uses_topic_ids, topic = self.session.uses_topic_ids, self._topic
        if self.api_version == FETCH_TOMBSTONE_HORIZON:
            told = [(cached, _with_horizon(cached, data)) for cached, data in told]
        partitions = [] if topic is None else self._partitions
        for cached, data in told:
            name = ("", cached.topic_id) if uses_topic_ids else (cached.topic, NO_TOPIC_ID)
            if name != topic:
                partitions = []
                self.topics.append(FetchTopicResponse(*name, partitions))
                topic = name
            if data.current_leader is None:
                partitions.append(data)
            elif names_leaders:
                partitions.append(data)
                self.leaders = self.leaders or {}
                self.leaders[data.current_leader.leader_id] = None
            else:
                partitions.append(replace(data, current_leader=None))
        self._topic, self._partitions = topic, partitions


def _with_horizon(cached: CachedPartition, data: PartitionData) -> PartitionData:
    """The records were read before. A marker that has moved since says more than they lack, never less."""
    partition = cached.partition
    if data.error_code or partition is None:
        return data
    return replace(data, tombstone_horizon=partition.log.horizon.offset)


def response(broker: HasController, call: Call, telling: Telling) -> FetchResponse:
    """Makes the answer. Only the first revision carries flags. As in Kafka, followers get no addresses of leaders."""
    session = telling.session
    leaders = None if session.privileged else telling.leaders
    return FetchResponse(
        0,
        session.session_id,
        telling.topics,
        node_endpoints=endpoints_of(broker, leaders, call.listener) if leaders else [],
        response_flags=_flags(session) if session.revision.name == "first" else 0,
    )


def refusal(error: Error, request: FetchRequest, session: FetchSession | None = None) -> FetchResponse:
    """Makes an answer with a top-level error.

    ``session`` is the one that the request named, if it is still there and its revision tells its ID.
    """
    flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
    if session is not None:
        flags, session_id = flags | _may_follow(session), session.session_id
    return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)


def _flags(session: FetchSession) -> int:
    """The flags of a successful answer in the first revision."""
    return _may_follow(session) | (0 if session.answers_full else INCREMENTAL_FETCH_RESPONSE)


def _may_follow(session: FetchSession) -> int:
    """The flag that says that incremental requests may follow in the session."""
    return INCREMENTAL_FETCH_OK if session.session_id and not session.denied else 0


_TEXTS = {
    DraftError.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    DraftError.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    ErrorCode.invalid_request: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""Only the first revision's responses carry them."""


MAX_MISSES = 256
"""An answer reads the heads of so many batches that turn out to be too large for what is left. That takes some 5 ms.
Tens of thousands of partitions would hold up everybody else for a second."""
A_FEW = 1000
"""Work on so many partitions is done directly. A slice of an answer reads so many, which takes 5 to 10 ms."""

Answers = dict[CachedPartition, PartitionData]
Said: TypeAlias = tuple[CachedPartition, PartitionData]
"""What an answer says of a partition."""


class FetchNeeds(
    LooksUpPartitions, HasConfig, HasReplication, HasFetchSessions, HasNow, HasOutside, HasRemoteLog, Protocol
):
    """What a fetch uses of its broker."""


@dataclass(slots=True, eq=False)
class Fetch(Waiter):
    """``creates`` says that it is a full fetch that asks for a session. ``looks`` are those at marked partitions.

    ``urgent`` says that there is an error, a divergence or a preferred read replica that is new, has changed, or was
    asked for by this request. One that lasts is told in each answer but ends no wait. ``due`` says that it is answered
    at the end of this event. ``rack`` is None if the fetcher may read from leaders only. Each connection has at most
    one fetch that waits.

    From when the answer begins, ``marked`` are the partitions that it settles, and ``answers`` what it says; ``told``
    is the same in its order, and ``telling`` as it is sent. ``kept`` says that a session caches it.
    While it reads, ``left`` bytes may still be sent, partitions with ``unread_bytes`` are still to be read, and
    ``missed`` are those whose next batch was too large; ``misses`` counts those of them that were tried.

    ``looking`` says that a partition that changes is looked at: from when the request was taken up until the answer
    begins. ``listening`` says that all that are looked at are told of changes. ``remote`` is what it reads from the
    remote tier, None if nothing yet.
    """

    broker: FetchNeeds
    call: Call
    session: FetchSession
    request: FetchRequest
    creates: bool = False
    urgent: bool = False
    due: bool = False
    timer: int | None = None
    looking: bool = False
    listening: bool = False
    remote: RemoteReads | None = None
    reader: Reader = field(init=False)
    rack: str | None = field(init=False)
    max_bytes: int = field(init=False)
    min_bytes: int = field(init=False)
    looks: dict[CachedPartition, Look] = field(default_factory=dict)
    marked: dict[CachedPartition, None] = field(init=False)
    answers: Answers = field(init=False)
    told: list[Said] = field(init=False)
    telling: Telling = field(init=False)
    kept: bool = field(init=False)
    left: int = field(init=False)
    unread_bytes: int = field(init=False)
    missed: list[CachedPartition] = field(init=False)
    misses: int = field(init=False)
    at_work: bool = field(default=False, init=False)
    then: list[Callable[[], None]] | None = field(default=None, init=False)
    gone: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        config, request = self.broker.config, self.request
        self.reader = reader_of(request.replica_id >= 0, request.isolation_level)
        self.rack = rack_of(config, self.call.api_version, request)
        limit = config.fetch_max_bytes
        if self.reader is Reader.FOLLOWER:
            limit = max(limit, config.replica_fetch_response_max_bytes)
        self.max_bytes = min(max(request.max_bytes, 0), limit)
        self.min_bytes = min(request.min_bytes, self.max_bytes)

    @property
    def is_waiting(self) -> bool:
        return self.timer is not None

    def add_next(self, request: Callable[[], None]) -> None:
        """The session's next request comes when this work is over."""
        self.then = [*(self.then or ()), request]

    def run(self, begin: Callable[["Fetch"], Work]) -> None:
        """Does the first slice of the work now, and what is left in later events."""
        try:
            work = begin(self)
            if not work or next(work, _OVER) is _OVER:
                return
            self.at_work = True
            self.session.waiter = self
            self.listen()
        except Exception:
            self._failed()
            raise
        later(self.broker.outside, 0, lambda: run_slices(self.broker.outside, self._goes_on(work)))

    def _goes_on(self, work: Slices) -> Slices:
        is_complete = False

        def to_its_end() -> Slices:
            nonlocal is_complete
            yield from work
            is_complete = True

        steps = contained_slices(self.call, to_its_end())
        while not self._is_void() and next(steps, _OVER) is not _OVER:
            yield
        self.at_work = False
        if not is_complete or self._is_void():
            self._failed()
        elif not self.is_waiting:
            self.session.waiter = None
        following, self.then = self.then, None
        for request in following or ():
            later(self.broker.outside, 0, request)

    def _is_void(self) -> bool:
        """Whether its session is over, or its connection while there is no session."""
        return self.gone or (self.call.closed and not self.session.session_id)

    def _failed(self) -> None:
        """The work is void, or a bug ended it in the middle."""
        if not self.gone:
            self.session.waiter = None
            self.broker.fetch_sessions.close(self.session.session_id, "a fetch of it failed")
            self.broker.fetch_sessions.release(self.session)

    def go_on_in(self, draft: FetchSession) -> None:
        """The session will be closed, which is not to end this fetch."""
        self.session.waiter = None
        draft.contact_us = self.session.contact_us
        self.session = draft
        if self.at_work:
            draft.waiter = self

    def begin(self) -> Work:
        """Looks at what is marked, and then answers, or waits and responds later."""
        session = self.session
        if session.reader is not self.reader or session.rack != self.rack:
            return after(session.read_as(self.reader, self.rack), self.begin)
        self.looking = True
        if len(session.changed) > A_FEW:
            return after(in_slices(session.changed, self._look_at), self._answer_or_wait)
        if session.changed:
            self._look_at(session.changed)
        return self._answer_or_wait()

    def _answer_or_wait(self) -> Work:
        if self.call.closed:
            return ()
        is_pending = self.remote is not None and self.remote.is_pending
        if self._is_answerable() or (self.request.max_wait_ms <= 0 and not is_pending) or not self.session.partitions:
            return self._answer()
        self._wait()
        return ()

    def _look_at(self, marked: Collection[CachedPartition]) -> None:
        for cached in marked:
            self._look(cached)
        if self.listening:
            for cached in marked:
                cached.watch(self.broker.partitions)
        if self.reader is Reader.FOLLOWER and not self._count_progress(marked):
            self.abandon(self.session.revision.unknown_id)

    def _count_progress(self, marked: Collection[CachedPartition]) -> bool:
        """Tells the leader how far a follower has these marked partitions. It has all that it asks beyond (F-22).

        All partitions that the request named are marked. For the others the leader uses the session's contact time. If
        a high watermark moves, other fetches are answered, and may take this session's slot. Returns False then.
        """
        replicated = [one for one in marked if one.partition and one.partition.followers is not None]
        if not replicated:
            return True
        leaders, request = self.broker.replication.leaders, self.request
        for cached in replicated:
            partition = cached.partition
            if partition is None or self.looks[cached].problem is not None or not cached.is_of_partition:
                continue
            error = leaders.fetched(partition, cached, request.replica_id, request.replica_epoch)
            if error:
                self._note(cached, failed(cached.index, error))
            else:
                self.looks[cached].offsets = offsets_of(partition.log)
        leaders.tell()
        session_id = self.session.session_id
        return not session_id or self.broker.fetch_sessions.sessions.get(session_id) is self.session

    def partition_marked(self, cached: CachedPartition) -> None:
        """Whoever changed the partition is not to pay for a bug in the fetch of another client."""
        self.call.contain(partial(self._marked, cached))

    def _marked(self, cached: CachedPartition) -> None:
        if not self.looking or (self.at_work and self._is_refused(cached)):
            return
        self._look(cached)
        cached.watch(self.broker.partitions)
        if not self.due and not self.at_work and self._is_answerable():
            self.due = True
            self.broker.outside.at_end(self._answer_due)

    def _is_refused(self, cached: CachedPartition) -> bool:
        """Whether a follower named the partition, and what it has of it did not count. It must hear of that."""
        found = self.looks.get(cached)
        is_refused = found is not None and found.problem is not None
        return is_refused and cached.named and self.reader is Reader.FOLLOWER

    def _answer_due(self) -> None:
        """Answers at the end of the event in which enough came, as Kafka's action queue does. So an answer never tells
        of some partitions what the event has made of them, and of others what they were before it."""
        if self.is_waiting:
            self.respond()

    def abandon(self, error_code: int) -> bool:
        self.gone = True
        self._stop_waiting()
        if self.call.closed:
            return False
        sessions = self.broker.fetch_sessions
        kept = sessions.find(self.session.session_id, sessions.first)
        self.call.respond(refusal(known_error(error_code), self.request, kept))
        return True

    def _look(self, cached: CachedPartition) -> None:
        found = look(self.broker, cached, self.reader, self.rack, self.request.replica_id)
        self._note(cached, found if found.remote is None else self._look_in_the_tier(cached, found))

    def _look_in_the_tier(self, cached: CachedPartition, found: Look) -> Look:
        manager, partition = self.broker.remote_log, cached.partition
        if manager is None or partition is None:  # The node has no tier any more.
            return failed(cached.index, ErrorCode.offset_out_of_range)
        if self.call.closed:
            return found
        if self.remote is None:
            is_committed = self.reader is Reader.COMMITTED
            self.remote = RemoteReads(manager.reader, is_committed, max(self.max_bytes, 1), self._remote_arrived)
            if self.timer is None:  # Whoever waits is forgotten as a whole.
                self.call.on_closed(self._end_remote)
        return self.remote.look(cached, found, partition.log)

    def _remote_arrived(self, cached: CachedPartition) -> None:
        self.urgent = True
        self.partition_marked(cached)

    def _note(self, cached: CachedPartition, found: Look) -> None:
        self.session.assess(cached, found.available_bytes)
        cached.there_bytes = found.there_bytes
        self.looks[cached] = found
        problem = found.problem
        if problem is not None and not self.urgent:
            is_news = problem.error_code != cached.sent_error or direction(problem) != cached.sent_direction
            self.urgent = is_news or cached.named

    def _is_answerable(self) -> bool:
        if self.remote is not None and self.remote.is_pending:
            return False
        return self.urgent or self.session.available_bytes >= self.min_bytes

    def _wait(self) -> None:
        self.session.waiter = self
        self.listen()
        wait_ms = self.request.max_wait_ms
        if self.remote is not None and self.remote.is_pending:
            wait_ms = self.broker.config.remote_fetch_max_wait_ms
        if self.reader is Reader.FOLLOWER:
            wait_ms = self.broker.replication.leaders.waits.begin(self.request.replica_id, self, wait_ms)
        self.timer = self.broker.outside.set_timer(self.session.contact_us + wait_ms * 1000, self.respond)
        self.call.on_closed(self._forget)

    def listen(self) -> None:
        if not self.listening:
            self.listening = True
            for cached in self.looks:
                cached.watch(self.broker.partitions)

    def _stop_waiting(self) -> None:
        if self.gone:
            self._end_remote()
        if self.timer is not None:
            self.broker.outside.cancel_timer(self.timer)
            self.timer = None
            if self.reader is Reader.FOLLOWER:
                self.broker.replication.leaders.waits.end(self.request.replica_id, self)
        self.session.waiter = None

    def _forget(self) -> None:
        """The connection closed, or the fetch failed because of a bug. Nothing was sent, so every mark stays."""
        self._end_remote()
        if self.at_work:
            return
        self._stop_waiting()
        if not self.session.session_id:
            self.broker.fetch_sessions.release(self.session)

    def respond(self) -> None:
        """Answers now with what there is, because the time is over or a follower is to ask anew."""
        self.call.contain(lambda: self.run(Fetch._answer))

    def _answer(self) -> Work:
        """Answers, and settles what was told. A small answer takes the same steps directly, which costs fewer calls."""
        session = self.session
        if self.timer is not None or len(session.changed) > A_FEW:
            return in_turn(_ANSWERING, self)
        self.looking = False
        self.marked = marked = session.take_marks()
        if self.remote is not None:
            self._leave_the_tier()
        self.answers = answers = Answers()
        if session.available_bytes and (reading := self._read()):
            return after(reading, lambda: in_turn(_AFTER_READING, self))
        if marked:
            self._add_news_of(marked)
        self.told = told = list(answers.items())
        if len(told) > 1:
            place = session.revision.place
            told.sort(key=lambda said: place(session, said[0]))
        self.telling = Telling(self.call.api_version, session)
        if told:
            self.telling.add(told)
        putting_back = self._respond()
        if not self.kept:
            return putting_back
        if told:
            self._settle_told(told)
        if marked:
            self._settle_others(marked)
        return session.settled() if session.answers_full else ()

    def _refresh(self) -> Work:
        if self.timer is None:
            return ()
        self._stop_waiting()
        return in_slices(self.looks.items(), self._refresh_problems)

    def _take_marks(self) -> Work:
        """Partitions that change from now on are marked for the next answer."""
        self.looking = False
        self.marked, self.answers = self.session.take_marks(), {}
        if self.remote is not None:
            self._leave_the_tier()
        return ()

    def _leave_the_tier(self) -> None:
        """The next fetch looks again at what was in the tier, whether or not this answer tells of it."""
        assert self.remote is not None, "only called if something was read there"
        for cached in self.remote.parts:
            self.session.mark(cached)
        self._end_remote()

    def _end_remote(self) -> None:
        """Lets go of it, since it knows this fetch: what it has read should go with the answer."""
        if self.remote is not None:
            self.remote.end()
            self.remote = None

    def _read(self) -> Work:
        self.unread_bytes = self.session.available_bytes
        if not self.unread_bytes:
            return ()
        self.left, self.missed, self.misses = self.max_bytes, [], 0
        return () if self._read_within_limits() else self._read_on()

    def _read_on(self) -> Slices:
        while True:
            yield
            if self._read_within_limits():
                return

    def _add_news(self) -> Work:
        return in_slices(self.marked, self._add_news_of) if self.marked else ()

    def _order(self) -> Work:
        session, self.told = self.session, list(self.answers.items())
        return sort(self.told, lambda said: session.revision.place(session, said[0]))

    def _tell(self) -> Work:
        self.telling = Telling(self.call.api_version, self.session)
        return in_slices(self.told, self.telling.add) if self.told else ()

    def _respond(self) -> Work:
        session = self.session
        if self.call.closed:
            self.kept = False
            return session.put_back(self.marked, list(self.answers))
        self.kept = self._keep()
        self.call.respond(response(self.broker, self.call, self.telling))
        if self.kept:
            session.answered()
        elif not session.session_id:
            self.broker.fetch_sessions.release(session)
        return ()

    def _settle(self) -> Work:
        return in_slices(self.told, self._settle_told) if self.kept and self.told else ()

    def _settle_rest(self) -> Work:
        return in_slices(self.marked, self._settle_others) if self.kept and self.marked else ()

    def _settle_full(self) -> Work:
        return self.session.settled() if self.kept and self.session.answers_full else ()

    def _keep(self) -> bool:
        """Returns whether a session caches what was asked for. A draft becomes a session if there is room."""
        session, sessions, now = self.session, self.broker.fetch_sessions, self.broker.now
        if session.session_id:
            if session.answers_full and sessions.is_too_large(session):
                sessions.deny(session)
        elif not self.creates:
            return False
        elif session.revision is sessions.final:
            return sessions.admit(session, now)
        elif not sessions.admit_or_deny(session, now):
            return False
        return not session.denied

    def _refresh_problems(self, looked_at: Collection[tuple[CachedPartition, Look]]) -> None:
        """Looks again at partitions in error, or with a preferred read replica. One that is led elsewhere is not marked
        when its leader changes, nor is one when a broker changes."""
        for cached, found in looked_at:
            problem = found.problem
            if problem is not None and (problem.error_code or problem.preferred_read_replica >= 0):
                self._look(cached)

    def _add_news_of(self, marked: Collection[CachedPartition]) -> None:
        """Adds all that is news to what was read."""
        session, answers, reports = self.session, self.answers, self.session.revision.reports
        for cached in marked:
            if cached not in answers:
                data = told_of(cached, self.looks[cached], self.reader)
                if reports(session, cached, data):
                    answers[cached] = data

    def _read_within_limits(self) -> bool:
        """Reads in list order until the bytes are spent. The first partition with data may exceed both limits. Returns
        whether that is done, or a slice is over.

        A partition whose next batch is too large for what is left gets nothing, and the reading goes on behind it. It
        is not read again before there is more room for it, or it has changed. So the next answer looks further, where
        this one had MAX_MISSES. A partition that changed since the answer began is looked at again, since its log may
        have been cut.
        """
        session, answers, left, reads = self.session, self.answers, self.left, 0
        first = left == self.max_bytes
        while (left > 0 or first) and self.misses < MAX_MISSES and self.unread_bytes > 0:
            if reads == A_FEW:
                self.left = left
                return False
            cached = session.take_with_data()
            if cached is None:
                break
            self.unread_bytes -= cached.available_bytes
            reads += 1
            limit = min(cached.max_bytes, left)
            if limit <= cached.too_small_bytes and not first:
                self.missed.append(cached)
                continue
            found = self.looks.get(cached)
            is_remote = found is not None and found.remote is not None
            if found is None or (session.changed and cached in session.changed and not is_remote):
                found = look(self.broker, cached, self.reader, self.rack, self.request.replica_id)
                cached.there_bytes = found.there_bytes
            data = read(cached, found, self.reader, limit, first)
            if data.records:
                first = False
                left -= len(data.records)
            if data.records or data.error_code:
                answers[cached] = data
            else:
                cached.too_small_bytes = limit
                self.missed.append(cached)
                self.misses += 1
        for cached in self.missed:
            session.queue(cached)
        return True

    def _settle_told(self, told: Collection[Said]) -> None:
        """Settles in list order, so that partitions that move to the end of the list keep their order."""
        settle, partitions = self.session.settle, self.broker.partitions
        for cached, data in told:
            settle(cached, data, partitions)

    def _settle_others(self, marked: Collection[CachedPartition]) -> None:
        """Settles what the answer says nothing of."""
        settle, answers, partitions = self.session.settle, self.answers, self.broker.partitions
        for cached in marked:
            if cached not in answers:
                settle(cached, None, partitions)


_AFTER_READING: tuple[Callable[[Fetch], Work], ...] = (
    Fetch._add_news,
    Fetch._order,
    Fetch._tell,
    Fetch._respond,
    Fetch._settle,
    Fetch._settle_rest,
    Fetch._settle_full,
)
_ANSWERING = (Fetch._refresh, Fetch._take_marks, Fetch._read, *_AFTER_READING)
"""The steps of an answer."""
