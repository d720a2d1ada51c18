"""SIGKILL, then a restart after ``restart_after_s``. Appended bytes stay: the page cache outlives the process."""

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target

KIND = "node_killed"


def begin(place: Place, target: Target) -> End:
    how = place.child(node_of(target)).kill()

    def end() -> Ended:
        if target.fault.restart_after_s >= 0:
            place.restart(node_of(target))
        return Ended(how if "SIGKILL" in how else "")

    return end
