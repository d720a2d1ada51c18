"""Who fetches which snapshot, and since when nobody has advanced: a superseded snapshot stays while one does (S-15)."""

from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch

MOST_REPLICAS = 64
"""Of one snapshot; the one heard of longest ago is forgotten."""


class SnapshotReaders:
    """By snapshot: the position that each replica asked for last, and when one of them last asked for a later one."""

    __slots__ = ("_advanced_us", "_positions")

    def __init__(self) -> None:
        self._positions: dict[OffsetAndEpoch, dict[int, int]] = {}
        self._advanced_us: dict[OffsetAndEpoch, int] = {}

    def asked(self, snapshot: OffsetAndEpoch, replica_id: int, position: int, now_us: int) -> None:
        """Asking for the same bytes again is no advance, nor is starting anew; the first bytes of all are."""
        positions = self._positions.setdefault(snapshot, {})
        before = positions.pop(replica_id, -1)
        positions[replica_id] = position
        if len(positions) > MOST_REPLICAS:
            del positions[next(iter(positions))]
        if position > before:
            self._advanced_us[snapshot] = now_us

    def advanced_us(self, snapshot: OffsetAndEpoch) -> int | None:
        """None: nobody ever asked."""
        return self._advanced_us.get(snapshot)

    def forget(self, snapshot: OffsetAndEpoch) -> None:
        self._positions.pop(snapshot, None)
        self._advanced_us.pop(snapshot, None)
