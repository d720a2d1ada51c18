"""SIGSTOP, then SIGCONT after ``duration_s``: half-open connections, a node that missed that time."""

from chaos.faults.timed import End, Ended, Place
from scenarios.model import Fault

KIND = "node_paused"


def begin(place: Place, fault: Fault) -> End:
    child = place.child(fault.node)
    state = child.pause()

    def end() -> Ended:
        still = child.state()
        child.resume()
        return Ended(f"pid {child.pid} was stopped (state {state}, {still} at the end)" if state == "T" else "")

    return end
