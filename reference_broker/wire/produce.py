"""The values of Produce (API key 0). Every version has the same shape here.

Schema: Kafka's ProduceRequest.json and ProduceResponse.json, versions 3-13. A topic has a name up to version 12 and an
ID (16 raw bytes) from version 13 on. Whichever it lacks is empty.
"""

from collections.abc import Sequence
from dataclasses import field

from reference_broker.wire.fetch import LeaderIdAndEpoch, NodeEndpoint
from reference_broker.wire.value import value


@value
class ProducePartition:
    """``records`` holds the batches as they arrived, as a view into the frame. It is None for null."""

    partition: int
    records: bytes | memoryview | None


@value
class ProduceTopic:
    topic: str
    topic_id: bytes
    partitions: Sequence[ProducePartition]


@value
class ProduceRequest:
    acks: int
    timeout_ms: int
    topics: Sequence[ProduceTopic]
    transactional_id: str | None = None


@value
class RecordError:
    batch_index: int
    message: str | None = None


@value
class ProducePartitionResponse:
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


@value
class ProduceTopicResponse:
    topic: str
    topic_id: bytes
    partitions: Sequence[ProducePartitionResponse]


@value
class ProduceResponse:
    responses: Sequence[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = field(default_factory=list)
