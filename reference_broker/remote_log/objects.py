"""The names of a remote segment's objects in the store. All code that stores, reads or deletes one uses these keys.

``<topic>-<partition>-<topic ID>/<20-digit base offset>-<segment ID>.<kind>``. IDs are Kafka's texts: URL-safe base64
without padding. The kinds are the suffixes of the local files.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from reference_broker.metadata.identifiers import uuid_from_text, uuid_text

_NAME: Final = re.compile(r"(\d{20})-([A-Za-z0-9_-]{22})\.([a-z-]+)")


class ObjectKind(StrEnum):
    """The kinds of objects, in the order in which a copy stores them."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    """Only where the segment has markers."""
    PRODUCER_SNAPSHOT = "snapshot"
    """The producers before the segment's next base offset."""
    LEADER_EPOCHS = "leader-epoch-checkpoint"
    """The leader epochs from the log's start up to the segment's end."""


class NamedSegment(Protocol):
    """The fields of a segment that its names are made of."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partition(self) -> int: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def segment_id(self) -> bytes: ...


class ObjectName(NamedTuple):
    """The parts of an object's name. ``segment_id`` has 16 bytes."""

    start_offset: int
    segment_id: bytes
    kind: ObjectKind


def folder_of(topic: str, topic_id: bytes, partition: int) -> str:
    """The folder of a partition's objects."""
    return f"{topic}-{partition}-{uuid_text(topic_id)}"


def key_of(segment: NamedSegment, kind: ObjectKind) -> str:
    """The key of one object of a segment."""
    folder = folder_of(segment.topic, segment.topic_id, segment.partition)
    return f"{folder}/{segment.start_offset:020d}-{uuid_text(segment.segment_id)}.{kind}"


def keys_of(segment: NamedSegment) -> tuple[str, ...]:
    """The keys of all objects that a segment may have."""
    return tuple(key_of(segment, kind) for kind in ObjectKind)


def name_of(key: str) -> ObjectName | None:
    """Read a key. None if it is not that of a segment's object."""
    parts = _NAME.fullmatch(key.rpartition("/")[2])
    if parts is None or parts[3] not in set(ObjectKind):
        return None
    return ObjectName(int(parts[1]), uuid_from_text(parts[2]), ObjectKind(parts[3]))
