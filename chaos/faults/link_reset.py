"""Every connection of the link is reset (RST), and so is each new one until the end of the fault."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.targets import Target


def begin(_: Place, target: Target) -> End:
    does = "were cut off, because each connection was reset"
    return poisoned(target, "reset_peer", {"timeout": 0}, does, lambda probe: probe.outcome in ("closed", "refused"))
