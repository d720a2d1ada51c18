"""Metadata that the clients of one load worker share, so that a thousand of them do not ask for the same at once.

Real clients each ask for themselves; so do these in the simulator, where a script has no board. An answer names every
partition of the topics asked for, so the cost of asking alone grows with the square of a fleet's size.
"""

from dataclasses import dataclass
from typing import Final

from reference_broker.client.metadata_cache import MetadataUpdate

FRESH_US: Final = 2_000_000
"""An answer so old is still news to somebody who has not seen it; longer than anybody's backoff."""
ASKING_US: Final = 3_000_000
"""Nobody else asks for so long while an answer is awaited."""


@dataclass(slots=True)
class MetadataBoard:
    """``answered_us``, ``asked_us``: when the last answer came and when somebody last asked, -1 never. Topics are
    ``topics``: only scripts about the same ones may share a board."""

    topics: tuple[str, ...]
    answer: MetadataUpdate | None = None
    answered_us: int = -1
    asked_us: int = -1

    def news(self, seen_us: int, now_us: int) -> MetadataUpdate | None:
        """An answer that is fresh and came after ``seen_us``; to who has seen none (-1) any is."""
        fresh = seen_us < 0 or now_us - self.answered_us <= FRESH_US
        return self.answer if seen_us < self.answered_us and fresh else None

    def may_ask(self, now_us: int) -> bool:
        """False while somebody else does."""
        waiting = self.asked_us > self.answered_us and now_us - self.asked_us < ASKING_US
        if not waiting:
            self.asked_us = now_us
        return not waiting

    def post(self, answer: MetadataUpdate, now_us: int) -> None:
        self.answer, self.answered_us = answer, now_us

    def failed(self) -> None:
        """Whoever asked got no answer: the next may try."""
        self.asked_us = -1
