"""The block of producer IDs that this node may give out. No ID is ever given out twice, not even after a restart."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.planning.producer_id_blocks import BLOCK_SIZE

NO_ID = -1

Given: TypeAlias = Callable[[int, int], None]
"""It is called with (producer ID, 0) or with (-1, error code)."""


@dataclass(slots=True)
class ProducerIds:
    """IDs from ``next_id`` up to ``end`` (excluded) are free. A block is used only once its record is durable.

    ``waiting`` are those who asked while the block was empty. ``requested`` says that a new block is on its way.
    """

    next_id: int = 0
    end: int = 0
    waiting: deque[Given] = field(default_factory=deque)
    requested: bool = False

    def take(self) -> int | None:
        """Returns the next free ID, or None if the block is used up."""
        if self.next_id == self.end:
            return None
        self.next_id += 1
        return self.next_id - 1

    def refill(self, first: int) -> None:
        """Takes a new block that starts at ``first``, and serves those who wait, in their order."""
        assert first >= self.end, f"producer IDs from {first} on were given out before"
        self.next_id, self.end, self.requested = first, first + BLOCK_SIZE, False
        while self.waiting and self.next_id < self.end:
            given = self.waiting.popleft()
            self.next_id += 1
            given(self.next_id - 1, 0)

    def refuse(self, error_code: int) -> None:
        """Tells everyone who waits why there is no new block."""
        self.requested = False
        waiting, self.waiting = self.waiting, deque()
        for given in waiting:
            given(NO_ID, error_code)
