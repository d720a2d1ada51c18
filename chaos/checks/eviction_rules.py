"""eviction-rules: only the three rules of F-18 evict, and never more sessions live than there are slots (F-17)."""

import json

from chaos.checks.check import Check
from chaos.trace import TraceRow

MIN_EVICTION_MS = 120_000


class EvictionRules(Check):
    guarantee = "eviction-rules"
    rows = ("session_created", "session_closed", "session_evicted")

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots
        self._alive: dict[int, dict[int, None]] = {}
        self._incarnations: dict[int, int] = {}

    def trace(self, row: TraceRow) -> None:
        if not row.what.startswith("session_"):
            return
        if self._incarnations.get(row.node) != row.incarnation:
            self._incarnations[row.node] = row.incarnation
            self._alive[row.node] = {}
        alive = self._alive[row.node]
        fields = json.loads(row.detail)
        if row.what == "session_created":
            alive[fields["session_id"]] = None
            if len(alive) > self._slots:
                self.violated(row.at_us, f"{len(alive)} sessions live in {self._slots} slots")
            return
        alive.pop(fields["session_id"], None)
        if row.what == "session_evicted" and not _allowed(fields):
            self.violated(row.at_us, f"no rule allows this eviction: {row.detail}")


def _allowed(fields: dict[str, int]) -> bool:
    by_follower = bool(fields["by_privileged"]) and not fields["privileged"]
    long_idle = fields["idle_ms"] > MIN_EVICTION_MS
    outgrown = fields["age_ms"] > MIN_EVICTION_MS and fields["by_partitions"] > fields["partitions"]
    return by_follower or long_idle or outgrown
