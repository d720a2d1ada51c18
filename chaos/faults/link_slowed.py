"""Each connection passes at most ``bytes_per_s`` in each direction of the fault."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.probe import Probe
from chaos.live.targets import Target

PROBE_LIMIT_S = 5.0
PROBE_REQUESTS = 50
"""The number of requests that a probe sends. They are some 700 bytes, and their answers are several thousand bytes."""


def begin(_: Place, target: Target) -> End:
    rate_kb_per_s = max(1, target.fault.bytes_per_s // 1000)

    def shows(probe: Probe) -> bool:
        if probe.outcome == "silent":
            return True
        return probe.outcome == "answered" and probe.answer_bytes * 1_000_000 <= 2000 * rate_kb_per_s * probe.whole_us

    does = f"passed at no more than {rate_kb_per_s} kB a second"
    return poisoned(target, "bandwidth", {"rate": rate_kb_per_s}, does, shows, PROBE_REQUESTS, PROBE_LIMIT_S)
