"""One incremental fetch session (KIP-227): the partitions that a fetcher wants, and which of them have something to
send.

The cost of a fetch depends on what changed, never on what is cached. Only the marked partitions (``changed``) are
looked up before a response. Partitions that have data to send are queued in list order, and a response takes only as
many as fit. A fetch that names no partition and finds none marked touches no partition.

Marks are change numbers: the upcoming request's number, as in the KIP's first revision. The final revision reads them
as a bit, marked or not. ``Revision`` is what differs between the two.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import SESSION_PARTITIONS_PER_SLICE, Budget, Sliced, in_slices
from reference_broker.replication.leader.purgatory import DelayedFetch
from reference_broker.replication.partitions import Partitions
from reference_broker.sessions.cached_partition import Arrivals, CachedPartition, PartitionKey, is_lasting
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

Removed: TypeAlias = dict[PartitionKey, CachedPartition]
"""Partitions that a session no longer caches. They must be passed to ``leave``."""


class SessionFetch(DelayedFetch, Protocol):
    """A fetch that is parked on one session, or whose work for it goes on in later events."""

    @property
    def is_working(self) -> bool:
        """Whether its work goes on in later events. Meanwhile the session accepts no other request."""
        ...

    def handle_afterwards(self, request: Callable[[], None]) -> None:
        """Handle the next request of the session in a later event, once the work is done."""
        ...

    def partition_marked(self, cached: CachedPartition) -> None:
        """Called when a partition of the session changed. The fetch may be complete now."""
        ...

    def abandon(self, error_code: int) -> bool:
        """Respond now with this top-level error, since the session can no longer serve this fetch. Return False if it
        was completed before."""
        ...


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session. Every full fetch works on a newcomer, a session without an ID, which the cache may then admit."""

    arrivals: Arrivals
    revision: "Revision"
    uses_topic_ids: bool
    privileged: bool
    """Whether it is a follower's."""
    client_id: str = ""
    replica_id: int = -1
    session_id: int = 0
    """0 for a newcomer."""
    epoch: int = 1
    """The epoch of the next request."""
    number: int = 0
    """The number of accepted incremental requests (64 bits), which is the first revision's sequence number."""
    responded_number: int = -1
    """The last of them that got its response, -1 before even the full fetch did."""
    responded_before_full: int | None = None
    """``responded_number`` before a full request in the session, while that has no response (first revision)."""
    created_ms: int = 0
    """Wall-clock time, as is ``last_used_ms``."""
    last_used_ms: int = 0
    contact_us: int = 0
    """The monotonic time of the last accepted request, which counts for every cached partition."""
    reader: object = None
    """The kind of reader of the last request (``fetch_partition.Reader``)."""
    rack: str | None = None
    """The rack of a consumer that may read from followers, as of the last request."""
    serves_full: bool = True
    """Whether the request in hand is a full one."""
    denied: bool = False
    """Whether the session refuses incremental fetches and caches nothing (first revision)."""
    counted: int = 0
    """The number of partitions that the cache of sessions counts for it."""
    partitions: dict[PartitionKey, CachedPartition] = field(default_factory=dict)
    changed: dict[CachedPartition, None] = field(default_factory=dict)
    """The marked partitions, to be looked up before the next response. All others watch their Partition."""
    available_bytes: int = 0
    """The sum over all partitions that have data."""
    fetch: SessionFetch | None = None
    """The fetch that is parked or working."""
    last_sent: dict[CachedPartition, None] = field(default_factory=dict)
    """The partitions in the response to ``number``, if that may have to be repeated."""
    _with_data: "DataQueue" = field(init=False)
    _last_order: int = 0

    def __post_init__(self) -> None:
        self._with_data = self.revision.queue()

    @property
    def made_by(self) -> str:
        """The client that created it, for people to read."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    # requests

    def accept_epoch(self, request_epoch: int) -> bool:
        """``request_epoch`` is the sequence number in the first revision."""
        return self.revision.accepts(self, request_epoch)

    def accept(self, request_epoch: int, now: Now) -> None:
        """Accept one more incremental request. The epoch advances here, even if the response is lost."""
        self.serves_full = False
        self.revision.advance(self, request_epoch)
        self.responded_before_full = None
        self.touch(now)

    def accept_full(self, now: Now) -> Removed:
        """Accept a full request, which replaces all partitions and keeps ID and number (first revision)."""
        removed = self.empty()
        self.serves_full, self.denied = True, False
        if self.responded_before_full is None:
            self.responded_before_full = self.responded_number
        self.responded_number = self.number - 1
        self.touch(now)
        return removed

    def deny(self) -> Removed:
        """Keep only the ID. From now on only full requests are accepted (first revision)."""
        self.denied = True
        return self.empty()

    def empty(self) -> Removed:
        """Remove all partitions, because the session is closed or replaced. Costs the same for any number of them."""
        removed, self.partitions = self.partitions, {}
        self._last_order = self.available_bytes = 0
        self.changed, self.last_sent = {}, {}
        self._with_data = self.revision.queue()
        return removed

    def touch(self, now: Now) -> None:
        self.contact_us = now.mono_us
        self.last_used_ms = now.wall_ms

    def set_contact_of(self, other: "FetchSession") -> None:
        """Count as last contacted when ``other`` was, in whose place a request goes on here."""
        self.contact_us = other.contact_us

    def upcoming_number(self) -> int:
        """Return the number of the response that will have the current changes."""
        return self.number if self.responded_number < self.number else self.number + 1

    # the fetch that is parked or working

    def park(self, fetch: SessionFetch) -> None:
        """Call ``fetch`` for each partition that changes, until ``unpark``."""
        self.fetch = fetch

    def unpark(self) -> None:
        self.fetch = None

    @property
    def is_working(self) -> bool:
        """Whether the work of one of its requests goes on in later events. Meanwhile it accepts no other."""
        return self.fetch is not None and self.fetch.is_working

    def has_parked(self, number: int) -> bool:
        """Whether an incremental fetch with this number is parked, and may be repeated (first revision)."""
        return self.fetch is not None and self.revision.repeats and not self.serves_full and number == self.number

    # partitions

    def key(self, topic: str, topic_id: bytes, index: int) -> PartitionKey:
        return (topic_id if self.uses_topic_ids else topic, index)

    def name_all(self, topics: Sequence[FetchTopic], *, with_ids: bool) -> Iterable[None]:
        """Apply the partitions that a request names. Its topic IDs count only in a version that has them."""
        if len(topics) == 1 and len(topics[0].partitions) == 1:  # As most requests that name any.
            (topic,) = topics
            self.name(topic.topic, topic.topic_id if with_ids else NO_TOPIC_ID, topic.partitions[0])
            return ()

        def name(some: Iterable[tuple[FetchTopic, FetchPartition]]) -> None:
            for topic, wanted in some:
                self.name(topic.topic, topic.topic_id if with_ids else NO_TOPIC_ID, wanted)

        named = [(topic, wanted) for topic in topics for wanted in topic.partitions]
        return in_slices(named, SESSION_PARTITIONS_PER_SLICE, name)

    def forget_all(self, topics: Iterable[ForgottenTopic]) -> Iterable[None]:
        """Drop the partitions that a request forgets."""

        def forget(some: Iterable[tuple[ForgottenTopic, int]]) -> None:
            for topic, index in some:
                self.forget(topic.topic, topic.topic_id, (index,))

        forgotten = [(topic, index) for topic in topics for index in topic.partitions]
        return in_slices(forgotten, SESSION_PARTITIONS_PER_SLICE, forget)

    def name(self, topic: str, topic_id: bytes, wanted: FetchPartition) -> CachedPartition:
        """Apply an entry of a request: add the partition at the end of the list, or overwrite the cached values."""
        key = self.key(topic, topic_id, wanted.partition)
        cached = self.partitions.get(key)
        # Decision named-partition (F-12): new in the session | cached
        if cached is None:
            self._last_order += 1
            cached = CachedPartition(self, topic, topic_id, wanted.partition, self._last_order)
            self.partitions[key] = cached
        cached.remember(wanted, topic_id)
        cached.named_number = self.number
        self.revision.named(self, cached)
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
        cached.change_number = self.upcoming_number()
        self.changed[cached] = None

    def recheck(self, cached: CachedPartition) -> None:
        """Make the next fetch look up the partition although nothing has changed."""
        self.changed[cached] = None

    def read_as(self, reader: object, rack: str | None = None) -> Sliced[None]:
        """Set the kind of reader. Another isolation level, or a follower instead of a consumer, reads to another end.
        A consumer with another rack may have to read elsewhere; ``rack`` is None for fetchers that read from leaders
        only.

        Then all partitions must be looked up. This is the only walk over all cached partitions, and no client makes
        such a change within a session.
        """
        self.reader, self.rack = reader, rack

        def mark_all(some: Collection[CachedPartition]) -> None:
            for cached in some:
                cached.read_from_leader()
                self.mark(cached)

        yield from in_slices(self.partitions.values(), SESSION_PARTITIONS_PER_SLICE, mark_all)

    def assess(self, cached: CachedPartition, available_bytes: int) -> None:
        """Note how many bytes a lookup found readable."""
        self.revision.assessed(self, cached, available_bytes)
        self.available_bytes += available_bytes - cached.available_bytes
        cached.available_bytes = available_bytes
        cached.too_small_bytes = 0
        if available_bytes and not cached.queued:
            self.queue(cached)

    def queue(self, cached: CachedPartition) -> None:
        """Put it into the queue of partitions with data, at its place in the list."""
        cached.queued = True
        self._with_data.push(cached)

    def take_with_data(self) -> CachedPartition | None:
        """Take the next partition with data out of the queue, in the order of the response. ``after_response`` or
        ``queue`` puts it back."""
        start = self.revision.start(self)
        while (cached := self._with_data.take(start)) is not None:
            if cached.cached_in is not self.partitions:
                continue
            cached.queued = False
            if cached.available_bytes:
                return cached
        return None

    def rank(self, ordered: list[CachedPartition]) -> Sliced[None]:
        """Reorder the partitions, from 0 on."""
        self._with_data = self.revision.queue()
        rank = 0

        def rank_next(some: Collection[CachedPartition]) -> None:
            nonlocal rank
            for cached in some:
                cached.order = rank
                rank += 1
                if cached.queued:
                    self._with_data.push(cached)

        yield from in_slices(ordered, SESSION_PARTITIONS_PER_SLICE, rank_next)

    def move_to_end(self, cached: CachedPartition) -> None:
        self._last_order += 1
        cached.order = self._last_order

    # a response

    def take_marks(self) -> dict[CachedPartition, None]:
        """Begin a response. Return the marked partitions, each of which must be passed to ``after_response``. Later
        marks are for the next response.

        ``changed`` becomes a new dict, since a walk over a dict still passes the places of 10,000 removed entries.
        """
        marked, self.changed = self.changed, {}
        return marked

    def put_back(self, marked: dict[CachedPartition, None], read: Collection[CachedPartition]) -> Sliced[None]:
        """Restore the marks and the read partitions of a response that was not sent."""
        marked.update(self.changed)
        self.changed = marked

        def queue_again(some: Collection[CachedPartition]) -> None:
            for cached in some:
                if cached.available_bytes and not cached.queued:
                    self.queue(cached)

        yield from in_slices(read, SESSION_PARTITIONS_PER_SLICE, queue_again)

    def response_sent(self) -> None:
        """The response to the latest request is sent. ``after_response`` follows for its partitions and its marks.

        That to a full request is no response to ``number``. An incremental request with it may still come (G-4).
        """
        before_full, self.responded_before_full = self.responded_before_full, None
        self.responded_number = self.number if before_full is None else before_full
        self.last_sent = {}
        for cached in self.changed:  # They changed while the response was made, and belong to the next one.
            self.mark(cached)

    def after_response(self, cached: CachedPartition, sent: PartitionData | None, partitions: Partitions) -> None:
        """Prepare a partition for the next response, after one with ``sent``, or None if it was looked up and omitted.

        The partition is watched again unless the next fetch must look it up anyway, for instance because it changed
        while this response was made. The cached fetch offset stays the requested one, so data that the fetcher does not
        confirm is sent again.
        """
        if sent is None:
            self.revision.omitted(self, cached)
        else:
            cached.remember_sent(sent)
            self.revision.sent(self, cached, sent, cached.unlimited_bytes > len(sent.records or b""))
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        # Decision sent-partition-lasting (F-14): looked up again | watched for changes
        if (sent is not None and is_lasting(sent)) or (self.changed and cached in self.changed):
            self.mark(cached)
        # Decision rested-partition-dirty (G-5): looked up next time | watched for changes
        elif self.revision.stays_marked(self, cached):
            self.recheck(cached)
        else:
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


class DataQueue(Protocol):
    """The cached partitions that have data to send."""

    def push(self, cached: CachedPartition) -> None: ...

    def take(self, start: int) -> CachedPartition | None:
        """Take the next partition out of the queue, or return None if it is empty.

        ``start`` is the place at which the response begins.
        """
        ...


class AdmitsSessions(Protocol):
    """The part of the cache of sessions that a revision uses."""

    slots: int
    sessions: dict[int, FetchSession]

    def admit(self, newcomer: FetchSession, now: Now) -> bool: ...
    def is_too_large(self, session: FetchSession) -> bool: ...
    def deny(self, session: FetchSession) -> None: ...


@dataclass(frozen=True, slots=True)
class Revision(ABC):
    """What differs between the revisions of the KIP: ``final_revision`` and ``first_revision``.

    Numbers are the epochs (final) or sequence numbers (first) that incremental requests carry.
    """

    name: ClassVar[str]
    """``final`` or ``first``, in the trace."""
    largest_id: ClassVar[int]
    """Session IDs are random from 1 to this."""
    unknown_id: ClassVar[Error]
    """Top-level error for a session that does not exist (any more)."""
    wrong_number: ClassVar[Error]
    """Top-level error for a number that the session does not accept, and for a request that is overtaken."""
    repeats: ClassVar[bool] = False
    """Whether a request may be repeated with its number, and gets a response again."""
    min_eviction_ms: int
    """A session may be evicted if it is idle longer than this, or older than this and smaller than the newcomer."""

    @abstractmethod
    def is_number(self, number: int) -> bool:
        """Whether an incremental request can carry it at all."""

    @abstractmethod
    def accepts(self, session: FetchSession, number: int) -> bool:
        """Whether an incremental request with this number is valid now."""

    @abstractmethod
    def advance(self, session: FetchSession, number: int) -> None:
        """An incremental request with a valid number was accepted."""

    @abstractmethod
    def keep(self, sessions: AdmitsSessions, session: FetchSession, wants_session: bool, now: Now) -> bool:
        """Return whether the session caches the fetched partitions after the response. Admits a newcomer if its
        fetcher wants a session and there is room."""

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

    @abstractmethod
    def queue(self) -> DataQueue:
        """Return an empty one, for a new session."""

    @abstractmethod
    def start(self, session: FetchSession) -> int:
        """Return where the response to the latest request begins."""

    @abstractmethod
    def place(self, session: FetchSession, cached: CachedPartition) -> int:
        """Return the partition's place in the response to the latest request. Places need not be dense."""

    @abstractmethod
    def named(self, session: FetchSession, cached: CachedPartition) -> None:
        """Called when a request names it; it will be looked up."""

    def assessed(  # noqa: B027 - may be left as it is
        self, session: FetchSession, cached: CachedPartition, available_bytes: int
    ) -> None:
        """Called when a lookup found ``available_bytes`` to read. ``cached.available_bytes`` is that of the lookup
        before."""

    @abstractmethod
    def reports(self, session: FetchSession, cached: CachedPartition, data: PartitionData) -> bool:
        """Whether ``data``, the partition's state without records, belongs in an incremental response."""

    @abstractmethod
    def sent(self, session: FetchSession, cached: CachedPartition, data: PartitionData, more: bool) -> None:
        """Called when a response with ``data`` was sent. ``more`` means that there are bytes beyond its records."""

    def omitted(self, session: FetchSession, cached: CachedPartition) -> None:  # noqa: B027 - may be left as it is
        """Called when the partition was looked up, but omitted from the response."""

    @abstractmethod
    def stays_marked(self, session: FetchSession, cached: CachedPartition) -> bool:
        """Whether the next fetch must look it up although nothing changes and it has no more data to send."""

    def full_response_sent(self, session: FetchSession) -> Sliced[None]:  # noqa: ARG002
        """Called after ``after_response`` for all partitions of a full request."""
        return
        yield
