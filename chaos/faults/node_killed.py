"""SIGKILL, then a restart after ``restart_after_s``. Appended bytes stay: the page cache outlives the process."""

from chaos.faults.timed import End, Ended, Place
from scenarios.model import Fault

KIND = "node_killed"


def begin(place: Place, fault: Fault) -> End:
    how = place.child(fault.node).kill()

    def end() -> Ended:
        if fault.restart_after_s >= 0:
            place.restart(fault.node)
        return Ended(how if "SIGKILL" in how else "")

    return end
