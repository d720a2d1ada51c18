"""A leader's side of FetchSnapshot: the check of a snapshot before it is served, and the responses.

A snapshot is read to its end before its first byte is sent, so that no node downloads damaged bytes again and again.
The checks of a request are in the order of KafkaRaftClient.handleFetchSnapshotRequest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import NodeContext
from reference_broker.ports.slicing import SNAPSHOT_BYTES_PER_SLICE, Budget, Sliced, run_slices
from reference_broker.quorum.messages import METADATA_TOPIC
from reference_broker.quorum.snapshots.format import SnapshotDamaged, read_batches
from reference_broker.quorum.snapshots.messages import MEDIA_TYPE, Piece, SnapshotRequest
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import Error, ErrorCode

GOOD_FOR_US = 10_000_000
"""A snapshot is not read again within this time, however many downloads begin."""


@dataclass(slots=True, eq=False)
class SnapshotChecks:
    """A snapshot is checked when a replica begins to download it, because bytes can go bad at any time. A damaged one
    is noted in the store."""

    _node: NodeContext
    _store: SnapshotStore
    on_damaged: Callable[[], None] = lambda: None
    """Called once for each damaged snapshot."""
    _good_us: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    """When a snapshot was last found to be whole."""
    _waiting: dict[OffsetAndEpoch, list[Callable[[], None]]] = field(default_factory=dict)
    """The callbacks of each check that is under way."""

    def before_serving(self, snapshot: OffsetAndEpoch, position: int, then: Callable[[], None]) -> None:
        """Call ``then`` when the bytes from ``position`` on may be served, or the snapshot is known to be damaged. It
        calls at once if a check is not due, or is short."""
        waiting = self._waiting.get(snapshot)
        if waiting is not None:
            waiting.append(then)
        elif self._is_due(snapshot, position):  # Decision served-snapshot-check
            self._waiting[snapshot] = [then]
            run_slices(self._node.ports, self._checking(snapshot), lambda: self._checked(snapshot))
        else:
            then()

    def _is_due(self, snapshot: OffsetAndEpoch, position: int) -> bool:
        if not self._store.holds(snapshot) or snapshot in self._store.damaged:
            return False
        good_us = self._good_us.get(snapshot)
        return good_us is None or (position == 0 and self._node.now_us - good_us >= GOOD_FOR_US)

    def _checking(self, snapshot: OffsetAndEpoch) -> Sliced[None]:
        budget = Budget(SNAPSHOT_BYTES_PER_SLICE)
        try:  # Decision served-snapshot-damaged
            for batch in read_batches(self._node.disk, self._store.path(snapshot), snapshot):
                if budget.spend(batch.header.size_bytes):
                    yield
        except (SnapshotDamaged, DiskError) as damage:
            if self._store.holds(snapshot):  # The snapshot may have been deleted meanwhile.
                self._found_damaged(snapshot, str(damage))
        else:
            self._good_us = {each: at for each, at in self._good_us.items() if self._store.holds(each)}
            self._good_us[snapshot] = self._node.now_us

    def _found_damaged(self, snapshot: OffsetAndEpoch, why: str) -> None:
        self._store.damaged[snapshot] = why
        self._good_us.pop(snapshot, None)
        self._node.ports.note(
            "snapshot_damaged", ("end_offset", snapshot.offset), ("epoch", snapshot.epoch), ("why", why)
        )
        self.on_damaged()

    def _checked(self, snapshot: OffsetAndEpoch) -> None:
        for then in self._waiting.pop(snapshot):
            then()


MAX_BYTES = 8 * 2**20
"""The limit of one response, whatever was requested. Kafka's followers request as much
(KafkaRaftClient.MAX_FETCH_SIZE_BYTES)."""


class Leadership(Protocol):
    """The part of ``quorum.raft_client.KafkaRaftClient`` that serving needs."""

    @property
    def leader_id(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    def validate_leader_only_request(self, cluster_id: str | None, leader_epoch: int) -> Error | None: ...

    def note_contact(self, replica_id: int) -> None: ...


def serve(request: SnapshotRequest, store: SnapshotStore, leadership: Leadership, now_us: int, is_draft: bool) -> Piece:
    """Serve one request for a snapshot that ``SnapshotChecks`` has checked.

    INCONSISTENT_CLUSTER_ID is an error of the whole request, any other one of the partition. A replica's request must
    name the cluster, as it must for a fetch of the log. The draft has no field for that. In the draft a position may
    equal the size, which gives no bytes, and a bad position has an error of its own (S-17).
    """
    piece = refusal(request, store, leadership, is_draft)
    if piece is None:
        piece = _read(request, store, (leadership.leader_id, leadership.epoch))
    if piece.error is ErrorCode.none:
        leadership.note_contact(request.replica_id)
        store.readers.note_request(request.id, request.replica_id, request.position, now_us)
    return piece


def refusal(request: SnapshotRequest, store: SnapshotStore, leadership: Leadership, is_draft: bool) -> Piece | None:
    """Return the response with the error, or None if the request is good. A damaged snapshot is KAFKA_STORAGE_ERROR."""
    leader = (leadership.leader_id, leadership.epoch)
    error = leadership.validate_leader_only_request(request.cluster_id, request.leader_epoch)
    if request.cluster_id is None and request.replica_id >= 0 and not is_draft:
        error = ErrorCode.inconsistent_cluster_id
    if error is ErrorCode.inconsistent_cluster_id:
        return Piece(error, *leader)
    if request.topic != METADATA_TOPIC or request.partition != 0:  # Decision requested-snapshot-topic
        return Piece(ErrorCode.unknown_topic_or_partition, *leader)
    if error is not None:
        return Piece(error, *leader)
    if not store.holds(request.id):  # Decision requested-snapshot-held
        return Piece(ErrorCode.snapshot_not_found, *leader)
    size = store.size(request.id)
    if is_draft and not 0 <= request.position <= size:  # Decision draft-snapshot-position
        return Piece(ErrorCode.offset_out_of_range, *leader)
    if not is_draft and not 0 <= request.position < size:  # Decision snapshot-position
        return Piece(ErrorCode.position_out_of_range, *leader)
    return Piece(ErrorCode.kafka_storage_error, *leader) if request.id in store.damaged else None


def _read(request: SnapshotRequest, store: SnapshotStore, leader: tuple[int, int]) -> Piece:
    size = store.size(request.id)
    size_bytes = max(0, min(request.max_bytes, MAX_BYTES, size - request.position))
    try:
        data = store.read(request.id, request.position, size_bytes) if size_bytes else b""
    except DiskError:
        return Piece(ErrorCode.kafka_storage_error, *leader)
    return Piece(
        ErrorCode.none,
        *leader,
        id=request.id,
        size=size,
        position=request.position,
        data=data,
        is_last=request.position + len(data) >= size,
        media_type=MEDIA_TYPE if request.position == 0 else "",
    )
