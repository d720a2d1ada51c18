"""One incremental fetch session (KIP-227): its cached partitions, and which of them have something to send.

The cost of a fetch depends on what changed, never on what is cached. The state of a cached partition is four facts,
each of which changes by itself:

======= ============================================= ==================================================================
fact    is stored in                                  meaning
======= ============================================= ==================================================================
live    ``CachedPartition.cached_in``, which is       The session caches it.
        ``FetchSession.partitions``
marked  ``FetchSession.marked``                      It must be looked up before the session's next response.
watched its ``Partition``, or ``Arrivals`` if this    It is marked at the next change.
        node has none
queued  ``CachedPartition.queued`` and the            It had data to send at its last lookup. The queue is in list
        ``DataQueue``                                 order, and a response takes only as many as fit.
======= ============================================= ==================================================================

Between two fetches a live partition that is not marked is watched, and one with available bytes is queued. A fetch that
names no partition and finds none marked touches no partition.

The text of the KIP that was accepted is the *final* revision, and the one that Kafka has: a response has what differs
from what was last sent, and an error, a divergence or a preferred read replica for as long as it lasts. A repeated
request is refused. A partition that returned records moves to the end of the list. (``apis.records.first_revision`` has
the sessions of the KIP's first text, and lists the hooks here that it overrides.)

``FetchSession`` reads in the order of a fetch: the request, the fetch in progress, the partitions, the response.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import ClassVar, Protocol, TypeAlias

from reference_broker.log.reading import FetchIsolation
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import SESSION_PARTITIONS_PER_SLICE, Budget, Sliced, in_slices
from reference_broker.replication.leader.purgatory import DelayedFetch
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchTopic, ForgottenTopic, PartitionData

LARGEST_EPOCH = 0x7FFFFFFF
MIN_EVICTION_MS = 120_000
"""``min.incremental.fetch.session.eviction.ms``, a constant in the final revision."""


def next_epoch(epoch: int) -> int:
    """Epochs of a session are 1 .. 2^31-1, and then 1 again."""
    return 1 if epoch == LARGEST_EPOCH else epoch + 1  # Decision session-epoch-wraps


SessionPartitionKey: TypeAlias = tuple[str | bytes, int]
"""(topic ID, index) in a session by topic ID (Fetch 13 and newer), else (topic name, index)."""

UNSENT = -1
"""No state of the partition was sent since it came into the session, or since its last error."""


@dataclass(slots=True, eq=False)
class CachedPartition:
    """One partition of a session: its entry in the latest request that named it, and the state last sent."""

    session: "FetchSession"
    topic: str
    topic_id: bytes
    index: int
    order: int
    """The place in the session's list."""

    # the entry in the latest request that named the partition
    named_by_request: int = -1
    """The session's ``accepted_requests`` at that request, -1 before the first one."""
    max_bytes: int = 0
    fetch_offset: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1

    # the state last sent
    sent_high_watermark: int = UNSENT
    sent_log_start_offset: int = UNSENT
    sent_error: int = 0
    sent_direction: tuple[int, ...] | None = None
    """The diverging epoch or the preferred read replica last sent (``direction``)."""

    # what can be sent
    available_bytes: int = 0
    """The bytes that were readable from ``fetch_offset`` at the last lookup, at most ``max_bytes``. Above 0 exactly
    while the partition has data to send, and then it is ``queued``."""
    too_small_bytes: int = 0
    """A limit that was too small for the next batch at the last read, or 0."""
    queued: bool = False
    """Whether the partition is in the session's queue of partitions with data."""

    # the session that caches it, and the partition that is read
    cached_in: "dict[SessionPartitionKey, CachedPartition] | None" = field(init=False)
    """The dictionary of the session to which the partition was added, None once it was forgotten. A session that is
    closed or replaced gets another dictionary, so all its cached partitions leave at once. The partitions of a closed
    session keep the dictionary that they had."""
    partition: Partition | None = None
    """The partition of this node that is read, None if there is none."""
    is_offset_proven: bool = True
    """Whether ``fetch_offset`` was requested for ``partition``, or with a leader epoch that can prove it to be of it.

    False if it may stem from another leadership or from an earlier topic of that name.
    """

    def __post_init__(self) -> None:
        self.cached_in = self.session.partitions

    @property
    def live(self) -> bool:
        """Whether the session still caches the partition."""
        return self.cached_in is self.session.partitions

    @property
    def is_fetched_unnamed(self) -> bool:
        """Whether the last request that the session accepted fetched the partition, named or not. That stays true when
        the session is closed."""
        return self.live or (self.cached_in is not None and self.cached_in is self.session.closed_partitions)

    @property
    def is_requested(self) -> bool:
        """Whether the session's latest request named the partition."""
        return self.named_by_request == self.session.accepted_requests

    def remember(self, requested: FetchPartition, topic_id: bytes) -> None:
        """Overwrite the partition's entry with that of a request."""
        if topic_id != self.topic_id:  # Decision cached-topic-replaced
            self._unbind()  # The session is by topic name, which another topic has now.
            self.topic_id = topic_id
        self.max_bytes = max(requested.partition_max_bytes, 0)
        self.fetch_offset = requested.fetch_offset
        self.current_leader_epoch = requested.current_leader_epoch
        self.last_fetched_epoch = requested.last_fetched_epoch
        self.log_start_offset = requested.log_start_offset
        self.is_offset_proven = True

    def remember_sent(self, sent: PartitionData) -> None:
        """Note what a response had of the partition. After an error the next state is always sent (F-14), even if the
        error came with offsets, as OFFSET_MOVED_TO_TIERED_STORAGE does."""
        self.sent_high_watermark = UNSENT if sent.error_code else sent.high_watermark
        self.sent_log_start_offset = UNSENT if sent.error_code else sent.log_start_offset
        self.sent_error = sent.error_code
        is_elsewhere = sent.diverging_epoch is not None or sent.preferred_read_replica >= 0
        self.sent_direction = direction(sent) if is_elsewhere else None

    def remember_too_small(self, limit: int) -> None:
        """Note a limit into which the next batch did not fit."""
        self.too_small_bytes = limit

    def remember_name(self, topic: str) -> None:
        """Note the name of a topic that the request named by its ID."""
        self.topic = topic

    def may_be(self, topic_id: bytes) -> bool:
        """Whether the request that named the partition had this topic ID, or none."""
        return self.topic_id in (NO_TOPIC_ID, topic_id)

    def _unbind(self) -> None:
        """Read from the partition no longer, and watch it no longer."""
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = None

    def bind(self, partitions: Partitions) -> Partition | None:
        """Return the partition that this node leads under the cached name or ID now, or the followed one of
        ``read_from`` for as long as it is followed. A partition that was deleted and recreated is found only by its
        name."""
        partition = self.partition
        if partition is None or partition.is_removed:
            if self.session.uses_topic_ids:
                partition = partitions.by_id.get((self.topic_id, self.index))
                self.topic = partitions.topic_names.get(self.topic_id, self.topic)
            else:
                partition = partitions.by_name.get((self.topic, self.index))
                if partition is not None and not self.may_be(partition.topic_id):  # Decision cached-name-recreated
                    partition = None
            self.partition = partition
            # Decision rebound-offset-proven
            self.is_offset_proven = self.is_requested or self.current_leader_epoch >= 0
        return partition

    def read_from(self, followed: Partition) -> None:
        """Read from a partition that this node follows."""
        self._unbind()
        self.partition = followed

    def read_from_leader(self) -> None:
        """Read no longer from a partition that this node follows: the fetcher may not read from followers any more."""
        if self.partition is not None and self.partition.followed_leader is not None:
            self._unbind()

    def watch(self, partitions: Partitions) -> None:
        """Mark the cached partition at the next change of its ``Partition`` or, if that is not here, at its arrival."""
        if self.partition is not None:
            self.partition.watch(self)
        else:
            self.session.arrivals.expect(partitions, self)

    def leave(self) -> None:
        """Stop watching for changes."""
        if self.cached_in is not self.session.closed_partitions:
            self.cached_in = None
        if self.partition is not None:
            self.partition.unwatch(self)
        self.session.arrivals.forget(self)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        """Mark the cached partition, unless it has left the session."""
        if self.cached_in is self.session.partitions:
            self.session.partition_changed(self)


def is_lasting(sent: PartitionData) -> bool:
    """Return whether a partition's state is an error, a divergence or a preferred read replica, which are in each
    response for as long as they last."""
    return sent.error_code != 0 or sent.diverging_epoch is not None or sent.preferred_read_replica >= 0


def direction(data: PartitionData) -> tuple[int, ...] | None:
    """Return where the fetcher must go on instead: the diverging epoch as (epoch, end offset), the preferred read
    replica as (ID,), or None."""
    diverging = data.diverging_epoch
    if diverging is not None:
        return diverging.epoch, diverging.end_offset
    return None if data.preferred_read_replica < 0 else (data.preferred_read_replica,)


@dataclass(slots=True, eq=False)
class Arrivals:
    """Cached partitions that this node neither leads nor follows, by the name and the ID under which they may arrive.

    This is one watcher for all of them, so that an arrival costs only the partitions that wait for it.
    """

    expected: dict[SessionPartitionKey, dict[CachedPartition, None]] = field(default_factory=dict)
    keys: dict[CachedPartition, tuple[SessionPartitionKey, ...]] = field(default_factory=dict)
    partitions: Partitions | None = None

    def expect(self, partitions: Partitions, cached: CachedPartition) -> None:
        """Mark ``cached`` once, when its partition is added. A second call before that is ignored."""
        if cached not in self.keys:
            self.keys[cached] = ((cached.topic_id, cached.index), (cached.topic, cached.index))
            for key in self.keys[cached]:
                self.expected.setdefault(key, {})[cached] = None
        self.partitions = partitions
        partitions.arrivals[self] = None

    def forget(self, cached: CachedPartition) -> None:
        """Expect a cached partition no longer. One that is not expected is ignored."""
        for key in self.keys.pop(cached, ()):
            expected = self.expected[key]
            del expected[cached]
            if not expected:
                del self.expected[key]

    def partition_changed(self, partition: Partition) -> None:
        """Mark the cached partitions that expect the partition, which has been added here."""
        arrived: dict[CachedPartition, None] = {}
        for name in (partition.topic_id, partition.topic):
            arrived.update(self.expected.get((name, partition.index), {}))
        for cached in arrived:
            self.forget(cached)
        if self.keys and self.partitions is not None:
            self.partitions.arrivals[self] = None
        for cached in arrived:
            cached.partition_changed(partition)


Removed: TypeAlias = dict[SessionPartitionKey, CachedPartition]
"""Partitions that a session no longer caches. They must be passed to ``leave``."""


class SessionFetch(DelayedFetch, Protocol):
    """A fetch that is parked on one session, or that takes several events (``apis.records.fetch.Fetch``)."""

    @property
    def is_active(self) -> bool:
        """Whether the fetch is neither parked nor over, and goes on in later events. Meanwhile the session accepts no
        other request."""
        ...

    def defer_request(self, handle: Callable[[], None]) -> None:
        """Handle the next request of the session in an event after this fetch."""
        ...

    def partition_marked(self, cached: CachedPartition) -> None:
        """Called when a partition of the session changed. The fetch may be complete now."""
        ...

    def abandon(self, error_code: int) -> bool:
        """End the fetch with this top-level error, since the session can no longer serve it. Return False if nothing is
        sent: the fetch had its response already, or its connection is closed."""
        ...


@dataclass(slots=True)
class DataQueue:
    """The cached partitions that have data to send, in the order in which a response takes them.

    A heap by ``order``, lowest first. ``FetchSession.take_with_data`` drops entries of partitions that left
    the session or have no data any more.
    """

    _entries: list[tuple[int, CachedPartition]] = field(default_factory=list)

    def push(self, cached: CachedPartition) -> None:
        heappush(self._entries, (cached.order, cached))
        if len(self._entries) > 2 * len(cached.session.partitions) + 64:  # entries of partitions that left
            self._entries = [entry for entry in self._entries if entry[1].live]
            heapify(self._entries)

    def take(self) -> CachedPartition | None:
        """Take the next partition out of the queue. Return None if it is empty."""
        return heappop(self._entries)[1] if self._entries else None

    def clear(self) -> None:
        self._entries = []


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session. Every full fetch works on a candidate, a session without an ID, which the cache may then admit."""

    # the constants of the revision
    revision: ClassVar[str] = "final"
    """The name in the trace."""
    largest_id: ClassVar[int] = 0x7FFFFFFF
    """Session IDs are random from 1 to this."""
    unknown_id: ClassVar[Error] = ErrorCode.fetch_session_id_not_found
    """Top-level error for a session that does not exist (any more)."""
    wrong_epoch: ClassVar[Error] = ErrorCode.invalid_fetch_session_epoch
    """Top-level error for an epoch that the session does not accept, and for a request that is overtaken."""

    arrivals: Arrivals
    uses_topic_ids: bool
    privileged: bool
    """Whether the session is a follower's."""
    client_id: str = ""
    replica_id: int = -1
    session_id: int = 0
    """0 for a candidate."""
    min_eviction_ms: int = MIN_EVICTION_MS
    """The session may be evicted if it is idle longer than this, or older than this and smaller than the candidate."""

    # its requests
    epoch: int = 1
    """The epoch that the next incremental request must have."""
    accepted_requests: int = 0
    """Number of incremental requests accepted so far."""
    created_ms: int = 0
    """The wall-clock time of the creation."""
    last_used_ms: int = 0
    """The wall-clock time of the last accepted request."""
    contact_us: int = 0
    """The monotonic time of the last accepted request, which counts for every cached partition."""
    isolation: FetchIsolation | None = None
    """The isolation of the last request, None before the first one."""
    rack: str | None = None
    """The rack of a consumer that may read from followers, as of the last request."""
    fetch: SessionFetch | None = None
    """The fetch that is parked, or unfinished at the end of an event, else None."""

    # its partitions
    counted: int = 0
    """The number of partitions that the cache of sessions counts for this one."""
    partitions: dict[SessionPartitionKey, CachedPartition] = field(default_factory=dict)
    closed_partitions: dict[SessionPartitionKey, CachedPartition] | None = None
    """The dictionary that was ``partitions`` when the session was closed or evicted."""
    marked: dict[CachedPartition, None] = field(default_factory=dict)
    """The marked partitions, to be looked up before the next response. All others watch their Partition."""
    available_bytes: int = 0
    """The sum over all partitions that have data."""
    _with_data: DataQueue = field(default_factory=DataQueue)
    _last_order: int = 0

    @property
    def made_by(self) -> str:
        """The client that created the session, for people to read."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    # requests

    @staticmethod
    def is_epoch(request_epoch: int) -> bool:
        """Whether an incremental request can carry it at all."""
        return 1 <= request_epoch <= LARGEST_EPOCH

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
        self.marked = {}
        self._with_data.clear()
        return removed

    def touch(self, now: Now) -> None:
        """Note the time of an accepted request."""
        self.contact_us = now.mono_us
        self.last_used_ms = now.wall_ms

    def set_contact_of(self, other: "FetchSession") -> None:
        """Take over the contact time of ``other``, a closed session whose request goes on here."""
        self.contact_us = other.contact_us

    # the fetch that is parked or unfinished

    def attach(self, fetch: SessionFetch) -> None:
        """Notify ``fetch`` of each partition that changes, until ``detach``."""
        self.fetch = fetch

    def detach(self) -> None:
        """Detach the fetch: from now on a change only marks its partition."""
        self.fetch = None

    @property
    def has_unfinished_fetch(self) -> bool:
        """Whether a fetch goes on in later events without being parked. Meanwhile the session accepts no request."""
        return self.fetch is not None and self.fetch.is_active

    # partitions

    def key(self, topic: str, topic_id: bytes, index: int) -> SessionPartitionKey:
        """Return the key of a partition in ``partitions``."""
        return (topic_id if self.uses_topic_ids else topic, index)

    def update_partitions(self, topics: Sequence[FetchTopic], *, with_ids: bool) -> Sliced[None]:
        """Add or update the partitions that a request names. Its topic IDs count only in a version that has them."""
        if len(topics) == 1 and len(topics[0].partitions) == 1:  # As most requests that name any.
            (topic,) = topics
            self.add_or_update(topic.topic, topic.topic_id if with_ids else NO_TOPIC_ID, topic.partitions[0])
            return

        def update(entries: Iterable[tuple[FetchTopic, FetchPartition]]) -> None:
            for topic, requested in entries:
                self.add_or_update(topic.topic, topic.topic_id if with_ids else NO_TOPIC_ID, requested)

        entries = [(topic, requested) for topic in topics for requested in topic.partitions]
        yield from in_slices(entries, SESSION_PARTITIONS_PER_SLICE, update)

    def forget_all(self, topics: Iterable[ForgottenTopic]) -> Sliced[None]:
        """Remove the partitions that a request forgets."""

        def forget(entries: Iterable[tuple[ForgottenTopic, int]]) -> None:
            for topic, index in entries:
                self.forget(topic.topic, topic.topic_id, (index,))

        forgotten = [(topic, index) for topic in topics for index in topic.partitions]
        yield from in_slices(forgotten, SESSION_PARTITIONS_PER_SLICE, forget)

    def add_or_update(self, topic: str, topic_id: bytes, requested: FetchPartition) -> CachedPartition:
        """Apply an entry of a request: add the partition at the end of the list, or overwrite the cached values."""
        key = self.key(topic, topic_id, requested.partition)
        cached = self.partitions.get(key)
        if cached is None:  # Decision named-partition
            self._last_order += 1
            cached = CachedPartition(self, topic, topic_id, requested.partition, self._last_order)
            self.partitions[key] = cached
        cached.remember(requested, topic_id)
        cached.named_by_request = self.accepted_requests
        self.marked[cached] = None
        return cached

    def forget(self, topic: str, topic_id: bytes, indexes: Iterable[int]) -> None:
        """Remove partitions. A partition that the session does not cache is ignored."""
        for index in indexes:
            cached = self.partitions.pop(self.key(topic, topic_id, index), None)
            if cached is not None:
                cached.leave()
                self.marked.pop(cached, None)
                self.set_available_bytes(cached, 0)

    def partition_changed(self, cached: CachedPartition) -> None:
        """Mark a partition that changed, and notify the fetch that is parked or at work."""
        self.mark(cached)
        if self.fetch is not None:  # Decision partition-change
            self.fetch.partition_marked(cached)

    def mark(self, cached: CachedPartition) -> None:
        """Mark a partition that may have something to send, in the response in hand or in the next one.

        The chain of a change: ``CachedPartition.partition_changed`` calls ``partition_changed`` here, which marks the
        partition and then calls ``SessionFetch.partition_marked``.
        """
        self.marked[cached] = None

    def read_as(self, isolation: FetchIsolation, rack: str | None = None) -> Sliced[None]:
        """Set up to which offset the fetcher may read, and from which rack. ``rack`` is None for fetchers that read
        from leaders only.

        Mark all partitions, since each must be looked up again: another isolation reads to another end, and a consumer
        in another rack may have to read elsewhere. This is the only walk over all cached partitions, and no client
        makes such a change within a session.
        """
        self.isolation, self.rack = isolation, rack

        def mark_all(partitions: Collection[CachedPartition]) -> None:
            for cached in partitions:
                cached.read_from_leader()
                self.marked[cached] = None

        yield from in_slices(self.partitions.values(), SESSION_PARTITIONS_PER_SLICE, mark_all)

    def set_available_bytes(self, cached: CachedPartition, available_bytes: int) -> None:
        """Note how many bytes are readable within the partition's ``max_bytes``."""
        self.available_bytes += available_bytes - cached.available_bytes
        cached.available_bytes = available_bytes
        cached.too_small_bytes = 0  # The next batch may be another one, which fits.
        if available_bytes and not cached.queued:
            self.queue(cached)

    def queue(self, cached: CachedPartition) -> None:
        """Put a partition into the queue of those with data, at its place in the list."""
        cached.queued = True
        self._with_data.push(cached)

    def take_with_data(self) -> CachedPartition | None:
        """Take the next partition with data out of the queue, in the order of the response. ``after_response`` or
        ``queue`` puts it back."""
        while (cached := self._with_data.take()) is not None:
            if cached.cached_in is not self.partitions:
                continue
            cached.queued = False
            if cached.available_bytes:
                return cached
        return None

    def move_to_end(self, cached: CachedPartition) -> None:
        """Move a partition to the end of the list, so that the byte limit starves no other (F-15)."""
        self._last_order += 1
        cached.order = self._last_order

    # the response

    def response_flags(self) -> int:
        """Return the flags of a successful response, which only drafts have."""
        return 0

    def take_marks(self) -> dict[CachedPartition, None]:
        """Begin a response. Return the marked partitions, each of which must be passed to ``after_response``. Later
        marks are for the next response.

        ``marked`` becomes a new dict, since a walk over a dict still passes the places of 10,000 removed entries.
        """
        marked, self.marked = self.marked, {}
        return marked

    def belongs_in_response(self, cached: CachedPartition, data: PartitionData) -> bool:
        """Whether ``data``, the partition's state without records, belongs in an incremental response."""
        # Decision partition-differs
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
        marked.update(self.marked)
        self.marked = marked

        def queue_again(partitions: Collection[CachedPartition]) -> None:
            for cached in partitions:
                if cached.available_bytes and not cached.queued:
                    self.queue(cached)

        yield from in_slices(read, SESSION_PARTITIONS_PER_SLICE, queue_again)

    def response_sent(
        self, sent: dict[CachedPartition, PartitionData], marked: dict[CachedPartition, None], partitions: Partitions
    ) -> Sliced[None]:
        """Prepare for the next response, after one with ``sent``, whose partitions are in list order. So those that
        move to the end of the list keep their order. The ``marked`` partitions that the response omitted follow."""
        if not sent and not marked:
            return

        def after_sent(entries: Collection[tuple[CachedPartition, PartitionData]]) -> None:
            for cached, data in entries:
                self.after_response(cached, data, partitions)

        def after_omitted(entries: Collection[CachedPartition]) -> None:
            for cached in entries:
                if cached not in sent:
                    self.after_response(cached, None, partitions)

        yield from in_slices(sent.items(), SESSION_PARTITIONS_PER_SLICE, after_sent)
        yield from in_slices(marked, SESSION_PARTITIONS_PER_SLICE, after_omitted)

    def after_response(self, cached: CachedPartition, sent: PartitionData | None, partitions: Partitions) -> None:
        """Prepare a partition for the next response, after one with ``sent``, or None if it was looked up and omitted.

        The partition is watched again unless the next fetch must look it up anyway, for instance because it changed
        while this response was made. The cached fetch offset stays the requested one, so data that the fetcher does not
        confirm is sent again.
        """
        if sent is not None:
            cached.remember_sent(sent)
            self.partition_sent(cached, sent)
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        # Decision sent-partition-lasting
        if (sent is not None and is_lasting(sent)) or (self.marked and cached in self.marked):
            self.mark(cached)
        else:
            self.watch(cached, partitions)

    def partition_sent(self, cached: CachedPartition, data: PartitionData) -> None:
        """Move a partition whose records were sent to the end of the list, so that the others come first next time."""
        if data.records:  # Decision sent-partition-place
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
