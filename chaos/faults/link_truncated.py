"""Each connection passes ``cut_bytes`` more bytes and is then closed: inside a frame, as a rule."""

from chaos.faults.timed import End, Place, poisoned
from chaos.live.targets import Target

KIND = "link_truncated"
REQUEST_BYTES = 14
"""Of a probe's request; an answer is longer."""


def begin(place: Place, target: Target) -> End:
    kept = target.fault.cut_bytes.high
    requests = kept // REQUEST_BYTES + 2
    return poisoned(place, target, "limit_data", {"bytes": kept}, lambda probe: probe.outcome == "closed", requests)
