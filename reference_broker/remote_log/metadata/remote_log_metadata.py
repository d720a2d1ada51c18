"""What those who copy, read and delete remote segments know of them, and how they change it."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from reference_broker.remote_log.metadata.events import RemoteLogEvent
from reference_broker.remote_log.metadata.partition_segments import PartitionSegments
from reference_broker.wire.errors import Error

Applied: TypeAlias = Callable[[Error], None]
"""Told once what became of an event."""


class RemoteLogMetadata(Protocol):
    """Kafka's RemoteLogMetadataManager. ``topic.py`` implements it with ``__remote_log_metadata``."""

    def watch(self, topic_id: bytes, topic: str, partition: int) -> None:
        """Begins to learn of the partition's remote segments. Each call needs an ``unwatch``."""
        ...

    def unwatch(self, topic_id: bytes, partition: int) -> None:
        """Ends it. After the last one what was known is forgotten. A partition that is not watched is no error."""
        ...

    def is_ready(self, topic_id: bytes, partition: int) -> bool:
        """Says whether all is known that the leader of the topic's partition had when watching began. A leader that was
        replaced, or has just begun, may know less than another: only ``write`` tells for sure."""
        ...

    def of(self, topic_id: bytes, partition: int) -> PartitionSegments:
        """Returns what is known of a partition. It is the same object from ``watch`` until ``unwatch``, and changes as
        events come. Nothing is known of a partition that is not watched."""
        ...

    def write(self, event: RemoteLogEvent, done: Applied) -> None:
        """Writes an event about a partition. ``done`` is called once, in an event of its own, when the
        event is replicated and applied here, with the error of ``PartitionSegments.apply``. Only NONE allows the next
        step. Of a RemoteSegment ``apply`` keeps a copy with its ``attempt``.

        REQUEST_TIMED_OUT: it was not seen within ``remote.log.metadata.consume.wait.ms``. It may be applied later, so
        who copies tries again with a new segment ID. NOT_LEADER_OR_FOLLOWER: the partition is not watched.
        UNKNOWN_TOPIC_OR_PARTITION: the topic is not there. Any other error is final, too: nothing was written.
        """
        ...

    def image_changed(self) -> None:
        """The cluster's metadata changed: the topic may be there, or be led by others."""
        ...
