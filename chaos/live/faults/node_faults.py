"""Faults of a node's process: it is killed, terminated, paused, or bounced with the others."""

from collections.abc import Generator, Iterator
from typing import Final

from chaos.live.faults.fault_context import Begin, End, Ended, Firing, LiveFaultContext, back_again, node_of
from chaos.live.targets import FaultTarget
from scenarios.model import Fault


def node_killed(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node gets SIGKILL, and is started again after ``restart_after_s``. Appended bytes stay, since the page cache
    outlives the process."""
    how = context.child(node_of(target)).kill()
    return back_again(context, target, how if "SIGKILL" in how else "")


def node_terminated(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node gets SIGTERM, shuts down cleanly, and is started again after ``restart_after_s``."""
    return back_again(context, target, context.child(node_of(target)).terminate())


def node_paused(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node gets SIGSTOP, and SIGCONT after ``duration_s``. Its connections stay open meanwhile."""
    child = context.child(node_of(target))
    state = child.pause()

    def end() -> Ended:
        still = child.state()
        child.resume()
        return Ended(f"{child.label} was stopped (state {state}, {still} at the end)" if state == "T" else "")

    return end


def rolling_bounce(context: LiveFaultContext, target: FaultTarget) -> End:
    """Each node in turn gets SIGTERM, and comes back after ``restart_after_s`` with other settings. The next node
    follows ``between_s`` after this one serves again. The bounce waits while a node does not serve because of another
    fault."""
    bounced: list[Firing] = []
    course = _course(context, target.fault, bounced)

    def end() -> Ended | None:
        """Make one step of the bounce. Return None while steps remain."""
        if next(course, "through") is None and not context.is_over:
            return None
        course.close()
        everybody = len(bounced) == len(context.addresses())
        return Ended("; ".join(firing.evidence for firing in bounced), tuple(bounced)) if everybody else Ended("")

    return end


def _course(context: LiveFaultContext, fault: Fault, bounced: list[Firing]) -> Generator[None, None, None]:
    """Yield after each step. If the load is over before the last step, the run's heal starts the nodes that are
    down."""
    nodes = range(len(context.addresses()))
    for node in nodes:
        while not all(map(context.is_ready, nodes)):
            yield
        child, at_us = context.child(node), context.now_us()
        child.request_end()
        while child.exit_status is None:
            yield
        context.reconfigure(node, dict(fault.config))
        yield from _wait(context, fault.restart_after_s)
        context.restart(node)
        while not context.is_ready(node):
            yield
        evidence = f"node-{node}: {child.label} {child.how_it_ended()}, back as {context.child(node).label}"
        bounced.append(Firing(f"node-{node}", at_us, context.now_us(), evidence))
        yield from _wait(context, fault.between_s)


def _wait(context: LiveFaultContext, seconds: float) -> Iterator[None]:
    until_us = context.now_us() + int(max(seconds, 0.0) * 1e6)
    while context.now_us() < until_us:
        yield


BEGIN: Final[dict[str, Begin]] = {
    "node_killed": node_killed,
    "node_terminated": node_terminated,
    "node_paused": node_paused,
    "rolling_bounce": rolling_bounce,
}
