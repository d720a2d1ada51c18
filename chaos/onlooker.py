"""A hook of the driver that changes nothing."""

from collections.abc import Sequence

from reference_broker.core.events import Effect, Event
from reference_broker.ports.node_ports import Now


class Onlooker:
    """Implements core.events.Hooks. A subclass looks at each event before the node does, or at what the node did with
    it."""

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        self.arrives(now, event)
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:
        self.acted(now, event, effects)
        return effects

    def arrives(self, now: Now, event: Event) -> None:
        pass

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:
        pass
