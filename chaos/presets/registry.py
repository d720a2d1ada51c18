"""Presets by name."""

from collections.abc import Sequence
from typing import TypeAlias

from chaos.presets import fetch_session_epoch
from chaos.presets.fetch_session_epoch import FetchSessionEpoch

Preset: TypeAlias = FetchSessionEpoch
"""A hook that sets and keeps a state. There is one so far. It comes after the recorder and the interceptor."""


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
