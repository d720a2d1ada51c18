"""Makes the metadata log durable. One sync is in flight at a time, and all appends made meanwhile share the next."""

from collections.abc import Callable

from reference_broker.log.durability import SyncPoint
from reference_broker.ports.node_ports import Ports
from reference_broker.quorum.metadata_log import MetadataLog


class LogSync:
    """``flying`` holds the callbacks that wait for the sync in flight, or None if there is no sync in flight. ``next``
    holds those that wait for the sync after it."""

    __slots__ = ("_log", "_ports", "flying", "next")

    def __init__(self, log: MetadataLog, ports: Ports) -> None:
        self._log = log
        self._ports = ports
        self.flying: list[Callable[[], None]] | None = None
        self.next: list[Callable[[], None]] = []

    def request(self, done: Callable[[], None]) -> None:
        """Calls ``done`` when everything that is in the log now is durable, or at once if it already is."""
        if self.flying is None and self._log.is_durable:
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
        landed, self.flying = self.flying or [], None
        if self.next:
            self._fly()
        for done in landed:
            done()
