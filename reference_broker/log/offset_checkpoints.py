"""The three files beside a log that keep one offset each. None exists before it is needed."""

from collections.abc import Sequence

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.ports.disk import Disk

CLEANER_FILE = "cleaner-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"


class OffsetCheckpoints:
    """The three checkpoint files of one log. ``recovery_point`` is the offset in its file. Segments that end at or
    before it were durable when it was written, with their indexes."""

    __slots__ = ("_cleaner", "_recovery_point", "_row_start", "log_start", "recovery_point")

    def __init__(self, disk: Disk, directory: str) -> None:
        topic, _, partition = directory.rpartition("/")[2].rpartition("-")
        self._row_start = f"{topic} {partition}"
        self._cleaner = Checkpoint(disk, f"{directory}/{CLEANER_FILE}")
        self._recovery_point = Checkpoint(disk, f"{directory}/{RECOVERY_POINT_FILE}")
        self.log_start = Checkpoint(disk, f"{directory}/{LOG_START_FILE}")
        self.recovery_point = 0

    def load(self, names: Sequence[str]) -> tuple[int, int]:
        """Reads the files, given the names in the folder. Returns the cleaned offset and the log start offset."""
        cleaned = _read_offset(self._cleaner.read(names))
        log_start = _read_offset(self.log_start.read(names))
        self.recovery_point = _read_offset(self._recovery_point.read(names))
        return cleaned, log_start

    def has_unsettled_log_start(self, names: Sequence[str]) -> bool:
        """Whether a new log start was written and perhaps not synced."""
        return self.log_start.new_path.rpartition("/")[2] in names

    def prepare_log_start(self, offset: int) -> str:
        """Writes a new log start beside the old one and returns the path to sync. Once it is synced,
        ``log_start.settle`` puts it in its place."""
        return self.log_start.prepare([f"{self._row_start} {offset}"])

    def raise_recovery_point(self, offset: int) -> None:
        """Notes that segments that end at or before ``offset`` are durable. They need no full scan after a crash."""
        assert offset > self.recovery_point, f"the recovery point would go back from {self.recovery_point} to {offset}"
        self._write_recovery_point(offset)

    def lower_recovery_point(self, offset: int) -> None:
        """Notes that records from ``offset`` on are about to be removed. Records that take their place are not durable
        yet."""
        if offset < self.recovery_point:
            self._write_recovery_point(offset)

    def _write_recovery_point(self, offset: int) -> None:
        self._recovery_point.replace([str(offset)])
        self.recovery_point = offset

    def write_cleaned(self, offset: int) -> None:
        self._cleaner.replace([f"{self._row_start} {offset}"])


def _read_offset(rows: list[str] | None) -> int:
    """Returns the offset at the end of a checkpoint's only row, or 0 if there is none."""
    last = rows[0].rpartition(" ")[2] if rows else ""
    return int(last) if last.isdecimal() else 0
