"""Small text files in Kafka's checkpoint format: version, number of rows, rows. Each line ends with a newline.

There are three ways to write new content. They differ in what a power loss may cost:

- ``replace``: losing the newest content is harmless. The rename follows at once, and an unreadable file counts as
  missing.
- ``prepare`` and ``settle``: losing it is not harmless. The rename waits until the new content is durable, and a start
  prefers a whole new file. So the rename itself need not be durable. ``put`` does the same while the caller waits.
- ``overwrite``: older content is as harmless as none. The file is written in place, which spares the folder's sync.
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
        self.disk.write(self.new_path, encoded_rows(rows))
        self.disk.rename(self.new_path, self.path)

    def overwrite(self, rows: Sequence[str]) -> None:
        self.disk.write(self.path, encoded_rows(rows))

    def prepare(self, rows: Sequence[str]) -> str:
        """Writes the new file and returns its path, which must be synced before ``settle``."""
        self.disk.write(self.new_path, encoded_rows(rows))
        return self.new_path

    def settle(self) -> None:
        """Puts the new file in the place of the old one. The new file is durable by now."""
        if self.disk.exists(self.new_path):
            self.disk.rename(self.new_path, self.path)

    def put(self, rows: Sequence[str]) -> None:
        """Returns when the new content is durable."""
        self.disk.make_durable(self.prepare(rows))
        self.settle()

    def read_and_settle(self, names: Sequence[str]) -> list[str] | None:
        """Does what ``read`` does at a start. If the newest content is in the new file, it is made durable first, since
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
