"""The link goes silent: bytes in the chosen directions vanish, connections stay open.

Healing closes the connections that lived through it (Toxiproxy #168), as a real network often does too.
"""

from chaos.faults.timed import End, Place, poisoned
from scenarios.model import Fault

KIND = "link_cut"


def begin(place: Place, fault: Fault) -> End:
    return poisoned(place, fault, "timeout", {"timeout": 0}, lambda probe: probe.outcome == "silent")
