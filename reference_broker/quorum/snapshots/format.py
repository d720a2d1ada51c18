"""The file of a snapshot: its name and its bytes, as Kafka writes and reads them (KIP-630, RecordsSnapshotWriter).

The name is ``<offset, 20 digits>-<epoch, 10 digits>.checkpoint``, beside the metadata log. The content is a sequence of
record batches whose offsets start at 0. The first batch is a control batch with the SnapshotHeader, and the last one is
a control batch with the SnapshotFooter. Each batch carries the snapshot's epoch. Every timestamp is that of the last
record contained, so that equal content gives equal bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reference_broker.ports.disk import Disk
from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, InvalidRecords, read_header, validate
from reference_broker.records.control import (
    ControlType,
    build_control,
    decode_snapshot_header,
    leader_change,
    read_control,
    snapshot_footer,
    snapshot_header,
)
from reference_broker.records.record import Record, build, read_records

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
PROGRESS_SUFFIX = ".checkpoint.part.progress"
DELETED_SUFFIX = ".checkpoint.deleted"
_MADE = "-made"
_OFFSET_DIGITS, _EPOCH_DIGITS = 20, 10


def snapshot_path(snapshot: OffsetAndEpoch) -> str:
    return _path(snapshot, SUFFIX)


def made_path(snapshot: OffsetAndEpoch) -> str:
    """Where this node writes its own snapshot. The file is never resumed, and a restart deletes it."""
    return _path(snapshot, _MADE + PART_SUFFIX)


def part_path(snapshot: OffsetAndEpoch) -> str:
    """Where the bytes of a download are kept. It may be resumed."""
    return _path(snapshot, PART_SUFFIX)


def progress_path(snapshot: OffsetAndEpoch) -> str:
    """Where the lengths and checksums of the bytes in ``part_path`` are kept (see ``partial``)."""
    return _path(snapshot, PROGRESS_SUFFIX)


def read_name(name: str, suffix: str) -> OffsetAndEpoch | None:
    """Return None for anything that is not exactly such a name."""
    offset, dash, epoch = name.removesuffix(suffix).partition("-")
    digits = offset + epoch
    good = name.endswith(suffix) and bool(dash) and digits.isascii() and digits.isdigit()
    if not good or len(offset) != _OFFSET_DIGITS or len(epoch) != _EPOCH_DIGITS:
        return None
    return OffsetAndEpoch(int(offset), int(epoch))


def is_stray(name: str) -> bool:
    """Return whether the file is an unfinished or deleted snapshot that a stopped process left behind."""
    return name.endswith((PART_SUFFIX, PROGRESS_SUFFIX, DELETED_SUFFIX))


def _path(snapshot: OffsetAndEpoch, suffix: str) -> str:
    return f"{METADATA_DIRECTORY}/{snapshot.offset:0{_OFFSET_DIGITS}d}-{snapshot.epoch:0{_EPOCH_DIGITS}d}{suffix}"


READ_BYTES = 256 * 2**10
"""How much of the file is read at once. CRC and copy of it take well below a millisecond."""
MAX_BATCH_BYTES = 8 * 2**20
"""Kafka's limit for batches of its metadata log and snapshots (KafkaRaftClient.MAX_BATCH_SIZE_BYTES)."""


class SnapshotDamaged(Exception):  # noqa: N818 - says what the file is
    """The bytes are not a whole snapshot of that ID. They are torn, mixed, corrupted or something else."""


@dataclass(frozen=True, slots=True)
class SnapshotBatch:
    """A batch of a snapshot. A control batch is the header or the footer."""

    header: BatchHeader
    data: memoryview
    """The whole batch, whose CRC was checked."""


def header_batch(snapshot: OffsetAndEpoch, timestamp_ms: int) -> bytes:
    """``timestamp_ms`` is that of the last record that the snapshot contains."""
    return build_control([snapshot_header(timestamp_ms, timestamp_ms)], leader_epoch=snapshot.epoch)


def data_batch(snapshot: OffsetAndEpoch, base_offset: int, timestamp_ms: int, values: Sequence[bytes]) -> bytes:
    """``values`` are encoded metadata records, at least one."""
    records = [Record(timestamp_ms=timestamp_ms, value=value) for value in values]
    return build(records, base_offset=base_offset, leader_epoch=snapshot.epoch)


def footer_batch(snapshot: OffsetAndEpoch, base_offset: int, timestamp_ms: int) -> bytes:
    return build_control([snapshot_footer(timestamp_ms)], base_offset=base_offset, leader_epoch=snapshot.epoch)


def prepare() -> None:
    """Load the codecs of header, footer and leader change, which takes 25 ms once. A node does this while it is idle,
    not in a slice."""
    start = OffsetAndEpoch(1, 0)
    header_timestamp_ms(header_batch(start, 0))
    footer_batch(start, 1, 0)
    leader_change(0, (), (), 0)


def read_batches(disk: Disk, path: str, snapshot: OffsetAndEpoch) -> Iterator[SnapshotBatch]:
    """Yield every batch of the file, including header and footer. The caller must take all of them, because only the
    end of the iteration shows that the file is complete. Raise SnapshotDamaged and DiskError."""
    size = disk.size(path)
    position = next_offset = 0
    ended = False
    for batch in _whole_batches(disk, path, size):
        header = batch.header
        if ended:
            raise SnapshotDamaged(f"{path} goes on after its footer at byte {position}")
        if header.base_offset != next_offset or header.leader_epoch != snapshot.epoch or header.last_offset_delta < 0:
            raise SnapshotDamaged(
                f"{path} has offset {header.base_offset} of epoch {header.leader_epoch} at byte {position}, "
                f"expected offset {next_offset} of epoch {snapshot.epoch}"
            )
        ended = _delimits(path, batch, is_first=position == 0)
        position += header.size_bytes
        next_offset = header.last_offset + 1
        yield batch
    if not ended:
        raise SnapshotDamaged(f"{path} ends at byte {size} without a footer")


def last_contained_timestamp_ms(disk: Disk, path: str) -> int:
    """Read it from the header. Raise SnapshotDamaged and DiskError."""
    try:
        start = disk.read(path, 0, HEADER_BYTES)
        batch = disk.read(path, 0, min(read_header(start).size_bytes, MAX_BATCH_BYTES))
        validate(batch)
        return header_timestamp_ms(batch)
    except InvalidRecords as bad:
        raise SnapshotDamaged(f"{path} does not begin with a snapshot header: {bad.message}") from bad


def header_timestamp_ms(batch: bytes | memoryview) -> int:
    """When the last contained record was written, ms. ``batch`` is the one with the header."""
    control = read_control(next(read_records(batch)))
    return int(decode_snapshot_header(control).last_contained_log_timestamp)


def _delimits(path: str, batch: SnapshotBatch, is_first: bool) -> bool:
    """Return whether the batch is the footer. Raise SnapshotDamaged for a control batch that is neither first nor
    last."""
    if not batch.header.is_control:
        if is_first:
            raise SnapshotDamaged(f"{path} begins without a snapshot header")
        return False
    try:
        type_ = read_control(next(read_records(batch.data))).type
    except (InvalidRecords, StopIteration) as bad:
        raise SnapshotDamaged(f"{path} has a control batch that cannot be read") from bad
    expected = ControlType.SNAPSHOT_HEADER if is_first else ControlType.SNAPSHOT_FOOTER
    if type_ != expected:
        raise SnapshotDamaged(f"{path} has a control record of type {type_} in place of {int(expected)}")
    return not is_first


def _whole_batches(disk: Disk, path: str, size: int) -> Iterator[SnapshotBatch]:
    position = 0
    chunk, start = b"", 0
    while position < size:
        read_bytes = start + len(chunk) - position
        needed_bytes = (
            HEADER_BYTES if read_bytes < HEADER_BYTES else _size_at(path, chunk, position - start, position, size)
        )
        if read_bytes < needed_bytes:
            chunk, start = disk.read(path, position, max(needed_bytes, READ_BYTES)), position
            if len(chunk) < needed_bytes:
                raise SnapshotDamaged(f"{path} is cut at byte {position + len(chunk)}")
            needed_bytes = _size_at(path, chunk, 0, position, size)
            if len(chunk) < needed_bytes:
                continue
        yield _checked(path, memoryview(chunk)[position - start : position - start + needed_bytes], position)
        position += needed_bytes


def _size_at(path: str, chunk: bytes, index: int, position: int, size: int) -> int:
    length = read_header(chunk, index).size_bytes
    if not HEADER_BYTES <= length <= MAX_BATCH_BYTES or position + length > size:
        raise SnapshotDamaged(f"{path} has a batch of {length} bytes at byte {position} of {size}")
    return length


def _checked(path: str, data: memoryview, position: int) -> SnapshotBatch:
    try:
        ((_, header),) = validate(data)
    except InvalidRecords as bad:
        raise SnapshotDamaged(f"{path} at byte {position}: {bad.message}") from bad
    return SnapshotBatch(header, data)
