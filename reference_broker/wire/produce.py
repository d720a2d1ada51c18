"""Produce values (API key 0), one shape for every version, and their codec.

Schema: Kafka's ProduceRequest.json and ProduceResponse.json, versions 3-13. Topics are named by name up to
version 12 and by ID (16 raw bytes) from 13; the other of the two is empty.
"""

from dataclasses import dataclass, field

from reference_broker.wire.fetch import LeaderIdAndEpoch, NodeEndpoint


@dataclass(slots=True)
class ProducePartition:
    """``records``: the batches as they came, a view into the frame; None is null."""

    partition: int
    records: bytes | memoryview | None


@dataclass(slots=True)
class ProduceTopic:
    topic: str
    topic_id: bytes
    partitions: list[ProducePartition]


@dataclass(slots=True)
class ProduceRequest:
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    transactional_id: str | None = None


@dataclass(slots=True)
class RecordError:
    batch_index: int
    message: str | None = None


@dataclass(slots=True)
class ProducePartitionResponse:
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[RecordError] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


@dataclass(slots=True)
class ProduceTopicResponse:
    topic: str
    topic_id: bytes
    partitions: list[ProducePartitionResponse]


@dataclass(slots=True)
class ProduceResponse:
    responses: list[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
