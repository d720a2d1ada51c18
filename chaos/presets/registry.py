"""Presets by name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from chaos.presets import fetch_session_epoch
from chaos.presets.fetch_session_epoch import FetchSessionEpoch
from reference_broker.core.hooks import Hooks
from reports.rows import FaultRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class Preset(Hooks, Protocol):
    """A hook that sets and keeps a state. It goes after the recorder and the interceptor in the list of hooks."""

    def built(self, node: "Node") -> None:
        """Called when the node exists and has seen no event yet."""
        ...

    def evidence(self, node_id: int, at_us: int) -> FaultRow:
        """Returns the row of the faults table which says that the state was set."""
        ...


class PresetError(ValueError):
    """There is no such preset, or its value makes no sense. The message is one sentence."""


def presets_for(state: Sequence[tuple[str, int]]) -> tuple[Preset, ...]:
    """Returns the hooks for a scenario's ``[state]``. Each incarnation of a node needs its own set."""
    return tuple(_preset(name, value) for name, value in state)


def _preset(name: str, value: int) -> Preset:
    if name != fetch_session_epoch.NAME:
        raise PresetError(f"state: there is no preset {name!r}; there is: {fetch_session_epoch.NAME}")
    if not 1 <= value <= fetch_session_epoch.LARGEST_EPOCH:
        raise PresetError(f"state: {name} is {value}; it must be between 1 and {fetch_session_epoch.LARGEST_EPOCH}")
    return FetchSessionEpoch(value)
