"""Named states that a scenario sets before the load (``[state]``), because reaching them would take too long."""

from chaos.presets.registry import Preset, PresetError, presets_for

__all__ = ["Preset", "PresetError", "presets_for"]
