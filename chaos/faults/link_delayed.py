"""Bytes arrive later, by ``delay_ms`` plus or minus ``jitter_ms``."""

from chaos.faults.timed import End, Place, poisoned
from scenarios.model import Fault

KIND = "link_delayed"
PROBE_LIMIT_S = 5.0


def begin(place: Place, fault: Fault) -> End:
    delay_ms = fault.delay_ms.high
    attributes = {"latency": delay_ms, "jitter": fault.jitter_ms}
    least_us = max(1, delay_ms - fault.jitter_ms) * 1000
    return poisoned(
        place, fault, "latency", attributes, lambda probe: probe.first_us >= least_us, limit_s=PROBE_LIMIT_S
    )
