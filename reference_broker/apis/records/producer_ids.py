"""The block of producer IDs that this node may give out; no ID is ever given twice, also across restarts."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.planning.producer_id_blocks import BLOCK_SIZE

NO_ID = -1

Given: TypeAlias = Callable[[int, int], None]
"""Called with (producer ID, 0), or with (-1, error code)."""


@dataclass(slots=True)
class ProducerIds:
    """IDs from ``next_id`` up to ``end`` (excluded) are free. A block is used only once its record is durable.

    ``waiting``: who asked while the block was empty; ``requested``: a new block is on its way.
    """

    next_id: int = 0
    end: int = 0
    waiting: deque[Given] = field(default_factory=deque)
    requested: bool = False

    def take(self) -> int | None:
        """The next free ID; None if the block is used up."""
        if self.next_id == self.end:
            return None
        self.next_id += 1
        return self.next_id - 1

    def refill(self, first: int) -> None:
        """A new block starts at ``first``: serves those who wait, in their order."""
        assert first >= self.end, f"producer IDs from {first} on were given out before"
        self.next_id, self.end, self.requested = first, first + BLOCK_SIZE, False
        while self.waiting and self.next_id < self.end:
            given = self.waiting.popleft()
            self.next_id += 1
            given(self.next_id - 1, 0)

    def refuse(self, error_code: int) -> None:
        """No new block could be had: everyone who waits is told why."""
        self.requested = False
        waiting, self.waiting = self.waiting, deque()
        for given in waiting:
            given(NO_ID, error_code)
