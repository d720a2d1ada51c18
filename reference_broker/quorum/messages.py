"""Raft requests and responses: builders, and readers that return small values.

Schemas: VoteRequest.json 2, BeginQuorumEpochRequest.json 1, EndQuorumEpochRequest.json 1, FetchRequest.json 18 and
their responses (KIP-595, KIP-1166). Directory IDs stay zero: voters are configured, not part of the log (KIP-853 is not
served).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from reference_broker.quorum.metadata_log import Diverging, NeedsSnapshot, Validity
from reference_broker.quorum.values import METADATA_TOPIC_ID, OffsetAndEpoch
from reference_broker.wire.errors import Error, ErrorCode, known_error
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
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.begin_quorum_epoch.v1 import request as begin_request
    from kio.schema.begin_quorum_epoch.v1 import response as begin_response
    from kio.schema.end_quorum_epoch.v1 import request as end_request
    from kio.schema.end_quorum_epoch.v1 import response as end_response
    from kio.schema.vote.v2 import request as vote_request
    from kio.schema.vote.v2 import response as vote_response
else:
    begin_request = LazySchema("begin_quorum_epoch.v1.request")
    begin_response = LazySchema("begin_quorum_epoch.v1.response")
    end_request = LazySchema("end_quorum_epoch.v1.request")
    end_response = LazySchema("end_quorum_epoch.v1.response")
    vote_request = LazySchema("vote.v2.request")
    vote_response = LazySchema("vote.v2.response")


METADATA_TOPIC = TopicName("__cluster_metadata")


@dataclass(frozen=True, slots=True)
class RaftResponse:
    """The fields that every raft response has."""

    error: Error
    leader_id: int
    """-1 if the node knows no leader."""
    epoch: int
    granted: bool = False
    """Whether the vote was granted. Only in the response to a Vote."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """The fields of a Vote request."""

    cluster_id: str | None
    voter_id: int
    """The voter that the request is for, or -1 if the request names none."""
    candidate_id: int
    epoch: int
    end: OffsetAndEpoch
    """The end of the candidate's log."""
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class QuorumEpochRequest:
    """The fields of a BeginQuorumEpoch or EndQuorumEpoch request."""

    cluster_id: str | None
    voter_id: int
    leader_id: int
    epoch: int
    preferred_successors: tuple[int, ...] = ()
    """The voters that a resigning leader prefers, best first."""


def build_vote_request(request: VoteRequest) -> "vote_request.VoteRequest":
    partition = vote_request.PartitionData(
        partition_index=i32(0),
        replica_epoch=i32(request.epoch),
        replica_id=BrokerId(request.candidate_id),
        replica_directory_id=None,
        voter_directory_id=None,
        last_offset_epoch=i32(request.end.epoch),
        last_offset=i64(request.end.offset),
        pre_vote=request.pre_vote,
    )
    topic = vote_request.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return vote_request.VoteRequest(cluster_id=request.cluster_id, voter_id=BrokerId(request.voter_id), topics=(topic,))


def read_vote_request(body: object) -> VoteRequest | None:
    """Return None for a request that does not name exactly the metadata partition."""
    assert isinstance(body, vote_request.VoteRequest)
    if not names_metadata_partition(body.topics):
        return None
    partition = body.topics[0].partitions[0]
    end = OffsetAndEpoch(partition.last_offset, partition.last_offset_epoch)
    return VoteRequest(
        body.cluster_id, body.voter_id, partition.replica_id, partition.replica_epoch, end, partition.pre_vote
    )


def build_vote_response(result: RaftResponse | Error) -> "vote_response.VoteResponse":
    granted = {"vote_granted": result.granted} if isinstance(result, RaftResponse) else {}
    return _response(vote_response.VoteResponse, vote_response, result, **granted)


def read_vote_response(body: object) -> RaftResponse | None:
    """Return None for a response without the metadata partition, which is an error of the whole request."""
    if not isinstance(body, vote_response.VoteResponse) or body.error_code or not names_metadata_partition(body.topics):
        return None
    partition = body.topics[0].partitions[0]
    return RaftResponse(
        known_error(int(partition.error_code)), partition.leader_id, partition.leader_epoch, partition.vote_granted
    )


def build_begin_quorum_epoch_request(
    cluster_id: str, voter_id: int, leader_id: int, epoch: int
) -> "begin_request.BeginQuorumEpochRequest":
    partition = begin_request.PartitionData(
        partition_index=i32(0), voter_directory_id=None, leader_id=BrokerId(leader_id), leader_epoch=i32(epoch)
    )
    topic = begin_request.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return begin_request.BeginQuorumEpochRequest(
        cluster_id=cluster_id, voter_id=BrokerId(voter_id), topics=(topic,), leader_endpoints=()
    )


def read_begin_quorum_epoch_request(body: object) -> QuorumEpochRequest | None:
    assert isinstance(body, begin_request.BeginQuorumEpochRequest)
    if not names_metadata_partition(body.topics):
        return None
    partition = body.topics[0].partitions[0]
    return QuorumEpochRequest(body.cluster_id, body.voter_id, partition.leader_id, partition.leader_epoch)


def build_begin_quorum_epoch_response(result: RaftResponse | Error) -> "begin_response.BeginQuorumEpochResponse":
    return _response(begin_response.BeginQuorumEpochResponse, begin_response, result)


def build_end_quorum_epoch_request(
    cluster_id: str, leader_id: int, epoch: int, preferred_successors: Sequence[int]
) -> "end_request.EndQuorumEpochRequest":
    partition = end_request.PartitionData(
        partition_index=i32(0),
        leader_id=BrokerId(leader_id),
        leader_epoch=i32(epoch),
        preferred_candidates=tuple(
            end_request.ReplicaInfo(candidate_id=BrokerId(successor), candidate_directory_id=None)
            for successor in preferred_successors
        ),
    )
    topic = end_request.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return end_request.EndQuorumEpochRequest(cluster_id=cluster_id, topics=(topic,), leader_endpoints=())


def read_end_quorum_epoch_request(body: object) -> QuorumEpochRequest | None:
    assert isinstance(body, end_request.EndQuorumEpochRequest)
    if not names_metadata_partition(body.topics):
        return None
    partition = body.topics[0].partitions[0]
    successors = tuple(int(candidate.candidate_id) for candidate in partition.preferred_candidates)
    return QuorumEpochRequest(body.cluster_id, -1, partition.leader_id, partition.leader_epoch, successors)


def build_end_quorum_epoch_response(result: RaftResponse | Error) -> "end_response.EndQuorumEpochResponse":
    return _response(end_response.EndQuorumEpochResponse, end_response, result)


def read_quorum_epoch_response(body: object) -> RaftResponse | None:
    """Read the response to a BeginQuorumEpoch or EndQuorumEpoch. Return None for one without the metadata partition,
    which is an error of the whole request."""
    if not isinstance(body, begin_response.BeginQuorumEpochResponse | end_response.EndQuorumEpochResponse):
        return None
    if body.error_code or not names_metadata_partition(body.topics):
        return None
    partition = body.topics[0].partitions[0]
    return RaftResponse(known_error(int(partition.error_code)), partition.leader_id, partition.leader_epoch)


ResponseT = TypeVar(
    "ResponseT",
    "vote_response.VoteResponse",
    "begin_response.BeginQuorumEpochResponse",
    "end_response.EndQuorumEpochResponse",
)


def _response(response: type[ResponseT], schema: Any, result: RaftResponse | Error, **more: bool) -> ResponseT:
    """Build a response for the metadata partition, or one with an error of the whole request. ``schema`` is kio's
    module of the response. The three modules have these fields in common, but no type."""
    if not isinstance(result, RaftResponse):
        return response(error_code=ErrorCode(int(result)), topics=())
    partition = schema.PartitionData(
        partition_index=i32(0),
        error_code=ErrorCode(int(result.error)),
        leader_id=BrokerId(result.leader_id),
        leader_epoch=i32(result.epoch),
        **more,
    )
    topic = schema.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return response(error_code=ErrorCode.none, topics=(topic,))


def names_metadata_partition(topics: Sequence[Any]) -> bool:
    """Return whether the topics of a request or a response are exactly the metadata partition. kio has a class of its
    own for the topics of each message."""
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC:
        return False
    return [partition.partition_index for partition in topics[0].partitions] == [0]


MAX_FETCH_BYTES = 8 * 2**20
"""The size that Kafka's followers request (KafkaRaftClient.MAX_FETCH_SIZE_BYTES). No batch is larger."""


@dataclass(frozen=True, slots=True)
class RaftFetchResponse(RaftResponse):
    """The fields of a Fetch response for the metadata log. At most one of ``records``, ``diverging`` and ``snapshot``
    is set."""

    high_watermark: int = -1
    """-1 if the leader does not know it."""
    records: bytes | memoryview = b""
    diverging: OffsetAndEpoch | None = None
    """The follower must truncate its log by this epoch and end offset."""
    snapshot: OffsetAndEpoch | None = None
    """The follower must fetch this snapshot."""


def build_fetch_request(
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


def metadata_partition_of(request: FetchRequest) -> FetchPartition | None:
    """Return None for a request that does not name exactly the metadata partition, by its topic ID."""
    if len(request.topics) != 1 or request.topics[0].topic_id != METADATA_TOPIC_ID:
        return None
    partitions = request.topics[0].partitions
    return partitions[0] if len(partitions) == 1 and partitions[0].partition == 0 else None


def read_fetch_response(body: object) -> RaftFetchResponse | None:
    """Return None for a response without the metadata partition, which is an error of the whole request."""
    if not isinstance(body, FetchResponse) or body.error_code or len(body.responses) != 1:
        return None
    topic = body.responses[0]
    if topic.topic_id != METADATA_TOPIC_ID or len(topic.partitions) != 1:
        return None
    data = topic.partitions[0]
    leader = data.current_leader or LeaderIdAndEpoch(-1, -1)
    diverging, snapshot = data.diverging_epoch, data.snapshot_id
    return RaftFetchResponse(
        error=known_error(data.error_code),
        leader_id=leader.leader_id,
        epoch=leader.leader_epoch,
        high_watermark=data.high_watermark,
        records=data.records or b"",
        diverging=None if diverging is None else OffsetAndEpoch(diverging.end_offset, diverging.epoch),
        snapshot=None if snapshot is None else OffsetAndEpoch(snapshot.end_offset, snapshot.epoch),
    )


def build_fetch_error_response(error: Error) -> FetchResponse:
    """Build the response for an error of the whole request."""
    return FetchResponse(error_code=int(error))


def build_fetch_response(
    error: Error,
    leader_id: int,
    epoch: int,
    high_watermark: int,
    log_start_offset: int,
    validity: Validity | None = None,
    records: bytes = b"",
) -> FetchResponse:
    """Build the response for the metadata partition. It always names the leader, so that the fetching node learns
    it."""
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
