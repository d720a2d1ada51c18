"""Layouts of the private drafts of ``apis.DRAFTS``: what Kafka's design pages said and its releases never shipped.

A request is decoded to the class that the API's handler sees in every other version, since it says the same with
fewer fields; a response has a class of its own. The classes are written as kio's are, so that the same codecs read
their fields, and are never flexible.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from reference_broker.wire.apis import ApiKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    """Which snapshot: the offset behind its last record, and that record's epoch."""

    __flexible__: ClassVar[bool] = False
    end_offset: int = field(metadata={"kafka_type": "int64"})
    epoch: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotPartition1000:
    """``position``: the first byte wanted. ``current_leader_epoch`` -1: not known."""

    __flexible__: ClassVar[bool] = False
    partition: int = field(metadata={"kafka_type": "int32"})
    current_leader_epoch: int = field(metadata={"kafka_type": "int32"})
    snapshot_id: SnapshotId
    position: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotTopic1000:
    """One topic of a request."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[FetchSnapshotPartition1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest1000:
    """The fields of FetchSnapshot 0 that are not tagged: no cluster ID."""

    __flexible__: ClassVar[bool] = False
    replica_id: int = field(metadata={"kafka_type": "int32"}, default=-1)
    max_bytes: int = field(metadata={"kafka_type": "int32"}, default=0x7FFFFFFF)
    topics: tuple[FetchSnapshotTopic1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshots:
    """A piece of a snapshot, from byte ``position`` on; ``more``: bytes remain behind it (the page's Continue).

    ``media_type``: of the whole snapshot; said with its first piece only, else empty (S-17).
    """

    __flexible__: ClassVar[bool] = False
    partition_index: int = field(metadata={"kafka_type": "int32"})
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    media_type: str = field(metadata={"kafka_type": "string"}, default="")
    more: bool = field(metadata={"kafka_type": "bool"}, default=False)
    position: int = field(metadata={"kafka_type": "int64"}, default=0)
    data: bytes = field(metadata={"kafka_type": "bytes"}, default=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshots:
    """One topic of a response."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[PartitionSnapshots, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse1000:
    """KIP-630's response as its page had it before Size replaced Continue."""

    __flexible__: ClassVar[bool] = False
    throttle_time_ms: int = field(metadata={"kafka_type": "int32"}, default=0)
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    topics: tuple[TopicSnapshots, ...]


LAYOUTS: Final[Mapping[tuple[int, int], tuple[type, type]]] = {
    (ApiKey.FETCH_SNAPSHOT, 1000): (FetchSnapshotRequest1000, FetchSnapshotResponse1000),
}
"""The request's and the response's class, by API key and version."""
