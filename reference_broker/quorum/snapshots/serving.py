"""A leader's answers to FetchSnapshot: an error, or the bytes. The checks are in the order of
KafkaRaftClient.handleFetchSnapshotRequest."""

from typing import Protocol

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.messages import METADATA_TOPIC
from reference_broker.quorum.snapshots.messages import MEDIA_TYPE, Piece, SnapshotRequest
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.wire.errors import Error, ErrorCode

MOST_BYTES = 8 * 2**20
"""The limit of one answer, whatever was requested. Kafka's followers request as much
(KafkaRaftClient.MAX_FETCH_SIZE_BYTES)."""


class Leadership(Protocol):
    """The part of ``quorum.quorum.Quorum`` that serving needs."""

    @property
    def leader_id(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    def leader_check(self, cluster_id: str | None, leader_epoch: int) -> Error | None: ...

    def contacted(self, replica_id: int) -> None: ...


def serve(request: SnapshotRequest, store: SnapshotStore, leadership: Leadership, now_us: int, is_draft: bool) -> Piece:
    """Answers one request. ``SnapshotChecks`` must have looked at the snapshot before.

    INCONSISTENT_CLUSTER_ID is an error of the whole request, any other one of the partition. A replica's request must
    name the cluster, as it must for a fetch of the log. The draft has no field for that. In the draft a position may
    equal the size, which gives no bytes, and a bad position has an error of its own (S-17).
    """
    piece = refusal(request, store, leadership, is_draft)
    if piece is None:
        piece = _read(request, store, (leadership.leader_id, leadership.epoch))
    if piece.error is ErrorCode.none:
        leadership.contacted(request.replica_id)
        store.readers.asked(request.id, request.replica_id, request.position, now_us)
    return piece


def refusal(request: SnapshotRequest, store: SnapshotStore, leadership: Leadership, is_draft: bool) -> Piece | None:
    """The answer with the error, or None if the request is good. A damaged snapshot is KAFKA_STORAGE_ERROR."""
    known = (leadership.leader_id, leadership.epoch)
    error = leadership.leader_check(request.cluster_id, request.leader_epoch)
    if request.cluster_id is None and request.replica_id >= 0 and not is_draft:
        error = ErrorCode.inconsistent_cluster_id
    if error is ErrorCode.inconsistent_cluster_id:
        return Piece(error, *known)
    if request.topic != METADATA_TOPIC or request.partition != 0:
        return Piece(ErrorCode.unknown_topic_or_partition, *known)
    if error is not None:
        return Piece(error, *known)
    if not store.holds(request.id):
        return Piece(ErrorCode.snapshot_not_found, *known)
    size = store.size(request.id)
    if is_draft and not 0 <= request.position <= size:
        return Piece(ErrorCode.offset_out_of_range, *known)
    if not is_draft and not 0 <= request.position < size:
        return Piece(ErrorCode.position_out_of_range, *known)
    return Piece(ErrorCode.kafka_storage_error, *known) if request.id in store.damaged else None


def _read(request: SnapshotRequest, store: SnapshotStore, known: tuple[int, int]) -> Piece:
    size = store.size(request.id)
    wanted = max(0, min(request.max_bytes, MOST_BYTES, size - request.position))
    try:
        data = store.read(request.id, request.position, wanted) if wanted else b""
    except DiskError:
        return Piece(ErrorCode.kafka_storage_error, *known)
    return Piece(
        ErrorCode.none,
        *known,
        id=request.id,
        size=size,
        position=request.position,
        data=data,
        is_last=request.position + len(data) >= size,
        media_type=MEDIA_TYPE if request.position == 0 else "",
    )
