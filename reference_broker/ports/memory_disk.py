"""A disk in memory for tests of the log. It keeps everything that is appended, and fails on demand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference_broker.ports.disk import Buffer, DiskError


@dataclass(slots=True)
class MemoryDisk:
    """``files`` holds the content by path. ``fail_after`` is the number of changes that still succeed. After them every
    change raises DiskError. With None no change fails. ``appends`` and ``reads`` count these calls."""

    files: dict[str, bytearray] = field(default_factory=dict)
    fail_after: int | None = None
    appends: int = 0
    reads: int = 0

    def copy(self) -> "MemoryDisk":
        return MemoryDisk({path: bytearray(content) for path, content in self.files.items()})

    def list(self, directory: str) -> Sequence[str]:
        start = f"{directory}/" if directory else ""
        return sorted({path[len(start) :].split("/", 1)[0] for path in self.files if path.startswith(start)})

    def exists(self, path: str) -> bool:
        return path in self.files or any(other.startswith(f"{path}/") for other in self.files)

    def size(self, path: str) -> int:
        return len(self._file(path))

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._change(path)
        self.appends += 1
        content = self.files.setdefault(path, bytearray())
        size = len(content)
        for buffer in buffers:
            content += buffer
        return size

    def read(self, path: str, position: int, length: int) -> bytes:
        self.reads += 1
        with memoryview(self._file(path)) as content:
            return bytes(content[position : position + length])

    def truncate(self, path: str, size: int) -> None:
        content = self._file(path)
        self._change(path)
        del content[size:]

    def write(self, path: str, data: Buffer) -> None:
        self._change(path)
        self.files[path] = bytearray(data)

    def rename(self, source: str, target: str) -> None:
        self._change(source)
        moved = [path for path in self.files if path == source or path.startswith(f"{source}/")]
        if not moved:
            raise DiskError(f"{source}: no such file")
        for path in moved:
            self.files[target + path[len(source) :]] = self.files.pop(path)

    def delete(self, path: str) -> None:
        self._change(path)
        for gone in [other for other in self.files if other == path or other.startswith(f"{path}/")]:
            del self.files[gone]

    def make_durable(self, path: str) -> None:
        """There is no power loss here."""

    def _file(self, path: str) -> bytearray:
        content = self.files.get(path)
        if content is None:
            raise DiskError(f"{path}: no such file")
        return content

    def _change(self, path: str) -> None:
        if self.fail_after is None:
            return
        if self.fail_after == 0:
            raise DiskError(f"{path}: made to fail")
        self.fail_after -= 1
