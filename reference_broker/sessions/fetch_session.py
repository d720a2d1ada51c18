"""One incremental fetch session (KIP-227): the partitions that a fetcher wants, and the state last sent of each.

The cost of a fetch depends on what changed, never on what is cached. Each cached partition is in one of two states. A
marked one is in ``FetchSession.changed`` and must be looked at before the next answer. Any other is registered on its
Partition, which marks it at its next change. Partitions that have data to send wait in a queue in list order, from
which an answer takes only as many as fit. A fetch that names no partition and finds none marked touches no partition.
Work on very many partitions is done in slices, and meanwhile the session takes no other request.

Marks are change numbers: the upcoming request's number, as in the KIP's first revision. The final revision reads them
as a bit, marked or not. What differs between the revisions is behind ``sessions.revisions``.
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
    """It is told when a partition with its topic name or ID and with its index arrives."""

    topic: str
    topic_id: bytes
    index: int


@dataclass(slots=True, eq=False)
class Arrivals:
    """One watcher for all of them, so that an arrival costs only what waits for it, not all that waits."""

    expected: dict[tuple[str | bytes, int], dict[Expecting, None]] = field(default_factory=dict)
    keys: dict[Expecting, tuple[tuple[str | bytes, int], ...]] = field(default_factory=dict)
    partitions: Partitions | None = None

    def expect(self, partitions: Partitions, cached: Expecting) -> None:
        """Tells ``cached`` once, when its partition is added. Expecting it twice is no error."""
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
    """One partition of a session. The request's fields are those of the latest request that named it.

    - ``sent_*`` are the values last sent. Before the first answer they are -1, 0 for the error and None for the
      direction (``direction``).
    - ``order`` is the place in the session's list.
    - ``available_bytes`` were readable from ``fetch_offset`` at the last look, at most ``max_bytes``. It is above 0
      exactly while the partition has data to send, and then the partition is ``queued``. ``there_bytes`` is the same
      without the limit.
    - ``too_small_bytes`` was too small for the next batch at the last read. It is 0 if nothing is known.
    - ``home`` are the partitions of the session that it came to, None once it was forgotten. A session that is over, or
      begins anew, gets other ones, so all that it cached leave it at once.
    """

    session: "FetchSession"
    topic: str
    topic_id: bytes
    index: int
    order: int
    max_bytes: int = 0
    fetch_offset: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = UNSENT
    sent_log_start_offset: int = UNSENT
    sent_error: int = 0
    sent_direction: tuple[int, ...] | None = None
    change_number: int = 0
    named_number: int = -1
    available_bytes: int = 0
    there_bytes: int = 0
    too_small_bytes: int = 0
    queued: bool = False
    home: "dict[PartitionKey, CachedPartition] | None" = field(init=False)
    partition: Partition | None = None
    is_of_partition: bool = True
    """Whether ``fetch_offset`` was told for ``partition``, or with a leader epoch that can prove it.

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
        """Overwrites everything that a request says about a partition."""
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
        """Notes what an answer said about the partition. After an error the next state is always sent (F-14), also
        where the error came with offsets, as OFFSET_MOVED_TO_TIERED_STORAGE does."""
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
        """Finds the led partition that this one names now, or the followed one that ``read_from`` named, for as long as
        it is followed. A deleted and recreated one is found only by its name."""
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
        """The fetcher reads from a partition that this node follows."""
        self._unbind()
        self.partition = followed

    def read_from_leader(self) -> None:
        """The fetcher may not read from followers any more."""
        if self.partition is not None and self.partition.leader_elsewhere is not None:
            self._unbind()

    def watch(self, partitions: Partitions) -> None:
        """Marks itself at the partition's next change or, if it is not led here, at its arrival."""
        if self.partition is not None:
            self.partition.watch(self)
        else:
            self.session.arrivals.expect(partitions, self)

    def leave(self) -> None:
        """Nothing tells it of changes any more."""
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
    """Where the fetcher must go on instead, if it must: the diverging epoch as (epoch, end offset), or the preferred
    read replica as (ID,)."""
    diverging = data.diverging_epoch
    if diverging is not None:
        return diverging.epoch, diverging.end_offset
    return None if data.preferred_read_replica < 0 else (data.preferred_read_replica,)


Left: TypeAlias = dict[PartitionKey, CachedPartition]
"""Partitions that a session no longer caches. They must be given to ``leave``."""


class Waiter(Protocol):
    """A fetch that waits for one session, or is at work on it."""

    __slots__ = ()

    at_work: bool
    """True while it is handled in slices."""

    def add_next(self, request: Callable[[], None]) -> None:
        """The next request of its session: to be called in a later event once it is no longer at work."""
        ...

    def partition_marked(self, cached: CachedPartition) -> None:
        """A partition of the session changed; the fetch may have become answerable."""
        ...

    def respond(self) -> None:
        """Answers now with what there is."""
        ...

    def abandon(self, error_code: int) -> bool:
        """Answers now with this top-level error, since the session can no longer serve this fetch. Returns False if it
        was answered before."""
        ...


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session, or the draft of one: every full fetch is answered from a draft, which the cache may then admit.

    - ``session_id`` is 0 for a draft. ``epoch`` is that of the next request.
    - ``number`` counts the accepted incremental requests (64 bits); it is the first revision's sequence number.
      ``answered_number`` is the last of them that was answered, -1 before even the full fetch was.
    - ``created_ms`` and ``last_used_ms`` are wall-clock times. ``contact_us`` is the monotonic time of the last
      accepted request, which counts for every cached partition.
    - ``reader`` says who reads how far, and ``rack`` where a consumer stands that may read from followers, as of the
      last request.
    - ``answers_full`` says that the request to be answered is a full one.
    - ``denied`` says that the session accepts no incremental fetches and caches nothing.
    - ``counted`` is how many partitions the cache of sessions counts for it.
    - ``last_told`` is what the answer to ``number`` held, if it may have to be told again.
    """

    arrivals: Arrivals
    revision: Revision
    uses_topic_ids: bool
    privileged: bool
    client_id: str = ""
    replica_id: int = -1
    session_id: int = 0
    epoch: int = 1
    number: int = 0
    answered_number: int = -1
    created_ms: int = 0
    last_used_ms: int = 0
    contact_us: int = 0
    reader: object = None
    rack: str | None = None
    answers_full: bool = True
    denied: bool = False
    counted: int = 0
    partitions: dict[PartitionKey, CachedPartition] = field(default_factory=dict)
    changed: dict[CachedPartition, None] = field(default_factory=dict)
    """The marked partitions, to be looked at before the next answer. All others are registered on their Partition."""
    available_bytes: int = 0
    """The sum over all partitions that have data."""
    waiter: Waiter | None = None
    last_told: dict[CachedPartition, None] = field(default_factory=dict)
    _with_data: DataQueue = field(init=False)
    _last_order: int = 0

    def __post_init__(self) -> None:
        self._with_data = self.revision.queue()

    @property
    def is_at_work(self) -> bool:
        """Whether one of its requests is handled in slices. Meanwhile it takes no other."""
        return self.waiter is not None and self.waiter.at_work

    @property
    def made_by(self) -> str:
        """Who created it, for people to read."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    def accept_epoch(self, request_epoch: int) -> bool:
        """``request_epoch`` is the sequence number in the first revision."""
        return self.revision.accepts(self, request_epoch)

    def is_waiting_for(self, number: int) -> bool:
        """Whether an incremental fetch waits that has this number, and may be sent again (first revision)."""
        return self.waiter is not None and self.revision.repeats and not self.answers_full and number == self.number

    def accept(self, request_epoch: int, now: Now) -> None:
        """Accepts one more incremental request. The epoch advances here, whatever becomes of the answer."""
        self.answers_full = False
        self.revision.advance(self, request_epoch)
        self.touch(now)

    def accept_full(self, now: Now) -> Left:
        """Accepts a full request, which replaces all partitions and keeps ID and number (first revision)."""
        left = self.empty()
        self.answers_full, self.denied = True, False
        self.answered_number = self.number - 1
        self.touch(now)
        return left

    def deny(self) -> Left:
        """Keeps only the ID. From now on only full requests are answered (first revision)."""
        self.denied = True
        return self.empty()

    def empty(self) -> Left:
        """It caches nothing any more, because it is over or begins anew. Costs the same for any number of
        partitions."""
        left, self.partitions = self.partitions, {}
        self._last_order = self.available_bytes = 0
        self.changed, self.last_told = {}, {}
        self._with_data = self.revision.queue()
        return left

    def touch(self, now: Now) -> None:
        self.contact_us = now.mono_us
        self.last_used_ms = now.wall_ms

    def upcoming_number(self) -> int:
        """The number of the answer that will tell what changes now."""
        return self.number if self.answered_number < self.number else self.number + 1

    def key(self, topic: str, topic_id: bytes, index: int) -> PartitionKey:
        return (topic_id if self.uses_topic_ids else topic, index)

    def name(self, topic: str, topic_id: bytes, wanted: FetchPartition) -> CachedPartition:
        """A request names this partition: adds it at the end of the list, or overwrites the cached values."""
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
        """The same for many."""
        for topic, topic_id, partition in wanted:
            self.name(topic, topic_id, partition)

    def forget(self, topic: str, topic_id: bytes, indexes: Iterable[int]) -> None:
        """Drops partitions. A partition that the session does not hold is no error."""
        for index in indexes:
            cached = self.partitions.pop(self.key(topic, topic_id, index), None)
            if cached is not None:
                self._drop(cached)

    def _drop(self, cached: CachedPartition) -> None:
        cached.leave()
        self.changed.pop(cached, None)
        self.assess(cached, 0)

    def mark(self, cached: CachedPartition) -> None:
        """Marks a partition that may have something to send, in the answer that is due or in the next one."""
        cached.change_number = self.upcoming_number()
        self.changed[cached] = None

    def look_at(self, cached: CachedPartition) -> None:
        """Makes the next answer look at the partition although nothing has changed."""
        self.changed[cached] = None

    def read_as(self, reader: object, rack: str | None = None) -> Work:
        """Sets who reads. Another isolation level, or a follower instead of a consumer, reads to another end. A
        consumer with another rack may have to read elsewhere; ``rack`` is None for who reads from leaders only.

        Then all partitions must be looked at. This is the only walk over all cached partitions, and no client makes
        such a change within a session.
        """
        self.reader, self.rack = reader, rack
        return in_slices(self.partitions.values(), self._mark_for_new_reader)

    def _mark_for_new_reader(self, some: Collection[CachedPartition]) -> None:
        for cached in some:
            cached.read_from_leader()
            self.mark(cached)

    def assess(self, cached: CachedPartition, available_bytes: int) -> None:
        """Notes how many bytes a look at the partition found readable."""
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
        """Takes the next partition with data out of the queue, in the answer's order.

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
        """Gives the partitions this order, from 0 on."""
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
        """Called after an answer that held ``sent`` about it, or None if it was looked at and left out.

        The partition is registered on its Partition again unless the next answer must look at it anyway, for instance
        because it changed while this answer was made. The cached fetch offset stays the requested one, so what the
        fetcher does not confirm is sent again.
        """
        if sent is None:
            self.revision.left_out(self, cached)
        else:
            cached.remember_sent(sent)
            self.revision.sent(self, cached, sent, cached.there_bytes > len(sent.records or b""))
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        if (sent is not None and is_lasting(sent)) or (self.changed and cached in self.changed):
            self.mark(cached)
        elif self.revision.stays_marked(self, cached):
            self.look_at(cached)
        else:
            cached.watch(partitions)

    def take_marks(self) -> dict[CachedPartition, None]:
        """An answer begins. Returns all that are marked, which it must settle. Later marks are for the next answer.

        ``changed`` becomes a new dict, since a walk over a dict still passes the places of 10,000 removed entries.
        """
        marked, self.changed = self.changed, {}
        return marked

    def put_back(self, marked: dict[CachedPartition, None], read: list[CachedPartition]) -> Work:
        """The answer that took these marks, and read these partitions, was not sent."""
        marked.update(self.changed)
        self.changed = marked

        def queue_again(some: Collection[CachedPartition]) -> None:
            for cached in some:
                if cached.available_bytes and not cached.queued:
                    self.queue(cached)

        return in_slices(read, queue_again)

    def answered(self) -> None:
        """The answer to the latest request is complete. What it told and what it took as marked is settled next."""
        self.answered_number = self.number
        self.last_told = {}
        for cached in self.changed:  # They changed while the answer was made, and belong to the next one.
            self.mark(cached)

    def settled(self) -> Slices:
        """Everything that the answer told and everything that was marked has been settled."""
        if self.answers_full:
            yield from self.revision.full_answered(self)


def leave(all_left: Iterable[Left]) -> Slices:
    """Takes partitions that left their sessions from the lists of those who are told of changes.

    Until then such a partition may still be told of a change. It does nothing then, since it is not ``live``.
    """
    for left in all_left:
        yield from steps_in_slices(_leaving(left))


def _leaving(left: Left) -> Iterator[None]:
    while left:
        left.popitem()[1].leave()
        yield
