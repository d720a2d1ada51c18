"""One incremental fetch session (KIP-227): the partitions a fetcher wants, and what it has been told of each.

The price of a fetch depends on what changed, never on what is cached. Each cached partition is either marked (in
``FetchSession.changed``: it must be looked at before the next answer) or registered on its Partition, which marks
it at its next change. Partitions that have data to send stand in a heap in list order, from which an answer takes
only as many as fit. A fetch that names no partition and finds nothing marked touches no partition at all.

Marks are change numbers (the upcoming request's number, as in the KIP's first revision); the final revision reads
them as a bit: marked or not. What differs between revisions is behind ``fetch_revision``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.ports.now import Now
from reference_broker.replication.partitions import Partitions
from reference_broker.sessions.arrivals import Arrivals
from reference_broker.sessions.cached_partition import CachedPartition, PartitionKey
from reference_broker.sessions.revision import DataQueue, Revision, is_lasting
from reference_broker.wire.fetch import FetchPartition, PartitionData


class Waiter(Protocol):
    """A fetch that waits for one session."""

    def partition_marked(self, cached: CachedPartition) -> None:
        """A partition of the session changed; the fetch may have become answerable."""
        ...

    def abandon(self, error_code: int) -> None:
        """Answer now, with this top-level error: the session has no place for this fetch any more."""
        ...


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session, or the draft of one: every full fetch is answered from a draft, which the cache may then admit.

    ``session_id`` 0: a draft. ``epoch``: that of the next request. ``number``: accepted incremental requests so far
    (64 bits; the first revision's sequence number); ``answered_number``: the last of them that was answered (-1: not
    even the full fetch). ``created_ms`` / ``last_used_ms``: wall clock. ``contact_us``: monotonic time of the last
    accepted request, which counts for every cached partition. ``reader``: who reads how far, as of the last request.
    ``answers_full``: the request to be answered is a full one. ``denied``: no incremental fetches, nothing is cached.
    ``last_told``: what the answer to ``number`` held, where it may have to be told again.
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
    answers_full: bool = True
    denied: bool = False
    partitions: dict[PartitionKey, CachedPartition] = field(default_factory=dict)
    changed: dict[CachedPartition, None] = field(default_factory=dict)
    """Marked: to be looked at before the next answer. All others are registered on their partitions."""
    available_bytes: int = 0
    """Sum over the partitions that have data."""
    waiter: Waiter | None = None
    last_told: dict[CachedPartition, None] = field(default_factory=dict)
    _with_data: DataQueue = field(init=False)
    _last_order: int = 0

    def __post_init__(self) -> None:
        self._with_data = self.revision.queue()

    @property
    def made_by(self) -> str:
        """For people: who created it."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    def accept_epoch(self, request_epoch: int) -> bool:
        """``request_epoch``: in the first revision the sequence number."""
        return self.revision.accepts(self, request_epoch)

    def accept(self, request_epoch: int, now: Now) -> None:
        """One incremental request more. The epoch advances here, whatever becomes of the answer."""
        self.answers_full = False
        self.revision.advance(self, request_epoch)
        self.touch(now)

    def accept_full(self, now: Now) -> None:
        """A full request replaces all partitions, and keeps ID and number (first revision)."""
        self._empty()
        self.answers_full, self.denied = True, False
        self.answered_number = self.number - 1
        self.touch(now)

    def deny(self) -> None:
        """Keeps nothing but the ID: only full requests are answered (first revision)."""
        self._empty()
        self.denied = True

    def _empty(self) -> None:
        self.release()
        self.partitions = {}
        self._last_order = self.available_bytes = 0

    def touch(self, now: Now) -> None:
        self.contact_us = now.mono_us
        self.last_used_ms = now.wall_ms

    def upcoming_number(self) -> int:
        """Of the answer that will tell what changes now."""
        return self.number if self.answered_number < self.number else self.number + 1

    def key(self, topic: str, topic_id: bytes, index: int) -> PartitionKey:
        return (topic_id if self.uses_topic_ids else topic, index)

    def name(self, topic: str, topic_id: bytes, wanted: FetchPartition) -> CachedPartition:
        """A request names this partition: adds it at the end of the list, or overwrites what it holds."""
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

    def forget(self, topic: str, topic_id: bytes, indexes: Iterable[int]) -> None:
        """Drops partitions; those that it does not hold are no error."""
        for index in indexes:
            cached = self.partitions.pop(self.key(topic, topic_id, index), None)
            if cached is not None:
                self._drop(cached)

    def _drop(self, cached: CachedPartition) -> None:
        cached.leave()
        self.changed.pop(cached, None)
        self.assess(cached, 0)

    def mark(self, cached: CachedPartition) -> None:
        """There may be something to send about it: in the answer that is due, or else in the next one."""
        cached.change_number = self.upcoming_number()
        self.changed[cached] = None

    def look_at(self, cached: CachedPartition) -> None:
        """The next answer looks at it, though nothing has changed."""
        self.changed[cached] = None

    def read_as(self, reader: object) -> None:
        """Another isolation level, or follower instead of consumer, reads to another end: all must be looked at.

        The one walk over all cached partitions; no client changes it within a session.
        """
        if self.reader != reader:
            self.reader = reader
            for cached in self.partitions.values():
                self.mark(cached)

    def assess(self, cached: CachedPartition, available_bytes: int) -> None:
        """Notes how much can be read of it, as found by a look."""
        self.revision.assessed(self, cached, available_bytes)
        self.available_bytes += available_bytes - cached.available_bytes
        cached.available_bytes = available_bytes
        if available_bytes and not cached.queued:
            self.queue(cached)

    def queue(self, cached: CachedPartition) -> None:
        """Puts it among those with data, at its place in the list."""
        cached.queued = True
        self._with_data.push(cached)

    def take_with_data(self) -> CachedPartition | None:
        """The next in the answer's order that has data. Out of the queue: ``settle`` or ``queue`` puts it back."""
        start = self.revision.start(self)
        while (cached := self._with_data.take(start)) is not None:
            if not cached.live:
                continue
            cached.queued = False
            if cached.available_bytes:
                return cached
        return None

    def place(self, cached: CachedPartition) -> int:
        """Its place in the answer to the latest request."""
        return self.revision.place(self, cached)

    def rank(self, ordered: list[CachedPartition]) -> None:
        """Gives the partitions this order, from 0 on."""
        self._with_data = self.revision.queue()
        for rank, cached in enumerate(ordered):
            cached.order = rank
            if cached.queued:
                self._with_data.push(cached)

    def move_to_end(self, cached: CachedPartition) -> None:
        self._last_order += 1
        cached.order = self._last_order

    def settle(self, cached: CachedPartition, sent: PartitionData | None, partitions: Partitions) -> None:
        """After an answer that held ``sent`` about it (None: it was looked at and left out).

        It is registered on its partition again unless the next answer must look at it anyway. The cached fetch
        offset stays the requested one: what the fetcher does not say it has processed is sent again.
        """
        if sent is None:
            self.revision.left_out(self, cached)
        else:
            cached.remember_sent(sent)
            self.revision.sent(self, cached, sent, cached.there_bytes > len(sent.records or b""))
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        if sent is not None and is_lasting(sent):
            self.mark(cached)
        elif self.revision.stays_marked(self, cached):
            self.look_at(cached)
        else:
            cached.watch(partitions)

    def answered(self) -> Iterable[CachedPartition]:
        """The answer to the latest request is complete. Returns all that were marked, which must be settled next.

        A new dict, since walking over one from which 10,000 entries were popped still passes their places.
        """
        self.answered_number = self.number
        self.last_told = {}
        marked, self.changed = self.changed, {}
        return marked

    def settled(self) -> None:
        """All that the answer told, and all that was marked, has been settled."""
        if self.answers_full:
            self.revision.full_answered(self)

    def release(self) -> None:
        """The session is over: nothing refers to it any more."""
        for cached in self.partitions.values():
            cached.leave()
        self.changed, self.last_told = {}, {}
        self._with_data = self.revision.queue()
