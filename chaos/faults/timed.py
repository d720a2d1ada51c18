"""What the faults done from outside share: one file a fault, each with ``KIND`` and ``begin``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from chaos.live.links import Links, streams
from chaos.live.probe import LIMIT_S, BackgroundProbe, Probe
from chaos.live.processes import Child
from scenarios.model import Fault


@dataclass(frozen=True, slots=True)
class Ended:
    """``evidence`` says what shows that the fault happened; empty: nothing does, and the fault counts as not fired."""

    evidence: str


End: TypeAlias = Callable[[], Ended]
"""Undoes the fault."""


class Place(Protocol):
    """Where faults happen. ``restart`` starts the node's next incarnation and waits until it serves."""

    @property
    def links(self) -> Links: ...

    def child(self, node: int) -> Child: ...

    def restart(self, node: int) -> None: ...


def poisoned(
    place: Place,
    fault: Fault,
    toxic: str,
    attributes: dict[str, int],
    shows: Callable[[Probe], bool],
    requests: int = 1,
    limit_s: float = LIMIT_S,
) -> End:
    """A toxic on a node's client link until its end. Evidence: what happened to a probe of ours that used the link
    meanwhile, if ``shows`` says that this is the fault's doing."""
    link = place.links.of_node(fault.node)
    ways = streams(fault.direction)
    for way in ways:
        place.links.poison(link, fault.name, toxic, way, attributes)
    probe = BackgroundProbe(link.listen, requests, limit_s)

    def end() -> Ended:
        seen = probe.result()
        for way in ways:
            place.links.cure(link, fault.name, way)
        return Ended(f"{toxic} {attributes} {fault.direction}: {seen.told()}" if shows(seen) else "")

    return end
