"""Frames arrive in small pieces, with pauses between the pieces."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.targets import Target

AVERAGE_BYTES = 64
VARIATION_BYTES = 32
PAUSE_US = 200
PROBE_REQUESTS = 20


def begin(_: Place, target: Target) -> End:
    attributes = {"average_size": AVERAGE_BYTES, "size_variation": VARIATION_BYTES, "delay": PAUSE_US}
    does = f"came in pieces of {AVERAGE_BYTES} bytes, give or take {VARIATION_BYTES}, {PAUSE_US} µs apart"
    return poisoned(target, "slicer", attributes, does, lambda probe: probe.whole_us >= 4 * PAUSE_US, PROBE_REQUESTS)
