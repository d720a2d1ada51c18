"""One pass of the cleaner over one log: in slices (Kafka's Cleaner), and which part of a log may be cleaned (Kafka's
LogCleanerManager).

A pass first notes the newest offset of each key in the dirty part. Then it rewrites every segment up to the end of that
part, without the records that a newer record of their key supersedes.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from reference_broker.log.cleaner.record_columns import columns
from reference_broker.log.cleaner.retention import (
    CleanedTransactions,
    LastBatches,
    OffsetMap,
    Retention,
    Superseded,
    check_count,
    check_crc,
    check_offsets,
)
from reference_broker.log.config import LogConfig
from reference_broker.log.segment import MAX_RELATIVE_OFFSET, Segment, whole_batches
from reference_broker.log.segments import cleaned_segment
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import CLEANED_RECORDS_PER_SLICE, Sliced
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, Buffer, InvalidRecords, read_header
from reference_broker.records.record import plain_records
from reference_broker.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a log that may be cleaned."""

    first_dirty_offset: int
    """Everything below has been cleaned before."""
    end_offset: int
    """The base offset of the first segment that must not be cleaned."""
    clean_bytes: int
    """The size of the segments before the dirty part."""
    dirty_bytes: int
    """The size of the segments in it."""
    overdue: bool
    """Whether a dirty record has waited longer than ``max.compaction.lag.ms``."""

    @property
    def dirty_percent(self) -> int:
        return self.dirty_bytes * 100 // max(self.clean_bytes + self.dirty_bytes, 1)

    def is_due(self, min_dirty_ratio: float) -> bool:
        """Return whether to clean the log now. As in Kafka, the dirty share must exceed ``min.cleanable.dirty.ratio``,
        or a record must be overdue."""
        dirty, total = self.dirty_bytes, self.clean_bytes + self.dirty_bytes
        return dirty > 0 and (self.overdue or dirty > min_dirty_ratio * total)  # Decision cleaning-due


def cleanable(log: UnifiedLog, now: Now) -> Cleanable | None:
    """Return the part of the log that may be cleaned, or None if nothing in it is dirty.

    It ends before the active segment, before the last stable offset (and so the high watermark), and before any segment
    with a record younger than ``min.compaction.lag.ms``. For a log at rest this costs a comparison.
    """
    if len(log.segments) < 2 or log.bases[-1] <= log.cleaned_offset <= log.log_end_offset:
        return None
    first_dirty = log.cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    end = _end(log, first_dirty, now)
    if end <= first_dirty:  # Decision dirty-part
        return None
    at = log.segments.index_of(first_dirty)
    clean = sum(segment.size_bytes for segment in log.segments[:at])
    dirty_segments = log.segments[at : log.segments.index_of(end)]
    dirty = sum(segment.size_bytes for segment in dirty_segments)
    until_ms = now.wall_ms - log.config.max_compaction_lag_ms
    overdue = any(0 < segment.first_timestamp_ms < until_ms for segment in dirty_segments)
    return Cleanable(first_dirty, end, clean, dirty, overdue)


def _end(log: UnifiedLog, first_dirty: int, now: Now) -> int:
    """Return where cleaning must end. It is the base offset of a segment, since only whole segments are cleaned."""
    bound = min(log.last_stable_offset, log.bases[-1])
    last = log.segments.index_of(bound)
    if log.config.min_compaction_lag_ms > 0:
        youngest_ms = now.wall_ms - log.config.min_compaction_lag_ms
        for at in range(log.segments.index_of(first_dirty), last):
            if log.segments[at].max_timestamp_ms > youngest_ms:
                return log.bases[at]
    return log.bases[last]


CHUNK_BYTES = 256 * 1024
"""How many bytes one read or one write has."""

SEGMENTS_PER_GROUP = 16
"""How many segments may become one at most. They are swapped in one event."""

MAX_POSITION = 2**31 - 1
"""The last byte of a segment that an index entry can name."""


class Overtaken(Exception):  # noqa: N818 - nothing is wrong: the pass is given up
    """The pass is given up, because the log lost records that the pass relied on (truncation, retention, deletion). The
    log is intact."""


class CleaningFailed(Exception):  # noqa: N818 - the name says what happened
    """The disk failed before anything of the log had changed. The message is the disk's."""


class Step(NamedTuple):
    """The end of a slice."""

    io_bytes: int
    """Bytes that were read and written in it."""
    sync: tuple[str, ...] = ()
    """If it has paths, the pass must be continued only once they are durable."""


Steps: TypeAlias = Generator[Step, None, None]
FoundT = TypeVar("FoundT")


@dataclass(slots=True)
class Cleaned:
    """The result of a pass. Bytes are those of segments."""

    read_bytes: int = 0
    written_bytes: int = 0
    records: int = 0
    """Number of records that were checked."""
    kept: int = 0
    """Number of those that stayed."""
    map_used_percent: int = 0
    end_offset: int = 0
    """The log is clean below it."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """Notes of a pass about the dirty part."""

    newest: OffsetMap
    superseded: Superseded
    last_batches: LastBatches


@dataclass(slots=True)
class Cleaning:
    """One pass over one log. ``run`` yields at the end of each slice. Between two slices, and before the first one, the
    log may change in any way."""

    log: UnifiedLog
    part: Cleanable
    """The part to clean."""
    now: Now
    buffer_bytes: int
    """``log.cleaner.dedupe.buffer.size``. Keys that do not fit into it are left to the next pass."""
    done: Cleaned = field(default_factory=Cleaned)
    _cuts: int = field(init=False)
    _io_bytes: int = 0
    _records: int = 0
    _swapping: bool = False
    _unfinished: str | None = None
    """The path of a new segment that is being written and does not count yet."""

    def __post_init__(self) -> None:
        self._cuts = self.log.files.cuts

    def run(self) -> Steps:
        """Run the pass. Raise Overtaken, CleaningFailed, and InvalidRecords (the log is damaged).

        Raise DiskError only if the disk fails within a swap. The node must end then, and the next start finishes the
        swap.
        """
        try:  # Decision cleaning-fails
            yield from self._run()
        except DiskError as failure:
            if self._swapping:
                raise
            raise CleaningFailed(str(failure)) from failure

    def give_up(self) -> None:
        """End the pass early and delete its unfinished segment. A caller calls it between two slices, and must not
        continue the pass afterwards."""
        if self._unfinished is not None:
            with suppress(DiskError):  # If this fails, the next start deletes the file.
                self.log.disk.delete(self._unfinished)
            self._unfinished = None

    def _run(self) -> Steps:
        log = self.log
        newest = OffsetMap(self.buffer_bytes)
        noted = _Noted(newest, Superseded(newest.capacity), LastBatches(log.producers))
        yield from self._fill(noted)
        if newest.latest_offset < self.part.first_dirty_offset:
            raise Overtaken(f"{log.directory} has no dirty segment any more")
        yield from self._make_durable()
        yield from self._judged(noted.superseded.settle(newest.offsets.values()))
        noted.last_batches.latest_offset = newest.latest_offset
        retention = Retention(
            newest,
            noted.superseded,
            CleanedTransactions(),
            noted.last_batches,
            self.now.wall_ms,
            log.config.delete_retention_ms,
            tombstones_below=log.horizon.limit,
        )
        end = newest.latest_offset + 1
        waiting = deque(segment for segment in log.segments if segment.base_offset < end)
        while waiting:
            yield from self._rewrite(waiting, retention)
        self.done.records, self.done.kept = retention.records, retention.kept
        self.done.map_used_percent, self.done.end_offset = newest.used_percent, end
        log.note_cleaned(end)

    def _make_durable(self) -> Steps:
        """Make the part durable before older records are removed. Otherwise a power loss could take a new record,
        after the durable older record of the same key was removed for it."""
        log = self.log
        segments = log.segments[: log.segments.index_of(self.part.end_offset)]
        dirty = log.durability.dirty
        unsynced = tuple(segment.path for segment in segments if segment.path in dirty)
        if unsynced:
            yield self._step(unsynced)
            self._check(segments)

    def _fill(self, noted: _Noted) -> Steps:
        log, part = self.log, self.part
        transactions = CleanedTransactions()
        begin = part.first_dirty_offset
        first, last = log.segments.index_of(part.first_dirty_offset), log.segments.index_of(part.end_offset)
        for segment in log.segments[first:last]:
            self._check((segment,))
            begin = max(begin, segment.base_offset)
            transactions.begin(log.segments.aborted_between(begin, segment.next_offset), segment.next_offset)
            for header, batch in self._batches(segment, segment.position_of(log.disk, begin)):
                if not (yield from self._note(noted, transactions, segment, header, batch)):
                    return
                noted.last_batches.note(header)
                noted.newest.latest_offset = header.last_offset
                yield from self._pause((segment,))
            noted.newest.latest_offset = _end_of(log, segment) - 1

    def _note(
        self,
        noted: _Noted,
        transactions: CleanedTransactions,
        segment: Segment,
        header: BatchHeader,
        batch: memoryview,
    ) -> Generator[Step, None, bool]:
        """Note the keys of a batch. Return False if the map is full."""
        check_crc(header, batch)
        if header.is_control:
            transactions.of_control(header, batch)
            return True
        if transactions.of_data(header) or header.record_count == 0:
            return True
        plain = yield from self._judged(plain_records(header, batch))
        if plain is None:  # Older records of its keys stay, too.
            return True
        self._check((segment,))
        position = count = 0
        while position < len(plain):
            records, position = columns(plain, position, CLEANED_RECORDS_PER_SLICE)
            check_offsets(header, records)
            count += len(records.starts)
            self._records += len(records.starts)
            # Decision key-map
            if not noted.newest.put(*records.keyed(header.base_offset, self.part.first_dirty_offset)):
                return False
            if position < len(plain):
                yield self._step()
                self._check((segment,))
        check_count(header, count)
        if header.base_offset >= self.part.first_dirty_offset:
            noted.superseded.note(header)
        return True

    def _rewrite(self, waiting: deque[Segment], retention: Retention) -> Steps:
        """Write one segment from the first of those that wait and from neighbours that fit behind it, and swap it in.
        The segment can be read before its index files exist, because its indexes are in memory."""
        log = self.log
        group = [waiting.popleft()]
        self._check(group)
        cleaned = cleaned_segment(log.directory, group[0])
        self._unfinished = cleaned.path
        try:
            log.disk.write(cleaned.path, b"")
            yield from self._copy(group, waiting, cleaned, retention)
            self._check_tombstones(retention)
            yield self._step((cleaned.path, *log.horizon.prepare(retention.tombstones_gone)))
            self._check(group)
            self._check_tombstones(retention)
        except (DiskError, Overtaken, InvalidRecords):
            self.give_up()
            raise
        for aborted in retention.transactions.taken():
            cleaned.aborted.note(aborted)
        self._unfinished = None
        log.horizon.settle()
        self._swapping = True
        log.segments.swap(group, cleaned)
        self._swapping = False
        log.segments.write_indexes(cleaned)
        cleaned.aborted.release()

    def _copy(self, group: list[Segment], waiting: deque[Segment], cleaned: Segment, retention: Retention) -> Steps:
        """Copy what stays of the group, which grows meanwhile. Unlike in Kafka, what stays decides which neighbours
        become one segment, and not their sizes before: so segments of which little remains leave few empty batches."""
        out: list[Buffer] = []
        out_bytes = 0
        retention.group_end = -1
        for segment in group:
            end = segment.next_offset
            retention.transactions.begin(self.log.segments.aborted_between(segment.base_offset, end), end)
            for header, batch in self._batches(segment, 0):
                if header.last_offset + 1 == end:
                    last_bytes = HEADER_BYTES if retention.superseded.holds(header) else header.size_bytes
                    if waiting and _fits(self.log.config, group, cleaned, last_bytes, waiting[0]):
                        group.append(waiting.popleft())
                    else:
                        retention.group_end = end
                kept = yield from self._judged(retention.keep(header, batch))
                self._records += header.record_count
                if kept is not None:
                    out.append(kept)
                    out_bytes += len(kept)
                    self._add(cleaned, read_header(kept))
                if out_bytes >= CHUNK_BYTES:
                    self._write(cleaned, out, out_bytes)
                    out, out_bytes = [], 0
                yield from self._pause(group)
            self._check(group)
        self._write(cleaned, out, out_bytes)
        cleaned.created_ms = group[-1].created_ms

    def _judged(self, judging: Sliced[FoundT]) -> Generator[Step, None, FoundT]:
        """Return the result of work on one batch. A large batch takes several slices."""
        while True:
            try:
                next(judging)
            except StopIteration as end:
                result: FoundT = end.value
                return result
            yield self._step()

    def _add(self, cleaned: Segment, header: BatchHeader) -> None:
        cleaned.add(header, header.base_offset, header.max_timestamp_ms, self.log.config.index_interval_bytes)
        if header.is_control and header.producer_id >= 0:
            cleaned.aborted.note(None)

    def _write(self, cleaned: Segment, out: list[Buffer], size: int) -> None:
        if out:
            self.log.disk.append(cleaned.path, out)
            self._io_bytes += size
            self.done.written_bytes += size

    def _batches(self, segment: Segment, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the whole batches from a byte position on. Raise InvalidRecords (CORRUPT_MESSAGE) at a position where
        none begins, and if a batch is not behind the one before. No CRC covers a base offset, and what is superseded
        is looked up by it."""
        disk, end = self.log.disk, segment.size_bytes
        least = segment.base_offset
        for _, header, batch in whole_batches(disk, segment.path, position, end, CHUNK_BYTES, self._note_read):
            if header.base_offset < least:
                problem = f"a batch of {segment.path} begins at {header.base_offset}, before {least}"
                raise InvalidRecords(ErrorCode.corrupt_message, problem)
            least = header.last_offset + 1
            yield header, batch

    def _note_read(self, size: int) -> None:
        self._io_bytes += size
        self.done.read_bytes += size

    def _pause(self, relied_on: Sequence[Segment]) -> Steps:
        """End the slice if it is long enough."""
        if self._records >= CLEANED_RECORDS_PER_SLICE or self._io_bytes >= 2 * CHUNK_BYTES:
            yield self._step()
            self._check(relied_on)

    def _step(self, sync: tuple[str, ...] = ()) -> Step:
        step = Step(self._io_bytes, sync)
        self._io_bytes = self._records = 0
        return step

    def _check_tombstones(self, retention: Retention) -> None:
        """Raise Overtaken if tombstones went that must stay by now (H-2)."""
        log = self.log
        if retention.tombstones_gone > log.horizon.limit:  # Decision cleaned-tombstones
            raise Overtaken(f"{log.directory} follows a leader that has more tombstones")

    def _check(self, relied_on: Sequence[Segment]) -> None:
        """Raise Overtaken if the log has lost records at its end or any of these segments since the pass began."""
        log = self.log
        at = log.segments.index_of(relied_on[0].base_offset)
        there = log.segments[at : at + len(relied_on)]
        if log.files.cuts != self._cuts or len(there) != len(relied_on):  # Decision cleaned-log
            raise Overtaken(f"{log.directory} was truncated")
        if any(one is not other for one, other in zip(there, relied_on, strict=True)):
            raise Overtaken(f"{log.directory} lost segments")


def _end_of(log: UnifiedLog, segment: Segment) -> int:
    """Return the offset at which the next segment begins. There may be a gap before that, and a pass goes over it."""
    return log.bases[log.segments.index_of(segment.base_offset) + 1]


def _fits(config: LogConfig, group: Sequence[Segment], cleaned: Segment, last_bytes: int, segment: Segment) -> bool:
    """Return whether ``segment`` may join the group, of which ``cleaned`` and a last batch stay.

    How little of a full segment will stay is unknown. So where little has stayed so far, the new segment may become
    larger than ``segment.bytes`` by an eighth. An empty file does not join, because its name alone keeps where it ends.
    """
    stays, most = cleaned.size_bytes + last_bytes, config.segment_bytes
    return (
        segment.size_bytes > 0
        and (stays + segment.size_bytes <= most or stays <= most // 8)
        and stays + segment.size_bytes <= MAX_POSITION
        and (len(cleaned.offsets) + len(segment.offsets)) * 8 <= config.segment_index_bytes
        and segment.next_offset - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET
        and len(group) < SEGMENTS_PER_GROUP
    )
