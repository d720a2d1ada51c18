"""The node gets SIGKILL, and is started again after ``restart_after_s``. Appended bytes stay, since the page cache
outlives the process."""

from chaos.faults.timed import End, Place, back_again, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    how = place.child(node_of(target)).kill()
    return back_again(place, target, how if "SIGKILL" in how else "")
