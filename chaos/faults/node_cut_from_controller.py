"""The links between a node and the voters go silent, both ways: no heartbeat and no update of its metadata gets
through, while clients and other observers still reach it."""

from chaos.faults.timed import End, Place, is_silent, poisoned
from chaos.live.targets import Target

KIND = "node_cut_from_controller"


def begin(place: Place, target: Target) -> End:
    return poisoned(place, target, "timeout", {"timeout": 0}, is_silent)
