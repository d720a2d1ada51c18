"""When to look at a key, without a look at the other keys.

A heap holds each key under the earliest time at which something could be due. Whoever looks at the key then plans its
next look. So a look costs only what is due, and keys at rest cost nothing.
"""

from heapq import heappop, heappush


class DueTimes:
    """The looks that are planned for the keys of one partition."""

    def __init__(self) -> None:
        self._due: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}
        """The time of the next look. Other entries of the key in the heap are stale."""

    def look_at(self, key: str, due_ms: int) -> None:
        """Plans a look at this Unix time, unless an earlier one is planned. That one will plan the next."""
        known = self._earliest.get(key)
        if known is None or due_ms < known:
            self._earliest[key] = due_ms
            heappush(self._due, (due_ms, key))

    def is_due(self, now_ms: int) -> bool:
        """Says whether the time of some key may have come."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def due(self, now_ms: int) -> str | None:
        """Returns a key whose time has come. The caller plans its next look."""
        while self.is_due(now_ms):
            due_ms, key = heappop(self._due)
            if self._earliest.get(key) == due_ms:
                del self._earliest[key]
                return key
        return None
