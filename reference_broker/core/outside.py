"""How the parts of a node reach the outside: what they ask for becomes effects, and steps at the end of an event."""

from collections.abc import Callable

from reference_broker.core.events import Effect, Note
from reference_broker.core.peers import Peers
from reference_broker.core.store import StoreCalls
from reference_broker.core.syncs import Syncs
from reference_broker.core.timers import Timers
from reference_broker.ports.node_ports import Now


class Outside:
    """Implements ``ports.node_ports.StorePorts``. The node calls ``end_event`` when all else of an event is done."""

    def __init__(
        self,
        effects: list[Effect],
        timers: Timers,
        syncs: Syncs,
        stores: StoreCalls,
        peers: Peers,
        now: Callable[[], Now],
    ) -> None:
        self._effects = effects
        self._last_steps: list[Callable[[], None]] = []
        self.at_end = self._last_steps.append
        self.now = now
        self.set_timer = timers.set
        self.cancel_timer = timers.cancel
        self.sync = syncs.request
        self.store = stores.request
        self.send = peers.send

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self._effects.append(Note(what, fields))

    def end_event(self) -> None:
        """Takes the steps that were left for the end of the event. A step may leave further ones."""
        steps = self._last_steps
        while steps:
            taken = steps[:]
            steps.clear()
            for step in taken:
                step()
