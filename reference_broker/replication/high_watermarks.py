"""The high watermarks of this node's replicas, kept in Kafka's file ``replication-offset-checkpoint``.

A replica that starts again knows from it what was committed; what is missing or old there is learnt from the leader
(or, as the leader, from the followers) soon. The file is written every
``replica.high.watermark.checkpoint.interval.ms`` if a high watermark moved, and at a clean end: a node at rest writes
nothing. Partitions with one replica need none: all that is in their log is committed.
"""

from collections.abc import Callable, Mapping

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.log.partition_log import PartitionLog
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.node_ports import Ports

FILE_NAME = "replication-offset-checkpoint"

FORGETTING_MS = 100
"""Rows of deleted partitions leave the file so soon."""


def read_high_watermarks(disk: Disk) -> Mapping[tuple[str, int], int]:
    """By (topic, partition index), as last written; empty where there is no readable file."""
    found = {}
    for row in Checkpoint(disk, FILE_NAME).read(disk.list("")) or ():
        fields = row.split(" ")
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            found[fields[0], int(fields[1])] = int(fields[2])
    return found


class HighWatermarks:
    """Writes the file. ``moved`` and ``forget`` cost one look-up; writing costs what moved and one join of all rows."""

    __slots__ = ("_file", "_interval_ms", "_is_stale", "_moved", "_ports", "_rows", "_timer")

    def __init__(self, disk: Disk, ports: Ports, interval_ms: int) -> None:
        self._file = Checkpoint(disk, FILE_NAME)
        self._ports = ports
        self._interval_ms = interval_ms
        self._rows: dict[str, str] = {
            f"{topic}-{index}": f"{topic} {index} {offset}"
            for (topic, index), offset in read_high_watermarks(disk).items()
        }
        self._moved: dict[PartitionLog, None] = {}
        self._is_stale = False
        """The file has a row that is to go: a topic of the same name must not find it."""
        self._timer: int | None = None

    def moved(self, log: PartitionLog) -> None:
        """Its high watermark is another one now: the next file tells it."""
        self._moved[log] = None
        if self._timer is None:
            self._plan(self._interval_ms)

    def forget(self, log: PartitionLog) -> None:
        """Its partition is deleted, or no longer has a replica here."""
        self._moved.pop(log, None)
        if self._rows.pop(log.directory, None) is not None:
            self._rewrite_soon()

    def keep_only(self, is_here: Callable[[str, int], bool]) -> None:
        """Drops what the file says of partitions that went while this node was away, by (topic, index)."""
        rows, self._rows = self._rows, {}
        for directory, row in rows.items():
            topic, index, _ = row.split(" ")
            if is_here(topic, int(index)):
                self._rows[directory] = row
        if len(self._rows) < len(rows):
            self._rewrite_soon()

    def write(self) -> None:
        """Now, if anything moved or went since the last time. Raises DiskError."""
        if not self._moved and not self._is_stale:
            return
        for log in self._moved:
            topic, _, index = log.directory.rpartition("-")
            self._rows[log.directory] = f"{topic} {index} {log.high_watermark}"
        self._file.replace(tuple(self._rows.values()))
        self._ports.note("hw_checkpoint", ("partitions", len(self._rows)), ("moved", len(self._moved)))
        self._moved.clear()
        self._is_stale = False

    def _rewrite_soon(self) -> None:
        """Partitions go in numbers: one file for those of one moment."""
        if self._is_stale:
            return
        self._is_stale = True
        if self._timer is not None:
            self._ports.cancel_timer(self._timer)
        self._plan(min(self._interval_ms, FORGETTING_MS))

    def _plan(self, after_ms: int) -> None:
        deadline_us = self._ports.now().mono_us + after_ms * 1000
        self._timer = self._ports.set_timer(deadline_us, self._write_in_time)

    def _write_in_time(self) -> None:
        """A disk that fails here loses nothing that matters: the next round tries again."""
        self._timer = None
        try:
            self.write()
        except DiskError as failure:
            self._ports.note("hw_checkpoint_failed", ("reason", str(failure)))
            self._plan(self._interval_ms)
