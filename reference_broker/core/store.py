"""Calls of the object store: who waits for which answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reference_broker.core.events import Effect, StoreCall, StoreDone, StoreFailed
from reference_broker.ports.store import StoreAnswer, StoreFailure, StoreOperation


def store_event(token: int, answer: StoreAnswer | StoreFailure) -> StoreDone | StoreFailed:
    """Returns the event that answers the StoreCall with this token."""
    return StoreFailed(token, answer) if isinstance(answer, StoreFailure) else StoreDone(token, answer)


@dataclass(slots=True)
class StoreCalls:
    """``waiting`` maps the token of each call without an answer to its callbacks."""

    effects: list[Effect]
    waiting: dict[int, tuple[Callable[[Any], None], Callable[[StoreFailure], None]]] = field(default_factory=dict)
    last: int = 0

    def request(
        self, operation: StoreOperation, done: Callable[[Any], None], failed: Callable[[StoreFailure], None]
    ) -> None:
        """``done`` gets what the operation is answered with (``ports.store``)."""
        self.last += 1
        self.waiting[self.last] = (done, failed)
        self.effects.append(StoreCall(self.last, operation))

    def done(self, event: StoreDone) -> None:
        done, _ = self.waiting.pop(event.token)
        done(event.answer)

    def failed(self, event: StoreFailed) -> None:
        _, failed = self.waiting.pop(event.token)
        failed(event.failure)
