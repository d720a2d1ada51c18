"""Chooses how many bytes to request at once, so that even a slow link delivers each piece before the timeout."""

FIRST_BYTES = 64 * 2**10
LEAST_BYTES = 1024


class TransferRate:
    """The size starts small. It doubles while answers come fast, and falls to a quarter when an answer is lost."""

    def __init__(self, most_bytes: int, patience_us: int) -> None:
        """An answer that takes longer than ``patience_us`` counts as lost."""
        self._most_bytes = most_bytes
        self._patience_us = patience_us
        self.chunk_bytes = min(most_bytes, FIRST_BYTES)

    def arrived(self, after_us: int) -> None:
        if after_us * 4 < self._patience_us:
            self.chunk_bytes = min(self.chunk_bytes * 2, self._most_bytes)

    def lost(self) -> None:
        self.chunk_bytes = min(max(self.chunk_bytes // 4, LEAST_BYTES), self._most_bytes)
