"""Every connection of the link is reset (RST), and so is each new one until the end."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.targets import Target

KIND = "link_reset"


def begin(place: Place, target: Target) -> End:
    return poisoned(place, target, "reset_peer", {"timeout": 0}, lambda probe: probe.outcome in ("closed", "refused"))
