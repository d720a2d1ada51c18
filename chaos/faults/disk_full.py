"""No space is left on the node's disk. A node that cannot go on without it ends itself, and is started again when the
fault is over."""

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    node = node_of(target)
    child = place.child(node)
    child.expected_end = True
    place.order_disk(node, {"full": True})

    def end() -> Ended:
        struck = place.disk_struck(node, "disk_full")
        place.order_disk(node, {"full": False})
        child.expected_end = child.exit_status is not None
        if not child.expected_end:
            return Ended(struck)
        place.restart(node)
        return Ended(f"{struck}; {child.how_it_ended()}" if struck else "")

    return end
