"""No space is left on the node's disk. A node that cannot go on without it ends itself, and is started again when the
fault is over."""

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    node = node_of(target)
    child = place.child(node)
    child.expect_end()
    place.order_disk(node, {"full": True})

    def end() -> Ended:
        struck = place.disk_struck(node, "disk_full")
        place.order_disk(node, {"full": False})
        if child.exit_status is None:
            child.expect_life()
            return Ended(struck)
        place.restart(node)
        return Ended(f"{struck}; {child.how_it_ended()}" if struck else "")

    return end
