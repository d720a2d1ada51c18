"""SIGTERM: a clean shutdown, then a restart after ``restart_after_s``."""

from chaos.faults.timed import End, Ended, Place
from scenarios.model import Fault

KIND = "node_terminated"


def begin(place: Place, fault: Fault) -> End:
    how = place.child(fault.node).terminate()

    def end() -> Ended:
        if fault.restart_after_s >= 0:
            place.restart(fault.node)
        return Ended(how)

    return end
