"""Storage of a group member: sinks for what it has read, and offset keepers.

A ``RecordSink`` takes records and reports up to which offset they have been processed. ``View`` keeps the newest record
of each key, as a reader of a whole compacted topic does (Kafka Streams calls it a table, others a materialized view).

An ``OffsetKeeper`` stores offsets in the group, in transactions, or outside the cluster. It writes only offsets that
have moved. Two commits are never in flight at once, so that none overtakes another. ``OutsideStore`` represents a
database to which a consumer writes its results together with its offset. It rejects writes of an owner of an earlier
generation, as a database would with a condition on its update.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from bench.fleet.behaviours.consumer_history import ConsumerHistory
from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.values import read_record
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.group_consumer import GroupConsumer
from reference_broker.client.offset_commits import NO_OFFSET, CommittedOffset, OffsetToCommit
from reference_broker.wire.errors import DraftError
from reports.rows import ViewRow


class RecordSink(Protocol):
    """Takes a member's records and reports up to which offset they have been processed."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Take records that have been read."""
        ...

    def done(self, partition: TopicPartition, read: int, committed: int) -> int:
        """Return the offset to commit. All records before it are processed. ``read`` is the next offset to read."""
        ...

    def is_full(self, partition: TopicPartition) -> bool:
        """Return whether reading of this partition must pause."""
        ...

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether records of these partitions are not processed yet."""
        ...

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop these partitions, because another member reads them now, or the position has moved."""
        ...


class Nowhere:
    """A sink for which records are processed as soon as they are read."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Keep nothing."""

    def done(self, partition: TopicPartition, read: int, committed: int) -> int:  # noqa: ARG002
        return read

    def is_full(self, partition: TopicPartition) -> bool:  # noqa: ARG002
        return False

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:  # noqa: ARG002
        return False

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """There is nothing to forget."""


class StoredRecord(NamedTuple):
    offset: int
    writer: str
    sequence: int


class View(Nowhere):
    """A sink that keeps the newest record of each key. A tombstone removes its key."""

    def __init__(self, process: str, isolation: int) -> None:
        self._process = process
        self._isolation = isolation
        self._held: dict[TopicPartition, dict[bytes, StoredRecord]] = {}

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            held = self._held.setdefault(TopicPartition(record.topic, record.partition), {})
            if record.key is None:
                continue
            if record.value is None:
                held.pop(record.key, None)
            else:
                read = read_record(record.value, record.headers)
                held[record.key] = StoredRecord(record.offset, read.writer, read.sequence)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)

    def rows(self, partition: TopicPartition, position: int, from_us: int, at_us: int) -> list[ViewRow]:
        """Return its contents of a partition that was read up to ``position``."""
        head = (self._process, *partition, self._isolation, from_us, at_us, position)
        held = self._held.get(partition, {})
        return [
            ViewRow(*head, "", -1, "", -1),
            *(ViewRow(*head, key.decode(errors="replace"), *each) for key, each in held.items()),
        ]


@dataclass(slots=True)
class OutsideStore:
    """The offsets of one group outside the cluster, each with the metadata epoch under which it was read (M-13)."""

    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    generations: dict[TopicPartition, int] = field(default_factory=dict)  # in which each was last stored

    def store(self, partition: TopicPartition, offset: OffsetToCommit, generation: int) -> bool:
        """Store an offset. Return False if a later owner has stored one already."""
        if generation < self.generations.get(partition, generation):
            return False
        self.offsets[partition] = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata_epoch)
        self.generations[partition] = generation
        return True

    def load(self, partition: TopicPartition) -> CommittedOffset:
        """Return the stored offset, which is -1 if nothing is stored."""
        return self.offsets.get(partition, CommittedOffset(-1))


NO_EPOCH: Final = -1


class OffsetKeeper(Protocol):
    """Stores a member's offsets, and sets its first positions."""

    @property
    def places(self) -> bool:
        """Whether the consumer itself looks up where to begin."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a commit is pending."""
        ...

    def place(self) -> None:
        """Set the consumer's first positions, as far as they are known."""
        ...

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:
        """Begin to store the offsets of these partitions that have moved. Must not be called while ``busy``."""
        ...

    def settle(self, now_us: int) -> None:
        """Check whether the commit has ended."""
        ...


def moved(
    consumer: GroupConsumer, sink: RecordSink, kept: dict[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetToCommit]:
    """Return the offsets up to which records are processed, where they are not stored yet."""
    found: dict[TopicPartition, OffsetToCommit] = {}
    for partition, read in consumer.read_so_far(partitions).items():
        known = kept.get(partition, consumer.committed(partition))
        offset = sink.done(partition, read.offset, max(known, 0))
        if offset != known:
            found[partition] = replace(read, offset=offset)
    return found


@dataclass(slots=True)
class KafkaOffsets:
    """Commits offsets to the group."""

    consumer: GroupConsumer
    sink: RecordSink
    busy: bool = False
    refused: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets whose metadata epoch was rejected. They are not committed again (spec M-7); the next commit is of what
    was read after them."""

    @property
    def places(self) -> bool:
        return True

    def place(self) -> None:
        """The consumer looks up its positions itself."""

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:
        found = moved(self.consumer, self.sink, self.refused, partitions)
        if found:
            self.busy = self.consumer.commit(now_us, found)

    def settle(self, now_us: int) -> None:
        result = self.consumer.take_commit(now_us)
        if result is None:
            return
        self.busy = False
        for partition, error in result.errors.items():
            if error is DraftError.INVALID_METADATA_EPOCH:
                self.refused[partition] = result.offsets[partition].offset
            elif not error:
                self.refused.pop(partition, None)


@dataclass(slots=True)
class TransactionalOffsets:
    """Stores nothing itself: the producer of a worker sends the offsets as part of its transactions."""

    @property
    def places(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return False

    def place(self) -> None:
        """The consumer looks up its positions itself."""

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:
        """There is nothing to do."""

    def settle(self, now_us: int) -> None:
        """There is nothing under way."""


@dataclass(slots=True)
class NoOffsets:
    """Stores nothing, so each life begins at the reset policy's offset."""

    consumer: GroupConsumer

    @property
    def places(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return False

    def place(self) -> None:
        for partition in self.consumer.unplaced:
            self.consumer.seek_by_policy(partition)

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:
        """There is nothing to do."""

    def settle(self, now_us: int) -> None:
        """There is nothing under way."""


@dataclass(slots=True)
class OutsideOffsets:
    """Writes offsets to a store, each with its metadata epoch. Nothing is read before the metadata is as new as that
    epoch (spec M-13)."""

    consumer: GroupConsumer
    sink: RecordSink
    history: ConsumerHistory
    store: OutsideStore
    waits: bool
    kept: dict[TopicPartition, int] = field(default_factory=dict)  # the stored offset of each partition
    _waiting: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    _wanted: int = NO_EPOCH

    @property
    def places(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return False

    def place(self) -> None:
        unplaced = self.consumer.unplaced
        self._waiting = {partition: self._waiting.get(partition) or self._loaded(partition) for partition in unplaced}
        newest = max((offset.metadata_epoch for offset in self._waiting.values()), default=NO_EPOCH)
        if newest != self._wanted and self.waits:
            self._wanted = newest
            self.consumer.want_epoch(newest)
        if self.waits and not self.consumer.has_reached(newest):
            return
        for partition, at in self._waiting.items():
            self.kept[partition] = at.offset
            if at.offset == NO_OFFSET:
                self.consumer.seek_by_policy(partition)
            else:
                self.consumer.seek(partition, at.offset, at.leader_epoch)
        self._waiting = {}

    def _loaded(self, partition: TopicPartition) -> CommittedOffset:
        at = self.store.load(partition)
        self.history.loaded(partition, at, self.consumer.identity)
        return at

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:  # noqa: ARG002
        identity = self.consumer.identity
        for partition, at in moved(self.consumer, self.sink, self.kept, partitions).items():
            done = self.store.store(partition, at, identity.generation_id)
            self.history.stored(partition, at, identity, done)
            self.kept[partition] = at.offset

    def settle(self, now_us: int) -> None:
        """A commit has ended when ``commit`` returns."""
