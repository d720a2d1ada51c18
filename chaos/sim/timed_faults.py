"""Timed faults of nodes, links and disks in the simulator: the counterpart of Toxiproxy, signals and a bad disk."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from chaos.checks.fault_times import FaultTimes
from chaos.sim.links import Direction, Link
from chaos.sim.machine import Machine
from chaos.sim.network import Network
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.model import Fault

SLICE_US = (200, 3000)
"""The range of the extra delay of a sliced frame, which is whole only when its last slice has arrived."""
TYPICAL_FRAME_BYTES = 1000


@dataclass(frozen=True, slots=True)
class SimFaultContext:
    """The target of a fault: a node, or one or more links."""

    machine: Machine
    links: Sequence[Link]
    network: Network
    fault_times: FaultTimes
    lasts_us: int = 0
    shown: Callable[[], None] = lambda: None
    """Called when damage was done."""


def begin(fault: Fault, context: SimFaultContext, lasts_us: int) -> Callable[[], None]:
    """Begin the fault, and return what undoes it. It is undone after ``lasts_us`` at the latest."""
    context = replace(context, lasts_us=lasts_us)
    stack = ExitStack()
    stack.enter_context(contextmanager(BEGIN[fault.kind])(fault, context))
    return stack.close


# Each generator begins its fault, yields while the fault lasts, and then undoes it.


def _ended(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    if fault.kind == "node_terminated":
        context.machine.terminate()
    else:
        context.machine.kill_now(power_loss=fault.kind == "node_powered_off", silent=fault.kind == "host_lost")
    yield
    if fault.restart_after_s >= 0:
        context.machine.start()


def _directory_missing(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    machine = context.machine
    machine.restart_after_us = int(fault.restart_after_s * 1_000_000)
    machine.kill_now(power_loss=False)
    files = machine.disk.unmount()
    context.fault_times.directory(machine.node_id)
    yield
    machine.kill_now(power_loss=False)
    machine.disk.mount(files)
    context.fault_times.directory(machine.node_id)
    machine.start()


def _bit_flipped(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    machine = context.machine
    machine.terminate()
    yield
    if machine.stop_and_flip(fault.match.path):
        context.shown()
    machine.start()


def _files_missing(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    machine = context.machine
    machine.terminate()
    yield
    if machine.stop_and_delete(fault.match.path or ""):
        context.shown()
    machine.start()


def _paused(fault: Fault, context: SimFaultContext) -> Iterator[None]:  # noqa: ARG001
    context.machine.pause(context.lasts_us)
    yield  # The node resumes by itself.


def _cut(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    # Several cuts may overlap, so each direction counts them.
    directions = _directions(context, "both" if FAULT_KINDS[fault.kind].cuts else fault.direction)
    for _, direction in directions:
        direction.cuts += 1
    yield
    for link, direction in directions:
        direction.cuts -= 1
        link.mend(direction)


def _delayed(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    if fault.kind == "link_sliced":
        extra_us = SLICE_US
    elif fault.kind == "link_slowed":
        extra_us = (0, TYPICAL_FRAME_BYTES * 1_000_000 // max(fault.bytes_per_s, 1))
    else:
        extra_us = (fault.delay_ms.low * 1000, (fault.delay_ms.high + fault.jitter_ms) * 1000)
    directions = _directions(context, fault.direction)
    for _, direction in directions:
        direction.extra_us = extra_us
    yield
    for _, direction in directions:
        direction.extra_us = (0, 0)


def _truncated(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    directions = _directions(context, fault.direction)
    for _, direction in directions:
        direction.breaks_frames = True
    yield
    for _, direction in directions:
        direction.breaks_frames = False


def _down(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    for link in context.links:
        context.network.reset_all(link)
    if fault.kind == "link_down":
        for link in context.links:
            link.refuses = True
    yield
    if fault.kind == "link_down":
        for link in context.links:
            link.refuses = False


def _disk_slowed(fault: Fault, context: SimFaultContext) -> Iterator[None]:
    machine, extra_us = context.machine, fault.delay_ms.high * 1000
    if fault.names_only:
        machine.names_extra_us += extra_us
        yield
        machine.names_extra_us -= extra_us
    else:
        machine.sync_extra_us += extra_us
        yield
        machine.sync_extra_us -= extra_us


def _disk_full(fault: Fault, context: SimFaultContext) -> Iterator[None]:  # noqa: ARG001
    context.machine.disk.capacity_bytes = context.machine.disk.used_bytes
    yield
    context.machine.disk.capacity_bytes = -1
    context.machine.disk_failed()


def _directions(context: SimFaultContext, which: str) -> list[tuple[Link, Direction]]:
    return [(link, direction) for link in context.links for direction in link.directions(which)]


BEGIN: dict[str, Callable[[Fault, SimFaultContext], Iterator[None]]] = {
    "node_killed": _ended,
    "node_powered_off": _ended,
    "host_lost": _ended,
    "node_terminated": _ended,
    "disk_bit_flipped": _bit_flipped,
    "files_missing": _files_missing,
    "node_paused": _paused,
    "directory_missing": _directory_missing,
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
