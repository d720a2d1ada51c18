"""When to look at a group for offsets that are too old (KIP-211), without a look at the other groups.

A heap holds each group under the earliest time at which it could lose an offset. At that time ``offsets.cleaning``
looks at the group and plans its next look. So a check costs only what is due, and groups at rest cost nothing.
"""

from heapq import heappop, heappush

MS_PER_MINUTE = 60_000


class Retention:
    """The looks that are planned for the groups of one partition."""

    def __init__(self, retention_minutes: int) -> None:
        self.retention_ms = retention_minutes * MS_PER_MINUTE
        """offsets.retention.minutes"""
        self._due: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}
        """The time of the next look. Other entries of the group in the heap are stale."""

    def look_at(self, group_id: str, due_ms: int) -> None:
        """Plans a look at this Unix time, unless an earlier one is planned. That one will plan the next."""
        known = self._earliest.get(group_id)
        if known is None or due_ms < known:
            self._earliest[group_id] = due_ms
            heappush(self._due, (due_ms, group_id))

    def is_due(self, now_ms: int) -> bool:
        """Says whether the time of some group may have come."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def due(self, now_ms: int) -> str | None:
        """Returns a group whose time has come. The caller plans its next look."""
        while self.is_due(now_ms):
            due_ms, group_id = heappop(self._due)
            if self._earliest.get(group_id) == due_ms:
                del self._earliest[group_id]
                return group_id
        return None
