"""Mutants of failing disks, lost names and damaged files."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from contextlib import suppress
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.unified_log import AppendResult, BatchOrigin
from reference_broker.ports.disk import DiskError
from reference_broker.quorum.node_files import META_PROPERTIES, METADATA_DIRECTORY
from reference_broker.records.batch import CRC_FROM, BatchHeader, InvalidRecords, checksum, iterate, read_header

RECORD_COUNT = slice(57, 61)
"""Position of the number of records in a batch, a big-endian number."""


@mutant("reference_broker.log.log_files:LogFiles.write")
def failed_append_leaves_its_epoch(
    original: Function,
    self: Any,
    now: Any,
    append: Any,
    log_end_offset: int,
    log_start_offset: int,
    topic_id: bytes,
    producers: Any,
) -> Any:
    """The epoch of a batch that could not be written stays in force at the log's end (T-7, E-7)."""
    try:
        return original(self, now, append, log_end_offset, log_start_offset, topic_id, producers)
    except DiskError:
        self.epochs.note(append.leader_epoch, append.offsets[0])
        raise


@mutant("reference_broker.core.node:Node._sync_failed")
def failed_sync_taken_for_done(original: Function, self: Any, event: Any) -> None:
    """A failed sync counts as done, so records are acknowledged that are on no disk (P-6)."""
    self._syncs.synced(event.token)


@mutant("reference_broker.log.unified_log:UnifiedLog.append")
def failed_append_acknowledged(
    original: Function,
    self: Any,
    now: Any,
    records: Any,
    leader_epoch: int,
    *,
    origin: BatchOrigin = BatchOrigin.CLIENT,
    is_validated: bool = False,
    guard: Any = None,
) -> AppendResult:
    """A failed append is acknowledged."""
    try:
        appended: AppendResult = original(
            self, now, records, leader_epoch, origin=origin, is_validated=is_validated, guard=guard
        )
    except DiskError:
        first = self.log_end_offset
        last = first + int.from_bytes(records[RECORD_COUNT], "big") - 1
        return AppendResult(first, last, -1, self.log_start_offset, duplicate=True)
    return appended


CRC_BYTES = 4


@mutant("reference_broker.log.recovery:Recovery._was_durable")
def any_damage_cut(original: Function, self: Any, offset: int) -> bool:
    """A start treats all damage as a torn end of the log, and deletes everything behind it."""
    return False


@mutant("reference_broker.replication.broker_metadata_publisher:PartitionDirectories.clear")
def stray_deleted(original: Function, self: Any, directory: str, topic: str, index: int) -> None:
    """A directory without a topic is deleted, although the metadata never said that its topic was deleted."""
    self._disk.delete(directory)


@mutant("reference_broker.replication.broker_metadata_publisher:set_all_aside")
def other_id_starts_empty(original: Function, disk: Any, directory: str, cause: str, why: str) -> None:
    """A replica on which the metadata relies, but whose topic ID is damaged, is replaced by an empty log that may
    lead."""
    disk.rename(directory, f"{directory}.unknown-stray")


@mutant("reference_broker.log.unified_log:UnifiedLog._drop_oldest")
def deleted_before_log_start_is_durable(original: Function, self: Any, count: int) -> None:
    """Old segments are deleted at once. A power loss may restore some of them, without those between them."""
    original(self, count)
    self.segments.delete_retired(self.log_end_offset)


@mutant("reference_broker.replication.broker_metadata_publisher:BrokerMetadataPublisher.misplaced")
def damage_not_reported(original: Function, self: Any) -> dict[tuple[bytes, int], bool]:
    """The controller is not informed of a damaged log. It elects the replica, which then does not lead."""
    return {}


@mutant(
    "reference_broker.records.batch:checked",
    one_use="The metadata log and a start of a coordinator check with it what came from their own quorum or disk.",
)
def batch_crc_unchecked(original: Function, view: memoryview, position: int, end: int) -> BatchHeader:
    """Batches are appended without checking their CRC, from clients and from leaders."""
    header: BatchHeader
    try:
        header = original(view, position, end)
    except InvalidRecords as damage:
        if "CRC" not in damage.message:
            raise
        header = read_header(view, position)
    return header


@mutant("reference_broker.quorum.metadata_log:MetadataLog.append_fetched")
def metadata_crc_unchecked(original: Function, self: Any, now: Any, data: Any, leader_epoch: int) -> int:
    """A node appends and applies batches of the metadata log without checking their CRC."""
    believed = bytearray(data)
    with suppress(InvalidRecords):
        for position, header in iterate(memoryview(data)):
            covered = believed[position + CRC_FROM : position + header.size_bytes]
            believed[position + CRC_FROM - CRC_BYTES : position + CRC_FROM] = checksum(covered).to_bytes(
                CRC_BYTES, "big"
            )
    return int(original(self, now, bytes(believed), leader_epoch))


def _emptied(disk: Any, directory: str) -> None:
    """Delete all files of a partition's directory but the one with its topic ID."""
    for name in disk.list(directory):
        if name != "partition.metadata":
            disk.delete(f"{directory}/{name}")


OPENING = "reference_broker.log.opening:open_log"


@mutant(OPENING)
def records_forgotten(
    original: Function, disk: Any, directory: str, config: Any, now: Any, clean: bool
) -> Generator[None, None, Any]:
    """A node restarts without the records of all topics of clients."""
    if not directory.rpartition("/")[2].startswith("__"):
        _emptied(disk, directory)
    return (yield from original(disk, directory, config, now, clean))


@mutant(OPENING)
def offsets_forgotten(
    original: Function, disk: Any, directory: str, config: Any, now: Any, clean: bool
) -> Generator[None, None, Any]:
    """A node restarts without the records of ``__consumer_offsets``."""
    if directory.rpartition("/")[2].startswith("__consumer_offsets-"):
        _emptied(disk, directory)
    return (yield from original(disk, directory, config, now, clean))


@mutant(OPENING)
def transactions_forgotten(
    original: Function, disk: Any, directory: str, config: Any, now: Any, clean: bool
) -> Generator[None, None, Any]:
    """A node restarts without the records of ``__transaction_state``."""
    if directory.rpartition("/")[2].startswith("__transaction_state-"):
        _emptied(disk, directory)
    return (yield from original(disk, directory, config, now, clean))


@mutant(OPENING)
def log_begins_at_its_end(
    original: Function, disk: Any, directory: str, config: Any, now: Any, clean: bool
) -> Generator[None, None, Any]:
    """A node restarts with empty logs of clients' topics, which begin where the old ones ended."""
    log = yield from original(disk, directory, config, now, clean)
    if not directory.rpartition("/")[2].startswith("__"):
        log.truncate_fully_and_start_at(log.log_end_offset, now)
    return log


@mutant("reference_broker.controller.metadata_quorum_node:MetadataQuorumNode.load")
def metadata_forgotten(original: Function, self: Any, clean: bool) -> Generator[None, None, None]:
    """A node restarts without its metadata log and all other traces of its earlier life."""
    disk = self._setup.disk
    for path in (METADATA_DIRECTORY, META_PROPERTIES):
        disk.delete(path)
    yield from original(self, clean)
