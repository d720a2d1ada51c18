"""Quarantine of logs with damage that is no torn tail.

The damaged bytes were durable once, and have changed.

The damaged segment and all later ones are set aside: they are renamed to ``<name>.damaged``. The file ``quarantine``
has the reason. While it is there, the replica may follow a leader, which fills the log again, but it must not lead,
since it may lack records that were acknowledged. It goes when the log holds everything again that the leader has
committed. The file ``quarantine-history`` stays. It distinguishes such a log from an empty one on a new disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reference_broker.log.checkpoints import Checkpoint, OffsetCheckpoints
from reference_broker.log.segment import NAME_DIGITS, new_segment
from reference_broker.ports.disk import Disk

FILE_NAME = "quarantine"
HISTORY_FILE_NAME = "quarantine-history"
ASIDE_SUFFIX = ".damaged"
LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage in a file of a log."""

    path: str
    position: int
    """The first bad byte of the file."""
    offset: int
    """The first one whose record is in doubt."""
    why: str

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.position} (offset {self.offset}: {self.why})"


class LogDamaged(Exception):  # noqa: N818 - says what was found
    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The reason why a log must not be led."""

    until: int
    """The smallest possible end of the log before the damage."""
    why: str


def is_segment(name: str) -> bool:
    stem = name.removesuffix(LOG_SUFFIX)
    return stem != name and len(stem) == NAME_DIGITS and stem.isdecimal()


def read_quarantine(disk: Disk, directory: str, names: Sequence[str]) -> Quarantine | None:
    """Raise DiskError. A file that cannot be read counts, too: it was there for a reason."""
    if FILE_NAME not in names:
        return None
    rows = Checkpoint(disk, f"{directory}/{FILE_NAME}").read(names) or []
    until = rows[0] if rows else ""
    return Quarantine(int(until) if until.isdecimal() else 0, rows[1] if len(rows) > 1 else "its reason is unreadable")


def was_quarantined(disk: Disk, directory: str) -> bool:
    """Return whether the log in this directory was in quarantine once, or still is. Raise DiskError."""
    return disk.exists(f"{directory}/{HISTORY_FILE_NAME}")


def set_aside(disk: Disk, directory: str, damage: Damage, durable_before: int) -> None:
    """Rename the damaged segment and all later ones, last first. The names are durable when it returns, so the caller
    waits for the disk. Raise DiskError."""
    names = disk.list(directory)
    first = int(damage.path.rpartition("/")[2][:NAME_DIGITS])
    bases = [base for base in sorted(int(name[:NAME_DIGITS]) for name in names if is_segment(name)) if base >= first]
    marker = Checkpoint(disk, f"{directory}/{FILE_NAME}")
    earlier = read_quarantine(disk, directory, names)
    until = max(durable_before, *bases, earlier.until if earlier is not None else 0)
    rows = [str(until), str(damage)]
    Checkpoint(disk, f"{directory}/{HISTORY_FILE_NAME}").put(rows)
    marker.put(rows)
    for base in reversed(bases):
        segment = new_segment(directory, base, 0)
        segment.delete_indexes(disk)
        disk.rename(segment.path, _free(disk, segment.path))
    disk.make_durable(marker.path)


def set_all_aside(disk: Disk, directory: str, cause: str, why: str) -> None:
    """Do what ``set_aside`` does, with all segments of a log, and then with the file ``cause``. Raise DiskError."""
    names = disk.list(directory)
    first = min((int(name[:NAME_DIGITS]) for name in names if is_segment(name)), default=0)
    checkpoints = OffsetCheckpoints(disk, directory)
    checkpoints.load(names)
    damage = Damage(new_segment(directory, first, 0).path, 0, first, why)
    set_aside(disk, directory, damage, checkpoints.durable_end)
    path = f"{directory}/{cause}"
    disk.rename(path, _free(disk, path))


def begin_lost(disk: Disk, directory: str, until: int) -> None:
    """Begin a log in quarantine. Its directory is gone, and it had the records up to the offset ``until`` when the
    node stopped cleanly. Waits for the disk. Raise DiskError."""
    path = new_segment(directory, 0, 0).path
    set_aside(disk, directory, Damage(path, 0, 0, "the directory is gone, although the node stopped cleanly"), until)


def _free(disk: Disk, path: str) -> str:
    """A name for the file that is kept aside. One from an earlier time stays."""
    aside, number = f"{path}{ASIDE_SUFFIX}", 1
    while disk.exists(aside):
        number += 1
        aside = f"{path}.{number}{ASIDE_SUFFIX}"
    return aside
