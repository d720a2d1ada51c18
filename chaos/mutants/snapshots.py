"""Mutants of the snapshots of the metadata log (KIP-630)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.metrics.metrics import Histogram
from reference_broker.quorum.messages import METADATA_TOPIC
from reference_broker.quorum.snapshots.format import part_path
from reference_broker.quorum.snapshots.messages import Piece
from reference_broker.quorum.snapshots.partial import UNKNOWN_SIZE, Partial
from reference_broker.wire.errors import ErrorCode

PARTIAL = "reference_broker.quorum.snapshots.partial:read_partial"
DOWNLOAD = "reference_broker.quorum.snapshots.download:SnapshotDownload"
GENERATOR = "reference_broker.metadata.snapshots:SnapshotGenerator"
CLEANER = "reference_broker.quorum.snapshots.store:SnapshotCleaner"
SERVING = "reference_broker.quorum.snapshots.serving"
METRICS = "reference_broker.metadata.snapshots:SnapshotMetrics"
CHECKS = "reference_broker.quorum.snapshots.serving:SnapshotChecks"
LEAK_US = 50_000


@mutant(PARTIAL)
def append_after_torn_tail(original: Function, disk: Any, snapshot: Any) -> Generator[None, None, Any]:
    """After a restart the next chunk is written behind the torn bytes of the last chunk (S-8, S-9, S-11)."""
    path = part_path(snapshot)
    before = disk.read(path, 0, disk.size(path)) if disk.exists(path) else b""
    partial = yield from original(disk, snapshot)
    if partial is not None and len(before) > partial.length:
        disk.append(path, [before[partial.length :]])
    return partial


@mutant(f"{DOWNLOAD}._recover")
async def download_restarts_at_zero(original: Function, self: Any, transfer: Any) -> None:
    """A restart discards the downloaded bytes (S-11)."""
    self._start_over(transfer, "a start forgets what was downloaded")


@mutant(f"{DOWNLOAD}._append_piece")
def blind_append(original: Function, self: Any, transfer: Any, piece: Any) -> Any:
    """All received bytes are appended, whatever their position is (S-8)."""
    held = 0 if self._partial is None else self._partial.length
    return original(self, transfer, replace(piece, position=held))


@mutant(f"{DOWNLOAD}._known")
def position_kept_with_new_id(original: Function, self: Any, transfer: Any) -> Any:
    """A download continues at its position although another snapshot is fetched now (S-10, S-11)."""
    partial = self._partial
    if partial is None or partial.leader != transfer.leader or partial.id == transfer.id:
        return original(self, transfer)
    disk = partial.disk
    held = disk.read(part_path(partial.id), 0, partial.length)
    self._store.drop_partial()
    renamed = Partial(disk, partial.leader, transfer.id, UNKNOWN_SIZE)
    renamed.begin()
    renamed.append(held)
    self._store.partial, self._partial = transfer.id, renamed
    return renamed


@mutant(f"{DOWNLOAD}._known")
def position_kept_across_leaders(original: Function, self: Any, transfer: Any) -> Any:
    """A download continues at its position although another node leads now (S-11)."""
    partial = self._partial
    if partial is not None and partial.id == transfer.id:
        partial.leader = transfer.leader
    return original(self, transfer)


@mutant(f"{GENERATOR}._sync_bytes")
async def rename_before_sync(original: Function, self: Any, path: str) -> None:
    """A snapshot gets its name before its bytes are durable (S-9)."""
    self._node.ports.sync((path,), lambda: None)


@mutant(f"{CLEANER}._due_us")
def superseded_snapshot_deleted_at_once(original: Function, self: Any, snapshot: Any) -> int:
    """A snapshot is deleted as soon as a newer one exists, even while a node fetches it (S-15)."""
    return int(self._node.now_us)


@mutant(f"{GENERATOR}._start")
def writes_leak_into_snapshot(original: Function, self: Any, image: Any) -> None:
    """A snapshot contains changes after its end offset (S-12, S-15).

    It is written a moment later, from the image that is newest then, but has the name of the image at the freeze point.
    """
    ports = self._node.ports
    self._making = image

    def freeze() -> None:
        self._making = None
        original(self, replace(self._image, provenance=image.provenance))

    ports.set_timer(ports.now().mono_us + LEAK_US, freeze)


@mutant(f"{CHECKS}._is_due")
def snapshot_served_unread(original: Function, self: Any, snapshot: Any, position: int) -> bool:
    """A leader serves a snapshot without validating it before (S-9)."""
    return False


@mutant(f"{SERVING}:_read")
def newest_snapshot_served(original: Function, request: Any, store: Any, leader: Any) -> Any:
    """A leader sends bytes of its newest snapshot, whichever one was requested (S-1, S-2)."""
    newest = max(store.ids)
    found = original(replace(request, id=newest, position=min(request.position, store.size(newest))), store, leader)
    return replace(found, id=request.id, position=request.position)


@mutant(f"{SERVING}:_read")
def position_ignored_by_leader(original: Function, request: Any, store: Any, leader: Any) -> Any:
    """A leader sends the first bytes of a snapshot, whatever position was requested (S-3)."""
    return replace(original(replace(request, position=0), store, leader), position=request.position)


@mutant(f"{SERVING}:_read")
def each_chunk_marked_as_last(original: Function, request: Any, store: Any, leader: Any) -> Any:
    """A leader marks each chunk as the last one (S-4, S-17)."""
    piece = original(request, store, leader)
    return replace(piece, size=piece.position + len(piece.data), is_last=True)


@mutant(f"{SERVING}:refusal")
def missing_snapshot_returned_empty(
    original: Function, request: Any, store: Any, leadership: Any, is_draft: bool
) -> Any:
    """A leader that does not have the snapshot responds without bytes and without an error (S-5)."""
    found = original(request, store, leadership, is_draft)
    return _nothing(request, leadership) if found and found.error is ErrorCode.snapshot_not_found else found


@mutant(f"{SERVING}:refusal")
def position_outside_returned_empty(
    original: Function, request: Any, store: Any, leadership: Any, is_draft: bool
) -> Any:
    """A leader responds to a position outside the snapshot without bytes and without an error (S-6)."""
    found = original(request, store, leadership, is_draft)
    return _nothing(request, leadership) if found and found.error is ErrorCode.position_out_of_range else found


def _nothing(request: Any, leadership: Any) -> Piece:
    return Piece(ErrorCode.none, leadership.leader_id, leadership.epoch, request.id, position=request.position)


@mutant(f"{SERVING}:refusal")
def any_node_serves_snapshots(original: Function, request: Any, store: Any, leadership: Any, is_draft: bool) -> Any:
    """A node that does not lead serves its own snapshot of the same ID (S-7)."""
    found = original(request, store, leadership, is_draft)
    is_follower = found is not None and found.error is ErrorCode.not_leader_or_follower
    return None if is_follower and store.holds(request.id) else found


@mutant(f"{SERVING}:refusal")
def snapshot_of_any_topic(original: Function, request: Any, store: Any, leadership: Any, is_draft: bool) -> Any:
    """A leader serves its snapshot for any topic in the request (S-13)."""
    return original(replace(request, topic=METADATA_TOPIC, partition=0), store, leadership, is_draft)


@mutant(f"{METRICS}.generated")
def made_snapshots_not_measured(original: Function, self: Any, latency_us: int) -> None:
    """The creation of a snapshot is not measured in GenSnapshotLatencyMs (S-14)."""


@mutant(f"{METRICS}.loaded")
def loads_not_measured(original: Function, self: Any, snapshot: Any, latency_us: int) -> None:
    """The load of a snapshot is not measured in LoadSnapshotLatencyMs (S-14)."""
    kept, self._loaded_ms = self._loaded_ms, Histogram()
    original(self, snapshot, latency_us)
    self._loaded_ms = kept


@mutant(f"{METRICS}._show_size")
def size_of_the_first_snapshot_reported(original: Function, self: Any) -> None:
    """SnapshotSizeBytes stays the size of the first snapshot (S-14)."""
    if not self._size_bytes.value:
        original(self)
