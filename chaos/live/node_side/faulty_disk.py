"""Faults of a live node's disk that begin and end at times: syncs that take longer, and no space left."""

from collections.abc import Sequence

from chaos.live.node_side.evidence import DISK, Evidence
from chaos.trace import PassiveHook
from chaos.watched_disk import Strike, WatchedDisk
from reference_broker.core.events import Effect, Event
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.node_ports import Now
from reference_broker.serve.driver import DriverPowers


class DiskFaults(PassiveHook):
    """Carries out the runner's orders. When an order strikes for the first time, one line of evidence says so."""

    def __init__(self, powers: DriverPowers, evidence: Evidence) -> None:
        self._powers = powers
        self._evidence = evidence
        self._full = False
        self._full_told = False
        self._slow_ms = 0
        self._names_only = False
        self._slow_now_ms = 0
        self._slow_from = 0
        self._slow_told = False

    def order(self, slow_ms: int | None = None, full: bool | None = None, names_only: bool = False) -> None:
        """Takes an order, in another thread than the node's. ``acted`` carries it out in the node's thread. A parameter
        that is None changes nothing."""
        if slow_ms is not None:
            self._slow_told = False
            self._names_only = names_only
            self._slow_ms = slow_ms
        if full is not None:
            self._full_told = False
            self._full = full

    def watch(self, disk: Disk) -> Disk:
        """Returns the disk to give to the node."""
        return WatchedDisk(disk, self._before_write)

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if self._slow_now_ms != self._slow_ms:
            self._slow_now_ms = self._slow_ms
            self._slow_from = self._powers.syncs_delayed
            self._powers.slow_syncs(self._slow_now_ms, self._names_only)
        if self._slow_ms and not self._slow_told and self._powers.syncs_delayed > self._slow_from:
            self._slow_told = True
            what = "syncs of folders" if self._names_only else "syncs"
            self._evidence.tell(DISK, ["disk_slowed", f"{what} take {self._slow_ms} ms longer"])

    def _before_write(self, path: str, position: int, size: int) -> Strike | None:
        if not self._full:
            return None
        if not self._full_told:
            self._full_told = True
            self._evidence.tell(DISK, ["disk_full", f"no space for {size} bytes of {path} at {position}"])
        return Strike(0, lambda: _refuse(path))


def _refuse(path: str) -> None:
    raise DiskError(f"{path}: no space left on device (injected)")
