"""Fetches of the metadata log as small values (Fetch 18: FetchRequest.json, FetchResponse.json; KIP-595, KIP-1166)."""

from dataclasses import dataclass

from reference_broker.quorum.messages import Answer
from reference_broker.quorum.metadata_log import Diverging, NeedsSnapshot, Validity
from reference_broker.quorum.offset_and_epoch import METADATA_TOPIC_ID, OffsetAndEpoch
from reference_broker.wire.errors import Error, known_error
from reference_broker.wire.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)

MAX_FETCH_BYTES = 8 * 2**20
"""Kafka's followers ask for as much (KafkaRaftClient.MAX_FETCH_SIZE_BYTES). No batch is larger."""


@dataclass(frozen=True, slots=True)
class FetchAnswer(Answer):
    """``high_watermark`` is -1 if the leader does not know it. ``diverging`` and ``snapshot`` never come together, and
    neither comes with records."""

    high_watermark: int = -1
    records: bytes | memoryview = b""
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None


def fetch(
    cluster_id: str,
    replica_id: int,
    epoch: int,
    end: OffsetAndEpoch,
    start_offset: int,
    high_watermark: int,
    wait_ms: int,
) -> FetchRequest:
    partition = FetchPartition(
        partition=0,
        fetch_offset=end.offset,
        partition_max_bytes=MAX_FETCH_BYTES,
        current_leader_epoch=epoch,
        last_fetched_epoch=end.epoch,
        log_start_offset=start_offset,
        high_watermark=high_watermark,
    )
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=wait_ms,
        min_bytes=0,
        max_bytes=MAX_FETCH_BYTES,
        topics=[FetchTopic("", METADATA_TOPIC_ID, [partition])],
        cluster_id=cluster_id,
    )


def fetched_partition(request: FetchRequest) -> FetchPartition | None:
    """Returns None for a request that does not name exactly the metadata partition, by its topic ID."""
    if len(request.topics) != 1 or request.topics[0].topic_id != METADATA_TOPIC_ID:
        return None
    partitions = request.topics[0].partitions
    return partitions[0] if len(partitions) == 1 and partitions[0].partition == 0 else None


def read_fetched(body: object) -> FetchAnswer | None:
    """Returns None for an answer without the metadata partition, which is an error of the whole request."""
    if not isinstance(body, FetchResponse) or body.error_code or len(body.responses) != 1:
        return None
    topic = body.responses[0]
    if topic.topic_id != METADATA_TOPIC_ID or len(topic.partitions) != 1:
        return None
    data = topic.partitions[0]
    leader = data.current_leader or LeaderIdAndEpoch(-1, -1)
    diverging, snapshot = data.diverging_epoch, data.snapshot_id
    return FetchAnswer(
        error=known_error(data.error_code),
        leader_id=leader.leader_id,
        epoch=leader.leader_epoch,
        high_watermark=data.high_watermark,
        records=data.records or b"",
        diverging=None if diverging is None else OffsetAndEpoch(diverging.end_offset, diverging.epoch),
        snapshot=None if snapshot is None else OffsetAndEpoch(snapshot.end_offset, snapshot.epoch),
    )


def fetch_refused(error: Error) -> FetchResponse:
    """Builds the answer for an error of the whole request."""
    return FetchResponse(error_code=int(error))


def fetched(
    error: Error,
    leader_id: int,
    epoch: int,
    high_watermark: int,
    log_start_offset: int,
    validity: Validity | None = None,
    records: bytes = b"",
) -> FetchResponse:
    """Builds the answer for the metadata partition. It always names the leader, so that the asking node learns it."""
    data = PartitionData(
        partition=0,
        error_code=int(error),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        records=records,
        current_leader=LeaderIdAndEpoch(leader_id, epoch),
        diverging_epoch=EpochEndOffset(validity.end.epoch, validity.end.offset)
        if isinstance(validity, Diverging)
        else None,
        snapshot_id=SnapshotId(validity.id.offset, validity.id.epoch) if isinstance(validity, NeedsSnapshot) else None,
    )
    return FetchResponse(responses=[FetchTopicResponse("", METADATA_TOPIC_ID, [data])])
