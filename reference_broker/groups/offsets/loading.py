"""Reads a partition of ``__consumer_offsets`` when this node begins to lead it, in slices.

Up to the log's end, not only to the high watermark: what the former coordinator wrote and what is replicated after all
becomes visible when the high watermark passes it. Damaged records and those of kinds that are not read here are left
out, with a note: one bad record must not take a partition's groups away.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from reference_broker.groups.membership.group import Group
from reference_broker.groups.offsets.group_record_codec import read_group_value, read_key, read_offset_value
from reference_broker.groups.offsets.group_records import GroupKey, OffsetKey
from reference_broker.groups.offsets.group_values import restored
from reference_broker.groups.offsets.offsets_partition import OffsetsPartition
from reference_broker.groups.offsets.record_fields import DamagedRecord
from reference_broker.groups.offsets.slices import Slices
from reference_broker.log.partition_log import OffsetOutOfRange, PartitionLog
from reference_broker.ports.node_ports import Ports
from reference_broker.records.batch import InvalidRecords, iterate
from reference_broker.records.reader import read_records
from reference_broker.records.record import Record

CHUNK_BYTES = 128 * 1024
"""Read at once. Its records are taken over several slices."""
RECORDS_PER_SLICE = 200
"""Some 3 ms."""


@dataclass(slots=True)
class Loading:
    """``finished``: called at the end, with the number of records, unless the partition is led elsewhere by then."""

    ports: Ports
    target: OffsetsPartition
    finished: Callable[[int], None]
    records: int = 0
    _groups: dict[str, bytes] = field(default_factory=dict)
    """The last value of each."""

    def run(self) -> Slices:
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
            self.finished(self.records)

    def _records(self, log: PartitionLog) -> Iterator[Record | None]:
        """None: a chunk is done. Ends where the partition is led elsewhere: its files may be gone by then."""
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
                    yield from read_records(view[position : position + header.size_bytes])
                except InvalidRecords as invalid:
                    self._left_out(header.base_offset, invalid.message)
            yield None

    def _take(self, record: Record) -> None:
        try:
            key = read_key(record.key or b"")
            if isinstance(key, OffsetKey):
                commit = None if record.value is None else read_offset_value(key, record.value)
                self.target.offsets.appended(record.offset + 1, ((key, commit),))
            elif isinstance(key, GroupKey):
                self._groups.pop(key.group, None)
                if record.value is not None:
                    self._groups[key.group] = record.value
        except DamagedRecord as damaged:
            self._left_out(record.offset, str(damaged))

    def _restore(self) -> Slices:
        """The groups, each once; and one for each that has offsets only: its consumers assign themselves."""
        target, now_ms = self.target, self.ports.now().wall_ms
        for number, (group_id, value) in enumerate(self._groups.items(), 1):
            try:
                target.groups[group_id] = restored(group_id, read_group_value(value))
            except DamagedRecord as damaged:
                self._left_out(-1, f"group {group_id}: {damaged}")
            if number % RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(target.offsets.all_groups(), 1):
            if group_id not in target.groups:
                target.groups[group_id] = Group(group_id, now_ms)
            if number % RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(target.groups, 1):
            target.retention.look_at(group_id, target.earliest_ms(group_id, now_ms))
            if number % RECORDS_PER_SLICE == 0:
                yield

    def _left_out(self, offset: int, reason: str) -> None:
        directory = self.target.led.log.directory
        self.ports.note("coordinator_record_left_out", ("partition", directory), ("offset", offset), ("reason", reason))
