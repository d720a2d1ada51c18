"""Small text files in Kafka's checkpoint format: version, number of rows, rows. Each line ends with a newline.

There are three ways to write new content. They differ in what a power loss may cost:

- ``replace`` is for files whose newest content may be lost. It writes a second file and renames it at once. A file that
  cannot be read counts as missing.
- ``prepare`` and ``settle`` are for files whose content must not be lost. The second file is renamed only once it is
  durable. Until then a reader prefers it, if it is whole.
- ``overwrite`` is for files whose whole content may be lost. It writes in place, because a rename costs a sync of the
  folder.
"""

from collections.abc import Sequence

from reference_broker.ports.disk import Disk

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
        self.disk.write(self.new_path, _encode(rows))
        self.disk.rename(self.new_path, self.path)

    def overwrite(self, rows: Sequence[str]) -> None:
        self.disk.write(self.path, _encode(rows))

    def prepare(self, rows: Sequence[str]) -> str:
        """Writes the new file and returns its path, which must be synced before ``settle``."""
        self.disk.write(self.new_path, _encode(rows))
        return self.new_path

    def settle(self) -> None:
        """Puts the new file in the place of the old one. The new file is durable by now."""
        if self.disk.exists(self.new_path):
            self.disk.rename(self.new_path, self.path)

    def read(self, names: Sequence[str]) -> list[str] | None:
        """Returns the rows of the newest file that is whole, or None if there is none. ``names`` are the names of the
        files in the folder."""
        for path in (self.new_path, self.path):
            if path.rpartition("/")[2] in names:
                rows = _decode(self.disk.read(path, 0, self.disk.size(path)))
                if rows is not None:
                    return rows
        return None


def _encode(rows: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in (VERSION, str(len(rows)), *rows)).encode()


def _decode(data: bytes) -> list[str] | None:
    lines = data.decode(errors="replace").split("\n")
    whole = len(lines) >= 3 and lines[0] == VERSION and lines[1] == str(len(lines) - 3) and lines[-1] == ""
    return lines[2:-1] if whole else None
