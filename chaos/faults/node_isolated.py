"""All links between a node and the other nodes go silent, both ways; with ``clients`` also the clients' link to it."""

from chaos.faults.timed import End, Place, is_silent, poisoned
from chaos.live.targets import Target

KIND = "node_isolated"


def begin(place: Place, target: Target) -> End:
    return poisoned(place, target, "timeout", {"timeout": 0}, is_silent)
