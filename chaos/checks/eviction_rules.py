"""eviction-rules: only the three rules of F-18 evict, and never more sessions live than there are slots (F-17)."""

import json
from typing import Self

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

MIN_EVICTION_MS = 120_000
"""A constant of the final revision; of the first it is a setting."""


class EvictionRules(Check):
    guarantee = "eviction-rules"
    rows = ("session_created", "session_closed", "session_evicted")

    def __init__(self, slots: int, first_revision_min_ms: int = MIN_EVICTION_MS) -> None:
        super().__init__()
        self._min_ms = {"final": MIN_EVICTION_MS, "first": first_revision_min_ms}
        self._slots = slots
        self._alive: dict[int, dict[int, int]] = {}
        """by node: sessions, each with the least time that it lives"""
        self._incarnations: dict[int, int] = {}

    @classmethod
    def made(cls, around: Surroundings) -> Self:
        return cls(around.settings.session_slots, around.settings.min_eviction_ms)

    def trace(self, row: TraceRow) -> None:
        if not row.what.startswith("session_"):
            return
        if self._incarnations.get(row.node) != row.incarnation:
            self._incarnations[row.node] = row.incarnation
            self._alive[row.node] = {}
        alive = self._alive[row.node]
        fields = json.loads(row.detail)
        if row.what == "session_created":
            alive[fields["session_id"]] = self._min_ms.get(fields.get("revision", "final"), MIN_EVICTION_MS)
            if len(alive) > self._slots:
                self.violated(row.at_us, f"{len(alive)} sessions live in {self._slots} slots")
            return
        min_ms = alive.pop(fields["session_id"], MIN_EVICTION_MS)
        if row.what == "session_evicted" and not _allowed(fields, min_ms):
            self.violated(row.at_us, f"no rule allows this eviction: {row.detail}")


def _allowed(fields: dict[str, int], min_ms: int) -> bool:
    by_follower = bool(fields["by_privileged"]) and not fields["privileged"]
    long_idle = fields["idle_ms"] > min_ms
    outgrown = fields["age_ms"] > min_ms and fields["by_partitions"] > fields["partitions"]
    return by_follower or long_idle or outgrown
