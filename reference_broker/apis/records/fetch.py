"""One accepted Fetch request, step by step.

``Fetch._serve`` is its life, and reads from top to bottom. The numbers are those of the sections of ``Fetch``:

1. ``_update_session`` adds or changes the partitions that the request names, and removes those that it forgets.
2. ``_look_up_all`` looks up the session's marked partitions, and only these. The fetch offsets of a follower are its
   progress.
3. If fewer than ``min.bytes`` can be read and nothing is urgent, the fetch is parked on its session until enough
   arrives or ``max.wait.ms`` is over (Kafka's DelayedFetch). A full fetch is parked on the candidate that may become a
   session. A partition that changes meanwhile is marked in the session, and ``partition_marked`` looks it up again.
   ``_complete_after_wait`` ends the wait.
4. ``_complete`` collects the partitions of the response: those with records (``_read_records``) within the limits, and
   those of which something else is new (``_add_changed``). It responds, unless the connection has closed.
5. ``FetchSession.response_sent`` records what was sent, for the next request.

``NEXT_STAGES`` is the table of the stages. A fetch costs in proportion to the partitions that are marked and those that
are sent.

A fetch ends in one of four ways, each of which is a stage and goes through ``Fetch._end``:

========= ======================================== =============================== =================================
stage     cause                                    response                        session
========= ======================================== =============================== =================================
COMPLETED enough can be sent, the wait is over, or the partitions                  records what was sent; a candidate
          the fetcher needs a response now                                         is admitted or released
ABANDONED a newer request of the session came, or  INVALID_FETCH_SESSION_EPOCH, or serves the newer request, or is
          the session was closed or evicted        FETCH_SESSION_ID_NOT_FOUND      gone
DROPPED   the connection closed, or a bug failed   none, or UNKNOWN_SERVER_ERROR   keeps all marks; a candidate is
          the request while it was parked                                          released
FAILED    a bug ended its work half way            UNKNOWN_SERVER_ERROR            is closed: its marks are unknown
========= ======================================== =============================== =================================

UNKNOWN_SERVER_ERROR comes from ``Call.run``. A fetch that ends after its response has been sent sends nothing more.

All this is one event for up to 1,000 partitions. A larger fetch yields in between (``ports.slicing``). Then other
requests are served, and partitions change. ``Fetch._in_slices`` has what happens around each yield, and comments
elsewhere say what follows from that.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, run_in_slices
from reference_broker.apis.records.fetch_partition import (
    FetchParams,
    Lookup,
    RemoteReads,
    failed_lookup,
    look_up,
    offsets_of,
    params_of,
    read,
    without_records,
)
from reference_broker.apis.records.fetch_response import PartitionResult, ResponseBuilder
from reference_broker.log.reading import FetchIsolation
from reference_broker.ports.node_ports import later
from reference_broker.ports.slicing import (
    READ_PARTITIONS_PER_SLICE,
    SESSION_PARTITIONS_PER_SLICE,
    Sliced,
    in_slices,
    sort_in_slices,
)
from reference_broker.sessions.fetch_session import CachedPartition, FetchSession, direction
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import INITIAL_EPOCH, FetchRequest, FetchResponse, PartitionData

MAX_SKIPPED_BATCHES = 256
"""Number of batch headers that one response reads only to find that the batch does not fit: about 5 ms. Without this
limit, a fetch of tens of thousands of partitions would hold up all other clients for a second."""
MAX_NAMED_PARTITIONS = 50_000
"""Number of partitions that one request may name, since their entries are in memory until the response, and the next
request of the session waits for it. A session may cache more, after several requests."""
TOPIC_IDS_FROM = 13
"""The version from which topics are named by ID (KIP-516)."""


@dataclass(frozen=True, slots=True, eq=False)
class FetchStage:
    """A stage of a fetch: what the fetch does, and what a change of one of its partitions leads to meanwhile. A
    partition that changes is marked in each stage."""

    name: str
    is_parked: bool = False
    is_over: bool = False
    looks_up_changes: bool = False
    """Whether a partition that changes is looked up again. Otherwise it only keeps its mark, for the next response."""

    @property
    def is_active(self) -> bool:
        """Whether the fetch is at work, in this event or over several ones."""
        return not (self.is_parked or self.is_over)


UPDATING: Final = FetchStage("updating the session")
"""The session applies what the request names and forgets."""
LOOKING_UP: Final = FetchStage("looking up", looks_up_changes=True)
"""The marked partitions are looked up. After the wait, those in error are looked up again."""
PARKED: Final = FetchStage("parked", is_parked=True, looks_up_changes=True)
"""Too little can be sent. The fetch waits for changes and for its timer."""
DUE: Final = FetchStage("due", is_parked=True, looks_up_changes=True)
"""Enough arrived in this event, at the end of which the fetch responds."""
RESPONDING: Final = FetchStage("responding")
"""Records are read, the response is sent, and the session is prepared for the next request."""
COMPLETED: Final = FetchStage("completed", is_over=True)
ABANDONED: Final = FetchStage("abandoned", is_over=True)
DROPPED: Final = FetchStage("dropped", is_over=True)
FAILED: Final = FetchStage("failed", is_over=True)

_EARLY_ENDS: Final = (ABANDONED, DROPPED, FAILED)
NEXT_STAGES: Final[Mapping[FetchStage, tuple[FetchStage, ...]]] = {
    UPDATING: (LOOKING_UP, *_EARLY_ENDS),
    LOOKING_UP: (PARKED, RESPONDING, *_EARLY_ENDS),
    PARKED: (DUE, LOOKING_UP, *_EARLY_ENDS),
    DUE: (LOOKING_UP, *_EARLY_ENDS),
    RESPONDING: (COMPLETED, *_EARLY_ENDS),
    COMPLETED: (),
    ABANDONED: (),
    DROPPED: (),
    FAILED: (),
}


@dataclass(slots=True, eq=False)
class Fetch:
    """One accepted fetch. Each connection has at most one that is parked."""

    # the request
    broker: Broker
    call: Call
    session: FetchSession
    """The session, or the candidate that may become one."""
    request: FetchRequest
    params: FetchParams = field(init=False)

    # what can be sent
    lookups: dict[CachedPartition, Lookup] = field(default_factory=dict, init=False)
    """The latest lookup of each partition that was marked."""
    remote: RemoteReads | None = field(default=None, init=False)
    """The fetch's reads in the remote tier, None if there are none yet."""
    is_urgent: bool = field(default=False, init=False)
    """Whether an error, a divergence or a preferred read replica must be sent at once: it is new or has changed, or
    this request named its partition. A lasting one is in each response, but ends no wait."""

    # progress
    stage: FetchStage = field(default=UPDATING, init=False)
    timer: int | None = field(default=None, init=False)
    """The timer of the wait (``_park``) while the fetch is parked, else None."""
    watches: bool = field(default=False, init=False)
    """Whether the partitions that were looked up are watched for changes, since other events come before the
    response."""
    deferred_requests: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """The session's next requests, each of which is handled in an event after this fetch."""

    def __post_init__(self) -> None:
        self.params = params_of(self.broker.config, self.call.api_version, self.request)

    def _enter(self, stage: FetchStage) -> None:
        assert stage in NEXT_STAGES[self.stage], f"a fetch went from {self.stage.name} to {stage.name}"
        self.stage = stage

    # the life of a fetch

    def start(self) -> None:
        """Serve the request, in this event or, if it is large, over several ones."""
        run_in_slices(self.broker, self.call, self._in_slices(self._serve()))

    def respond(self) -> None:
        """Complete the parked fetch now with the data that there is: ``max.wait.ms`` is over, or the fetcher must send
        its next request."""
        self.call.run(lambda: run_in_slices(self.broker, self.call, self._in_slices(self._complete_after_wait())))

    def _serve(self) -> Sliced[None]:
        """Serve the request, up to its response or until it is parked."""
        yield from self._update_session()
        if self.stage.is_over:  # Its session became too large.
            return
        session, params = self.session, self.params
        if session.isolation is not params.isolation or session.rack != params.rack:
            yield from session.read_as(params.isolation, params.rack)
        self._enter(LOOKING_UP)
        if session.marked:
            yield from in_slices(session.marked, SESSION_PARTITIONS_PER_SLICE, self._look_up_all)
        is_pending = self.remote is not None and self.remote.is_pending
        if self.call.closed:
            self._drop()
        # Decision fetch-at-once
        elif self._is_completable() or (self.request.max_wait_ms <= 0 and not is_pending) or not session.partitions:
            yield from self._complete()
        else:
            self._park()

    def _complete_after_wait(self) -> Sliced[None]:
        """Unpark the fetch, and complete it."""
        self._unpark()
        self._enter(LOOKING_UP)
        yield from in_slices(self.lookups.items(), SESSION_PARTITIONS_PER_SLICE, self._refresh_without_read)
        yield from self._complete()

    def _complete(self) -> Sliced[None]:
        """Respond, and prepare the session for the next request."""
        self._enter(RESPONDING)
        session = self.session
        marked = session.take_marks()
        data: dict[CachedPartition, PartitionData] = {}
        if marked or session.available_bytes:
            data = yield from self._collect(marked)
        builder = ResponseBuilder(self.call.api_version, session)
        if data:
            yield from in_slices(data.items(), SESSION_PARTITIONS_PER_SLICE, builder.add)
        if self.call.closed:  # Decision response-put-back
            yield from session.put_back(marked, data)
            self._drop()
            return
        keeps = self._keep_session()
        self.call.respond(builder.response(self.broker, self.call))
        if keeps:  # Decision session-after-response
            yield from self._record_sent(data, marked)
        elif not session.session_id:
            self.broker.fetch_sessions.release(session)
        self._end(COMPLETED)

    # 1. the partitions that the request names and forgets

    def _update_session(self) -> Sliced[None]:
        """Update the session by the partitions that the request names and forgets. A session that becomes too large is
        closed, which ends this fetch."""
        sessions, session, request = self.broker.fetch_sessions, self.session, self.request
        if request.topics:
            yield from self._update_partitions()
        if not session.session_id:  # A full fetch has nothing to forget.
            return
        if request.forgotten:
            yield from session.forget_all(request.forgotten)
        sessions.resized(session)
        if sessions.is_too_large(session):
            session.attach(self)  # So that this fetch ends with the session.
            sessions.close(session.session_id, "too many partitions")
            return
        if not session.partitions:  # Decision session-emptied
            yield from self._leave_session()

    def _update_partitions(self) -> Sliced[None]:
        return self.session.update_partitions(self.request.topics, with_ids=self.call.api_version >= TOPIC_IDS_FROM)

    def _leave_session(self) -> Sliced[None]:
        """Close the session, whose last partition was forgotten. The fetch goes on in a candidate, with no partitions
        but those that it names."""
        session = self.session
        session.detach()  # So that closing the session does not end this fetch.
        self.session = candidate_of(self.broker, self.call, self.request)
        self.session.set_contact_of(session)
        self.broker.fetch_sessions.close(session.session_id, "no partition left")
        if not self.call.closed:
            yield from self._update_partitions()

    # 2. the lookups

    def _look_up_all(self, marked: Collection[CachedPartition]) -> None:
        for cached in marked:
            self._look_up(cached)
        if self.watches:
            for cached in marked:
                cached.watch(self.broker.partitions)
        if self.params.is_follower:
            self._count_progress(marked)

    def _count_progress(self, marked: Collection[CachedPartition]) -> None:
        """Report a follower's progress in these marked partitions to the leader. A follower has all records below its
        fetch offset (F-22).

        All partitions that the request named are marked. For the others the leader uses the session's contact time, so
        the progress counts as of the time at which the session accepted the request, however late the lookup is. If a
        high watermark moves, the fetches that wait for it are completed at the end of this event, so that none of them
        takes this session's slot meanwhile.
        """
        replicated = [cached for cached in marked if cached.partition and cached.partition.followers is not None]
        if not replicated:
            return
        leaders, request = self.broker.replication.leaders, self.request
        for cached in replicated:
            partition = cached.partition
            lookup = self.lookups[cached]
            # Decision requested-offset
            if partition is None or lookup.result_without_read is not None or not cached.is_offset_proven:
                continue
            error = leaders.fetched(partition, cached, request.replica_id, request.replica_epoch)
            if error:  # Decision follower-progress
                self._store_lookup(cached, failed_lookup(cached.index, error))
            elif (offsets := offsets_of(partition.log)) != lookup.offsets:  # The high watermark moved.
                self.lookups[cached] = Lookup(
                    None, offsets, lookup.available_bytes, lookup.end_offset, lookup.unlimited_bytes, lookup.remote
                )
        leaders.notify_watchers()

    def _look_up(self, cached: CachedPartition) -> None:
        """Check a partition, and find how much of it can be read, here or in the tier."""
        lookup = look_up(self.broker, cached, self.params)
        self._store_lookup(cached, lookup if lookup.remote is None else self._look_up_remote(cached, lookup))

    def _look_up_remote(self, cached: CachedPartition, lookup: Lookup) -> Lookup:
        """Return the lookup with the records from the remote tier if these have arrived. Otherwise begin to read."""
        manager, partition = self.broker.remote_log, cached.partition
        if manager is None or partition is None:  # The node no longer has a tier.
            return failed_lookup(cached.index, ErrorCode.offset_out_of_range)
        if self.call.closed:
            return lookup
        if self.remote is None:
            is_committed = self.params.isolation is FetchIsolation.TXN_COMMITTED
            max_bytes = max(self.params.max_bytes, 1)
            self.remote = RemoteReads(manager.reader, is_committed, max_bytes, self._remote_arrived)
            self.call.on_closed(self._connection_closed)
        return self.remote.look_up(cached, lookup, partition.log)

    def _remote_arrived(self, cached: CachedPartition) -> None:
        """Look up a partition whose read in the tier is finished. The response is due once no read is pending."""
        self.is_urgent = True
        self.partition_marked(cached)

    def _store_lookup(self, cached: CachedPartition, lookup: Lookup) -> None:
        """Store the latest lookup of a partition. The session notes how many bytes are readable."""
        self.session.set_available_bytes(cached, lookup.available_bytes)
        self.lookups[cached] = lookup
        result = lookup.result_without_read
        if result is not None and not self.is_urgent:
            is_new = result.error_code != cached.sent_error or direction(result) != cached.sent_direction
            self.is_urgent = is_new or cached.is_requested

    def _is_completable(self) -> bool:
        """Whether there is enough to send, so that the wait is over or need not begin."""
        if self.remote is not None and self.remote.is_pending:  # Decision fetch-awaits-tier
            return False
        return self.is_urgent or self.session.available_bytes >= self.params.min_bytes

    # 3. the wait

    def _park(self) -> None:
        """Wait for changes of the session's partitions, at most ``max.wait.ms`` (Kafka's DelayedFetch), or at most
        ``remote.fetch.max.wait.ms`` while reads in the remote tier are pending (DelayedRemoteFetch)."""
        self._watch()
        self._enter(PARKED)
        self.session.attach(self)
        wait_ms = self.request.max_wait_ms
        if self.remote is not None and self.remote.is_pending:
            wait_ms = self.broker.config.remote_fetch_max_wait_ms
        if self.params.is_follower:
            wait_ms = self.broker.replication.leaders.waits.begin(self.params.replica_id, self, wait_ms)
        self.timer = self.broker.ports.set_timer(self.session.contact_us + wait_ms * 1000, self.respond)
        self.call.on_closed(self._connection_closed)

    def _watch(self) -> None:
        """Watch the partitions that were looked up. From now on each further one is watched right after its lookup."""
        if not self.watches:
            self.watches = True
            for cached in self.lookups:
                cached.watch(self.broker.partitions)

    def partition_marked(self, cached: CachedPartition) -> None:
        """Look up a partition that changed. A bug in this fetch does not fail the request that changed it."""
        self.call.run(partial(self._look_up_changed, cached))

    def _look_up_changed(self, cached: CachedPartition) -> None:
        """Look up a partition that changed, and complete the fetch at the end of this event if there is enough now."""
        # While a response is built, a changed partition keeps its mark, and is looked up again only if it has yet to be
        # read (``_read_records``). So a response has each partition as it was at some moment since the request arrived.
        # These moments differ; nothing in a fetch relates one partition to another.
        # Decision changed-partition
        if not self.stage.looks_up_changes or (self.stage is LOOKING_UP and self._is_refused(cached)):
            return
        self._look_up(cached)
        cached.watch(self.broker.partitions)
        if self.stage is PARKED and self._is_completable():  # Decision parked-fetch-enough
            self._enter(DUE)
            self.broker.ports.at_end(self._complete_due)

    def _is_refused(self, cached: CachedPartition) -> bool:
        """Whether a follower named the partition, and its progress did not count. The follower must get that error even
        if the partition has recovered by now: it names a partition again only after an error, or when its offset
        moves."""
        lookup = self.lookups.get(cached)
        is_refused = lookup is not None and lookup.result_without_read is not None
        return is_refused and cached.is_requested and self.params.is_follower

    def _complete_due(self) -> None:
        """Complete the fetch at the end of the event in which enough arrived, as Kafka's action queue does. So a
        response does not mix the states of partitions before the event with those after it."""
        if self.stage is DUE:
            self.respond()

    def _unpark(self) -> None:
        """End the wait: cancel the timer, and detach the fetch from all that could complete it."""
        assert self.timer is not None, "only a parked fetch is unparked"
        self.broker.ports.cancel_timer(self.timer)
        self.timer = None
        if self.params.is_follower:
            self.broker.replication.leaders.waits.end(self.params.replica_id, self)
        self.session.detach()

    def _refresh_without_read(self, lookups: Collection[tuple[CachedPartition, Lookup]]) -> None:
        """Look up again the partitions in error, or with a preferred read replica. They are not marked when a leader
        elsewhere changes, or a broker."""
        for cached, lookup in lookups:
            result = lookup.result_without_read
            if result is not None and (result.error_code or result.preferred_read_replica >= 0):
                self._look_up(cached)

    # 4. the response

    def _collect(self, marked: dict[CachedPartition, None]) -> Sliced[dict[CachedPartition, PartitionData]]:
        """Return the partitions of the response, in order: those with records, and the marked ones of which something
        else is new."""
        if self.remote is not None:
            self._release_remote()
        data: dict[CachedPartition, PartitionData] = {}
        if self.session.available_bytes:
            data = yield from self._read_records()
        yield from in_slices(marked, SESSION_PARTITIONS_PER_SLICE, partial(self._add_changed, data))
        if len(data) > 1:
            data = dict((yield from sort_in_slices(data.items(), SESSION_PARTITIONS_PER_SLICE, self._place)))
        return data

    def _release_remote(self) -> None:
        """Mark the partitions that were read in the tier, so that the next fetch looks them up again whether or not
        this response has them."""
        assert self.remote is not None, "only called if something was read there"
        for cached in self.remote.parts:
            self.session.mark(cached)
        self._end_remote()

    def _read_records(self) -> Sliced[dict[CachedPartition, PartitionData]]:
        """Read in list order until the limit is reached. The first partition with data may exceed both limits.

        A partition whose next batch does not fit is skipped, and not read again before there is more room for it, or
        it has changed. So a response that ends after MAX_SKIPPED_BATCHES does not keep the next one from getting
        further.
        """
        session, remaining, unread = self.session, self.params.max_bytes, self.session.available_bytes
        data: dict[CachedPartition, PartitionData] = {}
        is_first, reads = True, 0
        skipped: list[CachedPartition] = []
        skipped_batches = 0
        while (remaining > 0 or is_first) and skipped_batches < MAX_SKIPPED_BATCHES and unread > 0:
            if reads == READ_PARTITIONS_PER_SLICE:
                reads = 0
                yield
            cached = session.take_with_data()
            if cached is None:
                break
            unread -= cached.available_bytes
            reads += 1
            limit = min(cached.max_bytes, remaining)
            if limit <= cached.too_small_bytes and not is_first:
                skipped.append(cached)
                continue
            read_data = read(cached, self._lookup_to_read(cached), self.params.isolation, limit, is_first)
            if read_data.records:
                is_first = False
                remaining -= len(read_data.records)
            if read_data.records or read_data.error_code:  # Decision batch-fits
                data[cached] = read_data
            else:
                cached.remember_too_small(limit)
                skipped.append(cached)
                skipped_batches += 1
        for cached in skipped:
            session.queue(cached)
        return data

    def _lookup_to_read(self, cached: CachedPartition) -> Lookup:
        """Return the lookup of a partition that is to be read now. A partition that changed since this response was
        started is looked up again, because its log may have been truncated."""
        lookup, marked = self.lookups.get(cached), self.session.marked
        if lookup is None or (marked and cached in marked and lookup.remote is None):  # Decision read-partition-changed
            return look_up(self.broker, cached, self.params)
        return lookup

    def _add_changed(self, data: dict[CachedPartition, PartitionData], marked: Collection[CachedPartition]) -> None:
        """Add the marked partitions that have something new and were not read."""
        belongs_in_response = self.session.belongs_in_response
        for cached in marked:
            if cached not in data:
                state = without_records(cached, self.lookups[cached], self.params.isolation)
                if belongs_in_response(cached, state):
                    data[cached] = state

    def _place(self, result: PartitionResult) -> int:
        """Return the sort key of a partition in the response."""
        return self.session.place(result[0])

    # 5. what the session records of the response

    def _keep_session(self) -> bool:
        """Return whether the session caches the fetched partitions after the response. Admit a candidate if its fetcher
        wants a session and there is room."""
        if self.session.session_id:
            return True
        wants_session = self.request.session_epoch == INITIAL_EPOCH
        return wants_session and self.broker.fetch_sessions.admit(self.session, self.broker.now)

    def _record_sent(
        self, data: dict[CachedPartition, PartitionData], marked: dict[CachedPartition, None]
    ) -> Sliced[None]:
        """Have the session record what was sent, for the next request."""
        return self.session.response_sent(data, marked, self.broker.partitions)

    # the ends

    def _end(self, stage: FetchStage) -> None:
        """Enter the stage of an end, and detach the fetch from all that may call it."""
        self._enter(stage)
        if self.remote is not None:
            self._end_remote()
        if self.timer is not None:
            self._unpark()
        if self.session.fetch is self:
            self.session.detach()

    def abandon(self, error_code: int) -> bool:
        """End the fetch with this top-level error, since the session can no longer serve it. Return False if nothing is
        sent: the fetch had its response already, or its connection is closed.

        A parked fetch gets its error at once, so that no response has the ID of a session that does not exist (F-9).
        Kafka leaves it parked, and compares the epoch when it completes (``k01_fetch``).
        """
        if self.stage.is_over:
            return False
        self._end(ABANDONED)
        if self.call.closed:  # Decision abandoned-fetch
            return False
        self.call.respond(self._error_response(error_code))
        return True

    def _error_response(self, error_code: int) -> FetchResponse:
        """Return the response with a top-level error."""
        return FetchResponse(int(error_code))

    def _connection_closed(self) -> None:
        """End the wait: the connection closed, or a bug failed the request. A fetch at work goes on, without the remote
        tier."""
        self._end_remote()
        if self.stage.is_parked:
            self._drop()

    def _drop(self) -> None:
        """End the fetch without a response, if it is not over. Every mark stays in the session, or is in it again."""
        if self.stage.is_over:
            return
        self._end(DROPPED)
        if not self.session.session_id:  # Decision closed-connection-session
            self.broker.fetch_sessions.release(self.session)

    def _fail(self) -> None:
        """End the fetch in the middle of its work. Close the session, since its marks are unknown then. The client
        opens a new session."""
        if self.stage.is_over:
            return
        session, sessions = self.session, self.broker.fetch_sessions
        session.detach()  # So that closing the session does not end this fetch with another error.
        sessions.close(session.session_id, "a fetch of it failed")
        sessions.release(session)
        self._end(FAILED)

    def _end_remote(self) -> None:
        """Drop the reads in the remote tier, which refer to this fetch. Otherwise their records would stay in memory as
        long as the fetch."""
        if self.remote is not None:
            self.remote.end()
            self.remote = None

    # the slices of its work, and requests that arrive between them

    def _in_slices(self, work: Sliced[None]) -> Sliced[None]:
        """Do the work, after which the fetch is parked or over. The session accepts no other request until then, so
        that no request finds a session half changed."""
        try:
            for _ in work:
                self.session.attach(self)  # For changes of partitions, and for requests that must wait.
                self._watch()
                yield
                # A session carries out what it has accepted even if the connection has closed. A candidate does not.
                if self.stage.is_over or (self.call.closed and not self.session.session_id):  # Decision fetch-work-void
                    self._drop()
                    break
        except Exception:
            self._fail()
            self._handle_deferred_requests()
            raise
        assert self.stage.is_parked or self.stage.is_over, f"the work of a fetch left it {self.stage.name}"
        if self.deferred_requests:
            self._handle_deferred_requests()

    @property
    def is_active(self) -> bool:
        return self.stage.is_active

    def defer_request(self, handle: Callable[[], None]) -> None:
        """Handle the next request of the session in an event after this fetch."""
        self.deferred_requests = (*self.deferred_requests, handle)

    def _handle_deferred_requests(self) -> None:
        deferred, self.deferred_requests = self.deferred_requests, ()
        for handle in deferred:
            later(self.broker.ports, 0, handle)


def candidate_of(broker: Broker, call: Call, request: FetchRequest) -> FetchSession:
    """Make the session that a full fetch works on."""
    with_ids = call.api_version >= TOPIC_IDS_FROM
    candidate = broker.fetch_sessions.candidate(call.client_id, request.replica_id, with_ids)
    candidate.touch(broker.now)
    return candidate


def count_named(request: FetchRequest) -> int:
    """Return the number of partitions that a request names."""
    count = 0
    for topic in request.topics:
        count += len(topic.partitions)
    return count


def defer_until_finished(
    broker: Broker, call: Call, request: FetchRequest, handle: Callable[[Broker, Call, FetchRequest], None]
) -> bool:
    """Defer a request whose session has an unfinished fetch until that has ended, as if it arrived then. Return whether
    it was deferred. ``handle`` is called even if the connection has closed, and then the request names nothing."""
    session = broker.fetch_sessions.sessions.get(request.session_id)
    if session is not None and session.fetch is not None and session.has_unfinished_fetch:  # Decision session-at-work

        def drop_partitions() -> None:
            """Release the memory of a request that gets no response."""
            nonlocal request
            request = replace(request, topics=[], forgotten=[])

        call.on_closed(drop_partitions)
        session.fetch.defer_request(callback(call, lambda: handle(broker, call, request)))
        return True
    return False
