"""Reads a snapshot to its end before it is served, so that no node downloads damaged bytes again and again."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Surroundings
from reference_broker.ports.timing import run_slices
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.snapshots.format import SnapshotDamaged, read_batches
from reference_broker.quorum.snapshots.store import SnapshotStore

BYTES_PER_SLICE = 2**20
"""One event checks this much, in less than 3 ms."""
GOOD_FOR_US = 10_000_000
"""A snapshot is not read again within this time, however many downloads begin."""


@dataclass(slots=True, eq=False)
class SnapshotChecks:
    """A snapshot is checked when somebody begins to download it, because bytes can go bad at any time. A damaged one is
    noted in the store, and ``on_damaged`` is called once for it.

    ``_good_us`` holds when a snapshot was last found to be whole, and ``_waiting`` who waits for a check.
    """

    _surroundings: Surroundings
    _store: SnapshotStore
    on_damaged: Callable[[], None] = lambda: None
    _good_us: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    _waiting: dict[OffsetAndEpoch, list[Callable[[], None]]] = field(default_factory=dict)

    def before_serving(self, snapshot: OffsetAndEpoch, position: int, then: Callable[[], None]) -> None:
        """Calls ``then`` when the bytes from ``position`` on may be served, or the snapshot is known to be damaged. It
        calls at once if a check is not due, or takes only one slice."""
        waiting = self._waiting.get(snapshot)
        if waiting is not None:
            waiting.append(then)
        elif self._is_due(snapshot, position):
            self._waiting[snapshot] = [then]
            run_slices(self._surroundings.ports, self._checking(snapshot), lambda: self._checked(snapshot))
        else:
            then()

    def _is_due(self, snapshot: OffsetAndEpoch, position: int) -> bool:
        if not self._store.holds(snapshot) or snapshot in self._store.damaged:
            return False
        good_us = self._good_us.get(snapshot)
        return good_us is None or (position == 0 and self._surroundings.now_us - good_us >= GOOD_FOR_US)

    def _checking(self, snapshot: OffsetAndEpoch) -> Generator[None, None, None]:
        checked = 0
        try:
            for batch in read_batches(self._surroundings.disk, self._store.path(snapshot), snapshot):
                checked += batch.header.size_bytes
                if checked >= BYTES_PER_SLICE:
                    checked = 0
                    yield
        except (SnapshotDamaged, DiskError) as damage:
            if self._store.holds(snapshot):  # It may have been deleted between two slices.
                self._found_damaged(snapshot, str(damage))
        else:
            self._good_us = {each: at for each, at in self._good_us.items() if self._store.holds(each)}
            self._good_us[snapshot] = self._surroundings.now_us

    def _found_damaged(self, snapshot: OffsetAndEpoch, why: str) -> None:
        self._store.damaged[snapshot] = why
        self._good_us.pop(snapshot, None)
        self._surroundings.ports.note(
            "snapshot_damaged", ("end_offset", snapshot.offset), ("epoch", snapshot.epoch), ("why", why)
        )
        self.on_damaged()

    def _checked(self, snapshot: OffsetAndEpoch) -> None:
        for then in self._waiting.pop(snapshot):
            then()
