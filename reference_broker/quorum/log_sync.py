"""Makes the metadata log durable. One sync is in flight at a time, and all appends made meanwhile share the next.

What is synced may be told to others at once: a leader counts it, a follower names it. So each sync is noted beside the
log. A start never cuts what was noted, because others may rely on it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.log.durability import SyncPoint
from reference_broker.log.partition_log import PartitionLog
from reference_broker.ports.node_ports import Ports


@dataclass(slots=True, eq=False)
class LogSync:
    """``flying`` holds the callbacks that wait for the sync in flight, or None if there is no sync in flight. ``next``
    holds those that wait for the sync after it."""

    _log: PartitionLog
    _ports: Ports
    flying: list[Callable[[], None]] | None = None
    next: list[Callable[[], None]] = field(default_factory=list)

    def request(self, done: Callable[[], None]) -> None:
        """Calls ``done`` when everything that is in the log now is durable, or at once if it already is."""
        if self.flying is None and not self._log.durability.dirty:
            done()
            return
        self.next.append(done)
        if self.flying is None:
            self._fly()

    def _fly(self) -> None:
        self.flying, self.next = self.next, []
        point = self._log.sync_point()
        self._ports.sync(point.paths, lambda: self._landed(point))

    def _landed(self, point: SyncPoint) -> None:
        self._log.mark_synced(point)
        self._log.note_synced()
        landed, self.flying = self.flying or [], None
        if self.next:
            self._fly()
        for done in landed:
            done()
