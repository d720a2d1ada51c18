"""The verdict of a simulated run: when it is PASSED, FAILED, INVALID or CRASHED."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from chaos.checks.check import Violation
from chaos.checks.guarantee_selection import is_judged
from chaos.checks.metadata.metadata_epoch import OUT_OF_RANGE
from chaos.mutants import Applied
from chaos.sim.decision_counts import NOTHING_COUNTED, Reached
from chaos.sim.world import SimWorld
from reports.rows import is_hit
from reports.verdict import Outcome
from scenarios import loader
from scenarios.decision_points import place_of
from scenarios.revisions import own_points

REWOUND = (OUT_OF_RANGE, "tombstones_missed")
"""Reasons for which a client goes back to an earlier position, if nothing was truncated there."""
NO_RESPONSE = "REQUEST_TIMED_OUT"
"""The error of a commit that was retried until it timed out (``client.offset_commits``)."""
NODE_ENDED = ("NodeFailed", "StartRefused")
"""Errors with which a node ends itself; any other exception is a mistake of the code, or of the mutant."""
BROKER = "reference_broker"
"""The folder of the broker's code. An exception from a mutant's own code shows nothing about the broker."""


@dataclass(frozen=True, slots=True)
class SimVerdict:
    """The result of one run."""

    scenario: str
    seed: int
    mutant: str
    """its name, empty for none"""
    outcome: Outcome
    violations: tuple[Violation, ...]
    """in the order of their times"""
    reasons: tuple[str, ...]
    """why the run is INVALID or CRASHED"""
    faults: tuple[tuple[str, int], ...]
    """name of each fault that fired, and how often"""
    fetches: int
    """number of fetches with a response"""
    acked: int
    """number of acknowledged records"""
    events: int
    """number of events that the nodes handled"""
    virtual_us: int
    trace_hash: str = ""
    """empty unless a single seed was played"""
    mutant_calls: int = -1
    """number of calls of the mutant's replacement, -1 without a mutant"""
    typed: str = ""
    """name of the scenario on the command line, if not its own name"""
    coverage: tuple[tuple[tuple[str, str, str], int], ...] = ()
    """how often a fault fired, by (kind, role, state) of its target"""
    reached: Reached = NOTHING_COUNTED
    """the outcomes of decision points, empty unless they were counted"""
    crashed_node: int = -1
    """the node that was at work when the run crashed, -1 for none"""
    changes: tuple[int, ...] = ()
    """those that a guided search made to the scenario (``chaos.search.guided``)"""

    @property
    def repeat_command(self) -> str:
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        changes = f" --changes {','.join(map(str, self.changes))}" if self.changes else ""
        return f"./crucible sim {self.typed or self.scenario} --seed {self.seed}{changes}{mutant}"

    @property
    def show_command(self) -> str:
        """The command that prints the crashed node as it was after the last event that was handled; empty if no node
        was at work, or none had handled an event."""
        if self.crashed_node < 0 or not self.events:
            return ""
        return f"{self.repeat_command} --at {self.events} --show {self.crashed_node}"

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the violated guarantees, each once, in the order of their violations."""
        return tuple(dict.fromkeys(violation.guarantee for violation in self.violations))

    @property
    def red(self) -> bool:
        """Whether the run kills a mutant: a guarantee was violated, a node noticed the damage itself and ended, or an
        exception that nothing handles was raised in the broker's code."""
        if self.outcome is not Outcome.CRASHED:
            return self.outcome is Outcome.FAILED
        return self.reasons[0].startswith(NODE_ENDED) or f"({BROKER}/" in self.reasons[0]


def compute_verdict(
    world: SimWorld, applied_mutant: Applied | None, reached: Reached, crash: tuple[str, ...], stuck: str
) -> SimVerdict:
    """Return the verdict of the run of a world. ``crash`` is the exception that ended it, in words, and ``stuck`` the
    phase that did not end; each is empty without one."""
    scenario, history = world.scenario, world.history
    fired = Counter(row.name for row in world.faults if is_hit(row.kind))
    fetches = sum(row.f == "fetch" and row.type == "ok" for row in history.operations)
    acked = sum(row.count for row in history.runs if row.kind == "send" and row.first_offset >= 0)
    judged = (
        violation
        for check in world.checks
        for violation in check.violations
        if is_judged(scenario, violation.guarantee)
    )
    violations = sorted(judged, key=lambda violation: violation.at_us)
    unused = applied_mutant is not None and applied_mutant.calls == 0
    if crash:
        reasons = [*crash]
    else:
        reasons = [stuck] if stuck else []
        reasons += _shortcomings(world, fired, fetches, acked)
        unreached = [point for point in own_points(scenario) if not reached.counts[place_of(point)]]
        reasons += [f"the decision {point} was never reached" for point in unreached]
        if applied_mutant is not None and unused:
            reasons.append(f"the mutant {applied_mutant.mutant.name} was never called")
    # A violation is a failure even in a run that was too thin. Without one, a run that is too thin is INVALID.
    outcome = Outcome.PASSED
    if crash:
        outcome = Outcome.CRASHED
    elif violations and not unused:
        outcome = Outcome.FAILED
    elif reasons:
        outcome = Outcome.INVALID
    return SimVerdict(
        scenario.name,
        world.seed,
        applied_mutant.mutant.name if applied_mutant is not None else "",
        outcome,
        tuple(violations),
        tuple(reasons),
        tuple(sorted(fired.items())),
        fetches,
        acked,
        world.events,
        world.agenda.now_us,
        world.hash.hexdigest() if world.hash is not None else "",
        applied_mutant.calls if applied_mutant is not None else -1,
        loader.typed(scenario),
        tuple(world.cluster.fault_scheduler.coverage.items()),
        reached,
    )


def _shortcomings(world: SimWorld, fired: Counter[str], fetches: int, acked: int) -> Iterator[str]:
    """Yield the reasons why the run is INVALID. There are none if it had enough faults and traffic."""
    scenario = world.scenario
    for name, times in Counter(scenario.expected_faults).items():
        if name not in fired:
            yield f"the fault {name} never fired"
        elif fired[name] < times:
            yield f"the fault {name} fired {fired[name]} of {times} times"
    if fetches < scenario.sim_min_fetches:
        yield f"{fetches} fetches, at least {scenario.sim_min_fetches} are needed"
    if acked < scenario.sim_min_acked:
        yield f"{acked} acknowledged records, at least {scenario.sim_min_acked} are needed"
    resets = world.history.resets
    rewinds = sum(row.reason in REWOUND and 0 <= row.to_offset < row.from_offset for row in resets)
    if rewinds < scenario.min_rewinds:
        yield f"{rewinds} rewinds, at least {scenario.min_rewinds} are needed"
    lost = sum(row.f == "offset_commit" and row.error == NO_RESPONSE for row in world.history.operations)
    if 0 <= scenario.sim_max_lost_commits < lost:
        yield f"{lost} commits never got a response, at most {scenario.sim_max_lost_commits} may be"
    produced = (row for row in world.history.operations if row.f == "produce")
    slip_us = max((row.invoke_us - row.intended_us for row in produced), default=0)
    if slip_us > scenario.max_schedule_slip_ms * 1000:
        yield f"the schedule slipped by {slip_us // 1000} ms, at most {scenario.max_schedule_slip_ms} are allowed"
