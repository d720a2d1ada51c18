"""The values of Fetch (API key 1). Every version has the same shape here.

Schema: Kafka's FetchRequest.json and FetchResponse.json for versions 4-18, and KIP-227's first text for version 1000.
A topic has a name up to version 12 and in version 1000, and an ID (16 raw bytes) from version 13 on. Whichever it lacks
is empty. Only requests of version 1000 may carry both. A field that a version lacks has its default. The codecs are
written by hand because kio's are slow. Tests prove that both give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

ValueT = TypeVar("ValueT")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[ValueT]) -> type[ValueT]:
    """Make a dataclass with slots that only the type checker treats as frozen.

    Python sets each field of a frozen dataclass through a separate call. For bodies that hold thousands of partitions
    that costs 5 to 20 % of the whole node's speed.
    """
    return dataclass(slots=True)(cls)


NO_TOPIC_ID = bytes(16)
NO_DIRECTORY_ID = bytes(16)

NO_HIGH_WATERMARK = 2**63 - 1
"""The default of ``FetchPartition.high_watermark`` (KIP-1166): the fetcher does not send its high watermark. -1 means
that it knows none yet."""

INITIAL_EPOCH = 0
"""A session epoch (Kafka's FetchMetadata): a full fetch that opens a new session, and closes the one that it names."""
FINAL_EPOCH = -1
"""A full fetch that opens none, and closes the session that it names."""

FULL_FETCH = 0
INCREMENTAL_FETCH = 1
"""The values of ``FetchRequest.fetch_type``."""

INCREMENTAL_FETCH_RESPONSE = 1
"""Bit 0 of ``FetchResponse.response_flags``: the response to an incremental request."""
INCREMENTAL_FETCH_OK = 2
"""Bit 1: incremental requests may follow in this session."""


@value
class FetchPartition:
    """One partition of a request. -1 in an epoch or log start means "not given"."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    replica_directory_id: bytes = NO_DIRECTORY_ID
    """16 bytes, which replicas send from version 17 on."""
    high_watermark: int = NO_HIGH_WATERMARK
    """The fetcher's own, which replicas send from version 18 on."""


@value
class FetchTopic:
    topic: str
    topic_id: bytes
    partitions: Sequence[FetchPartition]


@value
class ForgottenTopic:
    topic: str
    topic_id: bytes
    partitions: Sequence[int]


@value
class FetchRequest:
    """A Fetch request of any version."""

    replica_id: int = -1
    """-1 for a consumer."""
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    """0 with ``session_epoch`` -1 means no session (KIP-227)."""
    session_epoch: int = -1
    """In version 1000 (KIP-227's first revision) it is the sequence number. There, both have 64 bits."""
    topics: Sequence[FetchTopic] = field(default_factory=list)
    forgotten: Sequence[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""
    cluster_id: str | None = None
    replica_epoch: int = -1
    fetch_type: int = FULL_FETCH
    """Whether the request is incremental. Only version 1000 has it."""


@value
class EpochEndOffset:
    epoch: int
    end_offset: int


@value
class LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int


@value
class SnapshotId:
    end_offset: int
    epoch: int


@value
class AbortedTransaction:
    producer_id: int
    first_offset: int


@value
class PartitionData:
    """One partition of a response."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    records: bytes | memoryview | None = b""
    """Whole record batches (magic 2). None is sent as null."""
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    tombstone_horizon: int = -1
    """Tombstones below it may be gone (H-1). Only version 1001 has it."""


@value
class FetchTopicResponse:
    topic: str
    topic_id: bytes
    partitions: Sequence[PartitionData]


@value
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@value
class FetchResponse:
    """A Fetch response of any version."""

    error_code: int = 0
    session_id: int = 0
    responses: Sequence[FetchTopicResponse] = field(default_factory=list)
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = field(default_factory=list)
    error_string: str | None = None
    """Only version 1000 has it."""
    response_flags: int = 0
    """Only version 1000 has them."""
