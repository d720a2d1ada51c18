"""When a group is worth a look for offsets that are too old (KIP-211), without looking at the others.

A group stands in a heap under the earliest time at which it could lose something; at that time it is looked at
(``cleaning``) and stands there anew. So the check costs what is due, and groups at rest cost nothing.
"""

from heapq import heappop, heappush

MS_PER_MINUTE = 60_000


class Retention:
    """``retention_ms``: offsets.retention.minutes."""

    __slots__ = ("_due", "_earliest", "retention_ms")

    def __init__(self, retention_minutes: int) -> None:
        self.retention_ms = retention_minutes * MS_PER_MINUTE
        self._due: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}
        """The time under which a group stands; other entries of it are stale."""

    def look_at(self, group_id: str, due_ms: int) -> None:
        """Not before ``due_ms`` (Unix time), unless an earlier look is planned already, which plans the next."""
        known = self._earliest.get(group_id)
        if known is None or due_ms < known:
            self._earliest[group_id] = due_ms
            heappush(self._due, (due_ms, group_id))

    def is_due(self, now_ms: int) -> bool:
        """Whether some group's time may have come."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def due(self, now_ms: int) -> str | None:
        """One whose time has come; whoever asks plans the next look at it."""
        while self.is_due(now_ms):
            due_ms, group_id = heappop(self._due)
            if self._earliest.get(group_id) == due_ms:
                del self._earliest[group_id]
                return group_id
        return None
