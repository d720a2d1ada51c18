"""Reads a partition of a coordinator's topic when this node begins to lead it, in slices.

It reads up to the end of the log, not only to the high watermark. Records of the former coordinator that lie above it
may still be replicated. Damaged records and records of other kinds are left out. A note tells of damage: one bad record
must not take away all that the partition keeps. Where the log itself cannot be read on, the partition is refused,
because what follows is not known. An error of the disk may pass, so the partition is loaded anew later.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from reference_broker.coordination.led_partition import LedPartition
from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.log.partition_log import OffsetOutOfRange, PartitionLog
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices
from reference_broker.records.batch import BatchHeader, InvalidRecords, checked, iterate
from reference_broker.records.reader import MOST_PLAIN_BYTES, read_records
from reference_broker.records.record import Record

CHUNK_BYTES = 128 * 1024
"""How much is read at once. Its records are taken over several slices."""
RECORDS_PER_SLICE = 200
"""They cost some 3 ms."""

LeftOut = Callable[[int, str], None]
"""Told of each damaged record: its offset (-1 if it is not known) and what is wrong with it."""


class Taker(Protocol):
    """What a coordinator makes of the records of one partition."""

    def take(self, header: BatchHeader, record: Record, end_offset: int) -> None:
        """Takes the next record of the log, which may be a control record. ``end_offset`` is one past it. A damaged
        batch may give its records any offsets; ``end_offset`` never goes back, and stays inside the log. Raises
        DamagedRecord."""
        ...

    def read_so_far(self) -> None:
        """Called after each slice of records, and after the last one."""
        ...

    def restore(self, left_out: LeftOut) -> Slices:
        """Makes of the records what is served, when all are read."""
        ...


@dataclass(slots=True)
class Loading:
    """``finished`` is told the number of records at the end, ``refused`` the reason if the log itself cannot be read
    on, and ``disk_failed`` the reason if the disk failed. None is told if another node leads the partition by then."""

    ports: Ports
    target: LedPartition
    taker: Taker
    finished: Callable[[int], None]
    refused: Callable[[str], None]
    disk_failed: Callable[[str], None]
    records: int = 0
    left_out: int = 0
    _end_offset: int = 0
    """One past the last record that was taken."""

    def run(self) -> Slices:
        try:
            yield from self._run()
        except (InvalidRecords, DiskError) as failure:
            if self.target.is_led:
                told = self.disk_failed if isinstance(failure, DiskError) else self.refused
                told(str(failure))

    def _run(self) -> Slices:
        for found in self._records(self.target.led.log):
            if found is None:
                yield
                continue
            self._take(*found)
            self.records += 1
            if self.records % RECORDS_PER_SLICE == 0:
                self.taker.read_so_far()
                yield
                if not self.target.is_led:
                    return
        self.target.loaded_end = self.target.led.log.log_end_offset
        self.taker.read_so_far()
        yield from self.taker.restore(self._left_out)
        if self.target.is_led:
            if self.left_out:
                where = ("partition", self.target.led.log.directory)
                self.ports.note("coordinator_loaded_in_part", where, ("left_out", self.left_out))
            self.finished(self.records)

    def _records(self, log: PartitionLog) -> Iterator[tuple[BatchHeader, Record] | None]:
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
                try:
                    checked(view, position, len(view))
                    for record in read_records(view[position : position + header.size_bytes], MOST_PLAIN_BYTES):
                        yield header, record
                except InvalidRecords as invalid:
                    self._left_out(header.base_offset, invalid.message)
            yield None

    def _take(self, header: BatchHeader, record: Record) -> None:
        self._end_offset = min(max(self._end_offset, record.offset + 1), self.target.led.log.log_end_offset)
        try:
            self.taker.take(header, record, self._end_offset)
        except DamagedRecord as damaged:
            self._left_out(record.offset, str(damaged))

    def _left_out(self, offset: int, reason: str) -> None:
        self.left_out += 1
        directory = self.target.led.log.directory
        self.ports.note("coordinator_record_left_out", ("partition", directory), ("offset", offset), ("reason", reason))
