"""The faults done from outside at a time, in the simulator: what Toxiproxy and signals do live."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from chaos.sim.links import Link
from chaos.sim.machine import Machine
from chaos.sim.network import Network
from scenarios.model import Fault

SLICE_US = (200, 3000)
"""A sliced frame arrives whole only with its last slice."""
TYPICAL_FRAME_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """What a fault of one node works on."""

    machine: Machine
    link: Link
    network: Network


Heal: TypeAlias = Callable[[], None]


def begin(fault: Fault, place: Place) -> Heal:
    """Does the fault; the answer undoes it."""
    return _KINDS[fault.kind](fault, place)


def _killed(fault: Fault, place: Place) -> Heal:
    place.machine.kill_now(power_loss=fault.kind == "node_powered_off")
    return place.machine.start if fault.restart_after_s >= 0 else _nothing


def _paused(fault: Fault, place: Place) -> Heal:
    place.machine.pause(int(fault.sim_duration_s * 1_000_000))
    return _nothing


def _cut(fault: Fault, place: Place) -> Heal:
    directions = place.link.directions(fault.direction)
    for direction in directions:
        direction.cut = True

    def heal() -> None:
        for direction in directions:
            place.link.mend(direction)

    return heal


def _delayed(fault: Fault, place: Place) -> Heal:
    if fault.kind == "link_sliced":
        extra_us = SLICE_US
    elif fault.kind == "link_slowed":
        extra_us = (0, TYPICAL_FRAME_BYTES * 1_000_000 // max(fault.bytes_per_s, 1))
    else:
        extra_us = (fault.delay_ms.low * 1000, (fault.delay_ms.high + fault.jitter_ms) * 1000)
    directions = place.link.directions(fault.direction)
    for direction in directions:
        direction.extra_us = extra_us

    def heal() -> None:
        for direction in directions:
            direction.extra_us = (0, 0)

    return heal


def _truncated(fault: Fault, place: Place) -> Heal:
    directions = place.link.directions(fault.direction)
    for direction in directions:
        direction.breaks_frames = True

    def heal() -> None:
        for direction in directions:
            direction.breaks_frames = False

    return heal


def _down(fault: Fault, place: Place) -> Heal:
    place.network.reset_all(fault.node)
    if fault.kind == "link_reset":
        return _nothing
    place.link.refuses = True

    def heal() -> None:
        place.link.refuses = False

    return heal


def _nothing() -> None:
    """Heals by itself."""


_KINDS: dict[str, Callable[[Fault, Place], Heal]] = {
    "node_killed": _killed,
    "node_powered_off": _killed,
    "node_terminated": _killed,
    "node_paused": _paused,
    "link_cut": _cut,
    "link_delayed": _delayed,
    "link_sliced": _delayed,
    "link_slowed": _delayed,
    "link_truncated": _truncated,
    "link_reset": _down,
    "link_down": _down,
}
