"""Snapshots as the quorum sees them: names of files."""

from dataclasses import dataclass, field

from reference_broker.ports.disk import Disk
from reference_broker.quorum.values import OffsetAndEpoch

DIRECTORY = "__cluster_metadata-0"


@dataclass
class NamedSnapshots:
    """``ids``: ascending, of the files on the disk."""

    disk: Disk
    ids: list[OffsetAndEpoch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scan()

    def _scan(self) -> None:
        names = [name.removesuffix(".checkpoint") for name in self.disk.list(DIRECTORY) if name.endswith(".checkpoint")]
        self.ids = [OffsetAndEpoch(int(name[:20]), int(name[21:])) for name in names]

    @property
    def latest(self) -> OffsetAndEpoch | None:
        return self.ids[-1] if self.ids else None

    @property
    def oldest(self) -> OffsetAndEpoch | None:
        return self.ids[0] if self.ids else None

    def add(self, id: OffsetAndEpoch) -> None:  # noqa: A002
        self.disk.write(self.path(id), b"")
        self._scan()

    def drop_older(self, id: OffsetAndEpoch) -> None:  # noqa: A002
        for each in self.ids:
            if each.offset < id.offset:
                self.disk.delete(self.path(each))
        self._scan()

    def path(self, id: OffsetAndEpoch) -> str:  # noqa: A002
        return f"{DIRECTORY}/{id.offset:020}-{id.epoch:010}.checkpoint"
