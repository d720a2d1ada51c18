"""Where a member keeps its offsets: as committed offsets of its group, or outside the cluster.

Only offsets that have moved are kept. Two commits are never in flight at once, so that none overtakes another.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from bench.fleet.behaviours.consumer_history import ConsumerHistory
from bench.fleet.behaviours.outside_offsets import OutsideStore
from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.behaviours.sinks import Sink
from reference_broker.client.group_consumer import GroupConsumer
from reference_broker.client.offset_commits import NO_OFFSET
from reference_broker.client.offset_requests import CommittedOffset, OffsetToCommit
from reference_broker.wire.errors import DraftError

NO_EPOCH: Final = -1


class OffsetKeeper(Protocol):
    """``places`` says whether the consumer itself looks up where to begin."""

    @property
    def places(self) -> bool: ...

    @property
    def busy(self) -> bool:
        """Whether a commit is under way."""
        ...

    def place(self) -> None:
        """Tells the consumer where to begin with its partitions, as far as that is known."""
        ...

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:
        """Begins to keep the offsets of these partitions that have moved. Must not be called while ``busy``."""
        ...

    def settle(self, now_us: int) -> None:
        """Checks whether the commit has ended."""
        ...


def moved(
    consumer: GroupConsumer, sink: Sink, kept: dict[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetToCommit]:
    """Returns the offsets up to which records have been dealt with, where they are not kept yet."""
    found: dict[TopicPartition, OffsetToCommit] = {}
    for where, read in consumer.read_so_far(partitions).items():
        known = kept.get(where, consumer.committed(where))
        offset = sink.done(where, read.offset, max(known, 0))
        if offset != known:
            found[where] = replace(read, offset=offset)
    return found


@dataclass(slots=True)
class KafkaOffsets:
    """Keeps offsets in the group. ``refused`` holds offsets whose metadata epoch was refused. They are not committed
    again (spec M-7); the next commit is of what was read after them."""

    consumer: GroupConsumer
    sink: Sink
    busy: bool = False
    refused: dict[TopicPartition, int] = field(default_factory=dict)

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
        for where, error in result.errors.items():
            if error is DraftError.INVALID_METADATA_EPOCH:
                self.refused[where] = result.offsets[where].offset
            elif not error:
                self.refused.pop(where, None)


@dataclass(slots=True)
class TransactionalOffsets:
    """Keeps nothing itself: the producer of a worker sends the offsets as part of its transactions."""

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
    """Keeps nothing, so each life begins where the reset policy says."""

    consumer: GroupConsumer

    @property
    def places(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return False

    def place(self) -> None:
        for where in self.consumer.unplaced:
            self.consumer.seek_by_policy(where)

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:
        """There is nothing to do."""

    def settle(self, now_us: int) -> None:
        """There is nothing under way."""


@dataclass(slots=True)
class OutsideOffsets:
    """Keeps offsets in a store, each with its metadata epoch. Nothing is read before the metadata is as new as that
    epoch (spec M-13). ``kept`` holds the stored offset of each partition that is read."""

    consumer: GroupConsumer
    sink: Sink
    history: ConsumerHistory
    store: OutsideStore
    waits: bool
    kept: dict[TopicPartition, int] = field(default_factory=dict)
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
        self._waiting = {where: self._waiting.get(where) or self._loaded(where) for where in unplaced}
        newest = max((each.metadata_epoch for each in self._waiting.values()), default=NO_EPOCH)
        if newest != self._wanted and self.waits:
            self._wanted = newest
            self.consumer.want_epoch(newest)
        if self.waits and not self.consumer.has_reached(newest):
            return
        for where, at in self._waiting.items():
            self.kept[where] = at.offset
            if at.offset == NO_OFFSET:
                self.consumer.seek_by_policy(where)
            else:
                self.consumer.seek(where, at.offset, at.leader_epoch)
        self._waiting = {}

    def _loaded(self, where: TopicPartition) -> CommittedOffset:
        at = self.store.load(where)
        self.history.loaded(where, at, self.consumer.identity)
        return at

    def commit(self, now_us: int, partitions: Iterable[TopicPartition]) -> None:  # noqa: ARG002
        identity = self.consumer.identity
        for where, at in moved(self.consumer, self.sink, self.kept, partitions).items():
            done = self.store.store(where, at, identity.generation_id)
            self.history.stored(where, at, identity, done)
            self.kept[where] = at.offset

    def settle(self, now_us: int) -> None:
        """A commit has ended when ``commit`` returns."""
