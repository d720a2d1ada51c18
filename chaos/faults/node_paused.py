"""The node gets SIGSTOP, and SIGCONT after ``duration_s``. Its connections stay open meanwhile, and it misses that
time."""

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    child = place.child(node_of(target))
    state = child.pause()

    def end() -> Ended:
        still = child.state()
        child.resume()
        return Ended(f"{child.who} was stopped (state {state}, {still} at the end)" if state == "T" else "")

    return end
