"""The faults done from outside, by kind."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeAlias

from chaos.faults import (
    disk_full,
    disk_slowed,
    feature_finalized,
    link_cut,
    link_delayed,
    link_down,
    link_reset,
    link_sliced,
    link_slowed,
    link_truncated,
    node_cut_from_controller,
    node_isolated,
    node_killed,
    node_paused,
    node_terminated,
    rolling_bounce,
)
from chaos.faults.timed import End, Place
from chaos.live.targets import Target

Begin: TypeAlias = Callable[[Place, Target], End]

_MODULES: tuple[ModuleType, ...] = (
    link_cut,
    link_delayed,
    link_down,
    link_reset,
    link_sliced,
    link_slowed,
    link_truncated,
    node_isolated,
    node_cut_from_controller,
    node_killed,
    node_paused,
    node_terminated,
    disk_full,
    disk_slowed,
    rolling_bounce,
    feature_finalized,
)

LIVE: Mapping[str, Begin] = {module.KIND: module.begin for module in _MODULES}
"""What a live run can do at a time. A power loss is the simulator's: no process can take the page cache with it."""
