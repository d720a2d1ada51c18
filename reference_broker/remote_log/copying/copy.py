"""One attempt to copy a segment to the tier, as a value (P-11), and the preparation of what it stores.

The segment's beginning is written to the metadata first, so that no object that a crash leaves behind goes unnoticed.
Then its objects are stored, one after the other. Only when all are stored the end of the copy is written. That lists
the segment. A failure ends the attempt. The next one has another segment ID. ``NEXT_STAGES`` is the table of the
stages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, TypeAlias

from reference_broker.log.checkpoints import encoded_rows
from reference_broker.log.partition_log import PartitionLog
from reference_broker.log.producer_replay import Recreated
from reference_broker.log.producer_state import SnapshotDamaged, decoded
from reference_broker.log.retention import TierableSegment
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import Sliced
from reference_broker.ports.store import Put, PutFile
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment, lineage_of
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.replication.partitions import Partition


class Stage(Enum):
    """What an attempt does next. It has ended in the last three."""

    PREPARING = auto()
    """It gathers what is to be stored: index files, the snapshot of producers, leader epochs."""
    BEGINNING = auto()
    """It writes COPY_SEGMENT_STARTED."""
    STORING = auto()
    """It stores the first of the objects that are left."""
    FINISHING = auto()
    """It writes COPY_SEGMENT_FINISHED."""
    LISTED = auto()
    FAILED = auto()
    RESIGNED = auto()
    """This node does not lead the partition any more in the leader epoch of the attempt."""


NEXT_STAGES: Final[Mapping[Stage, tuple[Stage, ...]]] = {
    Stage.PREPARING: (Stage.BEGINNING, Stage.FAILED, Stage.RESIGNED),
    Stage.BEGINNING: (Stage.STORING, Stage.FAILED, Stage.RESIGNED),
    Stage.STORING: (Stage.STORING, Stage.FINISHING, Stage.FAILED, Stage.RESIGNED),
    Stage.FINISHING: (Stage.LISTED, Stage.FAILED, Stage.RESIGNED),
    Stage.LISTED: (),
    Stage.FAILED: (),
    Stage.RESIGNED: (),
}

ENDED: Final = (Stage.LISTED, Stage.FAILED, Stage.RESIGNED)
Objects: TypeAlias = tuple[Put | PutFile, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a copy stores: the segment as the metadata gets it, and its objects in their order. ``recreated`` is
    the snapshot of producers among them if the log lacked it."""

    segment: RemoteSegment
    objects: Objects
    recreated: Recreated | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """``local`` is copied under ``leader_epoch``. ``prepared`` is None until that is done. ``stored`` objects of it are
    in the store. ``reason`` says why it failed."""

    local: TierableSegment
    leader_epoch: int
    stage: Stage = Stage.PREPARING
    prepared: Prepared | None = None
    stored: int = 0
    reason: str = ""

    @property
    def segment(self) -> RemoteSegment:
        """The segment, once it is prepared."""
        assert self.prepared is not None, "the copy is not prepared"
        return self.prepared.segment

    @property
    def next_object(self) -> Put | PutFile:
        """The object that is to be stored now."""
        assert self.stage is Stage.STORING, f"nothing is stored while {self.stage.name}"
        assert self.prepared is not None, "nothing is prepared"
        return self.prepared.objects[self.stored]

    def with_objects(self, prepared: Prepared) -> "Copy":
        """What is to be stored is known."""
        return replace(self._at(Stage.BEGINNING), prepared=prepared)

    def done(self) -> "Copy":
        """What the stage was to do is done."""
        if self.stage is Stage.BEGINNING:
            return self._at(Stage.STORING)
        if self.stage is Stage.FINISHING:
            return self._at(Stage.LISTED)
        assert self.prepared is not None, "nothing is prepared"
        stored = self.stored + 1
        is_last = stored == len(self.prepared.objects)
        return replace(self._at(Stage.FINISHING if is_last else Stage.STORING), stored=stored)

    def failed(self, reason: str) -> "Copy":
        return replace(self._at(Stage.FAILED), reason=reason)

    def resigned(self) -> "Copy":
        return self._at(Stage.RESIGNED)

    def _at(self, stage: Stage) -> "Copy":
        assert stage in NEXT_STAGES[self.stage], f"{stage.name} cannot follow on {self.stage.name}"
        return replace(self, stage=stage)


class EpochsUnknown(Exception):  # noqa: N818 - says what was found
    """The log does not know the leader epochs of all records of a segment, so nobody could find them in the tier."""


def preparation(
    partition: Partition, local: TierableSegment, now: Now, node_id: int, segment_id: bytes
) -> Sliced[Prepared]:
    """Gather what a copy stores, in slices. A snapshot of producers that is missing or damaged is made now (P-8).

    If the log begins inside the segment, it has forgotten the leader epochs of the records before. Nobody reads these,
    so they count for the leader epoch at the log start. Raises Overtaken if the log loses records meanwhile,
    EpochsUnknown, InvalidRecords where a file is damaged, and DiskError.
    """
    log = partition.log
    log.files.write_index_files(local)
    snapshot, recreated = _whole_snapshot(log, local.next_offset), None
    if snapshot is None:
        recreated = yield from log.recreate_snapshot(now, local.next_offset)
        snapshot = recreated.snapshot
    lineage = lineage_of(log)
    start = max(local.base_offset, log.log_start_offset)
    epochs = epochs_between(lineage, start, local.next_offset)
    if not epochs or epochs[0][1] > start:
        raise EpochsUnknown(f"no leader epoch is known at offset {start}")
    segment = RemoteSegment(
        topic_id=partition.topic_id,
        topic=partition.topic,
        partition=partition.index,
        segment_id=segment_id,
        start_offset=local.base_offset,
        end_offset=local.next_offset - 1,
        max_timestamp_ms=local.max_timestamp_ms,
        broker_id=node_id,
        event_timestamp_ms=now.wall_ms,
        size_bytes=local.size_bytes,
        leader_epochs=((epochs[0][0], local.base_offset), *epochs[1:]),
        uploader_epoch=partition.leader_epoch,
        has_transaction_index=bool(local.transaction_index_path),
    )
    files = [
        (ObjectKind.LOG, local.path, local.size_bytes),
        (ObjectKind.OFFSET_INDEX, local.offset_index_path, log.disk.size(local.offset_index_path)),
        (ObjectKind.TIME_INDEX, local.time_index_path, log.disk.size(local.time_index_path)),
    ]
    if local.transaction_index_path:
        size_bytes = log.disk.size(local.transaction_index_path)
        files.append((ObjectKind.TRANSACTION_INDEX, local.transaction_index_path, size_bytes))
    checkpoint = encoded_rows([f"{epoch} {start}" for epoch, start in lineage if start < local.next_offset])
    return Prepared(
        segment,
        (
            *(PutFile(key_of(segment, kind), path, size_bytes) for kind, path, size_bytes in files),
            Put(key_of(segment, ObjectKind.PRODUCER_SNAPSHOT), snapshot),
            Put(key_of(segment, ObjectKind.LEADER_EPOCHS), checkpoint),
        ),
        recreated,
    )


def epochs_between(lineage: LeaderEpochStarts, offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
    """The leader epochs of [offset, end_offset), each with its first offset there."""
    ends = [*(start for _, start in lineage[1:]), end_offset]
    return tuple(
        (epoch, max(start, offset))
        for (epoch, start), end in zip(lineage, ends, strict=True)
        if end > offset and start < end_offset
    )


def _whole_snapshot(log: PartitionLog, offset: int) -> bytes | None:
    """The file of the producers before an offset, if it is there and whole (P-12)."""
    snapshots = log.segments.snapshots
    if offset not in snapshots.offsets:
        return None
    path = snapshots.path(offset)
    if not log.disk.exists(path):  # Somebody has deleted it.
        snapshots.delete(offset)
        return None
    data = log.disk.read(path, 0, log.disk.size(path))
    try:
        next(decoded(data), None)  # It checks the file before it yields any producer.
    except SnapshotDamaged:
        return None
    return data
