"""What the faults done from outside share. Each of them is one file with the name of its kind, which has ``begin``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from chaos.live.links import Link, cure, poison
from chaos.live.probe import LIMIT_S, BackgroundProbe, Probe
from chaos.live.targets import Target
from scenarios.model import Fault

if TYPE_CHECKING:
    from chaos.live.strikes import Strikes

MAX_PROBES = 6
"""The number of probes for a fault on many links. Each probe is a connection and a thread of ours."""
SHORTEST_PROBE_S = 0.2

Place: TypeAlias = "Strikes"
"""What a fault gets to strike nodes and links, and to tell the time (chaos.live.strikes)."""


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
"""Undoes the fault and says how it ended. It returns None if the fault still goes on; then it is called again soon.
Once the place's ``is_over`` is true it never returns None."""


def node_of(target: Target) -> int:
    """Returns the node that the fault hits."""
    node = target.fault.node
    assert isinstance(node, int), f"{target.fault.name} was not aimed at a node"
    return node


def back_again(place: Place, target: Target, evidence: str) -> End:
    """Returns the end of a fault that has ended a node: it starts the node again, unless the node stays away."""

    def end() -> Ended:
        if target.fault.restart_after_s >= 0:
            place.restart(node_of(target))
        return Ended(evidence)

    return end


def poisoned(
    target: Target,
    toxic: str,
    attributes: dict[str, int],
    does: str,
    shows: Callable[[Probe], bool],
    requests: int = 1,
    limit_s: float = LIMIT_S,
) -> End:
    """Puts a toxic on each of the target's links until its end.

    The evidence is what the toxic ``does`` to the bytes that pass, in words, and what happened to our probes of these
    links meanwhile. A probe counts if ``shows`` says that the fault caused that.
    """
    fault, links = target.fault, target.links
    for link in links:
        poison(link, fault.name, toxic, fault.direction, attributes)
    probes = probe_all(links, requests, within(fault, limit_s))

    def end() -> Ended:
        seen = told_by(probes, shows)
        for link in links:
            cure(link, fault.name, fault.direction)
        return Ended(f"{passing(fault.direction, links)} {does}; {seen}" if seen else "")

    return end


def silenced(_: Place, target: Target) -> End:
    """Lets the target's links go silent. Bytes vanish in the fault's direction, and connections stay open."""
    return poisoned(target, "timeout", {"timeout": 0}, "vanished", lambda probe: probe.outcome == "silent")


def passing(direction: str, links: Sequence[Link]) -> str:
    """Returns in words what a fault in this direction of the links is about."""
    if all(link.dialler == "client" for link in links):
        words = {"upstream": "requests of clients", "downstream": "answers to clients"}
        return words.get(direction, "requests of clients and answers to them")
    return {"upstream": "requests", "downstream": "answers"}.get(direction, "requests and answers")


def probe_all(links: tuple[Link, ...], requests: int = 1, limit_s: float = LIMIT_S) -> Probes:
    """Starts probes of the first MAX_PROBES links, and returns them with the links' names."""
    return [(link.name, BackgroundProbe(link.listen, requests, limit_s)) for link in links[:MAX_PROBES]]


def within(fault: Fault, limit_s: float) -> float:
    """Returns the time limit of a probe, so that it is over before its fault is, and nobody waits for it."""
    return min(limit_s, max(SHORTEST_PROBE_S, fault.duration_s - SHORTEST_PROBE_S)) if fault.duration_s else limit_s


def told_by(probes: Probes, shows: Callable[[Probe], bool]) -> str:
    """Waits for the probes, and returns what those say that show the fault. It is empty if none does."""
    seen = [(name, probe.result()) for name, probe in probes]
    shown: dict[str, list[str]] = {}
    for name, probe in seen:
        if shows(probe):
            shown.setdefault(probe.told(), []).append(name)
    if len(seen) == 1:
        return "".join(shown)
    return "; ".join(f"{told} on {', '.join(names)}" for told, names in shown.items())
