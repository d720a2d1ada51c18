"""What the faults at times share that are done to real processes, links and disks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from chaos.live.targets import Target

if TYPE_CHECKING:
    from chaos.live.fault_scheduler import FaultScheduler

FaultContext: TypeAlias = "FaultScheduler"
"""What a fault gets to act on nodes and links, and to read the time (chaos.live.fault_scheduler)."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One of several hits of a fault. Times are microseconds of the run."""

    target: str
    at_us: int
    until_us: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How a fault ended."""

    evidence: str  # shows that the fault had an effect; if it is empty, the fault counts as not fired
    hits: tuple[Hit, ...] = ()  # of a fault that hits several times by itself; each of them counts
    doubt: str = ""  # what speaks against it, for the run's log, if there is no evidence


End: TypeAlias = Callable[[], Ended | None]
"""Undoes the fault and returns how it ended. It returns None if the fault still goes on, and is then called again soon.
Once the context's ``is_over`` is true it never returns None."""
Begin: TypeAlias = Callable[[FaultContext, Target], End]


def node_of(target: Target) -> int:
    """Return the node that the fault hits."""
    node = target.fault.node
    assert isinstance(node, int), f"{target.fault.name} was not aimed at a node"
    return node


def back_again(context: FaultContext, target: Target, evidence: str) -> End:
    """Return the end of a fault that has ended a node: it starts the node again, unless the node stays away."""

    def end() -> Ended:
        if target.fault.restart_after_s >= 0:
            context.restart(node_of(target))
        return Ended(evidence)

    return end
