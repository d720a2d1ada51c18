"""Snapshots as far as the quorum sees them: names that stand in files, and a transfer that takes time and may fail."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reference_broker.ports.disk import Disk
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.values import Failed, Installed, LeaderChanged, OffsetAndEpoch, Outcome, Rediscover

if TYPE_CHECKING:
    from reference_broker.quorum.tests.quorum_world import Process

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


class TimedDownload:
    """Each of three pieces takes a while; then the leader's answer decides."""

    def __init__(self, process: "Process", log: MetadataLog) -> None:
        self.process = process
        self.log = log
        self.number = 0

    def cancel(self) -> None:
        self.number += 1

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002, ARG002
        return 0

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002
        progress: Callable[[], None],
        outcome: Callable[[Outcome], None],
    ) -> None:
        self.number += 1
        number = self.number

        def step(left: int) -> None:
            if number != self.number:
                return
            result = self._judge(leader, leader_epoch, id)
            if result is None and left:
                progress()
                self.process.after(5_000, lambda: step(left - 1))
            else:
                outcome(result or self._installed(id))

        self.process.after(5_000, lambda: step(2))

    def _judge(self, leader: int, leader_epoch: int, id: OffsetAndEpoch) -> Outcome | None:  # noqa: A002
        world = self.process.world
        other = world.processes.get(leader)
        links = world.network.lets(leader, self.process.node_id) and world.network.lets(self.process.node_id, leader)
        if other is None or other.paused or not links:
            return Failed()
        if other.quorum.epoch != leader_epoch or not other.quorum.is_leader:
            return LeaderChanged(other.quorum.leader_id, other.quorum.epoch)
        if id not in other.snapshots.ids:
            return Rediscover()
        other.quorum.contacted(self.process.node_id)
        return None

    def _installed(self, id: OffsetAndEpoch) -> Outcome:  # noqa: A002
        self.process.snapshots.add(id)
        self.log.install_snapshot(self.process.now(), id)
        self.process.snapshots.drop_older(id)
        return Installed(id)
