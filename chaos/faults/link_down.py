"""The links' connections are closed, and new ones are refused."""

from chaos.faults.timed import End, Ended, Place, probe_all, told_by, within
from chaos.live.probe import LIMIT_S
from chaos.live.targets import Target


def begin(_: Place, target: Target) -> End:
    for link in target.links:
        link.proxy.disable()
    probes = probe_all(target.links, limit_s=within(target.fault, LIMIT_S))

    def end() -> Ended:
        seen = told_by(probes, lambda probe: probe.outcome == "refused")
        for link in target.links:
            link.proxy.enable()
        return Ended(f"connections were closed, and new ones refused; {seen}" if seen else "")

    return end
