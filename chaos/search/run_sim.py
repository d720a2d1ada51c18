"""Play one seed of a scenario in the simulator, and compute the verdict of the run."""

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from chaos.checks.check import Check
from chaos.checks.guarantee_selection import is_judged
from chaos.checks.metadata_epoch import OUT_OF_RANGE
from chaos.mutants import Applied, applied, by_name
from chaos.search.swarm import materialised
from chaos.sim.decision_counts import NOTHING_COUNTED, Reached, recorder, watch
from chaos.sim.machine import Machine
from chaos.sim.network import CODED_SHARE
from chaos.sim.simulated_cluster import EventReached
from chaos.sim.verdict import SimVerdict
from chaos.sim.world import RunStuckError, SimWorld
from reports.rows import is_hit
from reports.verdict import Outcome
from scenarios import loader
from scenarios.decision_points import ROOT, place_of
from scenarios.loader import Scenario
from scenarios.revisions import own_points

REWOUND = (OUT_OF_RANGE, "tombstones_missed")
"""Reasons for which a client leaves its position for an earlier one, if nothing was truncated there."""
_OFFSETS = ("offset", "base_offset", "base")
"""Names of local variables that have the offset at which a function failed."""
NO_RESPONSE = "REQUEST_TIMED_OUT"
"""The error of a commit that was retried until it timed out (``client.offset_commits``)."""


def run(scenario: Scenario, seed: int, mutant: str | None = None, *, hashed: bool = False) -> SimVerdict:
    """Play one seed. Raise MutantError if there is no such mutant or it does not fit the code."""
    return play(scenario, seed, mutant, hashed=hashed)[0]


def play(
    scenario: Scenario,
    seed: int,
    mutant: str | None = None,
    *,
    hashed: bool = False,
    keep_trace: bool = False,
    coded_share: float = CODED_SHARE,
    also: Sequence[type[Check]] = (),
    until_event: int = -1,
) -> tuple[SimVerdict, SimWorld]:
    """Play one seed, and return also its world at the end, which ``write_out`` needs. ``also`` are checks that only
    this run has. With ``until_event`` the run ends after that event of all nodes, and the verdict says nothing."""
    with applied(by_name(mutant) if mutant else None) as applied_mutant:
        played = materialised(scenario, seed)
        on_decisions = any(fault.on == "decision" for fault in played.faults)
        counts = watch() if own_points(played) or on_decisions else recorder()
        if counts is not None:
            counts.begin()
        world = SimWorld(played, seed, hashed=hashed, keep_trace=keep_trace, coded_share=coded_share, also=also)
        world.cluster.stop_after_event = until_event
        crash, stuck, crashed_node = tuple[str, ...](), "", -1
        try:
            world.play()
        except EventReached:
            pass
        except RunStuckError as error:
            stuck = str(error)
        except Exception as error:
            crash, crashed_node = _crash(error, world.stage)
        reached = NOTHING_COUNTED if counts is None else counts.end()
        verdict = _compute_verdict(world, applied_mutant, reached, crash, stuck)
        return replace(verdict, crashed_node=crashed_node), world


def _crash(error: Exception, stage: str) -> tuple[tuple[str, ...], int]:
    """Return the exception that ended the run, then the node and the offset at which it was raised, and the node's
    number, -1 if none was at work."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(last.filename)
    file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    what = f"{type(error).__name__}: {error} ({file}:{last.lineno}, during {stage})"
    node = next((own.node_id for own in (each.f_locals.get("self") for each in frames) if isinstance(own, Machine)), -1)
    where = [f"node {node}"] if node >= 0 else []
    for frame in reversed(frames):
        at = next((value for name in _OFFSETS if type(value := frame.f_locals.get(name)) is int), None)
        if at is not None:
            where.append(f"offset {at}")
            break
    return ((what, f"it worked on {' at '.join(where)}") if where else (what,)), node


def _compute_verdict(
    world: SimWorld, applied_mutant: Applied | None, reached: Reached, crash: tuple[str, ...], stuck: str
) -> SimVerdict:
    scenario, history = world.scenario, world.history
    fired = Counter(row.name for row in world.faults if is_hit(row.kind))
    fetches = sum(row.f == "fetch" and row.type == "ok" for row in history.operations)
    acked = sum(row.count for row in history.runs if row.kind == "send" and row.first_offset >= 0)
    found = (each for check in world.checks for each in check.violations if is_judged(scenario, each.guarantee))
    violations = sorted(found, key=lambda each: each.at_us)
    unused = applied_mutant is not None and applied_mutant.calls == 0
    if crash:
        reasons = [*crash]
    else:
        reasons = [stuck] if stuck else []
        reasons += _shortcomings(world, fired, fetches, acked)
        unreached = [each for each in own_points(scenario) if not reached.counts[place_of(each)]]
        reasons += [f"the decision {each} was never reached" for each in unreached]
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
    """Yield the reasons why the run shows nothing. There are none if it had enough faults and traffic."""
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
