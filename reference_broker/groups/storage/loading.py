"""What the groups of a partition make of its records when they are loaded.

Offsets become visible when the high watermark passes them.
"""

from dataclasses import dataclass, field

from reference_broker.coordination.led_partitions import RECORDS_PER_SLICE, Skipped
from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.groups.offsets.values import OffsetKey
from reference_broker.groups.state.group import Group
from reference_broker.groups.storage.codec import GroupKey, read_group, read_key, read_offset_value
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices
from reference_broker.records.batch import NO_PRODUCER_ID, BatchHeader, InvalidRecords
from reference_broker.records.control import ControlType, read_control
from reference_broker.records.record import Record


@dataclass(slots=True)
class OffsetsTaker:
    """Implements ``coordination.loading.Taker``."""

    ports: Ports
    target: OffsetsPartition
    _groups: dict[str, bytes] = field(default_factory=dict)
    """The last value of each group."""

    def take(self, header: BatchHeader, record: Record, end_offset: int) -> None:
        if header.is_control:
            self._take_marker(header, record, end_offset)
            return
        key = read_key(record.key or b"")
        if isinstance(key, OffsetKey):
            commit = None if record.value is None else read_offset_value(key, record.value)
            is_pending = header.is_transactional and commit is not None
            producer_id = header.producer_id if is_pending else NO_PRODUCER_ID
            self.target.offsets.appended(end_offset, ((key, commit),), producer_id)
        elif isinstance(key, GroupKey):
            self._groups.pop(key.group, None)
            if record.value is not None:
                self._groups[key.group] = record.value

    def _take_marker(self, header: BatchHeader, record: Record, end_offset: int) -> None:
        try:
            type_ = read_control(record).type
        except InvalidRecords as invalid:
            raise DamagedRecord(invalid.message) from None
        if type_ in (ControlType.ABORT, ControlType.COMMIT):
            self.target.offsets.ended(end_offset, header.producer_id, is_commit=type_ == ControlType.COMMIT)

    def read_so_far(self) -> None:
        self.target.make_visible()

    def restore(self, skipped: Skipped) -> Slices:
        """Makes each group once, and then the groups that have offsets only: their consumers assign themselves. A
        group with pending offsets is looked at as one without offsets is: its transaction may end otherwise."""
        target, now_ms = self.target, self.ports.now().wall_ms
        while target.is_led and target.offsets.is_behind(target.led.log.high_watermark):
            yield  # A long transaction is being decided.
        for number, (group_id, value) in enumerate(self._groups.items(), 1):
            try:
                target.add_group(read_group(group_id, value))
            except DamagedRecord as damaged:
                skipped(-1, f"group {group_id}: {damaged}")
            if number % RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(target.offsets.all_groups(), 1):
            if group_id not in target.groups:
                target.add_group(Group(group_id, now_ms))
            if number % RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(target.groups, 1):
            target.retention.schedule(group_id, self._earliest_ms(group_id, now_ms))
            if number % RECORDS_PER_SLICE == 0:
                yield

    def _earliest_ms(self, group_id: str, now_ms: int) -> int:
        """Returns the earliest Unix time at which the group could lose an offset, which is now if it has none."""
        if self.target.offsets.pending_of(group_id):
            return now_ms
        times = [
            stored.commit.due_ms(self.target.retention.retention_ms)
            for partitions in self.target.offsets.of(group_id).values()
            for stored in partitions.values()
        ]
        return min(times, default=now_ms)
