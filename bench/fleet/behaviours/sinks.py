"""Where a member of a group puts what it has read, and how far that has got."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from bench.fleet.behaviours.protocol import TopicPartition
from reference_broker.client.consumer_partitions import ConsumerRecord


class Sink(Protocol):
    """What a member asks of it."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """These have been read."""
        ...

    def done(self, where: TopicPartition, read: int, committed: int) -> int:
        """The offset to commit: what lies before it has been dealt with. ``read``: the next to read."""
        ...

    def is_full(self, where: TopicPartition) -> bool:
        """Nothing more of this partition shall be read for now."""
        ...

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether something of these has not been dealt with."""
        ...

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """They are read by somebody else now, or from elsewhere."""
        ...


class Nowhere:
    """What has been read has been dealt with."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Nothing comes of it."""

    def done(self, where: TopicPartition, read: int, committed: int) -> int:  # noqa: ARG002
        return read

    def is_full(self, where: TopicPartition) -> bool:  # noqa: ARG002
        return False

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:  # noqa: ARG002
        return False

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is there."""
