"""FetchSnapshot as small values (FetchSnapshotRequest.json, FetchSnapshotResponse.json, KIP-630 and its draft)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import Records, i32, i32Timedelta, i64, u16

from reference_broker.quorum.messages import METADATA_TOPIC
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.drafts import (
    FetchSnapshotResponse1000,
    PartitionSnapshots,
    TopicSnapshots,
)
from reference_broker.wire.errors import Error, ErrorCode, known_error
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.fetch_snapshot.v1 import request as request_schema
    from kio.schema.fetch_snapshot.v1 import response as response_schema
else:
    request_schema = LazySchema("fetch_snapshot.v1.request")
    response_schema = LazySchema("fetch_snapshot.v1.response")

FETCH_SNAPSHOT_VERSION = 1
DRAFT_VERSION = 1000
MEDIA_TYPE = "application/vnd.kafka.metadata-snapshot; version=1"
"""The media type of a snapshot in the layout of ``format``. Only the draft sends it (S-17)."""
NO_SNAPSHOT = OffsetAndEpoch(0, 0)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A FetchSnapshot request."""

    cluster_id: str | None
    replica_id: int
    topic: str
    partition: int
    leader_epoch: int
    id: OffsetAndEpoch
    position: int
    """The first byte wanted; a negative one is invalid."""
    max_bytes: int
    """0 requests no bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A response to FetchSnapshot with bytes, or an error without. The response may lack some fields."""

    error: Error
    leader_id: int = -1
    epoch: int = -1
    id: OffsetAndEpoch | None = None
    """None if the response lacks it."""
    size: int = 0
    """Bytes of the whole snapshot, -1 if the response lacks it."""
    position: int = 0
    data: bytes | memoryview = b""
    is_last: bool = False
    """Whether no bytes follow these."""
    media_type: str = ""
    """Empty if the response lacks it."""


def request_for(
    cluster_id: str | None, replica_id: int, epoch: int, snapshot: OffsetAndEpoch, position: int, max_bytes: int
) -> "request_schema.FetchSnapshotRequest":
    partition = request_schema.PartitionSnapshot(
        partition=i32(0),
        current_leader_epoch=i32(epoch),
        snapshot_id=request_schema.SnapshotId(end_offset=i64(snapshot.offset), epoch=i32(snapshot.epoch)),
        position=i64(position),
    )
    topic = request_schema.TopicSnapshot(name=METADATA_TOPIC, partitions=(partition,))
    return request_schema.FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=BrokerId(replica_id), max_bytes=i32(max_bytes), topics=(topic,)
    )


def read_requests(body: "request_schema.FetchSnapshotRequest") -> list[SnapshotRequest]:
    """Return one request for each partition that the body names, in its order."""
    return [
        SnapshotRequest(
            cluster_id=body.cluster_id,
            replica_id=body.replica_id,
            topic=topic.name,
            partition=partition.partition,
            leader_epoch=partition.current_leader_epoch,
            id=OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
            position=partition.position,
            max_bytes=body.max_bytes,
        )
        for topic in body.topics
        for partition in topic.partitions
    ]


def refused(error: Error) -> "response_schema.FetchSnapshotResponse":
    """Build the response for an error of the whole request."""
    return response_schema.FetchSnapshotResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)), error_code=ErrorCode(int(error)), topics=()
    )


def response_of(
    pieces: Sequence[tuple[SnapshotRequest, Piece]], leader_address: tuple[str, int] | None
) -> "response_schema.FetchSnapshotResponse":
    """``leader_address`` is where clients reach the leader, if known."""
    endpoints: tuple[response_schema.NodeEndpoint, ...] = ()
    if leader_address is not None:
        host, port = leader_address
        leader_id = BrokerId(pieces[0][1].leader_id)
        endpoints = (response_schema.NodeEndpoint(node_id=leader_id, host=host, port=u16(port)),)
    return response_schema.FetchSnapshotResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        error_code=ErrorCode.none,
        topics=tuple(
            response_schema.TopicSnapshot(name=TopicName(name), partitions=tuple(_partition(*each) for each in pairs))
            for name, pairs in _by_topic(pieces)
        ),
        node_endpoints=endpoints,
    )


def _by_topic(
    pieces: Sequence[tuple[SnapshotRequest, Piece]],
) -> Iterator[tuple[str, Iterator[tuple[SnapshotRequest, Piece]]]]:
    return groupby(pieces, lambda pair: pair[0].topic)


def _partition(request: SnapshotRequest, piece: Piece) -> "response_schema.PartitionSnapshot":
    snapshot = piece.id or NO_SNAPSHOT
    return response_schema.PartitionSnapshot(
        index=i32(request.partition),
        error_code=ErrorCode(int(piece.error)),
        snapshot_id=response_schema.SnapshotId(end_offset=i64(snapshot.offset), epoch=i32(snapshot.epoch)),
        current_leader=response_schema.LeaderIdAndEpoch(
            leader_id=BrokerId(piece.leader_id), leader_epoch=i32(piece.epoch)
        ),
        size=i64(piece.size),
        position=i64(piece.position),
        unaligned_records=Records(bytes(piece.data)),
    )


def draft_refused(error: Error) -> FetchSnapshotResponse1000:
    return FetchSnapshotResponse1000(error_code=int(error), topics=())


def draft_response_of(pieces: Sequence[tuple[SnapshotRequest, Piece]]) -> FetchSnapshotResponse1000:
    return FetchSnapshotResponse1000(
        topics=tuple(
            TopicSnapshots(name=name, partitions=tuple(_draft_partition(*each) for each in pairs))
            for name, pairs in _by_topic(pieces)
        )
    )


def _draft_partition(request: SnapshotRequest, piece: Piece) -> PartitionSnapshots:
    return PartitionSnapshots(
        partition_index=request.partition,
        error_code=int(piece.error),
        media_type=piece.media_type,
        more=piece.error is ErrorCode.none and not piece.is_last,
        position=piece.position,
        data=bytes(piece.data),
    )


def read_response(body: object) -> Piece:
    """Read a response of either version. A response without the metadata partition becomes its error of the whole
    request, or UNKNOWN_SERVER_ERROR."""
    if not isinstance(body, FetchSnapshotResponse1000 | response_schema.FetchSnapshotResponse):
        return Piece(ErrorCode.unknown_server_error)
    if body.error_code:
        return Piece(known_error(int(body.error_code)))
    if len(body.topics) != 1 or body.topics[0].name != METADATA_TOPIC or len(body.topics[0].partitions) != 1:
        return Piece(ErrorCode.unknown_server_error)
    partition = body.topics[0].partitions[0]
    error = known_error(int(partition.error_code))
    if isinstance(partition, PartitionSnapshots):
        return Piece(
            error,
            size=-1,
            position=partition.position,
            data=partition.data,
            is_last=not partition.more,
            media_type=partition.media_type,
        )
    data = partition.unaligned_records or b""
    return Piece(
        error,
        partition.current_leader.leader_id,
        partition.current_leader.leader_epoch,
        OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        partition.size,
        partition.position,
        data,
        is_last=partition.position + len(data) >= partition.size,
    )
