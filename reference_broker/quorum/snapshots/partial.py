"""The files of a snapshot that is being downloaded: its bytes so far, and how many of them a restart may trust (S-11).

The progress file beside the bytes first names the leader and the snapshot. After each piece it gets an entry with the
length reached and the CRC-32C of all bytes up to there. Each entry has a CRC of its own. A crash may lose or tear the
unsynced tail of either file. So a restart keeps the longest length whose CRC fits the bytes on disk, and cuts off the
rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from crc32c import crc32c

from reference_broker.ports.coroutines import Wait
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import SNAPSHOT_BYTES_PER_SLICE, Sliced
from reference_broker.quorum.snapshots.format import part_path, progress_path
from reference_broker.quorum.values import OffsetAndEpoch

UNKNOWN_SIZE = -1

_ORIGIN = Struct(">iqiq")
_ENTRY = Struct(">qI")
_CHECK = Struct(">I")
_ORIGIN_BYTES = _ORIGIN.size + _CHECK.size
_ENTRY_BYTES = _ENTRY.size + _CHECK.size


@dataclass(slots=True, eq=False)
class Partial:
    """A snapshot that is being downloaded. Its progress file makes it safe to resume the download (S-11)."""

    disk: Disk
    leader: int
    id: OffsetAndEpoch
    size: int
    """Bytes of the whole snapshot, or UNKNOWN_SIZE if the leader does not send it (S-17)."""
    length: int = 0
    """The number of bytes received, from the snapshot's start."""
    crc: int = 0
    """The CRC-32C of these bytes."""
    synced: int = 0
    """The number of bytes that survive a power loss."""

    @property
    def paths(self) -> tuple[str, str]:
        """Both files. They are synced together."""
        return part_path(self.id), progress_path(self.id)

    @property
    def is_whole(self) -> bool:
        return self.length == self.size

    def begin(self) -> None:
        """Create both files, or replace them. Raise DiskError."""
        part, progress = self.paths
        self.disk.write(part, b"")
        self.disk.write(progress, _checked(_ORIGIN.pack(self.leader, self.id.offset, self.id.epoch, self.size)))

    def append(self, data: bytes | memoryview) -> None:
        """Append ``data`` at ``length``. After a DiskError nothing of it is kept. Raise UndoFailed if the part that
        was written could not be cut."""
        part, progress = self.paths
        crc = int(crc32c(data, self.crc))
        self.disk.append(part, [data])
        try:
            self.disk.append(progress, [_checked(_ENTRY.pack(self.length + len(data), crc))])
        except DiskError as failure:
            try:
                self.disk.truncate(part, self.length)
            except DiskError:
                raise UndoFailed(f"cannot undo an append to {part}") from failure
            raise
        self.length += len(data)
        self.crc = crc

    async def sync(self, ports: Ports) -> None:
        """Wait until everything appended so far survives a power loss."""
        length = self.length
        if length and self.synced == length:
            return

        def begin(resume: Callable[[None], None]) -> None:
            def done() -> None:
                self.synced = max(self.synced, length)  # Even if the transfer was cancelled meanwhile.
                resume(None)

            ports.sync(self.paths, done)

        await Wait(begin)


def read_partial(disk: Disk, snapshot: OffsetAndEpoch) -> Sliced[Partial | None]:
    """Read the files of a download that an earlier process wrote, and cut off what cannot be trusted.

    The result has length 0 if no length fits its CRC. It is None if even the entry with leader and snapshot cannot be
    read. Raise DiskError.
    """
    part, progress = part_path(snapshot), progress_path(snapshot)
    if not (disk.exists(part) and disk.exists(progress)):
        return None
    journal = disk.read(progress, 0, disk.size(progress))
    origin = _read(_ORIGIN, journal, 0)
    if origin is None or OffsetAndEpoch(origin[1], origin[2]) != snapshot:
        return None
    partial = Partial(disk, leader=origin[0], id=snapshot, size=origin[3])
    good = yield from _longest(disk, partial, part, journal)
    disk.truncate(part, partial.length)
    disk.truncate(progress, good)
    return partial


def _longest(disk: Disk, partial: Partial, part: str, journal: bytes) -> Sliced[int]:
    """Set the length and CRC of ``partial``. Returns how many bytes of the progress file lead up to that length."""
    size_bytes = disk.size(part)
    position, crc, good = 0, 0, _ORIGIN_BYTES
    at = _ORIGIN_BYTES
    while (entry := _read(_ENTRY, journal, at)) is not None and position < entry[0] <= size_bytes:
        while position < entry[0]:
            piece = disk.read(part, position, min(SNAPSHOT_BYTES_PER_SLICE, entry[0] - position))
            crc = int(crc32c(piece, crc))
            position += len(piece)
            yield
        at += _ENTRY_BYTES
        if crc == entry[1]:  # Decision partial-snapshot-intact
            partial.length, partial.crc, good = position, crc, at
    return good


def _checked(data: bytes) -> bytes:
    return data + _CHECK.pack(crc32c(data))


def _read(layout: Struct, data: bytes, at: int) -> tuple[int, ...] | None:
    """Return None for an entry that is cut or damaged."""
    end = at + layout.size
    if len(data) < end + _CHECK.size or _CHECK.unpack_from(data, end)[0] != crc32c(data[at:end]):
        return None
    return layout.unpack_from(data, at)
