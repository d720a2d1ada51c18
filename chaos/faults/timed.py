"""What the faults done from outside share: one file a fault, each with ``KIND`` and ``begin``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from chaos.live.links import Link, Links, streams
from chaos.live.probe import LIMIT_S, BackgroundProbe, Probe
from chaos.live.processes import Child
from chaos.live.targets import Target
from scenarios.model import Fault

MAX_PROBES = 6
"""Of a fault on many links; each is a connection and a thread of ours."""
SHORTEST_PROBE_S = 0.2


@dataclass(frozen=True, slots=True)
class Blow:
    """One of several strikes of a fault. Times are microseconds of the run."""

    target: str
    at_us: int
    until_us: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How a fault ended. ``evidence`` says what shows that it happened. If it is empty, the fault counts as not fired.
    ``blows`` are the strikes of a fault that strikes several times by itself. Each of them counts."""

    evidence: str
    blows: tuple[Blow, ...] = ()


Probes: TypeAlias = list[tuple[str, BackgroundProbe]]
End: TypeAlias = Callable[[], Ended | None]
"""Undoes the fault. None: it is not through yet and wants to be looked at again soon; once ``is_over`` it never says
so."""


class Place(Protocol):
    """Where faults happen."""

    @property
    def links(self) -> Links: ...

    def child(self, node: int) -> Child: ...

    @property
    def is_over(self) -> bool:
        """Returns whether the load is over. What goes on by itself must end then."""
        ...

    def now_us(self) -> int:
        """Since the run's start."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of each node by its number, without a proxy before it."""
        ...

    def restart(self, node: int) -> None:
        """Starts the node's next incarnation, if the one before has ended."""
        ...

    def reconfigure(self, node: int, config: dict[str, str]) -> None:
        """The node's next incarnations have these settings, beside or instead of what they had."""
        ...

    def is_ready(self, node: int) -> bool:
        """It serves."""
        ...

    def order_disk(self, node: int, order: dict[str, object]) -> None:
        """See ``chaos.live.faulty_disk``."""
        ...

    def disk_struck(self, node: int, kind: str) -> str:
        """Returns what a fault of the node's disk struck since the last order; empty if nothing yet."""
        ...


def node_of(target: Target) -> int:
    """The node that it hits."""
    node = target.fault.node
    assert isinstance(node, int), f"{target.fault.name} was not aimed at a node"
    return node


def poisoned(
    place: Place,
    target: Target,
    toxic: str,
    attributes: dict[str, int],
    shows: Callable[[Probe], bool],
    requests: int = 1,
    limit_s: float = LIMIT_S,
) -> End:
    """Puts a toxic on each of the target's links until its end.

    The evidence is what happened to our probes that used the links meanwhile, if ``shows`` says that it is the fault's
    doing.
    """
    fault, links = target.fault, target.links
    ways = streams(fault.direction)
    for link in links:
        for way in ways:
            place.links.poison(link, fault.name, toxic, way, attributes)
    probes = probe_all(links, requests, within(fault, limit_s))

    def end() -> Ended:
        seen = told_by(probes, shows)
        for link in links:
            for way in ways:
                place.links.cure(link, fault.name, way)
        return Ended(f"{toxic} {attributes} {fault.direction}: {seen}" if seen else "")

    return end


def probe_all(links: tuple[Link, ...], requests: int = 1, limit_s: float = LIMIT_S) -> Probes:
    """By the link's name, of as many as are enough."""
    return [(link.name, BackgroundProbe(link.listen, requests, limit_s)) for link in links[:MAX_PROBES]]


def within(fault: Fault, limit_s: float) -> float:
    """Limits a probe so that it is over before its fault is, and nobody waits for it."""
    return min(limit_s, max(SHORTEST_PROBE_S, fault.duration_s - SHORTEST_PROBE_S)) if fault.duration_s else limit_s


def told_by(probes: Probes, shows: Callable[[Probe], bool]) -> str:
    """Waits for the probes, and returns what those say that show the fault; empty if none does."""
    seen = [(name, probe.result()) for name, probe in probes]
    shown = [(name, probe) for name, probe in seen if shows(probe)]
    if len(seen) == 1:
        return shown[0][1].told() if shown else ""
    return "; ".join(f"{name}: {probe.told()}" for name, probe in shown)


def is_silent(probe: Probe) -> bool:
    return probe.outcome == "silent"
