"""One accepted Fetch request: look-ups, the wait, reads within the limits, the response, and what the session notes.

A fetch is completed at once, or when enough can be read, something fails, or it times out. It waits only on its
session; a full fetch waits on the draft of one. A partition that changes marks itself there, and only that partition is
looked up again. A response costs what is marked plus what is sent.

The work is done in slices. Nearly always the first slice is all of it, so the fetch is completed, or parked, in the
event that it came with. Otherwise the fetch is ``at_work`` until it is parked or everything is settled. This may happen
in between:

* The session's next request arrives. It is handled after the work, as if it had arrived then. So no request finds a
  session half changed. A repeated fetch of the first revision finds the first one completed, or parked (G-3).
* A partition changes, is deleted, or gets another leader. All partitions that were looked up are watched. Before the
  response is begun, the partition is looked up again. Later it keeps its mark for the next response, and is looked up
  again if it has yet to be read. So each partition's part of a response was true at some moment after the request
  arrived, and newer changes follow. Nothing in a fetch relates one partition to another.
* The connection closes before the response. A draft is dropped. A session applies what the request names, since it has
  accepted it. Nothing is sent, so every mark stays.
* The session is closed or evicted. The fetch gets an error, unless it was completed before, and its work ends.
* A follower's progress counts when its partition is looked up, as of the time at which the session accepted the
  request. Until the request's partitions are named, a partition that it names counts as fetched at its older offset.
  That is what the follower had just before, and the difference is no more than a request that takes longer to arrive.
  Where a named partition failed, its progress did not count. So the follower gets that error even if the partition has
  recovered by now: it names a partition again only after an error, or when its offset has moved.
* A bug closes the session, since its marks are unknown then. The client opens a new one.
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
    Lookup,
    Reader,
    RemoteReads,
    failed,
    look_up,
    offsets_of,
    rack_of,
    read,
    reader_of,
    without_records,
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

MAX_SKIPPED_BATCHES = 256
"""Limits how many batch headers one response reads only to find that the batch does not fit. That takes some 5 ms. Tens
of thousands of partitions would hold up all other clients for a second."""
MAX_DIRECT_PARTITIONS = 1000
"""Work on at most this many partitions is done directly. A slice reads this many, which takes 5 to 10 ms."""
LEADERS_FROM = 16
"""The version from which a response names the leader if the fetcher has a wrong one (KIP-951)."""

_OVER = object()

PartitionResult: TypeAlias = tuple[CachedPartition, PartitionData]
"""A partition's part of the response."""


@dataclass(slots=True)
class ResponseBuilder:
    """The topics of a response, added piece by piece. A topic in two places of the list is named twice."""

    api_version: int
    session: FetchSession
    topics: list[FetchTopicResponse] = field(default_factory=list)
    leaders: dict[int, None] | None = None
    """The leaders named in a version that also has their addresses."""
    _topic: tuple[str, bytes] | None = None
    _partitions: list[PartitionData] = field(init=False)
    """The partitions of the last topic."""

    def add(self, results: Collection[PartitionResult]) -> None:
        """Adds partitions in the order of the response."""
        names_leaders = LEADERS_FROM <= self.api_version < FIRST_DRAFT_VERSION
        uses_topic_ids, topic = self.session.uses_topic_ids, self._topic
        if self.api_version == FETCH_TOMBSTONE_HORIZON:
            results = [(cached, _with_horizon(cached, data)) for cached, data in results]
        partitions = [] if topic is None else self._partitions
        for cached, data in results:
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


class FetchNeeds(
    LooksUpPartitions, HasConfig, HasReplication, HasFetchSessions, HasNow, HasOutside, HasRemoteLog, Protocol
):
    """What a fetch uses of its broker."""


@dataclass(slots=True, eq=False)
class Fetch(Waiter):
    """One accepted fetch. Each connection has at most one that is parked."""

    broker: FetchNeeds
    call: Call
    session: FetchSession
    """The session, or the draft of one."""
    request: FetchRequest
    wants_session: bool = False
    """Whether it is a full fetch that opens a session."""
    urgent: bool = False
    """Whether an error, a divergence or a preferred read replica is new, has changed, or was named by this request. One
    that lasts is in each response but ends no wait."""
    is_due: bool = False
    """Whether it is completed at the end of this event."""
    timer: int | None = None
    """The timeout of a parked fetch."""
    tracks_changes: bool = False
    """Whether a partition that changes is looked up again: from when the request was applied to the session until the
    response is begun."""
    is_watching: bool = False
    """Whether all partitions that were looked up are watched for changes."""
    remote: RemoteReads | None = None
    """Its reads in the remote tier, None if there are none yet."""
    reader: Reader = field(init=False)
    rack: str | None = field(init=False)
    """The consumer's rack, None if the fetcher may read from leaders only."""
    max_bytes: int = field(init=False)
    min_bytes: int = field(init=False)
    lookups: dict[CachedPartition, Lookup] = field(default_factory=dict)
    """The latest lookup of each partition that was marked."""
    marked: dict[CachedPartition, None] = field(init=False)
    """The partitions that the response settles."""
    partition_data: dict[CachedPartition, PartitionData] = field(init=False)
    """The partitions in the response."""
    in_order: list[PartitionResult] = field(init=False)
    """The same in the order of the response."""
    builder: ResponseBuilder = field(init=False)
    is_cached: bool = field(init=False)
    """Whether a session caches the partitions after the response."""
    remaining_bytes: int = field(init=False)
    """How many bytes may still be sent, while it reads."""
    unread_bytes: int = field(init=False)
    """The available bytes of the partitions that are still to be read."""
    skipped: list[CachedPartition] = field(init=False)
    """Partitions whose next batch did not fit."""
    skipped_batches: int = field(init=False)
    """The number of those that were tried."""
    at_work: bool = field(default=False, init=False)
    next_requests: list[Callable[[], None]] | None = field(default=None, init=False)
    """The session's requests that arrived during the work."""
    is_closed: bool = field(default=False, init=False)
    """Whether the session was closed or evicted."""

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
        """Handles the session's next request after this work."""
        self.next_requests = [*(self.next_requests or ()), request]

    def run(self, begin: Callable[["Fetch"], Work]) -> None:
        """Does the first slice of the work now, and the rest in later events."""
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
        following, self.next_requests = self.next_requests, None
        for request in following or ():
            later(self.broker.outside, 0, request)

    def _is_void(self) -> bool:
        """Whether its session is closed, or its connection while there is no session."""
        return self.is_closed or (self.call.closed and not self.session.session_id)

    def _failed(self) -> None:
        """Cleans up after work that is void, or that a bug ended in the middle."""
        if not self.is_closed:
            self.session.waiter = None
            self.broker.fetch_sessions.close(self.session.session_id, "a fetch of it failed")
            self.broker.fetch_sessions.release(self.session)

    def go_on_in(self, draft: FetchSession) -> None:
        """Goes on in a draft, because the session will be closed and that must not end this fetch."""
        self.session.waiter = None
        draft.contact_us = self.session.contact_us
        self.session = draft
        if self.at_work:
            draft.waiter = self

    def begin(self) -> Work:
        """Looks up the marked partitions, and then completes or parks the fetch."""
        session = self.session
        if session.reader is not self.reader or session.rack != self.rack:
            return after(session.read_as(self.reader, self.rack), self.begin)
        self.tracks_changes = True
        if len(session.changed) > MAX_DIRECT_PARTITIONS:
            return after(in_slices(session.changed, self._look_up_all), self._complete_or_wait)
        if session.changed:
            self._look_up_all(session.changed)
        return self._complete_or_wait()

    def _complete_or_wait(self) -> Work:
        if self.call.closed:
            return ()
        is_pending = self.remote is not None and self.remote.is_pending
        if self._is_completable() or (self.request.max_wait_ms <= 0 and not is_pending) or not self.session.partitions:
            return self._complete()
        self._park()
        return ()

    def _look_up_all(self, marked: Collection[CachedPartition]) -> None:
        for cached in marked:
            self._look_up(cached)
        if self.is_watching:
            for cached in marked:
                cached.watch(self.broker.partitions)
        if self.reader is Reader.FOLLOWER and not self._count_progress(marked):
            self.abandon(self.session.revision.unknown_id)

    def _count_progress(self, marked: Collection[CachedPartition]) -> bool:
        """Reports a follower's progress in these marked partitions to the leader. A follower has all records below its
        fetch offset (F-22).

        All partitions that the request named are marked. For the others the leader uses the session's contact time. If
        a high watermark moves, other fetches are completed, and may take this session's slot. Returns False then.
        """
        replicated = [one for one in marked if one.partition and one.partition.followers is not None]
        if not replicated:
            return True
        leaders, request = self.broker.replication.leaders, self.request
        for cached in replicated:
            partition = cached.partition
            if partition is None or self.lookups[cached].problem is not None or not cached.is_of_partition:
                continue
            error = leaders.fetched(partition, cached, request.replica_id, request.replica_epoch)
            if error:
                self._note(cached, failed(cached.index, error))
            else:
                self.lookups[cached].offsets = offsets_of(partition.log)
        leaders.notify_watchers()
        session_id = self.session.session_id
        return not session_id or self.broker.fetch_sessions.sessions.get(session_id) is self.session

    def partition_marked(self, cached: CachedPartition) -> None:
        """Contains a bug in this fetch, so that it does not fail the request that changed the partition."""
        self.call.contain(partial(self._marked, cached))

    def _marked(self, cached: CachedPartition) -> None:
        if not self.tracks_changes or (self.at_work and self._is_refused(cached)):
            return
        self._look_up(cached)
        cached.watch(self.broker.partitions)
        if not self.is_due and not self.at_work and self._is_completable():
            self.is_due = True
            self.broker.outside.at_end(self._complete_due)

    def _is_refused(self, cached: CachedPartition) -> bool:
        """Whether a follower named the partition, and its progress did not count. It must get that error."""
        lookup = self.lookups.get(cached)
        is_refused = lookup is not None and lookup.problem is not None
        return is_refused and cached.named and self.reader is Reader.FOLLOWER

    def _complete_due(self) -> None:
        """Completes the fetch at the end of the event in which enough arrived, as Kafka's action queue does. So no
        response has the state after the event for some partitions, and the state before it for others."""
        if self.is_waiting:
            self.respond()

    def abandon(self, error_code: int) -> bool:
        self.is_closed = True
        self._stop_waiting()
        if self.call.closed:
            return False
        sessions = self.broker.fetch_sessions
        session = sessions.find(self.session.session_id, sessions.first)
        self.call.respond(refusal(known_error(error_code), self.request, session))
        return True

    def _look_up(self, cached: CachedPartition) -> None:
        lookup = look_up(self.broker, cached, self.reader, self.rack, self.request.replica_id)
        self._note(cached, lookup if lookup.remote is None else self._look_up_remote(cached, lookup))

    def _look_up_remote(self, cached: CachedPartition, lookup: Lookup) -> Lookup:
        manager, partition = self.broker.remote_log, cached.partition
        if manager is None or partition is None:  # The node no longer has a tier.
            return failed(cached.index, ErrorCode.offset_out_of_range)
        if self.call.closed:
            return lookup
        if self.remote is None:
            is_committed = self.reader is Reader.COMMITTED
            self.remote = RemoteReads(manager.reader, is_committed, max(self.max_bytes, 1), self._remote_arrived)
            if self.timer is None:  # A parked fetch has a listener already.
                self.call.on_closed(self._end_remote)
        return self.remote.look_up(cached, lookup, partition.log)

    def _remote_arrived(self, cached: CachedPartition) -> None:
        self.urgent = True
        self.partition_marked(cached)

    def _note(self, cached: CachedPartition, lookup: Lookup) -> None:
        self.session.assess(cached, lookup.available_bytes)
        cached.there_bytes = lookup.there_bytes
        self.lookups[cached] = lookup
        problem = lookup.problem
        if problem is not None and not self.urgent:
            is_new = problem.error_code != cached.sent_error or direction(problem) != cached.sent_direction
            self.urgent = is_new or cached.named

    def _is_completable(self) -> bool:
        if self.remote is not None and self.remote.is_pending:
            return False
        return self.urgent or self.session.available_bytes >= self.min_bytes

    def _park(self) -> None:
        self.session.waiter = self
        self.listen()
        wait_ms = self.request.max_wait_ms
        if self.remote is not None and self.remote.is_pending:
            wait_ms = self.broker.config.remote_fetch_max_wait_ms
        if self.reader is Reader.FOLLOWER:
            wait_ms = self.broker.replication.leaders.waits.begin(self.request.replica_id, self, wait_ms)
        self.timer = self.broker.outside.set_timer(self.session.contact_us + wait_ms * 1000, self.respond)
        self.call.on_closed(self._connection_closed)

    def listen(self) -> None:
        if not self.is_watching:
            self.is_watching = True
            for cached in self.lookups:
                cached.watch(self.broker.partitions)

    def _stop_waiting(self) -> None:
        if self.is_closed:
            self._end_remote()
        if self.timer is not None:
            self.broker.outside.cancel_timer(self.timer)
            self.timer = None
            if self.reader is Reader.FOLLOWER:
                self.broker.replication.leaders.waits.end(self.request.replica_id, self)
        self.session.waiter = None

    def _connection_closed(self) -> None:
        """Also called when the fetch fails because of a bug. Nothing was sent, so every mark stays."""
        self._end_remote()
        if self.at_work:
            return
        self._stop_waiting()
        if not self.session.session_id:
            self.broker.fetch_sessions.release(self.session)

    def respond(self) -> None:
        """Completes the fetch now with the data that there is: it timed out, or a follower must send its next one."""
        self.call.contain(lambda: self.run(Fetch._complete))

    def _complete(self) -> Work:
        """Responds, and settles the session. A small response takes the same steps directly, with fewer calls."""
        session = self.session
        if self.timer is not None or len(session.changed) > MAX_DIRECT_PARTITIONS:
            return in_turn(_COMPLETION, self)
        self.tracks_changes = False
        self.marked = marked = session.take_marks()
        if self.remote is not None:
            self._release_remote()
        data: dict[CachedPartition, PartitionData] = {}
        self.partition_data = data
        if session.available_bytes and (reading := self._read()):
            return after(reading, lambda: in_turn(_AFTER_READING, self))
        if marked:
            self._add_news_of(marked)
        self.in_order = in_order = list(data.items())
        if len(in_order) > 1:
            place = session.revision.place
            in_order.sort(key=lambda result: place(session, result[0]))
        self.builder = ResponseBuilder(self.call.api_version, session)
        if in_order:
            self.builder.add(in_order)
        putting_back = self._send()
        if not self.is_cached:
            return putting_back
        if in_order:
            self._settle_sent(in_order)
        if marked:
            self._settle_omitted(marked)
        return session.settled() if session.answers_full else ()

    def _refresh(self) -> Work:
        if self.timer is None:
            return ()
        self._stop_waiting()
        return in_slices(self.lookups.items(), self._refresh_problems)

    def _take_marks(self) -> Work:
        """Begins the response. Partitions that change from now on are marked for the next one."""
        self.tracks_changes = False
        self.marked, self.partition_data = self.session.take_marks(), {}
        if self.remote is not None:
            self._release_remote()
        return ()

    def _release_remote(self) -> None:
        """Marks the partitions that were read in the tier, so that the next fetch looks them up again whether or not
        this response has them."""
        assert self.remote is not None, "only called if something was read there"
        for cached in self.remote.parts:
            self.session.mark(cached)
        self._end_remote()

    def _end_remote(self) -> None:
        """Drops the reads. They refer to this fetch, so the records would stay in memory with it."""
        if self.remote is not None:
            self.remote.end()
            self.remote = None

    def _read(self) -> Work:
        self.unread_bytes = self.session.available_bytes
        if not self.unread_bytes:
            return ()
        self.remaining_bytes, self.skipped, self.skipped_batches = self.max_bytes, [], 0
        return () if self._read_within_limits() else self._read_on()

    def _read_on(self) -> Slices:
        while True:
            yield
            if self._read_within_limits():
                return

    def _add_news(self) -> Work:
        return in_slices(self.marked, self._add_news_of) if self.marked else ()

    def _order(self) -> Work:
        session, self.in_order = self.session, list(self.partition_data.items())
        return sort(self.in_order, lambda result: session.revision.place(session, result[0]))

    def _build(self) -> Work:
        self.builder = ResponseBuilder(self.call.api_version, self.session)
        return in_slices(self.in_order, self.builder.add) if self.in_order else ()

    def _send(self) -> Work:
        session = self.session
        if self.call.closed:
            self.is_cached = False
            return session.put_back(self.marked, list(self.partition_data))
        self.is_cached = self._keep()
        self.call.respond(response(self.broker, self.call, self.builder))
        if self.is_cached:
            session.answered()
        elif not session.session_id:
            self.broker.fetch_sessions.release(session)
        return ()

    def _settle(self) -> Work:
        return in_slices(self.in_order, self._settle_sent) if self.is_cached and self.in_order else ()

    def _settle_rest(self) -> Work:
        return in_slices(self.marked, self._settle_omitted) if self.is_cached and self.marked else ()

    def _settle_full(self) -> Work:
        return self.session.settled() if self.is_cached and self.session.answers_full else ()

    def _keep(self) -> bool:
        """Returns whether a session caches the fetched partitions. A draft becomes a session if there is room."""
        session, sessions, now = self.session, self.broker.fetch_sessions, self.broker.now
        if session.session_id:
            if session.answers_full and sessions.is_too_large(session):
                sessions.deny(session)
        elif not self.wants_session:
            return False
        elif session.revision is sessions.final:
            return sessions.admit(session, now)
        elif not sessions.admit_or_deny(session, now):
            return False
        return not session.denied

    def _refresh_problems(self, lookups: Collection[tuple[CachedPartition, Lookup]]) -> None:
        """Looks up again the partitions in error, or with a preferred read replica. A change of a leader elsewhere, or
        of a broker, marks no partition."""
        for cached, lookup in lookups:
            problem = lookup.problem
            if problem is not None and (problem.error_code or problem.preferred_read_replica >= 0):
                self._look_up(cached)

    def _add_news_of(self, marked: Collection[CachedPartition]) -> None:
        """Adds the marked partitions that have something new and were not read."""
        session, added, reports = self.session, self.partition_data, self.session.revision.reports
        for cached in marked:
            if cached not in added:
                data = without_records(cached, self.lookups[cached], self.reader)
                if reports(session, cached, data):
                    added[cached] = data

    def _read_within_limits(self) -> bool:
        """Reads in list order until the limit is reached. The first partition with data may exceed both limits. Returns
        False if only the slice is over.

        A partition whose next batch does not fit gets nothing, and the reading goes on behind it. It is not read again
        before there is more room for it, or it has changed. So the next response gets further, where this one had
        MAX_SKIPPED_BATCHES. A partition that changed since the response was begun is looked up again, since its log may
        have been truncated.
        """
        session, results, remaining, reads = self.session, self.partition_data, self.remaining_bytes, 0
        first = remaining == self.max_bytes
        while (remaining > 0 or first) and self.skipped_batches < MAX_SKIPPED_BATCHES and self.unread_bytes > 0:
            if reads == MAX_DIRECT_PARTITIONS:
                self.remaining_bytes = remaining
                return False
            cached = session.take_with_data()
            if cached is None:
                break
            self.unread_bytes -= cached.available_bytes
            reads += 1
            limit = min(cached.max_bytes, remaining)
            if limit <= cached.too_small_bytes and not first:
                self.skipped.append(cached)
                continue
            lookup = self.lookups.get(cached)
            is_remote = lookup is not None and lookup.remote is not None
            if lookup is None or (session.changed and cached in session.changed and not is_remote):
                lookup = look_up(self.broker, cached, self.reader, self.rack, self.request.replica_id)
                cached.there_bytes = lookup.there_bytes
            data = read(cached, lookup, self.reader, limit, first)
            if data.records:
                first = False
                remaining -= len(data.records)
            if data.records or data.error_code:
                results[cached] = data
            else:
                cached.too_small_bytes = limit
                self.skipped.append(cached)
                self.skipped_batches += 1
        for cached in self.skipped:
            session.queue(cached)
        return True

    def _settle_sent(self, results: Collection[PartitionResult]) -> None:
        """Settles in list order, so that partitions that move to the end of the list keep their order."""
        settle, partitions = self.session.settle, self.broker.partitions
        for cached, data in results:
            settle(cached, data, partitions)

    def _settle_omitted(self, marked: Collection[CachedPartition]) -> None:
        """Settles the marked partitions that are not in the response."""
        settle, sent, partitions = self.session.settle, self.partition_data, self.broker.partitions
        for cached in marked:
            if cached not in sent:
                settle(cached, None, partitions)


_AFTER_READING: tuple[Callable[[Fetch], Work], ...] = (
    Fetch._add_news,
    Fetch._order,
    Fetch._build,
    Fetch._send,
    Fetch._settle,
    Fetch._settle_rest,
    Fetch._settle_full,
)
_COMPLETION = (Fetch._refresh, Fetch._take_marks, Fetch._read, *_AFTER_READING)
"""The steps of a response."""


def _with_horizon(cached: CachedPartition, data: PartitionData) -> PartitionData:
    """Adds the tombstone horizon. The records were read before it, so a marker that has moved since is too high, never
    too low."""
    partition = cached.partition
    if data.error_code or partition is None:
        return data
    return replace(data, tombstone_horizon=partition.log.horizon.offset)


def response(broker: HasController, call: Call, builder: ResponseBuilder) -> FetchResponse:
    """Makes the response. Only the first revision has flags. As in Kafka, followers get no addresses of leaders."""
    session = builder.session
    leaders = None if session.privileged else builder.leaders
    return FetchResponse(
        0,
        session.session_id,
        builder.topics,
        node_endpoints=endpoints_of(broker, leaders, call.listener) if leaders else [],
        response_flags=_flags(session) if session.revision.name == "first" else 0,
    )


def refusal(error: Error, request: FetchRequest, session: FetchSession | None = None) -> FetchResponse:
    """Makes a response with a top-level error.

    ``session`` is the one that the request named, if it still exists and its revision returns its ID with errors.
    """
    flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
    if session is not None:
        flags, session_id = flags | _may_follow(session), session.session_id
    return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)


def _flags(session: FetchSession) -> int:
    """Returns the flags of a successful response in the first revision."""
    return _may_follow(session) | (0 if session.answers_full else INCREMENTAL_FETCH_RESPONSE)


def _may_follow(session: FetchSession) -> int:
    """Returns the flag for sessions that accept incremental requests."""
    return INCREMENTAL_FETCH_OK if session.session_id and not session.denied else 0


_TEXTS = {
    DraftError.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    DraftError.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    ErrorCode.invalid_request: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""Error texts of the first revision. Other responses have none."""
