"""One incremental fetch session (KIP-227): the partitions that a fetcher wants, and the state last sent of each.

The cost of a fetch depends on what changed, never on what is cached. Each cached partition is in one of two states. A
marked one is in ``FetchSession.changed`` and must be looked up before the next response. Any other is registered on its
Partition, which marks it at its next change. Partitions that have data to send are queued in list order, and a response
takes only as many as fit. A fetch that names no partition and finds none marked touches no partition. Work on very many
partitions is done in slices, and meanwhile the session accepts no other request.

Marks are change numbers: the upcoming request's number, as in the KIP's first revision. The final revision reads them
as a bit, marked or not. What differs between the revisions is in ``sessions.revisions``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from reference_broker.ports.node_ports import Now, Slices
from reference_broker.replication.partitions import Partition, Partitions, Watcher
from reference_broker.sessions.revisions import DataQueue, Revision, is_lasting
from reference_broker.sessions.slices import Work, in_slices, steps_in_slices
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, PartitionData


class Expecting(Watcher, Protocol):
    """Is called when a partition with its topic name or ID and with its index is added."""

    topic: str
    topic_id: bytes
    index: int


@dataclass(slots=True, eq=False)
class Arrivals:
    """Cached partitions that this node neither leads nor follows, by the name and the ID under which they may arrive.

    This is one watcher for all of them, so that an arrival costs only the partitions that wait for it.
    """

    expected: dict[tuple[str | bytes, int], dict[Expecting, None]] = field(default_factory=dict)
    keys: dict[Expecting, tuple[tuple[str | bytes, int], ...]] = field(default_factory=dict)
    partitions: Partitions | None = None

    def expect(self, partitions: Partitions, cached: Expecting) -> None:
        """Calls ``cached`` once, when its partition is added. Expecting it twice is no error."""
        if cached not in self.keys:
            self.keys[cached] = ((cached.topic_id, cached.index), (cached.topic, cached.index))
            for key in self.keys[cached]:
                self.expected.setdefault(key, {})[cached] = None
        self.partitions = partitions
        partitions.arrivals[self] = None

    def forget(self, cached: Expecting) -> None:
        for key in self.keys.pop(cached, ()):
            waiting = self.expected[key]
            del waiting[cached]
            if not waiting:
                del self.expected[key]

    def partition_changed(self, partition: Partition) -> None:
        arrived: dict[Expecting, None] = {}
        for name in (partition.topic_id, partition.topic):
            arrived.update(self.expected.get((name, partition.index), {}))
        for cached in arrived:
            self.forget(cached)
        if self.keys and self.partitions is not None:
            self.partitions.arrivals[self] = None
        for cached in arrived:
            cached.partition_changed(partition)


PartitionKey: TypeAlias = tuple[str | bytes, int]
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
    """Its place in the session's list."""
    max_bytes: int = 0
    fetch_offset: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = UNSENT
    sent_log_start_offset: int = UNSENT
    sent_error: int = 0
    sent_direction: tuple[int, ...] | None = None
    """Where it was last directed (``direction``)."""
    change_number: int = 0
    named_number: int = -1
    """The number of the latest request that named it."""
    available_bytes: int = 0
    """The bytes that were readable from ``fetch_offset`` at the last lookup, at most ``max_bytes``. Above 0 exactly
    while the partition has data to send, and then it is ``queued``."""
    there_bytes: int = 0
    """The same without the limit."""
    too_small_bytes: int = 0
    """A limit that was too small for the next batch at the last read, or 0."""
    queued: bool = False
    home: "dict[PartitionKey, CachedPartition] | None" = field(init=False)
    """The partitions of the session when it was added, None once it was forgotten. A session that is closed or replaced
    gets another dictionary, so all partitions that it cached leave it at once."""
    partition: Partition | None = None
    is_of_partition: bool = True
    """Whether ``fetch_offset`` was requested for ``partition``, or with a leader epoch that can prove it.

    False if it may stem from another leadership or from an earlier topic of that name.
    """

    def __post_init__(self) -> None:
        self.home = self.session.partitions

    @property
    def live(self) -> bool:
        """False once it left its session."""
        return self.home is self.session.partitions

    @property
    def named(self) -> bool:
        """Whether the session's latest request named it."""
        return self.named_number == self.session.number

    def remember(self, wanted: FetchPartition, topic_id: bytes) -> None:
        """Overwrites its entry with that of a request."""
        if topic_id != self.topic_id:
            self._unbind()  # In a session by name this is another topic of that name.
            self.topic_id = topic_id
        self.max_bytes = max(wanted.partition_max_bytes, 0)
        self.fetch_offset = wanted.fetch_offset
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset
        self.is_of_partition = True

    def remember_sent(self, sent: PartitionData) -> None:
        """Notes the partition's part of a response. After an error the next state is always sent (F-14), also where the
        error came with offsets, as OFFSET_MOVED_TO_TIERED_STORAGE does."""
        self.sent_high_watermark = UNSENT if sent.error_code else sent.high_watermark
        self.sent_log_start_offset = UNSENT if sent.error_code else sent.log_start_offset
        self.sent_error = sent.error_code
        is_elsewhere = sent.diverging_epoch is not None or sent.preferred_read_replica >= 0
        self.sent_direction = direction(sent) if is_elsewhere else None

    def may_be(self, topic_id: bytes) -> bool:
        """Whether its request named this topic ID, or none."""
        return self.topic_id in (NO_TOPIC_ID, topic_id)

    def _unbind(self) -> None:
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = None

    def bind(self, partitions: Partitions) -> Partition | None:
        """Returns the led partition that this one names now, or the followed one of ``read_from`` for as long as it is
        followed. A deleted and recreated one is found only by its name."""
        partition = self.partition
        if partition is None or partition.deleted:
            if self.session.uses_topic_ids:
                partition = partitions.by_id.get((self.topic_id, self.index))
                self.topic = partitions.topic_names.get(self.topic_id, self.topic)
            else:
                partition = partitions.by_name.get((self.topic, self.index))
                if partition is not None and not self.may_be(partition.topic_id):
                    partition = None
            self.partition = partition
            self.is_of_partition = self.named or self.current_leader_epoch >= 0
        return partition

    def read_from(self, followed: Partition) -> None:
        """Binds it to a partition that this node follows."""
        self._unbind()
        self.partition = followed

    def read_from_leader(self) -> None:
        """Unbinds it from a partition that this node follows, since the fetcher may not read from followers any
        more."""
        if self.partition is not None and self.partition.leader_elsewhere is not None:
            self._unbind()

    def watch(self, partitions: Partitions) -> None:
        """Marks itself at the partition's next change or, if it is not led here, at its arrival."""
        if self.partition is not None:
            self.partition.watch(self)
        else:
            self.session.arrivals.expect(partitions, self)

    def leave(self) -> None:
        """Stops watching for changes."""
        self.home = None
        if self.partition is not None:
            self.partition.unwatch(self)
        self.session.arrivals.forget(self)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        session = self.session
        if self.home is not session.partitions:
            return
        session.mark(self)
        if session.waiter is not None:
            session.waiter.partition_marked(self)


def direction(data: PartitionData) -> tuple[int, ...] | None:
    """Returns where the fetcher must go on instead: the diverging epoch as (epoch, end offset), the preferred read
    replica as (ID,), or None."""
    diverging = data.diverging_epoch
    if diverging is not None:
        return diverging.epoch, diverging.end_offset
    return None if data.preferred_read_replica < 0 else (data.preferred_read_replica,)


Removed: TypeAlias = dict[PartitionKey, CachedPartition]
"""Partitions that a session no longer caches. They must be passed to ``leave``."""


class Waiter(Protocol):
    """A fetch that is parked on one session, or at work on it."""

    __slots__ = ()

    at_work: bool
    """True while it is handled in slices."""

    def add_next(self, request: Callable[[], None]) -> None:
        """Adds the next request of its session, to be handled in a later event once the work is done."""
        ...

    def partition_marked(self, cached: CachedPartition) -> None:
        """Called when a partition of the session changed. The fetch may be complete now."""
        ...

    def respond(self) -> None:
        """Responds now with the data that there is."""
        ...

    def abandon(self, error_code: int) -> bool:
        """Responds now with this top-level error, since the session can no longer serve this fetch. Returns False if it
        was completed before."""
        ...


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session, or the draft of one: every full fetch works on a draft, which the cache may then admit."""

    arrivals: Arrivals
    revision: Revision
    uses_topic_ids: bool
    privileged: bool
    """Whether it is a follower's."""
    client_id: str = ""
    replica_id: int = -1
    session_id: int = 0
    """0 for a draft."""
    epoch: int = 1
    """The epoch of the next request."""
    number: int = 0
    """The number of accepted incremental requests (64 bits), which is the first revision's sequence number."""
    answered_number: int = -1
    """The last of them that was answered, -1 before even the full fetch was."""
    created_ms: int = 0
    """Wall-clock time, as is ``last_used_ms``."""
    last_used_ms: int = 0
    contact_us: int = 0
    """The monotonic time of the last accepted request, which counts for every cached partition."""
    reader: object = None
    """The kind of reader of the last request (``fetch_partition.Reader``)."""
    rack: str | None = None
    """The rack of a consumer that may read from followers, as of the last request."""
    answers_full: bool = True
    """Whether the request in hand is a full one."""
    denied: bool = False
    """Whether the session refuses incremental fetches and caches nothing."""
    counted: int = 0
    """The number of partitions that the cache of sessions counts for it."""
    partitions: dict[PartitionKey, CachedPartition] = field(default_factory=dict)
    changed: dict[CachedPartition, None] = field(default_factory=dict)
    """The marked partitions, to be looked up before the next response. All others are registered on their Partition."""
    available_bytes: int = 0
    """The sum over all partitions that have data."""
    waiter: Waiter | None = None
    """The fetch that is parked or at work."""
    last_sent: dict[CachedPartition, None] = field(default_factory=dict)
    """The partitions in the response to ``number``, if that may have to be repeated."""
    _with_data: DataQueue = field(init=False)
    _last_order: int = 0

    def __post_init__(self) -> None:
        self._with_data = self.revision.queue()

    @property
    def is_at_work(self) -> bool:
        """Whether one of its requests is handled in slices. Meanwhile it accepts no other."""
        return self.waiter is not None and self.waiter.at_work

    @property
    def made_by(self) -> str:
        """The client that created it, for people to read."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    def accept_epoch(self, request_epoch: int) -> bool:
        """``request_epoch`` is the sequence number in the first revision."""
        return self.revision.accepts(self, request_epoch)

    def is_waiting_for(self, number: int) -> bool:
        """Whether an incremental fetch with this number is parked, and may be repeated (first revision)."""
        return self.waiter is not None and self.revision.repeats and not self.answers_full and number == self.number

    def accept(self, request_epoch: int, now: Now) -> None:
        """Accepts one more incremental request. The epoch advances here, even if the response is lost."""
        self.answers_full = False
        self.revision.advance(self, request_epoch)
        self.touch(now)

    def accept_full(self, now: Now) -> Removed:
        """Accepts a full request, which replaces all partitions and keeps ID and number (first revision)."""
        removed = self.empty()
        self.answers_full, self.denied = True, False
        self.answered_number = self.number - 1
        self.touch(now)
        return removed

    def deny(self) -> Removed:
        """Keeps only the ID. From now on only full requests are accepted (first revision)."""
        self.denied = True
        return self.empty()

    def empty(self) -> Removed:
        """Removes all partitions, because the session is closed or replaced. Costs the same for any number of them."""
        removed, self.partitions = self.partitions, {}
        self._last_order = self.available_bytes = 0
        self.changed, self.last_sent = {}, {}
        self._with_data = self.revision.queue()
        return removed

    def touch(self, now: Now) -> None:
        self.contact_us = now.mono_us
        self.last_used_ms = now.wall_ms

    def upcoming_number(self) -> int:
        """Returns the number of the response that will have the current changes."""
        return self.number if self.answered_number < self.number else self.number + 1

    def key(self, topic: str, topic_id: bytes, index: int) -> PartitionKey:
        return (topic_id if self.uses_topic_ids else topic, index)

    def name(self, topic: str, topic_id: bytes, wanted: FetchPartition) -> CachedPartition:
        """Applies an entry of a request: adds the partition at the end of the list, or overwrites the cached values."""
        key = self.key(topic, topic_id, wanted.partition)
        cached = self.partitions.get(key)
        if cached is None:
            self._last_order += 1
            cached = CachedPartition(self, topic, topic_id, wanted.partition, self._last_order)
            self.partitions[key] = cached
        cached.remember(wanted, topic_id)
        cached.named_number = self.number
        self.revision.named(self, cached)
        return cached

    def name_all(self, wanted: Iterable[tuple[str, bytes, FetchPartition]]) -> None:
        """Applies many entries."""
        for topic, topic_id, partition in wanted:
            self.name(topic, topic_id, partition)

    def forget(self, topic: str, topic_id: bytes, indexes: Iterable[int]) -> None:
        """Drops partitions. A partition that the session does not cache is no error."""
        for index in indexes:
            cached = self.partitions.pop(self.key(topic, topic_id, index), None)
            if cached is not None:
                self._drop(cached)

    def _drop(self, cached: CachedPartition) -> None:
        cached.leave()
        self.changed.pop(cached, None)
        self.assess(cached, 0)

    def mark(self, cached: CachedPartition) -> None:
        """Marks a partition that may have something to send, in the response in hand or in the next one."""
        cached.change_number = self.upcoming_number()
        self.changed[cached] = None

    def recheck(self, cached: CachedPartition) -> None:
        """Makes the next fetch look up the partition although nothing has changed."""
        self.changed[cached] = None

    def read_as(self, reader: object, rack: str | None = None) -> Work:
        """Sets the kind of reader. Another isolation level, or a follower instead of a consumer, reads to another end.
        A consumer with another rack may have to read elsewhere; ``rack`` is None for fetchers that read from leaders
        only.

        Then all partitions must be looked up. This is the only walk over all cached partitions, and no client makes
        such a change within a session.
        """
        self.reader, self.rack = reader, rack
        return in_slices(self.partitions.values(), self._mark_for_new_reader)

    def _mark_for_new_reader(self, some: Collection[CachedPartition]) -> None:
        for cached in some:
            cached.read_from_leader()
            self.mark(cached)

    def assess(self, cached: CachedPartition, available_bytes: int) -> None:
        """Notes how many bytes a lookup found readable."""
        self.revision.assessed(self, cached, available_bytes)
        self.available_bytes += available_bytes - cached.available_bytes
        cached.available_bytes = available_bytes
        cached.too_small_bytes = 0
        if available_bytes and not cached.queued:
            self.queue(cached)

    def queue(self, cached: CachedPartition) -> None:
        """Puts it into the queue of partitions with data, at its place in the list."""
        cached.queued = True
        self._with_data.push(cached)

    def take_with_data(self) -> CachedPartition | None:
        """Takes the next partition with data out of the queue, in the order of the response.

        ``settle`` or ``queue`` puts it back.
        """
        start = self.revision.start(self)
        while (cached := self._with_data.take(start)) is not None:
            if cached.home is not self.partitions:
                continue
            cached.queued = False
            if cached.available_bytes:
                return cached
        return None

    def rank(self, ordered: list[CachedPartition]) -> Slices:
        """Reorders the partitions, from 0 on."""
        self._with_data = self.revision.queue()
        rank = 0

        def rank_next(some: Collection[CachedPartition]) -> None:
            nonlocal rank
            for cached in some:
                cached.order = rank
                rank += 1
                if cached.queued:
                    self._with_data.push(cached)

        yield from in_slices(ordered, rank_next)

    def move_to_end(self, cached: CachedPartition) -> None:
        self._last_order += 1
        cached.order = self._last_order

    def settle(self, cached: CachedPartition, sent: PartitionData | None, partitions: Partitions) -> None:
        """Called after a response with ``sent`` for this partition, or None if it was looked up and omitted.

        The partition is registered on its Partition again unless the next fetch must look it up anyway, for instance
        because it changed while this response was made. The cached fetch offset stays the requested one, so data that
        the fetcher does not confirm is sent again.
        """
        if sent is None:
            self.revision.omitted(self, cached)
        else:
            cached.remember_sent(sent)
            self.revision.sent(self, cached, sent, cached.there_bytes > len(sent.records or b""))
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        if (sent is not None and is_lasting(sent)) or (self.changed and cached in self.changed):
            self.mark(cached)
        elif self.revision.stays_marked(self, cached):
            self.recheck(cached)
        else:
            cached.watch(partitions)

    def take_marks(self) -> dict[CachedPartition, None]:
        """Begins a response. Returns the marked partitions, which it must settle. Later marks are for the next
        response.

        ``changed`` becomes a new dict, since a walk over a dict still passes the places of 10,000 removed entries.
        """
        marked, self.changed = self.changed, {}
        return marked

    def put_back(self, marked: dict[CachedPartition, None], read: list[CachedPartition]) -> Work:
        """Restores the marks and the read partitions of a response that was not sent."""
        marked.update(self.changed)
        self.changed = marked

        def queue_again(some: Collection[CachedPartition]) -> None:
            for cached in some:
                if cached.available_bytes and not cached.queued:
                    self.queue(cached)

        return in_slices(read, queue_again)

    def answered(self) -> None:
        """The response to the latest request is complete. Its partitions and its marks are settled next."""
        self.answered_number = self.number
        self.last_sent = {}
        for cached in self.changed:  # They changed while the response was made, and belong to the next one.
            self.mark(cached)

    def settled(self) -> Slices:
        """Called when all partitions of the response and all that were marked have been settled."""
        if self.answers_full:
            yield from self.revision.full_answered(self)


def leave(all_removed: Iterable[Removed]) -> Slices:
    """Unregisters removed partitions from the partitions that they watch, in slices.

    Until then such a partition may still be called. It does nothing then, since it is not ``live``.
    """
    for removed in all_removed:
        yield from steps_in_slices(_leaving(removed))


def _leaving(removed: Removed) -> Iterator[None]:
    while removed:
        removed.popitem()[1].leave()
        yield
