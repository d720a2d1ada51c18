"""What looks on while a driver works: tracing and fault injection."""

from collections.abc import Sequence
from typing import Protocol

from reference_broker.core.effects import Effect, Reply
from reference_broker.ports.now import Now


class Watcher(Protocol):
    """A watcher is shown the effects that no event led to: those of the node's start and shutdown."""

    def effects(self, now: Now, effects: Sequence[Effect]) -> None: ...


class Meter(Protocol):
    """A meter is told where the driver's own work for a request begins and ends. Hooks see only the node's work."""

    def decoding(self) -> None:
        """A request's frame is about to be decoded. The node gets the request right after that."""
        ...

    def sent(self, reply: Reply, frame_bytes: int) -> None:
        """The reply was encoded and handed to its connection. ``frame_bytes`` includes the length field."""
        ...
