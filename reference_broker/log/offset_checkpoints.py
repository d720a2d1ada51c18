"""The four files beside a log that keep one offset each. None exists before it is needed."""

from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.log.local_start import LocalStart
from reference_broker.ports.disk import Disk, DiskError

CLEANER_FILE = "cleaner-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
SYNCED_FILE = "synced-offset-checkpoint"


class OffsetCheckpoints:
    """``recovery_point``: segments that end at or before it were durable, their indexes included.

    ``synced``: records below it were durable when the file was written. Nobody waits for this file: a killed process
    leaves it, and a power loss may bring back an older one, which is as true. Its second row is a CRC-32 of the first,
    because a start refuses a log that ends below the note. A damaged note counts as none.

    ``durable_log_start``: no power loss takes the log start back behind it. ``local``: where the records begin that are
    not in the remote tier only.
    """

    __slots__ = (
        "_cleaner",
        "_log_start",
        "_prepared_log_start",
        "_recovery_point",
        "_row_start",
        "_synced",
        "durable_log_start",
        "local",
        "recovery_point",
        "synced",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        topic, _, partition = directory.rpartition("/")[2].rpartition("-")
        self._row_start = f"{topic} {partition}"
        self._cleaner = Checkpoint(disk, f"{directory}/{CLEANER_FILE}")
        self._recovery_point = Checkpoint(disk, f"{directory}/{RECOVERY_POINT_FILE}")
        self._log_start = Checkpoint(disk, f"{directory}/{LOG_START_FILE}")
        self._synced = Checkpoint(disk, f"{directory}/{SYNCED_FILE}")
        self.local = LocalStart(disk, directory)
        self.recovery_point = self.durable_log_start = self._prepared_log_start = self.synced = 0

    @property
    def durable_end(self) -> int:
        """Every record below it is known to have been durable."""
        return max(self.recovery_point, self.synced)

    @property
    def durable_end_path(self) -> str:
        """The file that says so."""
        return self._synced.path if self.synced > self.recovery_point else self._recovery_point.path

    def load(self, names: Sequence[str]) -> tuple[int, int]:
        """Reads the files, given the names in the folder. Returns the cleaned offset and the log start offset."""
        cleaned = _read_offset(self._cleaner.read(names))
        self.durable_log_start = self._prepared_log_start = _read_offset(self._log_start.read_and_settle(names))
        self.recovery_point = _read_offset(self._recovery_point.read_and_settle(names))
        self.synced = _read_checked(self._synced.read(names))
        self.local.load(names)
        return cleaned, self.durable_log_start

    def prepare_log_start(self, offset: int) -> str:
        """Returns the path to sync."""
        path = self._log_start.prepare([f"{self._row_start} {offset}"])
        self._prepared_log_start = offset
        return path

    @property
    def is_start_durable(self) -> bool:
        """A start relies on it: below the recovery point, a log that begins later than its start lacks records."""
        return self.durable_log_start == self._prepared_log_start and self.local.is_durable

    @property
    def durable_start(self) -> int:
        """No power loss asks for files before it, so they may go."""
        return max(self.durable_log_start, self.local.durable)

    def put_log_start(self, offset: int) -> None:
        """Waits for the disk."""
        self._log_start.put([f"{self._row_start} {offset}"])
        self.durable_log_start = self._prepared_log_start = offset

    def raise_recovery_point(self, offset: int) -> str:
        """Segments that end at or before ``offset`` are durable, and need no scan after a crash. Returns the path to
        sync."""
        assert offset > self.recovery_point, f"the recovery point would go back from {self.recovery_point} to {offset}"
        path = self._recovery_point.prepare([str(offset)])
        self.recovery_point = offset
        return path

    @property
    def synced_path(self) -> str:
        return self._synced.path

    def note_synced(self, offset: int) -> None:
        """Notes that records below ``offset`` are durable. If the disk refuses it, less is known after a crash."""
        with suppress(DiskError):
            self._synced.overwrite(_checked(offset))
            self.synced = offset

    def lower_recovery_point(self, offset: int) -> None:
        """Records from ``offset`` on are about to go. What comes in their place is not durable yet, so no power loss
        may bring the higher point back: this waits for the disk. It is rare, since it needs a cut behind a roll."""
        if offset < self.recovery_point:
            self._recovery_point.put([str(offset)])
            self.recovery_point = offset

    def lower_synced(self, offset: int) -> None:
        """Does the same for the note of what was synced. It needs a cut of what was durable."""
        if offset < self.synced:
            self._synced.overwrite(_checked(offset))
            self._synced.disk.make_durable(self._synced.path)
            self.synced = offset

    def settle(self, synced: Sequence[str]) -> None:
        """These paths are durable. New files among them take the place of the old ones."""
        if self._log_start.new_path in synced:
            self._log_start.settle()
            self.durable_log_start = self._prepared_log_start
        if self._recovery_point.new_path in synced:
            self._recovery_point.settle()
        if self.local.is_there:
            self.local.settle(synced)

    def write_cleaned(self, offset: int) -> None:
        self._cleaner.replace([f"{self._row_start} {offset}"])


def _checked(offset: int) -> list[str]:
    return [str(offset), f"{crc32(str(offset).encode()):08x}"]


def _read_checked(rows: list[str] | None) -> int:
    """Returns 0 if the rows are not those that ``_checked`` gives."""
    offset = _read_offset(rows)
    return offset if rows == _checked(offset) else 0


def _read_offset(rows: list[str] | None) -> int:
    """Returns the offset at the end of a checkpoint's only row, or 0 if there is none."""
    last = rows[0].rpartition(" ")[2] if rows else ""
    return int(last) if last.isdecimal() else 0
