"""Timed faults from outside, in the simulator: what Toxiproxy, signals and a bad disk do in a live run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaos.sim.links import Direction, Link
from chaos.sim.machine import Machine
from chaos.sim.network import Network
from scenarios.model import Fault

SLICE_US = (200, 3000)
"""A sliced frame arrives whole only with its last slice."""
TYPICAL_FRAME_BYTES = 1000
CUTS_ALL = ("node_isolated", "node_cut_from_controller")
"""Of the links that they strike, both directions, whatever else is told."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a fault works on: one node, or one or several links."""

    machine: Machine
    links: Sequence[Link]
    network: Network


Heal: TypeAlias = Callable[[], None]


def begin(fault: Fault, place: Place) -> Heal:
    """Begins the fault, and returns what undoes it."""
    return _KINDS[fault.kind](fault, place)


def _killed(fault: Fault, place: Place) -> Heal:
    place.machine.kill_now(power_loss=fault.kind == "node_powered_off")
    return place.machine.start if fault.restart_after_s >= 0 else _nothing


def _terminated(fault: Fault, place: Place) -> Heal:
    place.machine.terminate()
    return place.machine.start if fault.restart_after_s >= 0 else _nothing


def _paused(fault: Fault, place: Place) -> Heal:
    place.machine.pause(int(fault.sim_duration_s * 1_000_000))
    return _nothing


def _cut(fault: Fault, place: Place) -> Heal:
    # Several cuts may overlap, so each direction counts them.
    directions = _directions(place, "both" if fault.kind in CUTS_ALL else fault.direction)
    for _, direction in directions:
        direction.cuts += 1

    def heal() -> None:
        for link, direction in directions:
            direction.cuts -= 1
            link.mend(direction)

    return heal


def _delayed(fault: Fault, place: Place) -> Heal:
    if fault.kind == "link_sliced":
        extra_us = SLICE_US
    elif fault.kind == "link_slowed":
        extra_us = (0, TYPICAL_FRAME_BYTES * 1_000_000 // max(fault.bytes_per_s, 1))
    else:
        extra_us = (fault.delay_ms.low * 1000, (fault.delay_ms.high + fault.jitter_ms) * 1000)
    directions = _directions(place, fault.direction)
    for _, direction in directions:
        direction.extra_us = extra_us

    def heal() -> None:
        for _, direction in directions:
            direction.extra_us = (0, 0)

    return heal


def _truncated(fault: Fault, place: Place) -> Heal:
    directions = _directions(place, fault.direction)
    for _, direction in directions:
        direction.breaks_frames = True

    def heal() -> None:
        for _, direction in directions:
            direction.breaks_frames = False

    return heal


def _down(fault: Fault, place: Place) -> Heal:
    for link in place.links:
        place.network.reset_all(link)
    if fault.kind == "link_reset":
        return _nothing
    for link in place.links:
        link.refuses = True

    def heal() -> None:
        for link in place.links:
            link.refuses = False

    return heal


def _disk_slowed(fault: Fault, place: Place) -> Heal:
    machine, extra_us = place.machine, fault.delay_ms.high * 1000
    machine.sync_extra_us += extra_us

    def heal() -> None:
        machine.sync_extra_us -= extra_us

    return heal


def _disk_full(fault: Fault, place: Place) -> Heal:  # noqa: ARG001
    machine = place.machine
    machine.disk_fails = True
    machine.disk.capacity_bytes = machine.disk.used_bytes

    def heal() -> None:
        machine.disk.capacity_bytes = -1

    return heal


def _directions(place: Place, which: str) -> list[tuple[Link, Direction]]:
    return [(link, direction) for link in place.links for direction in link.directions(which)]


def _nothing() -> None:
    """There is nothing to undo: the fault heals by itself."""


_KINDS: dict[str, Callable[[Fault, Place], Heal]] = {
    "node_killed": _killed,
    "node_powered_off": _killed,
    "node_terminated": _terminated,
    "node_paused": _paused,
    "node_isolated": _cut,
    "node_cut_from_controller": _cut,
    "disk_slowed": _disk_slowed,
    "disk_full": _disk_full,
    "link_cut": _cut,
    "link_delayed": _delayed,
    "link_sliced": _delayed,
    "link_slowed": _delayed,
    "link_truncated": _truncated,
    "link_reset": _down,
    "link_down": _down,
}
