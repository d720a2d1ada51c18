"""SIGTERM: a clean shutdown, then a restart after ``restart_after_s``."""

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target

KIND = "node_terminated"


def begin(place: Place, target: Target) -> End:
    how = place.child(node_of(target)).terminate()

    def end() -> Ended:
        if target.fault.restart_after_s >= 0:
            place.restart(node_of(target))
        return Ended(how)

    return end
