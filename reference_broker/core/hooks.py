"""Where a driver lets others watch and change what goes into and comes out of a node.

The core holds no test code: fault injection and tracing are hooks of the driver (live and simulated alike).
"""

from collections.abc import Sequence
from typing import Protocol

from reference_broker.core.effects import Effect
from reference_broker.core.events import Event
from reference_broker.ports.now import Now


class Hooks(Protocol):
    """Called around every ``node.handle``, in the order in which they were given."""

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        """What the node shall see instead of ``event``: empty drops it, two duplicate it."""
        ...

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:
        """What the driver shall do instead of ``effects``, which ``event`` led to."""
        ...
