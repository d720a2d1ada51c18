"""One incremental fetch session (KIP-227): the partitions that a fetcher wants, and which of them have something to
send.

The cost of a fetch depends on what changed, never on what is cached. Only the marked partitions (``changed``) are
looked up before a response. Partitions that have data to send are queued in list order, and a response takes only as
many as fit. A fetch that names no partition and finds none marked touches no partition.

``FetchSession`` follows the accepted text of the KIP, its final revision, as Kafka does: a response has what differs
from what was last sent, and an error, a divergence or a preferred read replica for as long as it lasts. A repeated
request is refused. A partition that returned records moves to the end of the list.

The class reads in the order of a fetch: the request, the fetch that is parked or runs, the partitions, the response.
``first_revision``, the KIP's first text, derives its sessions from it. Nothing here depends on that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import ClassVar, Protocol, TypeAlias

from reference_broker.log.reading import FetchIsolation
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import SESSION_PARTITIONS_PER_SLICE, Budget, Sliced, in_slices
from reference_broker.replication.leader.purgatory import DelayedFetch
from reference_broker.replication.partitions import Partitions
from reference_broker.sessions.cached_partition import Arrivals, CachedPartition, PartitionKey, is_lasting
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

FULL_EPOCH = 0
"""In a request: a full fetch that opens a new session."""
CLOSE_SESSION_EPOCH = -1
"""In a request: a full fetch that closes its session, if it names one, and opens none. (Kafka's FINAL_EPOCH.)"""
LARGEST_EPOCH = 0x7FFFFFFF
MIN_EVICTION_MS = 120_000
"""``min.incremental.fetch.session.eviction.ms``, a constant in the final revision."""


def next_epoch(epoch: int) -> int:
    """Epochs of a session are 1 .. 2^31-1, and then 1 again."""
    # Decision session-epoch-wraps (F-3): back to 1 | one more
    return 1 if epoch == LARGEST_EPOCH else epoch + 1


Removed: TypeAlias = dict[PartitionKey, CachedPartition]
"""Partitions that a session no longer caches. They must be passed to ``leave``."""


class SessionFetch(DelayedFetch, Protocol):
    """A fetch that is parked on one session, or that takes several events."""

    @property
    def has_slices_left(self) -> bool:
        """Whether the fetch goes on in later events without being parked. Meanwhile the session accepts no other
        request."""
        ...

    def handle_afterwards(self, request: Callable[[], None]) -> None:
        """Handle the next request of the session in a later event, after the last slice."""
        ...

    def partition_marked(self, cached: CachedPartition) -> None:
        """Called when a partition of the session changed. The fetch may be complete now."""
        ...

    def abandon(self, error_code: int) -> bool:
        """Respond now with this top-level error, since the session can no longer serve this fetch. Return False if it
        was completed before."""
        ...


class DataQueue(Protocol):
    """The cached partitions that have data to send, in the order in which a response takes them."""

    def push(self, cached: CachedPartition) -> None: ...

    def take(self) -> CachedPartition | None:
        """Take the next partition out of the queue, or return None if it is empty."""
        ...

    def clear(self) -> None: ...


@dataclass(slots=True)
class ListQueue:
    """A heap by ``order``, lowest first. Stale entries, of partitions that left or moved, are dropped when met."""

    _entries: list[tuple[int, CachedPartition]] = field(default_factory=list)

    def push(self, cached: CachedPartition) -> None:
        heappush(self._entries, (cached.order, cached))
        if len(self._entries) > 2 * len(cached.session.partitions) + 64:  # entries of partitions that left
            self._entries = [entry for entry in self._entries if entry[1].live]
            heapify(self._entries)

    def take(self) -> CachedPartition | None:
        return heappop(self._entries)[1] if self._entries else None

    def clear(self) -> None:
        self._entries = []


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session. Every full fetch works on a candidate, a session without an ID, which the cache may then admit."""

    arrivals: Arrivals
    revision: "Revision"
    uses_topic_ids: bool
    privileged: bool
    """Whether the session is a follower's."""
    client_id: str = ""
    replica_id: int = -1
    session_id: int = 0
    """0 for a candidate."""
    epoch: int = 1
    """The epoch that the next incremental request must have."""
    accepted_requests: int = 0
    """Number of incremental requests accepted so far."""
    created_ms: int = 0
    """Wall-clock time, as is ``last_used_ms``."""
    last_used_ms: int = 0
    contact_us: int = 0
    """The monotonic time of the last accepted request, which counts for every cached partition."""
    isolation: FetchIsolation | None = None
    """How far the last request could read, None before the first one."""
    rack: str | None = None
    """The rack of a consumer that may read from followers, as of the last request."""
    counted: int = 0
    """The number of partitions that the cache of sessions counts for it."""
    partitions: dict[PartitionKey, CachedPartition] = field(default_factory=dict)
    closed_partitions: dict[PartitionKey, CachedPartition] | None = None
    """The dictionary that was ``partitions`` when the session was closed or evicted."""
    changed: dict[CachedPartition, None] = field(default_factory=dict)
    """The marked partitions, to be looked up before the next response. All others watch their Partition."""
    available_bytes: int = 0
    """The sum over all partitions that have data."""
    fetch: SessionFetch | None = None
    """The fetch that is parked or has slices left, else None."""
    _with_data: DataQueue = field(default_factory=ListQueue)
    _last_order: int = 0

    @property
    def made_by(self) -> str:
        """The client that created it, for people to read."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    # requests

    def expects_epoch(self, request_epoch: int) -> bool:
        """Whether an incremental request with this epoch is valid now."""
        return request_epoch == self.epoch

    def accept(self, request_epoch: int, now: Now) -> None:
        """Accept one more incremental request. The epoch advances here, even if the response is lost."""
        self.epoch = next_epoch(request_epoch)
        self.accepted_requests += 1
        self.touch(now)

    def empty(self) -> Removed:
        """Remove all partitions, because the session is closed or replaced. Costs the same for any number of them."""
        removed, self.partitions = self.partitions, {}
        self._last_order = self.available_bytes = 0
        self.changed = {}
        self._with_data.clear()
        return removed

    def touch(self, now: Now) -> None:
        self.contact_us = now.mono_us
        self.last_used_ms = now.wall_ms

    def set_contact_of(self, other: "FetchSession") -> None:
        """Count as last contacted when ``other`` was, in whose place a request goes on here."""
        self.contact_us = other.contact_us

    # the fetch that is parked or has slices left

    def attach(self, fetch: SessionFetch) -> None:
        """Notify ``fetch`` of each partition that changes, until ``detach``."""
        self.fetch = fetch

    def detach(self) -> None:
        """Only mark the partitions that change."""
        self.fetch = None

    @property
    def has_unfinished_fetch(self) -> bool:
        """Whether one of its fetches goes on in later events without being parked. Meanwhile it accepts no other."""
        return self.fetch is not None and self.fetch.has_slices_left

    # partitions

    def key(self, topic: str, topic_id: bytes, index: int) -> PartitionKey:
        return (topic_id if self.uses_topic_ids else topic, index)

    def update_partitions(self, topics: Sequence[FetchTopic], *, with_ids: bool) -> Iterable[None]:
        """Apply the partitions that a request names. Its topic IDs count only in a version that has them."""
        if len(topics) == 1 and len(topics[0].partitions) == 1:  # As most requests that name any.
            (topic,) = topics
            self.add_or_update(topic.topic, topic.topic_id if with_ids else NO_TOPIC_ID, topic.partitions[0])
            return ()

        def update(entries: Iterable[tuple[FetchTopic, FetchPartition]]) -> None:
            for topic, wanted in entries:
                self.add_or_update(topic.topic, topic.topic_id if with_ids else NO_TOPIC_ID, wanted)

        requested = [(topic, wanted) for topic in topics for wanted in topic.partitions]
        return in_slices(requested, SESSION_PARTITIONS_PER_SLICE, update)

    def forget_all(self, topics: Iterable[ForgottenTopic]) -> Iterable[None]:
        """Drop the partitions that a request forgets."""

        def forget(entries: Iterable[tuple[ForgottenTopic, int]]) -> None:
            for topic, index in entries:
                self.forget(topic.topic, topic.topic_id, (index,))

        forgotten = [(topic, index) for topic in topics for index in topic.partitions]
        return in_slices(forgotten, SESSION_PARTITIONS_PER_SLICE, forget)

    def add_or_update(self, topic: str, topic_id: bytes, wanted: FetchPartition) -> CachedPartition:
        """Apply an entry of a request: add the partition at the end of the list, or overwrite the cached values."""
        key = self.key(topic, topic_id, wanted.partition)
        cached = self.partitions.get(key)
        # Decision named-partition (F-12): new in the session | cached
        if cached is None:
            self._last_order += 1
            cached = CachedPartition(self, topic, topic_id, wanted.partition, self._last_order)
            self.partitions[key] = cached
        cached.remember(wanted, topic_id)
        cached.remember_named()
        self.changed[cached] = None
        return cached

    def forget(self, topic: str, topic_id: bytes, indexes: Iterable[int]) -> None:
        """Drop partitions. A partition that the session does not cache is no error."""
        for index in indexes:
            cached = self.partitions.pop(self.key(topic, topic_id, index), None)
            if cached is not None:
                cached.leave()
                self.changed.pop(cached, None)
                self.assess(cached, 0)

    def partition_changed(self, cached: CachedPartition) -> None:
        self.mark(cached)
        # Decision partition-change (F-14): fetch notified | marked for the next
        if self.fetch is not None:
            self.fetch.partition_marked(cached)

    def mark(self, cached: CachedPartition) -> None:
        """Mark a partition that may have something to send, in the response in hand or in the next one."""
        self.changed[cached] = None

    def read_as(self, isolation: FetchIsolation, rack: str | None = None) -> Sliced[None]:
        """Set how far the fetcher may read: another isolation level, or a follower instead of a consumer, reads to
        another end. A consumer with another rack may have to read elsewhere; ``rack`` is None for fetchers that read
        from leaders only.

        Then all partitions must be looked up. This is the only walk over all cached partitions, and no client makes
        such a change within a session.
        """
        self.isolation, self.rack = isolation, rack

        def mark_all(partitions: Collection[CachedPartition]) -> None:
            for cached in partitions:
                cached.read_from_leader()
                self.changed[cached] = None

        yield from in_slices(self.partitions.values(), SESSION_PARTITIONS_PER_SLICE, mark_all)

    def assess(self, cached: CachedPartition, available_bytes: int) -> None:
        """Note how many bytes a lookup found readable."""
        self.available_bytes += available_bytes - cached.available_bytes
        cached.remember_available(available_bytes)
        if available_bytes and not cached.queued:
            self.queue(cached)

    def queue(self, cached: CachedPartition) -> None:
        """Put it into the queue of partitions with data, at its place in the list."""
        cached.enter_queue()
        self._with_data.push(cached)

    def take_with_data(self) -> CachedPartition | None:
        """Take the next partition with data out of the queue, in the order of the response. ``after_response`` or
        ``queue`` puts it back."""
        while (cached := self._with_data.take()) is not None:
            if cached.cached_in is not self.partitions:
                continue
            cached.leave_queue()
            if cached.available_bytes:
                return cached
        return None

    def move_to_end(self, cached: CachedPartition) -> None:
        self._last_order += 1
        cached.move_to(self._last_order)

    # the response

    def take_marks(self) -> dict[CachedPartition, None]:
        """Begin a response. Return the marked partitions, each of which must be passed to ``after_response``. Later
        marks are for the next response.

        ``changed`` becomes a new dict, since a walk over a dict still passes the places of 10,000 removed entries.
        """
        marked, self.changed = self.changed, {}
        return marked

    def reports(self, cached: CachedPartition, data: PartitionData) -> bool:
        """Whether ``data``, the partition's state without records, belongs in an incremental response."""
        # Decision partition-differs (F-14): sent | omitted
        return (
            bool(data.records)
            or data.high_watermark != cached.sent_high_watermark
            or data.log_start_offset != cached.sent_log_start_offset
            or is_lasting(data)
        )

    def place(self, cached: CachedPartition) -> int:
        """Return the partition's place in the response. Places need not be dense."""
        return cached.order

    def put_back(self, marked: dict[CachedPartition, None], read: Collection[CachedPartition]) -> Sliced[None]:
        """Restore the marks and the read partitions of a response that was not sent."""
        marked.update(self.changed)
        self.changed = marked

        def queue_again(partitions: Collection[CachedPartition]) -> None:
            for cached in partitions:
                if cached.available_bytes and not cached.queued:
                    self.queue(cached)

        yield from in_slices(read, SESSION_PARTITIONS_PER_SLICE, queue_again)

    def keep(self, sessions: "AdmitsSessions", wants_session: bool, now: Now) -> bool:
        """Return whether the session caches the fetched partitions after the response. Admit a candidate if its fetcher
        wants a session and there is room."""
        return bool(self.session_id) or (wants_session and sessions.admit(self, now))

    def response_sent(
        self, sent: dict[CachedPartition, PartitionData], marked: dict[CachedPartition, None], partitions: Partitions
    ) -> Iterable[None]:
        """Prepare for the next response, after one with ``sent``. Its partitions come in list order, so that those that
        move to the end of the list keep their order. The marked ones that it omitted follow."""
        return self._prepare_next(sent, marked, partitions) if sent or marked else ()

    def _prepare_next(
        self, sent: dict[CachedPartition, PartitionData], marked: dict[CachedPartition, None], partitions: Partitions
    ) -> Sliced[None]:
        yield from in_slices(sent.items(), SESSION_PARTITIONS_PER_SLICE, partial(self._after_sent, partitions))
        yield from in_slices(marked, SESSION_PARTITIONS_PER_SLICE, partial(self._after_omitted, sent, partitions))

    def _after_sent(self, partitions: Partitions, sent: Collection[tuple[CachedPartition, PartitionData]]) -> None:
        for cached, data in sent:
            self.after_response(cached, data, partitions)

    def _after_omitted(
        self, sent: Collection[CachedPartition], partitions: Partitions, marked: Collection[CachedPartition]
    ) -> None:
        for cached in marked:
            if cached not in sent:
                self.after_response(cached, None, partitions)

    def after_response(self, cached: CachedPartition, sent: PartitionData | None, partitions: Partitions) -> None:
        """Prepare a partition for the next response, after one with ``sent``, or None if it was looked up and omitted.

        The partition is watched again unless the next fetch must look it up anyway, for instance because it changed
        while this response was made. The cached fetch offset stays the requested one, so data that the fetcher does not
        confirm is sent again.
        """
        if sent is not None:
            cached.remember_sent(sent)
            self.sent(cached, sent)
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        # Decision sent-partition-lasting (F-14): looked up again | watched for changes
        if (sent is not None and is_lasting(sent)) or (self.changed and cached in self.changed):
            self.mark(cached)
        else:
            self.watch(cached, partitions)

    def sent(self, cached: CachedPartition, data: PartitionData) -> None:
        """Move a partition whose records were sent to the end of the list, so that the others come first next time."""
        # Decision sent-partition-place (F-15): moves to the end | keeps its place
        if data.records:
            self.move_to_end(cached)

    def watch(self, cached: CachedPartition, partitions: Partitions) -> None:
        """Wait for the partition's next change, since there is nothing more to send."""
        cached.watch(partitions)


def leave(all_removed: Iterable[Removed]) -> Sliced[None]:
    """Unregister removed partitions from the partitions that they watch.

    Until then such a partition may still be called. It does nothing then, since it is not ``live``.
    """
    for removed in all_removed:
        budget = Budget(SESSION_PARTITIONS_PER_SLICE)
        while removed:
            removed.popitem()[1].leave()
            if budget.spend():
                yield


class AdmitsSessions(Protocol):
    """The part of the cache of sessions that a session uses."""

    slots: int
    sessions: dict[int, FetchSession]

    def admit(self, candidate: FetchSession, now: Now) -> bool: ...
    def is_too_large(self, session: FetchSession) -> bool: ...
    def drop(self, session: FetchSession, removed: Removed) -> None: ...


@dataclass(frozen=True, slots=True)
class Revision(ABC):
    """A revision of the KIP: its kind of session, its range of session IDs and epochs, and its errors. The
    epochs of the first revision are its sequence numbers."""

    name: ClassVar[str]
    """``final`` or ``first``, in the trace."""
    session_type: ClassVar[type[FetchSession]]
    largest_id: ClassVar[int]
    """Session IDs are random from 1 to this."""
    unknown_id: ClassVar[Error]
    """Top-level error for a session that does not exist (any more)."""
    wrong_epoch: ClassVar[Error]
    """Top-level error for an epoch that the session does not accept, and for a request that is overtaken."""
    min_eviction_ms: int
    """A session may be evicted if it is idle longer than this, or older than this and smaller than the candidate."""

    @abstractmethod
    def is_epoch(self, request_epoch: int) -> bool:
        """Whether an incremental request can carry it at all."""

    def response_flags(self, session: FetchSession) -> int:  # noqa: ARG002
        """Return the flags of a successful response."""
        return 0

    def error_response(
        self,
        error: Error,
        request: FetchRequest,  # noqa: ARG002
        session: FetchSession | None = None,  # noqa: ARG002
    ) -> FetchResponse:
        """Return a response with a top-level error. ``session`` is the one that the request names, if it exists."""
        return FetchResponse(int(error))


class FinalRevision(Revision):
    """The accepted text, which was shipped: IDs and epochs have 32 bits."""

    name = "final"
    session_type = FetchSession
    largest_id = 0x7FFFFFFF
    unknown_id = ErrorCode.fetch_session_id_not_found
    wrong_epoch = ErrorCode.invalid_fetch_session_epoch

    def is_epoch(self, request_epoch: int) -> bool:
        return 1 <= request_epoch <= LARGEST_EPOCH
