"""The scenario that a live run plays for a seed: where there is a choice, nothing that only the simulator can do."""

from dataclasses import replace

from scenarios.draw import drawn
from scenarios.model import Fault, Scenario


def cast(scenario: Scenario, seed: int) -> Scenario:
    """``scenarios.draw.drawn``, without the alternatives that need a simulator. The runner and each node's process do
    the same, so that they agree."""
    kept = tuple(fault for fault in scenario.faults if is_live(fault) or not _has_stand_in(scenario, fault))
    return drawn(replace(scenario, faults=kept), seed)


def is_live(fault: Fault) -> bool:
    """A power loss is the simulator's: no process can take the page cache with it."""
    return fault.kind != "node_powered_off"


def _has_stand_in(scenario: Scenario, fault: Fault) -> bool:
    return bool(fault.either) and any(each.either == fault.either and is_live(each) for each in scenario.faults)
