"""Faults of links: toxics of Toxiproxy, and probes that measure the effect of a toxic."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from chaos.live.faults.fault_context import Begin, End, Ended, LiveFaultContext
from chaos.live.links import Link, cure, poison
from chaos.live.probe import LIMIT_S, BackgroundProbe, Probe
from chaos.live.targets import FaultTarget
from scenarios.model import Fault

MAX_PROBES = 6
"""The number of probes for a fault on many links. Each probe is a connection and a thread of ours."""
SHORTEST_PROBE_S = 0.2


Probes: TypeAlias = list[tuple[str, BackgroundProbe]]


def silenced(_: LiveFaultContext, target: FaultTarget) -> End:
    """Let the target's links go silent: bytes vanish in the fault's direction, and connections stay open.

    - ``link_cut`` is one link. The end of the fault closes the connections that lived through it (Toxiproxy #168), as a
      real network often does too.
    - ``node_isolated`` are all links between a node and the other nodes, both ways, and with ``clients`` also the
      clients' link to the node.
    - ``node_cut_from_controller`` are the links between a node and the voters, both ways. No heartbeat and no update of
      the node's metadata gets through, while clients and other observers still reach the node.
    """
    return poisoned(target, "timeout", {"timeout": 0}, "vanished", lambda probe: probe.outcome == "silent")


DELAYED_PROBE_LIMIT_S = 5.0


def link_delayed(_: LiveFaultContext, target: FaultTarget) -> End:
    """Bytes arrive later, by ``delay_ms`` plus or minus ``jitter_ms``."""
    delay_ms, jitter_ms = target.fault.delay_ms.high, target.fault.jitter_ms
    least_us = max(1, delay_ms - jitter_ms) * 1000
    attributes = {"latency": delay_ms, "jitter": jitter_ms}
    does = f"were delayed by {delay_ms} ms" + (f", give or take {jitter_ms}" if jitter_ms else "")
    return poisoned(
        target, "latency", attributes, does, lambda probe: probe.first_us >= least_us, limit_s=DELAYED_PROBE_LIMIT_S
    )


SLOWED_PROBE_LIMIT_S = 5.0
SLOWED_PROBE_REQUESTS = 50
"""The number of requests that a probe sends: some 700 bytes, whose responses are several thousand bytes."""


def link_slowed(_: LiveFaultContext, target: FaultTarget) -> End:
    """Each connection passes at most ``bytes_per_s`` in each direction of the fault."""
    rate_kb_per_s = max(1, target.fault.bytes_per_s // 1000)

    def shows(probe: Probe) -> bool:
        if probe.outcome == "silent":
            return True
        most_bytes = 2000 * rate_kb_per_s * probe.whole_us / 1_000_000  # twice the rate
        return probe.outcome == "responded" and probe.response_bytes <= most_bytes

    does = f"passed at no more than {rate_kb_per_s} kB a second"
    return poisoned(
        target, "bandwidth", {"rate": rate_kb_per_s}, does, shows, SLOWED_PROBE_REQUESTS, SLOWED_PROBE_LIMIT_S
    )


AVERAGE_BYTES = 64
VARIATION_BYTES = 32
PAUSE_US = 200
SLICED_PROBE_REQUESTS = 20


def link_sliced(_: LiveFaultContext, target: FaultTarget) -> End:
    """Frames arrive in small pieces, with pauses between the pieces."""
    attributes = {"average_size": AVERAGE_BYTES, "size_variation": VARIATION_BYTES, "delay": PAUSE_US}
    does = f"came in pieces of {AVERAGE_BYTES} bytes, give or take {VARIATION_BYTES}, {PAUSE_US} µs apart"
    return poisoned(
        target, "slicer", attributes, does, lambda probe: probe.whole_us >= 4 * PAUSE_US, SLICED_PROBE_REQUESTS
    )


PROBE_REQUEST_BYTES = 14
"""The size of a probe's request. A response is longer."""


def link_truncated(_: LiveFaultContext, target: FaultTarget) -> End:
    """Each connection passes ``cut_bytes`` more bytes and is then closed, as a rule inside a frame."""
    kept = target.fault.cut_bytes.high
    requests = kept // PROBE_REQUEST_BYTES + 2
    does = f"were cut off after {kept} bytes of each connection"
    return poisoned(target, "limit_data", {"bytes": kept}, does, lambda probe: probe.outcome == "closed", requests)


def link_reset(_: LiveFaultContext, target: FaultTarget) -> End:
    """Every connection of the link is reset (RST), and so is each new one until the end of the fault."""
    does = "were cut off, because each connection was reset"
    return poisoned(target, "reset_peer", {"timeout": 0}, does, lambda probe: probe.outcome in ("closed", "refused"))


def link_down(_: LiveFaultContext, target: FaultTarget) -> End:
    """The links' connections are closed, and new ones are refused."""
    for link in target.links:
        link.proxy.disable()
    probes = probe_all(target.links, limit_s=within(target.fault, LIMIT_S))

    def end() -> Ended:
        seen = findings_of(probes, lambda probe: probe.outcome == "refused")
        for link in target.links:
            link.proxy.enable()
        return Ended(f"connections were closed, and new ones refused; {seen}" if seen else "")

    return end


BEGIN: Final[dict[str, Begin]] = {
    "link_cut": silenced,
    "node_isolated": silenced,
    "node_cut_from_controller": silenced,
    "link_delayed": link_delayed,
    "link_slowed": link_slowed,
    "link_sliced": link_sliced,
    "link_truncated": link_truncated,
    "link_reset": link_reset,
    "link_down": link_down,
}


def poisoned(
    target: FaultTarget,
    toxic: str,
    attributes: dict[str, int],
    does: str,
    shows: Callable[[Probe], bool],
    requests: int = 1,
    limit_s: float = LIMIT_S,
) -> End:
    """Put a toxic on each of the target's links until its end.

    The evidence is what the toxic ``does`` to the bytes that pass, in words, and what happened to our probes of these
    links meanwhile. A probe counts if ``shows`` returns that it was affected by the fault.
    """
    fault, links = target.fault, target.links
    for link in links:
        poison(link, fault.name, toxic, fault.direction, attributes)
    probes = probe_all(links, requests, within(fault, limit_s))

    def end() -> Ended:
        seen = findings_of(probes, shows)
        for link in links:
            cure(link, fault.name, fault.direction)
        return Ended(f"{passing(fault.direction, links)} {does}; {seen}" if seen else "")

    return end


def passing(direction: str, links: Sequence[Link]) -> str:
    """Return the direction of a fault in words."""
    if all(link.dialler == "client" for link in links):
        words = {"upstream": "requests of clients", "downstream": "responses to clients"}
        return words.get(direction, "requests of clients and responses to them")
    return {"upstream": "requests", "downstream": "responses"}.get(direction, "requests and responses")


def probe_all(links: tuple[Link, ...], requests: int = 1, limit_s: float = LIMIT_S) -> Probes:
    """Start probes of the first MAX_PROBES links, and return them with the links' names."""
    return [(link.name, BackgroundProbe(link.listen, requests, limit_s)) for link in links[:MAX_PROBES]]


def within(fault: Fault, limit_s: float) -> float:
    """Return the time limit of a probe, which ends before its fault, so that nothing waits for it."""
    return min(limit_s, max(SHORTEST_PROBE_S, fault.duration_s - SHORTEST_PROBE_S)) if fault.duration_s else limit_s


def findings_of(probes: Probes, shows: Callable[[Probe], bool]) -> str:
    """Wait for the probes, and return the findings of those that show the fault, empty if none does."""
    seen = [(name, probe.result()) for name, probe in probes]
    shown: dict[str, list[str]] = {}
    for name, probe in seen:
        if shows(probe):
            shown.setdefault(probe.finding(), []).append(name)
    if len(seen) == 1:
        return "".join(shown)
    return "; ".join(f"{finding} on {', '.join(names)}" for finding, names in shown.items())
