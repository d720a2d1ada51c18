"""Metadata that the clients of one load worker share, so that a thousand of them do not ask for the same at once.

Real clients each ask for themselves, and in the simulator these do too: there a script has no board. An answer names
every partition of the topics asked for. So if each client asked alone, the cost would grow with the square of the
fleet's size.
"""

from dataclasses import dataclass
from typing import Final

from reference_broker.client.metadata_cache import MetadataUpdate

FRESH_US: Final = 2_000_000
"""An answer that is not older is news to a client that has not seen it. This is longer than any client's backoff."""
ASKING_US: Final = 3_000_000
"""While an answer is awaited, nobody else asks for this time."""


@dataclass(slots=True)
class MetadataBoard:
    """The board of all scripts about the same ``topics``.

    ``answered_us`` is the time of the last answer, and ``asked_us`` that of the last request; -1 means never.
    """

    topics: tuple[str, ...]
    answer: MetadataUpdate | None = None
    answered_us: int = -1
    asked_us: int = -1

    def news(self, seen_us: int, now_us: int) -> MetadataUpdate | None:
        """Returns the answer if it is fresh and came after ``seen_us``. For a client that has seen none (-1) any answer
        is fresh."""
        fresh = seen_us < 0 or now_us - self.answered_us <= FRESH_US
        return self.answer if seen_us < self.answered_us and fresh else None

    def may_ask(self, now_us: int) -> bool:
        """Whether the caller may ask now, which counts as asking. It may not while somebody else waits for an
        answer."""
        waiting = self.asked_us > self.answered_us and now_us - self.asked_us < ASKING_US
        if not waiting:
            self.asked_us = now_us
        return not waiting

    def post(self, answer: MetadataUpdate, now_us: int) -> None:
        self.answer, self.answered_us = answer, now_us

    def failed(self) -> None:
        """Whoever asked got no answer, so the next client may try."""
        self.asked_us = -1
