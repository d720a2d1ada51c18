"""Every connection of the link is reset (RST), and so is each new one until the end."""

from chaos.faults.timed import End, Place, poisoned
from scenarios.model import Fault

KIND = "link_reset"


def begin(place: Place, fault: Fault) -> End:
    return poisoned(place, fault, "reset_peer", {"timeout": 0}, lambda probe: probe.outcome in ("closed", "refused"))
