"""One incremental fetch session (KIP-227): the partitions a fetcher wants, and what it has been told of each.

The price of a fetch depends on what changed, never on what is cached. Each cached partition is either marked (in
``FetchSession.changed``: it must be looked at before the next answer) or registered on its Partition, which marks
it at its next change. Partitions that have data to send stand in a heap in list order, from which an answer takes
only as many as fit. A fetch that names no partition and finds nothing marked touches no partition at all.

Marks are change numbers (the upcoming request's number, as in the KIP's first revision); the final revision reads
them as a bit: marked or not. What differs between revisions is in ``fetch_revision``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias

from reference_broker.log.now import Now
from reference_broker.model.fetch_arrivals import Arrivals
from reference_broker.model.fetch_revision import FINAL, Revision
from reference_broker.model.partitions import Partition, Partitions
from reference_broker.wire.fetch import FetchPartition, PartitionData

PartitionKey: TypeAlias = tuple[str | bytes, int]
"""(topic ID, index) in a session by topic ID (Fetch 13 and newer), else (topic name, index)."""

FULL_EPOCH = 0
"""In a request: a full fetch that shall create a session."""
FINAL_EPOCH = -1
"""In a request: a full fetch without a session."""
LARGEST_EPOCH = 0x7FFFFFFF


def next_epoch(epoch: int) -> int:
    """Epochs of a session are 1 .. 2^31-1, and then 1 again."""
    return 1 if epoch == LARGEST_EPOCH else epoch + 1


class Waiter(Protocol):
    """A fetch that waits for one session."""

    def partition_marked(self, cached: "CachedPartition") -> None:
        """A partition of the session changed; the fetch may have become answerable."""
        ...

    def abandon(self, error_code: int) -> None:
        """Answer now, with this top-level error: the session has no place for this fetch any more."""
        ...


@dataclass(slots=True, eq=False)
class CachedPartition:
    """One partition of a session. The request's fields are those of the latest request that named it.

    ``sent_*``: as last sent, -1 (0 for the error, None for the divergence) before the first answer.
    ``order``: place in the session's list. ``available_bytes``: readable from ``fetch_offset`` at the last look,
    at most ``max_bytes``; above 0 exactly while it has data to send, and then it is ``queued``.
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
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    sent_error: int = 0
    sent_divergence: tuple[int, int] | None = None
    change_number: int = 0
    named_number: int = -1
    available_bytes: int = 0
    queued: bool = False
    live: bool = True
    """False once it left its session."""
    partition: Partition | None = None

    @property
    def named(self) -> bool:
        """Named by the session's latest request."""
        return self.named_number == self.session.number

    def remember(self, wanted: FetchPartition) -> None:
        """Overwrites all that a request says about a partition."""
        self.max_bytes = max(wanted.partition_max_bytes, 0)
        self.fetch_offset = wanted.fetch_offset
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset

    def bind(self, partitions: Partitions) -> Partition | None:
        """The partition led here that this one names now; a deleted and recreated one is found by its name only."""
        partition = self.partition
        if partition is None or partition.deleted:
            if self.session.uses_topic_ids:
                partition = partitions.by_id.get((self.topic_id, self.index))
                self.topic = partitions.topic_names.get(self.topic_id, self.topic)
            else:
                partition = partitions.by_name.get((self.topic, self.index))
            self.partition = partition
        return partition

    def watch(self, partitions: Partitions) -> None:
        """Marks itself at the partition's next change or, where none is led here, at its arrival."""
        if self.partition is not None:
            self.partition.watch(self)
        else:
            self.session.arrivals.expect(partitions, self)

    def leave(self) -> None:
        self.live = False
        if self.partition is not None:
            self.partition.unwatch(self)
        self.session.arrivals.forget(self)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        if not self.live:
            return
        self.session.mark(self)
        if self.session.waiter is not None:
            self.session.waiter.partition_marked(self)


@dataclass(slots=True, eq=False)
class FetchSession:
    """A session, or the draft of one: every full fetch is answered from a draft, which the cache may then admit.

    ``session_id`` 0: a draft. ``epoch``: that of the next request. ``number``: accepted incremental requests so far
    (64 bits); ``answered_number``: the last of them that was answered (-1: not even the full fetch).
    ``created_ms`` / ``last_used_ms``: wall clock. ``contact_us``: monotonic time of the last accepted request,
    which counts for every cached partition. ``reader``: who reads how far, as of the last request.
    """

    arrivals: Arrivals
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
    revision: Revision = FINAL
    partitions: dict[PartitionKey, CachedPartition] = field(default_factory=dict)
    changed: dict[CachedPartition, None] = field(default_factory=dict)
    """Marked: to be looked at before the next answer. All others are registered on their partitions."""
    available_bytes: int = 0
    """Sum over the partitions that have data."""
    waiter: Waiter | None = None
    _with_data: list[tuple[int, CachedPartition]] = field(default_factory=list)
    _last_order: int = 0

    @property
    def made_by(self) -> str:
        """For people: who created it."""
        return f"follower {self.replica_id}" if self.privileged else f"consumer {self.client_id!r}"

    def accept_epoch(self, request_epoch: int) -> bool:
        return request_epoch == self.epoch

    def accept(self, now: Now) -> None:
        """One incremental request more. The epoch advances here, whatever becomes of the answer."""
        self.epoch = next_epoch(self.epoch)
        self.number += 1
        self.touch(now)

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
        cached.remember(wanted)
        cached.named_number = self.number
        self.mark(cached)
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
        self.available_bytes += available_bytes - cached.available_bytes
        cached.available_bytes = available_bytes
        if available_bytes and not cached.queued:
            self.queue(cached)

    def queue(self, cached: CachedPartition) -> None:
        """Puts it among those with data, at its place in the list."""
        cached.queued = True
        heappush(self._with_data, (cached.order, cached))
        if len(self._with_data) > 2 * len(self.partitions) + 64:  # entries of partitions that left
            self._with_data = [entry for entry in self._with_data if entry[1].live]
            heapify(self._with_data)

    def take_with_data(self) -> CachedPartition | None:
        """The first in the list that has data. It is out of the queue: ``settle`` or ``queue`` puts it back."""
        while self._with_data:
            cached = heappop(self._with_data)[1]
            if not cached.live:
                continue
            cached.queued = False
            if cached.available_bytes:
                return cached
        return None

    def move_to_end(self, cached: CachedPartition) -> None:
        self._last_order += 1
        cached.order = self._last_order

    def settle(self, cached: CachedPartition, sent: PartitionData | None, partitions: Partitions) -> None:
        """After an answer that held ``sent`` about it (None: it was looked at and left out).

        It is registered on its partition again unless the next answer must look at it anyway. The cached fetch
        offset stays the requested one: what the fetcher does not say it has processed is sent again.
        """
        if sent is not None:
            cached.sent_high_watermark = sent.high_watermark
            cached.sent_log_start_offset = sent.log_start_offset
            cached.sent_error = sent.error_code
            cached.sent_divergence = divergence(sent)
            if sent.records:
                self.move_to_end(cached)
        if cached.available_bytes and not cached.queued:
            self.queue(cached)
        if sent is not None and self.revision.keeps_mark(sent):
            self.mark(cached)
        else:
            cached.watch(partitions)

    def answered(self) -> Iterable[CachedPartition]:
        """The answer to the latest request is complete. Returns all that were marked, which must be settled next.

        A new dict, since walking over one from which 10,000 entries were popped still passes their places.
        """
        self.answered_number = self.number
        marked, self.changed = self.changed, {}
        return marked

    def release(self) -> None:
        """The session is over: nothing refers to it any more."""
        for cached in self.partitions.values():
            cached.leave()
        self.changed.clear()
        self._with_data.clear()


def divergence(data: PartitionData) -> tuple[int, int] | None:
    """(epoch, end offset) of its diverging epoch."""
    diverging = data.diverging_epoch
    return None if diverging is None else (diverging.epoch, diverging.end_offset)
