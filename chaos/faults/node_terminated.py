"""The node gets SIGTERM, shuts down cleanly, and is started again after ``restart_after_s``."""

from chaos.faults.timed import End, Place, back_again, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    return back_again(place, target, place.child(node_of(target)).terminate())
