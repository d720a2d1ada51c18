"""How many bytes to ask for at once, so that a slow link delivers each piece before anybody loses patience."""

FIRST_BYTES = 64 * 2**10
LEAST_BYTES = 1024


class TransferRate:
    """Begins small, doubles while answers come fast, falls to a quarter when one does not come."""

    __slots__ = ("_most_bytes", "_patience_us", "chunk_bytes")

    def __init__(self, most_bytes: int, patience_us: int) -> None:
        """``patience_us``: after it an answer counts as lost."""
        self._most_bytes = most_bytes
        self._patience_us = patience_us
        self.chunk_bytes = min(most_bytes, FIRST_BYTES)

    def arrived(self, after_us: int) -> None:
        if after_us * 4 < self._patience_us:
            self.chunk_bytes = min(self.chunk_bytes * 2, self._most_bytes)

    def lost(self) -> None:
        self.chunk_bytes = min(max(self.chunk_bytes // 4, LEAST_BYTES), self._most_bytes)
