"""Bytes arrive later, by ``delay_ms`` plus or minus ``jitter_ms``."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.targets import Target

PROBE_LIMIT_S = 5.0


def begin(_: Place, target: Target) -> End:
    delay_ms, jitter_ms = target.fault.delay_ms.high, target.fault.jitter_ms
    least_us = max(1, delay_ms - jitter_ms) * 1000
    attributes = {"latency": delay_ms, "jitter": jitter_ms}
    does = f"were delayed by {delay_ms} ms" + (f", give or take {jitter_ms}" if jitter_ms else "")
    return poisoned(
        target, "latency", attributes, does, lambda probe: probe.first_us >= least_us, limit_s=PROBE_LIMIT_S
    )
