"""Every sync of the node's disk takes ``delay_ms`` longer, or with ``names_only`` every sync of a folder."""

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    node = node_of(target)
    place.order_disk(node, {"slow_ms": target.fault.delay_ms.high, "names_only": target.fault.names_only})

    def end() -> Ended:
        struck = place.disk_struck(node, "disk_slowed")
        place.order_disk(node, {"slow_ms": 0})
        return Ended(struck)

    return end
