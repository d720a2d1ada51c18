"""Each node in turn gets SIGTERM, and comes back after ``restart_after_s`` with other settings. The next node follows
``between_s`` after this one serves again. If another fault has struck any node, the bounce waits until all serve."""

from collections.abc import Generator, Iterator

from chaos.faults.timed import Blow, End, Ended, Place
from chaos.live.targets import Target
from scenarios.model import Fault


def begin(place: Place, target: Target) -> End:
    bounced: list[Blow] = []
    course = _course(place, target.fault, bounced)

    def end() -> Ended | None:
        """Makes one step of the bounce. Returns None while steps are left."""
        if next(course, "through") is None and not place.is_over:
            return None
        course.close()
        everybody = len(bounced) == len(place.addresses())
        return Ended("; ".join(each.evidence for each in bounced), tuple(bounced)) if everybody else Ended("")

    return end


def _course(place: Place, fault: Fault, bounced: list[Blow]) -> Generator[None, None, None]:
    """Yields after each step. If the load is over before the last step, the run's heal starts the nodes that are
    down."""
    nodes = range(len(place.addresses()))
    for node in nodes:
        while not all(map(place.is_ready, nodes)):
            yield
        child, at_us = place.child(node), place.now_us()
        child.ask_to_end()
        while child.exit_status is None:
            yield
        place.reconfigure(node, dict(fault.config))
        yield from _wait(place, fault.restart_after_s)
        place.restart(node)
        while not place.is_ready(node):
            yield
        evidence = f"node-{node}: {child.who} {child.how_it_ended()}, back as {place.child(node).who}"
        bounced.append(Blow(f"node-{node}", at_us, place.now_us(), evidence))
        yield from _wait(place, fault.between_s)


def _wait(place: Place, seconds: float) -> Iterator[None]:
    until_us = place.now_us() + int(max(seconds, 0.0) * 1e6)
    while place.now_us() < until_us:
        yield
