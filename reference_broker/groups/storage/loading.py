"""Reads a partition of ``__consumer_offsets`` when this node begins to lead it, in slices.

It reads up to the end of the log, not only to the high watermark. Records of the former coordinator that lie above it
may still be replicated. They become visible when the high watermark passes them. Damaged records and records of
other kinds are left out. A note tells of damage: one bad record must not take the groups of a whole partition away.
Where the log itself cannot be read on, the partition is refused, because what follows is not known. An error of the
disk may pass, so the partition is loaded anew later.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from reference_broker.groups.offsets.committed_offsets import OffsetKey
from reference_broker.groups.state.group import Group
from reference_broker.groups.storage.codec import GroupKey, read_group, read_key, read_offset_value
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.groups.storage.record_fields import DamagedRecord
from reference_broker.log.partition_log import OffsetOutOfRange, PartitionLog
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices
from reference_broker.records.batch import InvalidRecords, checked, iterate
from reference_broker.records.reader import MOST_PLAIN_BYTES, read_records
from reference_broker.records.record import Record

CHUNK_BYTES = 128 * 1024
"""How much is read at once. Its records are taken over several slices."""
RECORDS_PER_SLICE = 200
"""They cost some 3 ms."""


@dataclass(slots=True)
class Loading:
    """``finished`` is told the number of records at the end, ``refused`` the reason if the log itself cannot be read
    on, and ``disk_failed`` the reason if the disk failed. None is told if another node leads the partition by then."""

    ports: Ports
    target: OffsetsPartition
    finished: Callable[[int], None]
    refused: Callable[[str], None]
    disk_failed: Callable[[str], None]
    records: int = 0
    left_out: int = 0
    _end_offset: int = 0
    """One past the last record that was taken."""
    _groups: dict[str, bytes] = field(default_factory=dict)
    """The last value of each group."""

    def run(self) -> Slices:
        try:
            yield from self._run()
        except (InvalidRecords, DiskError) as failure:
            if self.target.is_led:
                told = self.disk_failed if isinstance(failure, DiskError) else self.refused
                told(str(failure))

    def _run(self) -> Slices:
        for record in self._records(self.target.led.log):
            if record is None:
                yield
                continue
            self._take(record)
            self.records += 1
            if self.records % RECORDS_PER_SLICE == 0:
                self.target.make_visible()
                yield
                if not self.target.is_led:
                    return
        self.target.loaded_end = self.target.led.log.log_end_offset
        self.target.make_visible()
        yield from self._restore()
        if self.target.is_led:
            if self.left_out:
                where = ("partition", self.target.led.log.directory)
                self.ports.note("coordinator_loaded_in_part", where, ("left_out", self.left_out))
            self.finished(self.records)

    def _records(self, log: PartitionLog) -> Iterator[Record | None]:
        """Yields None after each chunk. It ends where another node leads the partition: its files may be gone. Raises
        InvalidRecords and DiskError where the log cannot be read on."""
        offset = log.log_start_offset
        while self.target.is_led and offset < log.log_end_offset:
            try:
                chunk = log.read(max(offset, log.log_start_offset), CHUNK_BYTES, log.log_end_offset)
            except OffsetOutOfRange:
                return
            if not chunk:
                return
            view = memoryview(chunk)
            for position, header in iterate(view):
                offset = header.last_offset + 1
                if header.is_control:
                    continue
                try:
                    checked(view, position, len(view))
                    yield from read_records(view[position : position + header.size_bytes], MOST_PLAIN_BYTES)
                except InvalidRecords as invalid:
                    self._left_out(header.base_offset, invalid.message)
            yield None

    def _take(self, record: Record) -> None:
        """A damaged batch may give its records any offsets. Here they stay in the order of the log, and inside it."""
        self._end_offset = min(max(self._end_offset, record.offset + 1), self.target.led.log.log_end_offset)
        try:
            key = read_key(record.key or b"")
            if isinstance(key, OffsetKey):
                commit = None if record.value is None else read_offset_value(key, record.value)
                self.target.offsets.appended(self._end_offset, ((key, commit),))
            elif isinstance(key, GroupKey):
                self._groups.pop(key.group, None)
                if record.value is not None:
                    self._groups[key.group] = record.value
        except DamagedRecord as damaged:
            self._left_out(record.offset, str(damaged))

    def _restore(self) -> Slices:
        """Makes each group once, and then the groups that have offsets only: their consumers assign themselves."""
        target, now_ms = self.target, self.ports.now().wall_ms
        for number, (group_id, value) in enumerate(self._groups.items(), 1):
            try:
                target.add_group(read_group(group_id, value))
            except DamagedRecord as damaged:
                self._left_out(-1, f"group {group_id}: {damaged}")
            if number % RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(target.offsets.all_groups(), 1):
            if group_id not in target.groups:
                target.add_group(Group(group_id, now_ms))
            if number % RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(target.groups, 1):
            target.retention.look_at(group_id, self._earliest_ms(group_id, now_ms))
            if number % RECORDS_PER_SLICE == 0:
                yield

    def _earliest_ms(self, group_id: str, now_ms: int) -> int:
        """Returns the earliest Unix time at which the group could lose an offset, which is now if it has none."""
        times = [
            stored.commit.due_ms(self.target.retention.retention_ms)
            for partitions in self.target.offsets.of(group_id).values()
            for stored in partitions.values()
        ]
        return min(times, default=now_ms)

    def _left_out(self, offset: int, reason: str) -> None:
        self.left_out += 1
        directory = self.target.led.log.directory
        self.ports.note("coordinator_record_left_out", ("partition", directory), ("offset", offset), ("reason", reason))
