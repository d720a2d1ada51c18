"""Each connection passes ``cut_bytes`` more bytes and is then closed, as a rule inside a frame."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.targets import Target

REQUEST_BYTES = 14
"""The size of a probe's request. An answer is longer."""


def begin(_: Place, target: Target) -> End:
    kept = target.fault.cut_bytes.high
    requests = kept // REQUEST_BYTES + 2
    does = f"were cut off after {kept} bytes of each connection"
    return poisoned(target, "limit_data", {"bytes": kept}, does, lambda probe: probe.outcome == "closed", requests)
