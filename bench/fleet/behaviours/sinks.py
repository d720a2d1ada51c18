"""Where a member of a group puts what it has read, and how far that has got."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from bench.fleet.behaviours.protocol import TopicPartition
from reference_broker.client.consumer_partitions import ConsumerRecord


class Sink(Protocol):
    """Takes a member's records and says how far they have been dealt with."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Takes records that have been read."""
        ...

    def done(self, where: TopicPartition, read: int, committed: int) -> int:
        """Returns the offset to commit. All before it has been dealt with. ``read`` is the next offset to read."""
        ...

    def is_full(self, where: TopicPartition) -> bool:
        """Whether nothing more of this partition shall be read for now."""
        ...

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether records of these partitions have not been dealt with."""
        ...

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions, because another member reads them now, or the position has moved."""
        ...


class Nowhere:
    """A sink for which records are dealt with as soon as they are read."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Keeps nothing."""

    def done(self, where: TopicPartition, read: int, committed: int) -> int:  # noqa: ARG002
        return read

    def is_full(self, where: TopicPartition) -> bool:  # noqa: ARG002
        return False

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:  # noqa: ARG002
        return False

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """There is nothing to forget."""
