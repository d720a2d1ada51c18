"""A disk that knows what each file keeps in a power loss: the synced bytes, and a torn part of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from reference_broker.ports.disk import Buffer, MemoryDisk


@dataclass(slots=True)
class LossyDisk(MemoryDisk):
    """``durable``: bytes by path that are safe."""

    durable: dict[str, int] = field(default_factory=dict)

    def synced(self, sizes: dict[str, tuple[int, bytearray]]) -> None:
        """End a sync that began at these sizes. Files that were replaced or truncated meanwhile are not covered."""
        for path, (size, content) in sizes.items():
            if self.files.get(path) is content:
                self.durable[path] = max(self.durable.get(path, 0), min(size, len(content)))

    def begin_sync(self, paths: Sequence[str]) -> dict[str, tuple[int, bytearray]]:
        return {path: (len(self.files[path]), self.files[path]) for path in paths if path in self.files}

    def power_loss(self, random: Random) -> None:
        for path, content in list(self.files.items()):
            safe = min(self.durable.get(path, 0), len(content))
            keep = safe + random.randrange(len(content) - safe + 1)
            self.files[path] = content[:keep]
            self.durable[path] = keep

    def truncate(self, path: str, size: int) -> None:
        # Not super(): a slotted dataclass is another class than the one that super() would mean.
        MemoryDisk.truncate(self, path, size)
        self.durable[path] = min(self.durable.get(path, 0), size)

    def write(self, path: str, data: Buffer) -> None:
        MemoryDisk.write(self, path, data)
        self.durable[path] = 0

    def rename(self, source: str, target: str) -> None:
        MemoryDisk.rename(self, source, target)
        self.durable[target] = self.durable.pop(source, 0)

    def delete(self, path: str) -> None:
        MemoryDisk.delete(self, path)
        for gone in [each for each in self.durable if each not in self.files]:
            del self.durable[gone]
