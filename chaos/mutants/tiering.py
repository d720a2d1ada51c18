"""Mutants of tiered storage (KIP-405) and of its producer snapshots (KAFKA-15195)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, cast
from zlib import crc32

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.producer_replay import RecreatedSnapshot
from reference_broker.log.producer_state import ProducerStateManager, encode_snapshot
from reference_broker.log.segments import Segments
from reference_broker.ports.disk import DiskError
from reference_broker.ports.store import Put
from reference_broker.remote_log.copier import CopyStage
from reference_broker.remote_log.metadata.events import (
    RemoteLogEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    update_of,
)
from reference_broker.remote_log.objects import ObjectKind
from reference_broker.wire.errors import Error, ErrorCode

SEGMENTS = "reference_broker.remote_log.metadata.remote_log_metadata_cache:RemoteLogMetadataCache"
COLLECTION = "reference_broker.remote_log.copier:collect_segment_data"
SNAPSHOT = f".{ObjectKind.PRODUCER_SNAPSHOT}"


def _nobody(log: Any) -> bytes:
    """A snapshot without producers."""
    return encode_snapshot(ProducerStateManager(log.config.producer_id_expiration_ms, reject_unknown=False))


@mutant("reference_broker.remote_log.copier:Copier._written")
def segment_listed_first(original: Function, self: Any, copy: Any, error: Error) -> None:
    """A segment is listed before any of its objects is stored (P-11)."""
    if error is not ErrorCode.none or copy.stage is not CopyStage.WRITING_COPY_STARTED:
        original(self, copy, error)
        return
    context = self._context
    finished, wall_ms = RemoteLogSegmentState.COPY_SEGMENT_FINISHED, context.ports.now().wall_ms
    listed = update_of(copy.segment, finished, context.node_id, copy.leader_epoch, wall_ms)
    context.metadata.write(listed, lambda error: original(self, copy, error))


@mutant(COLLECTION)
def uploaded_without_snapshot(
    original: Function, partition: Any, local: Any, now: Any, node_id: int, segment_id: bytes
) -> Generator[None, None, Any]:
    """A segment is uploaded without a producer snapshot (P-8)."""
    prepared = yield from original(partition, local, now, node_id, segment_id)
    return replace(prepared, objects=tuple(each for each in prepared.objects if not each.key.endswith(SNAPSHOT)))


@mutant(COLLECTION)
def uploaded_with_empty_snapshot(
    original: Function, partition: Any, local: Any, now: Any, node_id: int, segment_id: bytes
) -> Generator[None, None, Any]:
    """A segment is uploaded with a snapshot without producers (P-8, P-10)."""
    prepared = yield from original(partition, local, now, node_id, segment_id)
    empty = _nobody(partition.log)
    objects = tuple(Put(each.key, empty) if each.key.endswith(SNAPSHOT) else each for each in prepared.objects)
    return replace(prepared, objects=objects)


@mutant("reference_broker.remote_log.expiring.expirer:SegmentRemoval.remove")
def nothing_removed(
    original: Function, self: Any, segment: RemoteLogSegmentMetadata, ended: Callable[[str], None]
) -> None:
    """Objects of abandoned copies are not deleted (P-11)."""
    ended("")


@mutant(f"{SEGMENTS}.apply", partner=nothing_removed)
def older_upload_counts(original: Function, self: Any, event: RemoteLogEvent) -> Error:
    """An upload of a leader that has lost the partition counts (P-11)."""
    if isinstance(event, RemotePartitionDeleteMetadata) or event.uploader_epoch >= self.newest_epoch:
        return cast(Error, original(self, event))
    return cast(Error, self._begin(event) if isinstance(event, RemoteLogSegmentMetadata) else self._update(event))


@mutant(COLLECTION)
def unsnapshotted_segments_stay(
    original: Function, partition: Any, local: Any, now: Any, node_id: int, segment_id: bytes
) -> Generator[None, None, Any]:
    """A segment without a producer snapshot is not uploaded: its copy fails again and again (P-8, P-14)."""
    if local.next_offset not in partition.log.segments.snapshots.offsets:
        raise DiskError(f"there is no snapshot of producers at offset {local.next_offset}")
    return (yield from original(partition, local, now, node_id, segment_id))


@mutant("reference_broker.log.producer_replay:replay_start")
def only_last_segment_replayed(original: Function, segments: Segments, offset: int, expired_ms: int) -> int:
    """A snapshot is rebuilt only from the previous segment (P-9)."""
    return int(segments.bases[segments.index_of(offset) - 1])


@mutant("reference_broker.log.producer_replay:recreate")
def forgotten_a_millisecond_early(
    original: Function, segments: Segments, offset: int, now_ms: int, expiration_ms: int, live: Any
) -> Generator[None, None, RecreatedSnapshot]:
    """A rebuilt snapshot lacks producers that expire within a millisecond (P-7, P-10)."""
    recreated: RecreatedSnapshot = yield from original(segments, offset, now_ms + 1, expiration_ms, live)
    return recreated


@mutant("reference_broker.log.producer_replay:recreate")
def recreated_in_another_format(
    original: Function, segments: Segments, offset: int, now_ms: int, expiration_ms: int, live: Any
) -> Generator[None, None, RecreatedSnapshot]:
    """A rebuilt snapshot has a CRC-32 over its producers, where Kafka's version 1 has a CRC-32C (P-13)."""
    made: RecreatedSnapshot = yield from original(segments, offset, now_ms, expiration_ms, live)
    version, rest = made.snapshot[:2], made.snapshot[6:]
    return made._replace(snapshot=version + crc32(rest).to_bytes(4, "big") + rest)


@mutant("reference_broker.log.unified_log:UnifiedLog.delete_local")
def deleted_before_listed(original: Function, self: Any, end_offset: int) -> int:
    """Local records are deleted before their copy is listed (P-11)."""
    listed, self.copied_end_offset = self.copied_end_offset, self.high_watermark
    deleted = int(original(self, end_offset))
    self.copied_end_offset = listed
    return deleted


@mutant("reference_broker.log.unified_log:UnifiedLog.start_from_remote")
def remote_state_not_restored(
    original: Function,
    self: Any,
    now: Any,
    offset: int,
    log_start_offset: int,
    epochs: Any,
    snapshot: bytes,
    producers: ProducerStateManager,
) -> None:
    """A replica that begins behind the remote segments has no producer state of their records (P-6, P-11)."""
    original(self, now, offset, log_start_offset, epochs, _nobody(self), producers.empty_copy())


@mutant("reference_broker.log.log_files:LogFiles.awaits_sync")
def aged_segments_unsynced(original: Function, self: Any) -> bool:
    """A segment that was closed because of its age is never synced, so it is never deleted locally (P-11)."""
    return bool(self.segments.retired)


@mutant("reference_broker.log.producer_replay:_find_coordinator_epochs")
def older_coordinator_epoch_forgotten(
    original: Function, segments: Segments, begin: int, states: Any, unknown_ids: set[int], fresh: set[int]
) -> Generator[None, None, int]:
    """A rebuilt snapshot lacks the coordinator epoch of a marker before its replay (P-10, X-6)."""
    return 0
    yield
