"""The link goes silent: bytes in the chosen directions vanish, connections stay open.

Healing closes the connections that lived through it (Toxiproxy #168), as a real network often does too.
"""

from chaos.faults.timed import End, Place, is_silent, poisoned
from chaos.live.targets import Target

KIND = "link_cut"


def begin(place: Place, target: Target) -> End:
    return poisoned(place, target, "timeout", {"timeout": 0}, is_silent)
