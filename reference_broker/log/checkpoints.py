"""Kafka's checkpoint files of a partition, and ``partition.metadata``.

The checkpoint format is version, number of rows, rows. Each line ends with a newline. There are three ways to write new
content. They differ in what a power loss may cost:

- ``replace``: losing the newest content is harmless. The rename follows at once, and an unreadable file counts as
  missing.
- ``prepare`` and ``settle``: losing it is not harmless. The rename waits until the new content is durable, and a start
  prefers a whole new file. So the rename itself need not be durable. ``put`` does the same while the caller waits.
- ``overwrite``: older content is as harmless as none. The file is written in place, which spares the folder's sync.
"""

import base64
import binascii
from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

from reference_broker.ports.disk import Disk, DiskError

VERSION = "0"
NEW_SUFFIX = ".new"


class Checkpoint:
    __slots__ = ("disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    @property
    def new_path(self) -> str:
        return self.path + NEW_SUFFIX

    def replace(self, rows: Sequence[str]) -> None:
        self.disk.write(self.new_path, encoded_rows(rows))
        self.disk.rename(self.new_path, self.path)

    def overwrite(self, rows: Sequence[str]) -> None:
        self.disk.write(self.path, encoded_rows(rows))

    def prepare(self, rows: Sequence[str]) -> str:
        """Write the new file and return its path, which must be synced before ``settle``."""
        self.disk.write(self.new_path, encoded_rows(rows))
        return self.new_path

    def settle(self) -> None:
        """Put the new file in the place of the old one. The new file is durable by now."""
        if self.disk.exists(self.new_path):
            self.disk.rename(self.new_path, self.path)

    def put(self, rows: Sequence[str]) -> None:
        """Return when the new content is durable."""
        self.disk.make_durable(self.prepare(rows))
        self.settle()

    def read_and_settle(self, names: Sequence[str]) -> list[str] | None:
        """Do what ``read`` does at a start. If the newest content is in the new file, it is made durable first, since
        the next ``prepare`` writes over that file."""
        rows = self.read(names)
        if rows is not None and rows == self._read(self.new_path, names):
            self.disk.make_durable(self.new_path)
            self.settle()
        return rows

    def read(self, names: Sequence[str]) -> list[str] | None:
        """The newest whole content, given the names in the folder; None if there is none."""
        rows = self._read(self.new_path, names)
        return self._read(self.path, names) if rows is None else rows

    def _read(self, path: str, names: Sequence[str]) -> list[str] | None:
        if path.rpartition("/")[2] not in names:
            return None
        return decoded_rows(self.disk.read(path, 0, self.disk.size(path)))


def encoded_rows(rows: Sequence[str]) -> bytes:
    """The whole file."""
    return "".join(f"{line}\n" for line in (VERSION, str(len(rows)), *rows)).encode()


def decoded_rows(data: bytes) -> list[str] | None:
    """The rows of a file. None if it is not whole."""
    lines = data.decode(errors="replace").split("\n")
    whole = len(lines) >= 3 and lines[0] == VERSION and lines[1] == str(len(lines) - 3) and lines[-1] == ""
    return lines[2:-1] if whole else None


CLEANER_FILE = "cleaner-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
SYNCED_FILE = "synced-offset-checkpoint"


class OffsetCheckpoints:
    """The four files beside a log that keep one offset each. None exists before it is needed.

    - ``recovery_point``: segments that end at or before it were durable, their indexes included.
    - ``synced``: records below it were durable when the file was written. Nothing waits for this file: a killed process
      leaves it, and a power loss may bring back an older one, which is as true. Its second row is a CRC-32 of the
      first, because a start refuses a log that ends below that offset. A damaged file counts as none.
    - ``durable_log_start``: no power loss takes the log start back behind it.
    - The cleaner's offset.

    ``local`` has where the local records begin.
    """

    __slots__ = (
        "_cleaner",
        "_log_start",
        "_prepared_log_start",
        "_recovery_point",
        "_row_start",
        "_synced",
        "_synced_may_rise",
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
        self._synced_may_rise = False
        """An earlier process may have been killed while it lowered the synced offset, so that a power loss would bring
        back the higher one."""

    @property
    def durable_end(self) -> int:
        """Every record below it is known to have been durable."""
        return max(self.recovery_point, self.synced)

    @property
    def durable_end_path(self) -> str:
        """The file that has ``durable_end``."""
        return self._synced.path if self.synced > self.recovery_point else self._recovery_point.path

    def load(self, names: Sequence[str]) -> tuple[int, int]:
        """Read the files, given the names in the folder. Return the cleaned offset and the log start offset."""
        cleaned = _read_offset(self._cleaner.read(names))
        self.durable_log_start = self._prepared_log_start = _read_offset(self._log_start.read_and_settle(names))
        self.recovery_point = _read_offset(self._recovery_point.read_and_settle(names))
        self.synced = _read_checked(self._synced.read(names))
        self._synced_may_rise = SYNCED_FILE in names
        self.local.load(names)
        return cleaned, self.durable_log_start

    def prepare_log_start(self, offset: int) -> str:
        """Return the path to sync."""
        path = self._log_start.prepare([f"{self._row_start} {offset}"])
        self._prepared_log_start = offset
        return path

    @property
    def is_start_durable(self) -> bool:
        """Whether the log start is durable. Below the recovery point, a log that begins after its start lacks
        records."""
        return self.durable_log_start == self._prepared_log_start and self.local.is_durable

    @property
    def durable_start(self) -> int:
        """The offset before which no start needs files, even after a power loss, so they may be deleted."""
        return max(self.durable_log_start, self.local.durable)

    def put_log_start(self, offset: int) -> None:
        """Wait for the disk."""
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
        """Note that records below ``offset`` are durable. If the disk fails, less is known after a crash."""
        with suppress(DiskError):
            self._synced.overwrite(_checked(offset))
            self.synced = offset

    def lower_recovery_point(self, offset: int) -> None:
        """Called when records from ``offset`` on are about to be removed. Their successors are not durable yet, so no
        power loss may bring the higher point back: this waits for the disk. It is rare, since it needs a truncation
        behind a roll."""
        if offset < self.recovery_point:  # Decision recovery-point-cut
            self._recovery_point.put([str(offset)])
            self.recovery_point = offset

    def lower_synced(self, offset: int) -> None:
        """Lower the synced offset, when durable records are about to be removed. This waits for the disk."""
        if offset < self.synced or self._synced_may_rise:
            self._synced_may_rise = True
            self._synced.overwrite(_checked(min(offset, self.synced)))
            self._synced.disk.make_durable(self._synced.path)
            self.synced = min(offset, self.synced)
            self._synced_may_rise = False

    def settle(self, synced: Sequence[str]) -> None:
        """Note that these paths are durable. New files among them replace the old ones."""
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
    """Return 0 if the rows are not those that ``_checked`` gives."""
    offset = _read_offset(rows)
    return offset if rows == _checked(offset) else 0


def _read_offset(rows: list[str] | None) -> int:
    """Return the offset at the end of a checkpoint's only row, or 0 if there is none."""
    last = rows[0].rpartition(" ")[2] if rows else ""
    return int(last) if last.isdecimal() else 0


LOCAL_START_FILE = "local-log-start-checkpoint"
BEGUN = "begun"

EpochStart = tuple[int, int]
"""A leader epoch, and the offset at which it began."""


class LocalStart:
    """The start of a tiered log's local records, in ``local-log-start-checkpoint`` (no file of Kafka's).

    Records below that offset are in the remote tier only. The file keeps the leader epochs of those records too, since
    no local batch has them any more. A log that never dropped a record of the tier has no such file.

    A replica that is emptied to begin at such an offset changes many files. So the file first records, durably, that
    this has begun. A start that finds this record deletes all local records, and the replica fetches again.

    ``offset`` is the one in the file, or 0. ``durable``: no power loss takes it back behind that offset. ``epochs`` are
    those that began before it.
    """

    __slots__ = ("_checkpoint", "_disk", "_prepared", "durable", "epochs", "has_begun", "is_there", "offset")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._checkpoint = Checkpoint(disk, f"{directory}/{LOCAL_START_FILE}")
        self.offset = self.durable = self._prepared = 0
        self.epochs: Sequence[EpochStart] = ()
        self.has_begun = False
        """A replica was being emptied, and the records in its directory are void."""
        self.is_there = False

    def load(self, names: Sequence[str]) -> None:
        """Read the file, given the names in the folder. Raise DiskError."""
        rows = self._checkpoint.read_and_settle(names)
        self.is_there = rows is not None
        if not rows:
            return
        self.has_begun = rows == [BEGUN]
        if not self.has_begun:
            self.offset = self.durable = self._prepared = int(rows[0])
            self.epochs = [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows[1:])]

    @property
    def is_durable(self) -> bool:
        return self.durable == self._prepared

    def prepare(self, offset: int, epochs: Sequence[EpochStart]) -> str:
        """Local records begin at ``offset`` once the path that is returned is synced."""
        self.is_there = True
        path = self._checkpoint.prepare(_rows(offset, epochs))
        self.offset = self._prepared = offset
        self.epochs = epochs
        return path

    def settle(self, synced: Sequence[str]) -> None:
        if self._checkpoint.new_path in synced:
            self._checkpoint.settle()
            self.durable = self._prepared

    def begin(self) -> None:
        """Records that the directory is being emptied. Waits for the disk."""
        self._checkpoint.put([BEGUN])
        self.offset = self.durable = self._prepared = 0
        self.is_there = self.has_begun = True

    def finish(self, offset: int, epochs: Sequence[EpochStart]) -> None:
        """Called when all other files are durable, and the log begins at ``offset``. Waits for the disk."""
        self._checkpoint.put(_rows(offset, epochs))
        self.offset = self.durable = self._prepared = offset
        self.epochs = epochs
        self.has_begun = False

    def forget(self) -> None:
        """Delete the file, since all records are local. Wait for the disk: it must not come back when there are new
        records."""
        if not self.is_there:
            return
        self._disk.delete(self._checkpoint.new_path)
        self._disk.delete(self._checkpoint.path)
        self._disk.make_durable(self._checkpoint.path)
        self.offset = self.durable = self._prepared = 0
        self.epochs = ()
        self.is_there = self.has_begun = False


def _rows(offset: int, epochs: Sequence[EpochStart]) -> list[str]:
    return [str(offset), *(f"{epoch} {start}" for epoch, start in epochs)]


PARTITION_METADATA_FILE = "partition.metadata"
TOPIC_ID_BYTES = 16
MAX_DAMAGED_BITS = 12
"""One letter of the file stands for 6 bits of the ID."""


def write_partition_metadata(disk: Disk, directory: str, topic_id: bytes) -> str:
    """Write Kafka's ``partition.metadata`` file, version 0 (KIP-516), which names the topic of a directory.

    Topic names are used again. Without the ID, records of a deleted topic would come back as those of a new one.
    Return the path, which must be synced with the first records. Raise DiskError.
    """
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    disk.write(path, f"version: 0\ntopic_id: {text}".encode())
    return path


def is_damaged_copy(stored_id: bytes, topic_id: bytes) -> bool:
    """Return whether an ID that was read is the topic's, with some bits turned over. The file has no checksum. IDs of
    different topics are random, and so differ in about half of their bits."""
    differing = int.from_bytes(stored_id, "big") ^ int.from_bytes(topic_id, "big")
    return differing.bit_count() <= MAX_DAMAGED_BITS


def read_partition_metadata(disk: Disk, directory: str) -> bytes | None:
    """Return the topic's ID, or None if there is no readable file, as after a power loss before the first sync. Raise
    DiskError."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    if not disk.exists(path):
        return None
    lines = disk.read(path, 0, disk.size(path)).decode(errors="replace").splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    try:
        topic_id = base64.urlsafe_b64decode(values.get("topic_id", "") + "==")
    except (binascii.Error, ValueError):
        return None
    return topic_id if len(topic_id) == TOPIC_ID_BYTES else None
