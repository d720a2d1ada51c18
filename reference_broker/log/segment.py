"""A segment of a log: a file of batches with its indexes, and its state in memory."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from reference_broker.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    InvalidRecords,
    read_header,
)
from reference_broker.wire.errors import ErrorCode

NAME_DIGITS = 20
WALK_CHUNK_BYTES = 64 * 1024
MAX_KNOWN_POSITIONS = 32
MAX_RELATIVE_OFFSET = 0x7FFFFFFF
WIDE_GAP = 1 << 30
"""A gap of more offsets than that, which the cleaner left on the leader, may be between two of a follower's
segments. Any other gap is inside a segment."""


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{NAME_DIGITS}d}"


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of a log. Timestamps are milliseconds, and -1 means none."""

    base_offset: int
    path: str
    offsets: OffsetIndex
    times: TimeIndex
    aborted: TransactionIndex
    created_ms: int
    next_offset: int
    """One past the last offset of the last batch, or ``base_offset`` if it is empty."""
    size_bytes: int = 0
    bytes_since_entry: int = 0
    first_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    max_timestamp_offset: int = -1
    """The last offset of the first batch that has the largest timestamp."""
    max_timestamp_position: int = 0
    last_epoch: int = -1
    """The newest leader epoch up to here, while the segment is scanned at a start."""
    open_from: int = -1
    """The start offset of the earliest transaction that is open at the start of the segment, or -1 if none is."""
    known: dict[int, int] = field(default_factory=dict)
    """Byte positions of offsets at which readers stopped, because the readers will come back."""
    empty_starts: list[int] = field(default_factory=list)
    """Runs of batches without records, which the cleaner keeps: each one's first offset, with the gap before it."""
    empty_ends: list[int] = field(default_factory=list)
    """One past the last offset of each run."""

    @property
    def paths(self) -> tuple[str, ...]:
        return self.path, self.offsets.path, self.times.path, self.aborted.path, self.aborted.checksum_path

    def add(self, header: BatchHeader, base_offset: int, max_timestamp_ms: int, index_interval_bytes: int) -> None:
        """Note a batch that has been written at the end of the file."""
        assert base_offset >= self.next_offset, (
            f"{self.path}: a batch at offset {base_offset} follows on one that ends at {self.next_offset - 1}"
        )
        position = self.size_bytes
        last_offset = base_offset + header.last_offset_delta
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
            self.max_timestamp_position = position
        if self.bytes_since_entry > index_interval_bytes:
            base = self.base_offset
            self.offsets.add(base_offset - base, last_offset - base, position)
            self.add_time_entry()
            self.bytes_since_entry = 0
        if header.record_count == 0:
            self.note_empty(last_offset + 1)
        self.bytes_since_entry += size
        self.size_bytes = position + size
        self.next_offset = last_offset + 1

    def note_empty(self, next_offset: int) -> None:
        """Note a batch without records that ends before ``next_offset``. It follows on ``self.next_offset``."""
        if self.empty_ends and self.empty_ends[-1] == self.next_offset:
            self.empty_ends[-1] = next_offset
        else:
            self.empty_starts.append(self.next_offset)
            self.empty_ends.append(next_offset)

    def past_empty(self, offset: int) -> int:
        """Return the end of the run of batches without records that contains ``offset``, or ``offset`` itself."""
        at = bisect_right(self.empty_starts, offset) - 1
        return max(offset, self.empty_ends[at]) if at >= 0 else offset

    def add_time_entry(self) -> None:
        if self.max_timestamp_offset >= 0:
            self.times.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)

    def must_roll_for(self, size: int, last_offset: int, segment_bytes: int, segment_index_bytes: int) -> bool:
        """Return whether ``size`` more bytes, with offsets up to ``last_offset``, need a new segment. An empty segment
        takes any number of bytes."""
        return last_offset - self.base_offset > MAX_RELATIVE_OFFSET or (
            self.size_bytes > 0
            and (self.size_bytes + size > segment_bytes or (len(self.offsets.keys) + 1) * 8 > segment_index_bytes)
        )

    def is_due(self, segment_ms: int, wall_ms: int, timestamp_ms: int = -1) -> bool:
        """Return whether the segment is older than ``segment_ms``. Its age is the time from the timestamp of its first
        batch to ``timestamp_ms``. If one of them is -1, its age is the time since it was created, by the wall clock."""
        if self.size_bytes == 0:
            return False
        if self.first_timestamp_ms >= 0 and timestamp_ms >= 0:
            return timestamp_ms - self.first_timestamp_ms > segment_ms
        return wall_ms - self.created_ms > segment_ms

    def remember(self, offset: int, position: int) -> None:
        if len(self.known) >= MAX_KNOWN_POSITIONS:
            del self.known[next(iter(self.known))]
        self.known[offset] = position

    def position_of(self, disk: Disk, offset: int) -> int:
        """Return the byte position of the batch that holds ``offset``, or of the first one after it.

        Raise InvalidRecords (CORRUPT_MESSAGE) where the file is damaged.
        """
        if offset >= self.next_offset:
            return self.size_bytes
        if offset <= self.base_offset:
            return 0
        position = self.known.get(offset)
        if position is not None:
            return position
        start = self.offsets.floor(offset - self.base_offset)
        for position, header in headers(disk, self.path, start, self.size_bytes, chunk_bytes=8192):
            if header.last_offset >= offset:
                self.remember(offset, position)
                return position
        raise InvalidRecords(
            ErrorCode.corrupt_message,
            f"{self.path}: no batch holds offset {offset} < {self.next_offset} from byte {start} on",
        )

    def truncate(self, disk: Disk, size: int, next_offset: int) -> None:
        """Cut the file at the start of a batch. On DiskError nothing has changed, or indexes only know less."""
        indexes = (self.offsets, self.times, self.aborted)
        seen = Segment(self.base_offset, self.path, *indexes, self.created_ms, self.next_offset)
        for position, header in headers(disk, self.path, 0, size):
            seen.see_timestamp(position, header)
        self.known.clear()
        self.offsets.truncate(disk, size)  # The indexes come before the file.
        self.times.truncate(disk, next_offset - self.base_offset)
        self.aborted.truncate(disk, next_offset)
        disk.truncate(self.path, size)
        self.size_bytes = size
        self.next_offset = next_offset
        while self.empty_starts and self.empty_starts[-1] >= next_offset:
            del self.empty_starts[-1], self.empty_ends[-1]
        if self.empty_ends:
            self.empty_ends[-1] = min(self.empty_ends[-1], next_offset)
        self.bytes_since_entry = size - self.offsets.boundary_at_or_before(size)
        self.first_timestamp_ms = seen.first_timestamp_ms
        self.max_timestamp_ms = seen.max_timestamp_ms
        self.max_timestamp_offset = seen.max_timestamp_offset
        self.max_timestamp_position = seen.max_timestamp_position

    def see_timestamp(self, position: int, header: BatchHeader) -> None:
        if position == 0:
            self.first_timestamp_ms = header.max_timestamp_ms
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms
            self.max_timestamp_offset = header.last_offset
            self.max_timestamp_position = position

    @property
    def has_sound_indexes(self) -> bool:
        """Whether indexes that were read from files name only offsets and timestamps that this segment has."""
        offsets, times, last = self.offsets, self.times, self.next_offset - 1 - self.base_offset
        return (not offsets.last_offsets or offsets.last_offsets[-1] <= last) and (
            not times.offsets or (times.offsets[-1] <= last and times.timestamps[-1] <= self.max_timestamp_ms)
        )

    def write_indexes(self, disk: Disk) -> tuple[str, ...]:
        """Bring the index files up to date. Return the paths written."""
        self.add_time_entry()
        written = []
        if self.offsets.write(disk):
            written.append(self.offsets.path)
        if self.times.write(disk):
            written.append(self.times.path)
        return (*written, *self.aborted.write(disk))

    def delete_indexes(self, disk: Disk) -> None:
        disk.delete(self.offsets.path)
        disk.delete(self.times.path)
        self.aborted.delete(disk)

    def delete(self, disk: Disk) -> None:
        """Delete the files, the log file last. So no record is lost if the disk fails half-way."""
        self.delete_indexes(disk)
        disk.delete(self.path)


def new_segment(directory: str, base_offset: int, created_ms: int) -> Segment:
    """Make a segment in memory. Its file comes with the first append."""
    start = f"{directory}/{segment_name(base_offset)}"
    return Segment(
        base_offset=base_offset,
        path=f"{start}.log",
        offsets=OffsetIndex(f"{start}.index"),
        times=TimeIndex(f"{start}.timeindex"),
        aborted=TransactionIndex(start),
        created_ms=created_ms,
        next_offset=base_offset,
    )


def headers(
    disk: Disk,
    path: str,
    position: int,
    end: int,
    chunk_bytes: int = WALK_CHUNK_BYTES,
    note_read: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches in [position, end). If batches are large, it reads little more than the
    headers. ``note_read`` is called with the number of bytes of each read.

    Raise InvalidRecords (CORRUPT_MESSAGE) at a position where no whole batch begins.
    """
    chunk, chunk_at = b"", position
    while position < end:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk_at, chunk = position, disk.read(path, position, min(chunk_bytes, end - position))
            if note_read is not None:
                note_read(len(chunk))
        header = read_header(chunk, position - chunk_at)
        size = header.size_bytes
        if header.magic != MAGIC or size < HEADER_BYTES or position + size > end:
            raise InvalidRecords(ErrorCode.corrupt_message, f"{path}: no batch at byte {position}")
        yield position, header
        position += size


def whole_batches(
    disk: Disk, path: str, position: int, end: int, chunk_bytes: int, note_read: Callable[[int], None] | None = None
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of the batches in [position, end). It reads about ``chunk_bytes`` at once, and
    calls ``note_read`` with the number of bytes of each read.

    Raise InvalidRecords (CORRUPT_MESSAGE) at a position where no whole batch begins.
    """
    chunk, chunk_at = memoryview(b""), position

    def read(size: int) -> memoryview:
        chunk = memoryview(disk.read(path, position, min(max(size, chunk_bytes), end - position)))
        if note_read is not None:
            note_read(len(chunk))
        return chunk

    while position < end:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk_at, chunk = position, read(chunk_bytes)
        header = read_header(chunk, position - chunk_at)
        size = header.size_bytes
        if header.magic != MAGIC or size < HEADER_BYTES or position + size > end:
            raise InvalidRecords(ErrorCode.corrupt_message, f"{path}: no batch at byte {position}")
        if position + size > chunk_at + len(chunk):
            chunk_at, chunk = position, read(size)
        at = position - chunk_at
        yield position, header, chunk[at : at + size]
        position += size
