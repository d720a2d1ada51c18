"""States that a scenario sets before the load (`[state]`): reaching them would take too long."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from reference_broker.apis.records.first_revision import FirstRevisionSession
from reference_broker.core.events import Effect, Event, Note
from reference_broker.ports.node_ports import Now
from reports.rows import FaultRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node
    from reference_broker.sessions.fetch_session import FetchSession


NAME = "fetch_session_epoch"
KIND = "preset_fetch_session_epoch"
LARGEST_EPOCH = 2**31 - 1


class FetchSessionEpoch:
    """Preset ``fetch_session_epoch = N``: each fetch session expects epoch N as its first, not 1.

    With N near 2^31-1 a session wraps after a few fetches instead of two thousand million. The fetchers of such a
    scenario begin there, too (``first_epoch``). In the first revision the epochs are sequence numbers of 64 bits, which
    pass 2^31-1 and do not wrap.

    Implements core.events.Hooks. ``built`` must be called before the node's first event.
    """

    def __init__(self, first_epoch: int) -> None:
        self.first_epoch = first_epoch
        self._node: Node | None = None

    def built(self, node: "Node") -> None:
        self._node = node

    def evidence(self, node_id: int, at_us: int) -> FaultRow:
        """Return the row which says that this state was set."""
        detail = f"first epoch of each session {self.first_epoch}"
        return FaultRow(NAME, KIND, at_us, at_us, f"node-{node_id}", 1, session_epoch=self.first_epoch, detail=detail)

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        node = self._node
        assert node is not None, "built() was not called"
        for effect in effects:
            if type(effect) is Note and effect.what == "session_created":
                session_id = dict(effect.fields)["session_id"]
                assert isinstance(session_id, int)
                self._raise(node.broker.fetch_sessions.sessions[session_id])
        return effects

    def _raise(self, session: "FetchSession") -> None:
        session.epoch = self.first_epoch
        if isinstance(session, FirstRevisionSession):
            more = self.first_epoch - 1
            session.sequence_number += more
            session.responded_sequence_number += more
            dirty = session.dirty_sequence_numbers
            for cached in session.partitions.values():
                dirty[cached] = dirty.get(cached, 0) + more


Preset: TypeAlias = FetchSessionEpoch
"""A hook that sets and keeps a state. There is one so far. It comes after the recorder and the interceptor."""


class PresetError(ValueError):
    """There is no such preset, or its value makes no sense. The message is one sentence."""


def presets_for(state: Sequence[tuple[str, int]]) -> tuple[Preset, ...]:
    """Return the hooks for a scenario's ``[state]``. Each incarnation of a node needs its own set."""
    return tuple(_preset(name, value) for name, value in state)


def _preset(name: str, value: int) -> Preset:
    if name != NAME:
        raise PresetError(f"state: there is no preset {name!r}; there is: {NAME}")
    if not 1 <= value <= LARGEST_EPOCH:
        raise PresetError(f"state: {name} is {value}; it must be between 1 and {LARGEST_EPOCH}")
    return FetchSessionEpoch(value)
