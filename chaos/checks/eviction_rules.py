"""eviction-rules: only the three rules of F-18 evict, and never more sessions live than there are slots (F-17)."""

from typing import Any, ClassVar

from chaos.checks.session_trace import SessionTrace
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

MIN_EVICTION_MS = 120_000
"""The least time that a session of the final revision lives. For the first revision's sessions it is a setting."""


class EvictionRules(SessionTrace):
    guarantee = "eviction-rules"
    rows: ClassVar[tuple[str, ...]] = ("session_created", "session_closed", "session_evicted")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._alive: dict[int, dict[int, int]] = {}
        """by node: sessions, each with the least time that it lives"""

    def _restarted(self, node_id: int) -> None:
        self._alive[node_id] = {}

    def _created(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:
        alive, settings = self._alive[row.node], self.around.settings
        is_first = fields.get("revision") == "first"
        alive[session_id] = settings.min_eviction_ms if is_first else MIN_EVICTION_MS
        if len(alive) > settings.session_slots:
            self.violated(row.at_us, f"{len(alive)} sessions live in {settings.session_slots} slots")

    def _ended(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:
        min_ms = self._alive[row.node].pop(session_id, MIN_EVICTION_MS)
        if row.what == "session_evicted" and not _allowed(fields, min_ms):
            self.violated(row.at_us, f"no rule allows this eviction: {row.detail}")


def _allowed(fields: dict[str, int], min_ms: int) -> bool:
    by_follower = bool(fields["by_privileged"]) and not fields["privileged"]
    long_idle = fields["idle_ms"] > min_ms
    outgrown = fields["age_ms"] > min_ms and fields["by_partitions"] > fields["partitions"]
    return by_follower or long_idle or outgrown
