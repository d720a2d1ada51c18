"""Stored high watermarks of this node's replicas: Kafka's file ``replication-offset-checkpoint``.

A restarted replica learns from the file what was committed. If the file is old or misses an entry, a follower soon
learns the high watermark from its leader, and a leader from its followers. The file is written every
``replica.high.watermark.checkpoint.interval.ms`` if a high watermark moved, and at a clean end, so a node at rest
writes nothing. Partitions with one replica need no entry while the node runs, since everything in their log is
committed. A clean end writes theirs, too: then a log whose directory is gone at the next start is known to be lost.
"""

from collections.abc import Callable, Mapping

from reference_broker.log.checkpoints import Checkpoint
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.node_ports import Ports, later

FILE_NAME = "replication-offset-checkpoint"

FORGETTING_MS = 100
"""Rows of deleted partitions are removed from the file after this time."""


def read_high_watermarks(disk: Disk) -> Mapping[tuple[str, int], int]:
    """The last written high watermarks by (topic, partition index); empty if there is no readable file."""
    high_watermarks = {}
    for row in Checkpoint(disk, FILE_NAME).read(disk.list("")) or ():
        fields = row.split(" ")
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            high_watermarks[fields[0], int(fields[1])] = int(fields[2])
    return high_watermarks


class HighWatermarkCheckpoints:
    """Writes the file.

    ``moved`` and ``forget`` cost one lookup. A write costs what moved plus one join of all rows.
    """

    def __init__(self, disk: Disk, ports: Ports, interval_ms: int) -> None:
        self._file = Checkpoint(disk, FILE_NAME)
        self._ports = ports
        self._interval_ms = interval_ms
        self._rows: dict[str, str] = {
            f"{topic}-{index}": f"{topic} {index} {offset}"
            for (topic, index), offset in read_high_watermarks(disk).items()
        }
        self._moved: dict[UnifiedLog, None] = {}
        self._only_replicas: dict[UnifiedLog, None] = {}
        self._is_stale = False
        """The file has a row that must be removed, since a new topic of the same name must not find it."""
        self._timer: int | None = None

    def moved(self, log: UnifiedLog) -> None:
        """Note that the log's high watermark moved, for the next write of the file."""
        self._moved[log] = None
        if self._timer is None:
            self._plan(self._interval_ms)

    def leads_only_replica(self, log: UnifiedLog) -> None:
        """Note that the log is the only replica of its partition, so that only ``write_last`` writes its row."""
        self._only_replicas[log] = None

    def write_last(self) -> None:
        """Write the file at a clean end. Raise DiskError."""
        self._moved.update((log, None) for log in self._only_replicas if log.high_watermark > 0)
        self.write()

    def forget(self, log: UnifiedLog) -> None:
        """Drop the row of a log whose partition is deleted, or no longer has a replica here."""
        self._moved.pop(log, None)
        self._only_replicas.pop(log, None)
        if self._rows.pop(log.directory, None) is not None:
            self._rewrite_soon()

    def keep_only(self, is_here: Callable[[str, int], bool]) -> None:
        """Drop the rows of partitions that left while this node was away. ``is_here`` takes (topic, index)."""
        rows, self._rows = self._rows, {}
        for directory, row in rows.items():
            topic, index, _ = row.split(" ")
            if is_here(topic, int(index)):
                self._rows[directory] = row
        if len(self._rows) < len(rows):
            self._rewrite_soon()

    def write(self) -> None:
        """Write the file now if anything moved or was removed since the last write. Raise DiskError."""
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
        """Plan one write for all partitions that are removed at about the same time."""
        if self._is_stale:
            return
        self._is_stale = True
        if self._timer is not None:
            self._ports.cancel_timer(self._timer)
        self._plan(min(self._interval_ms, FORGETTING_MS))

    def _plan(self, after_ms: int) -> None:
        self._timer = later(self._ports, after_ms * 1000, self._write_in_time)

    def _write_in_time(self) -> None:
        """If the disk fails here, nothing important is lost: the next round tries again."""
        self._timer = None
        try:
            self.write()
        except DiskError as failure:
            self._ports.note("hw_checkpoint_failed", ("reason", str(failure)))
            self._plan(self._interval_ms)
