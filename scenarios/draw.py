"""Derive the scenario of one seed. It chooses alternatives and fixes sweeps. Both worlds play the result.

Nothing is random here. The seeds go through the alternatives and the swept ranges in order, the first in the file
fastest, so N seeds cover the first N combinations. All other ranges are drawn where they are used.
"""

from dataclasses import replace

from scenarios.model import Fault, Range, Scenario


def drawn(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with one fault of each ``either`` group and a fixed ``nth`` for each swept fault.

    Drawing again changes nothing.
    """
    wheel = _Wheel(seed)
    chosen: dict[str, str] = {}
    for fault in scenario.faults:
        if fault.either and fault.either not in chosen:
            names = [each.name for each in scenario.faults if each.either == fault.either]
            chosen[fault.either] = names[wheel.turn(len(names))]
    kept = [fault for fault in scenario.faults if not fault.either or chosen[fault.either] == fault.name]
    return replace(scenario, faults=tuple(_placed(fault, wheel) for fault in kept))


class _Wheel:
    """Gives the digits of the seed one after the other, each in the requested base."""

    def __init__(self, seed: int) -> None:
        self._rest = seed

    def turn(self, base: int) -> int:
        digit = self._rest % base
        self._rest //= base
        return digit


def _placed(fault: Fault, wheel: _Wheel) -> Fault:
    """Return the fault as one of this seed: with a fixed ``nth``, and no alternative to another fault."""
    fault = replace(fault, either="")
    if not fault.swept:
        return fault
    at = fault.nth.low + wheel.turn(_span(fault))
    return replace(fault, nth=Range(at, at), swept=False)


def _span(fault: Fault) -> int:
    return fault.nth.high - fault.nth.low + 1 if fault.swept else 1
