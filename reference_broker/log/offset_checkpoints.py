"""The three files beside a log that keep one offset each. None exists before it is needed."""

from collections.abc import Sequence

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.ports.disk import Disk

CLEANER_FILE = "cleaner-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"


class OffsetCheckpoints:
    """``recovery_point``: as in its file. Segments that end at or before it were durable, their indexes included."""

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
        """Returns the path to sync. ``log_start.settle`` then puts the file in its place."""
        return self.log_start.prepare([f"{self._row_start} {offset}"])

    def raise_recovery_point(self, offset: int) -> None:
        """Segments that end at or before ``offset`` are durable, and need no scan after a crash."""
        assert offset > self.recovery_point, f"the recovery point would go back from {self.recovery_point} to {offset}"
        self._write_recovery_point(offset)

    def lower_recovery_point(self, offset: int) -> None:
        """Records from ``offset`` on are about to go. What comes in their place is not durable yet."""
        if offset < self.recovery_point:
            self._write_recovery_point(offset)

    def _write_recovery_point(self, offset: int) -> None:
        self._recovery_point.replace([str(offset)])
        self.recovery_point = offset

    def write_cleaned(self, offset: int) -> None:
        self._cleaner.replace([f"{self._row_start} {offset}"])


def _read_offset(rows: list[str] | None) -> int:
    """The offset at the end of a checkpoint's only row; 0 if there is none."""
    last = rows[0].rpartition(" ")[2] if rows else ""
    return int(last) if last.isdecimal() else 0
