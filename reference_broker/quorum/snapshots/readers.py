"""Tracks which replicas download which snapshot. A superseded snapshot stays while one of them advances (S-15)."""

from dataclasses import dataclass, field

from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch

MOST_REPLICAS = 64
"""How many replicas are tracked for one snapshot. Beyond it, the one that asked longest ago is forgotten."""


@dataclass(slots=True, eq=False)
class SnapshotReaders:
    """Holds, for each snapshot, the last position that each replica asked for, and when one of them last advanced."""

    _positions: dict[OffsetAndEpoch, dict[int, int]] = field(default_factory=dict)
    _advanced_us: dict[OffsetAndEpoch, int] = field(default_factory=dict)

    def asked(self, snapshot: OffsetAndEpoch, replica_id: int, position: int, now_us: int) -> None:
        """Notes a request. The first request of a replica counts as an advance. A request for the same bytes again, or
        from the beginning again, does not."""
        positions = self._positions.setdefault(snapshot, {})
        before = positions.pop(replica_id, -1)
        positions[replica_id] = position
        if len(positions) > MOST_REPLICAS:
            del positions[next(iter(positions))]
        if position > before:
            self._advanced_us[snapshot] = now_us

    def advanced_us(self, snapshot: OffsetAndEpoch) -> int | None:
        """When a replica last advanced, or None if no replica ever asked."""
        return self._advanced_us.get(snapshot)

    def forget(self, snapshot: OffsetAndEpoch) -> None:
        self._positions.pop(snapshot, None)
        self._advanced_us.pop(snapshot, None)
