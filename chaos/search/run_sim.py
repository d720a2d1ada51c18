"""Plays a scenario in the simulator with one seed or with many, and reports the outcome."""

import gc
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from chaos.checks.check import Check
from chaos.checks.metadata_epoch import OUT_OF_RANGE
from chaos.mutants import Applied, MutantError, applied, by_name, mutants_of
from chaos.promises import checked, is_judged
from chaos.search.children import in_children
from chaos.search.coverage import coverage_of, coverage_table
from chaos.search.swarm import materialised
from chaos.sim.machine import Machine
from chaos.sim.network import CODED_SHARE
from chaos.sim.speedups import plain_values
from chaos.sim.verdict import SimVerdict
from chaos.sim.world import RunStuckError, World
from reports.rows import is_strike
from reports.verdict import Outcome, worst_outcome
from scenarios import ledger, loader
from scenarios.loader import Scenario
from scenarios.revisions import each_revision

CHUNK = 8
"""The number of seeds that a child process plays. With few, all processes have work until the end."""

REWOUND = (OUT_OF_RANGE, "tombstones_missed")
"""Why a client leaves its position for an earlier one, if nothing was cut off there."""
_OFFSETS = ("offset", "base_offset", "base")
"""Names of what the innermost function works on, if it has an offset."""
NO_ANSWER = "REQUEST_TIMED_OUT"
"""How a commit ends that was sent again and again until its time was over (``client.offset_commits``)."""


def run(scenario: Scenario, seed: int, mutant: str | None = None, *, hashed: bool = False) -> SimVerdict:
    """Plays one seed. Raises MutantError if there is no such mutant or it does not fit the code."""
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
) -> tuple[SimVerdict, World]:
    """Does the same as ``run``. Returns also the world as it was at the end, for writing the run out. ``also`` are
    checks that only this run has."""
    with applied(by_name(mutant) if mutant else None) as at_work:
        played = materialised(scenario, seed)
        world = World(played, seed, hashed=hashed, keep_trace=keep_trace, coded_share=coded_share, also=also)
        crash, stuck = tuple[str, ...](), ""
        try:
            world.play()
        except RunStuckError as error:
            stuck = str(error)
        except Exception as error:
            crash = _crash(error, world.stage)
        return _verdict(world, at_work, crash, stuck), world


def _crash(error: Exception, stage: str) -> tuple[str, ...]:
    """Returns what ended the suite or a node, and then the node, and the offset or batch, that were worked on."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno}, during {stage})"
    node = next((own.node_id for own in (each.f_locals.get("self") for each in frames) if isinstance(own, Machine)), -1)
    where = [f"node {node}"] if node >= 0 else []
    for frame in reversed(frames):
        at = next((value for name in _OFFSETS if type(value := frame.f_locals.get(name)) is int), None)
        if at is not None:
            where.append(f"offset {at}")
            break
    return (what, f"it worked on {' at '.join(where)}") if where else (what,)


def _verdict(world: World, at_work: Applied | None, crash: tuple[str, ...], stuck: str) -> SimVerdict:
    scenario, history = world.scenario, world.history
    fired = Counter(row.name for row in world.faults if is_strike(row.kind))
    fetches = sum(row.f == "fetch" and row.type == "ok" for row in history.operations)
    acked = sum(row.count for row in history.runs if row.kind == "send" and row.first_offset >= 0)
    found = (each for check in world.checks for each in check.violations if is_judged(scenario, each.guarantee))
    violations = sorted(found, key=lambda each: each.at_us)
    unused = at_work is not None and at_work.calls == 0
    if crash:
        reasons = [*crash]
    else:
        reasons = [*filter(None, [stuck]), *_shortcomings(world, fired, fetches, acked)]
        if at_work is not None and unused:
            reasons.append(f"the mutant {at_work.mutant.name} was never called")
    # A broken guarantee is a failure even in a run that was too thin. Without one, a run that is too thin is INVALID.
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
        at_work.mutant.name if at_work is not None else "",
        outcome,
        tuple(violations),
        tuple(reasons),
        tuple(sorted(fired.items())),
        fetches,
        acked,
        world.events,
        world.agenda.now_us,
        world.hash.hexdigest() if world.hash is not None else "",
        at_work.calls if at_work is not None else -1,
        loader.typed(scenario),
        tuple(world.cluster.fault_scheduler.coverage.items()),
    )


def _shortcomings(world: World, fired: Counter[str], fetches: int, acked: int) -> Iterator[str]:
    """Yields the reasons why the run shows nothing. There are none if it had enough faults and traffic."""
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
    lost = sum(row.f == "offset_commit" and row.error == NO_ANSWER for row in world.history.operations)
    if 0 <= scenario.sim_max_lost_commits < lost:
        yield f"{lost} commits were never answered, at most {scenario.sim_max_lost_commits} may be"
    produced = (row for row in world.history.operations if row.f == "produce")
    slip_us = max((row.invoke_us - row.intended_us for row in produced), default=0)
    if slip_us > scenario.max_schedule_slip_ms * 1000:
        yield f"the schedule slipped by {slip_us // 1000} ms, at most {scenario.max_schedule_slip_ms} are allowed"


@dataclass(frozen=True, slots=True)
class Search:
    """Many seeds of one scenario. ``verdicts`` are in the order of the seeds."""

    scenario: str
    verdicts: tuple[SimVerdict, ...]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        return worst_outcome(each.outcome for each in self.verdicts)

    @property
    def first_failing(self) -> SimVerdict | None:
        """The verdict of the first seed that had the search's outcome. It is None if the search PASSED."""
        return next((each for each in self.verdicts if each.outcome is self.outcome is not Outcome.PASSED), None)


def search(scenario: Scenario, seeds: Sequence[int], processes: int = 2, mutant: str | None = None) -> Search:
    """Plays all seeds in so many processes. It starts no process for few seeds, or if ``processes`` is 1."""
    started = time.perf_counter()
    found = tuple(verdicts(scenario, seeds, processes, mutant))
    return Search(scenario.name, found, time.perf_counter() - started)


def verdicts(scenario: Scenario, seeds: Sequence[int], processes: int, mutant: str | None) -> Iterator[SimVerdict]:
    """Yields each seed's verdict in their order, as soon as it is known."""
    if processes <= 1 or len(seeds) < 2 * processes:
        for seed in seeds:
            with _quickly():
                verdict = run(scenario, seed, mutant)
            yield verdict
        return
    rest = seeds[1:]
    chunks = [rest[start : start + CHUNK] for start in range(0, len(rest), CHUNK)]
    first: list[SimVerdict] = []

    def play_first() -> None:
        first.append(run(scenario, seeds[0], mutant))

    with _quickly():
        for chunk in in_children(partial(_run_chunk, scenario, mutant), chunks, processes, play_first):
            yield from first
            first.clear()
            yield from chunk


def _run_chunk(scenario: Scenario, mutant: str | None, seeds: Sequence[int]) -> list[SimVerdict]:
    return [run(scenario, seed, mutant) for seed in seeds]


@contextmanager
def _quickly() -> Iterator[None]:
    """Inside the block values are not frozen (``plain_values.py``), and garbage is collected only at its end.

    A world is one large cycle that lives as long as its run, and looking for garbage in it costs a tenth of the time.
    What lives before the block stays, so it is not looked at either. Later it may be garbage again.
    """
    gc.freeze()
    gc.disable()
    try:
        with plain_values():
            yield
    finally:
        gc.enable()
        gc.collect()
        gc.unfreeze()


def report(found: Search) -> str:
    """Returns text for the terminal: the outcome and the speed. For a failure it adds the story and the command that
    repeats it."""
    verdicts, failing = found.verdicts, found.first_failing
    seeds, events = len(verdicts), sum(each.events for each in verdicts)
    lines = [
        f"{found.scenario}: {found.outcome.name}, {seeds} seeds, {seeds / found.seconds:.1f} seeds/s, "
        f"{events / found.seconds:.0f} events/s, {events / seeds:.0f} events a seed"
        + (f", trace hash {verdicts[0].trace_hash}" if verdicts[0].trace_hash else "")
    ]
    if failing is not None:
        bad = sum(each.outcome is not Outcome.PASSED for each in verdicts)
        lines.append(f"  {bad} of {seeds} seeds did not pass; first: seed {failing.seed}")
        lines += [f"  {each.guarantee}: {each.story}" for each in failing.violations[:3]]
        lines += [f"  {reason}" for reason in failing.reasons]
        lines.append(f"  repeat with: {failing.repeat_command}")
    if seeds > 1:
        lines += [f"  {line}" for line in coverage_table(coverage_of(verdicts))]
    return "\n".join(lines)


def simulate(
    names: Sequence[str],
    seeds: int | None = None,
    seed: int | None = None,
    mutant: str | None = None,
    processes: int = 2,
    out: Path | None = None,
    with_mutants: bool = False,
    revision: str = "",
    profile: bool = False,
    shrinks: bool = True,
) -> int:
    """Does what ``crucible sim`` does: plays, prints, and returns the exit code (0, 1, 2, 3 or 4).

    - ``seed`` alone plays that seed, with its trace hash. ``seeds`` (default 100) plays so many, from ``seed`` or 1 on.
    - ``out`` is a folder for a single seed's run, for ``crucible report``. Several scenarios get a folder each below
      it.
    - With ``with_mutants`` each scenario must pass without a mutant, and must fail with each of its mutants in at least
      one seed. The exit code is 0 if that is so, else 1.
    - With ``profile`` all seeds are played in this process, and a table tells where the time went.
    - A failing seed is made smaller, unless ``shrinks`` is off.
    - ``revision`` names the only revision to play. Without it each scenario is played in all its revisions.
    """
    first = 1 if seed is None else seed
    wanted = range(first, first + (seeds or 100))
    single = seed is not None and seeds in (None, 1)
    try:
        scenarios = [each for name in names for each in each_revision(checked(loader.find(name)), revision)]
        if with_mutants:
            return _prove(scenarios, wanted, processes)
        if mutant:
            by_name(mutant)  # Here, and not with a traceback in each process of a search.
        code = Outcome.PASSED
        for scenario in scenarios:
            if single:
                folder = out if out is None or len(scenarios) == 1 else out / scenario.name
                found = _single(scenario, first, mutant, folder)
            elif profile:
                found = _profiled(scenario, wanted, mutant)
            else:
                found = search(scenario, wanted, processes, mutant)
            click.echo(report(found))
            failing = found.first_failing
            is_kept = shrinks and (single or not mutant)
            if failing is not None and failing.outcome in (Outcome.FAILED, Outcome.CRASHED) and is_kept:
                _shrink_and_tell(scenario, failing)
            code = worst_outcome((code, found.outcome))
    except (loader.ScenarioError, MutantError, OSError) as error:
        click.echo(f"crucible sim: {error}", err=True)
        return 2
    return code.value


def _shrink_and_tell(scenario: Scenario, failing: SimVerdict) -> None:
    """Prints the faults of a smaller scenario that fails in the same way. Without a mutant that scenario is written to
    a file."""
    from chaos.search.shrink import keep_as_regression, shrink, told

    small = shrink(scenario, failing)
    click.echo(f"  {told(small)}")
    if not failing.mutant:
        path, command = keep_as_regression(small, failing)
        click.echo(f"  written to {path}; repeat with: {command}")


def _single(scenario: Scenario, seed: int, mutant: str | None, out: Path | None) -> Search:
    started = time.perf_counter()
    verdict, world = play(scenario, seed, mutant, hashed=True, keep_trace=out is not None)
    if out is not None:
        from chaos.sim.run_folder import write_out  # pyarrow: only where it is needed

        write_out(verdict, world, out)
    return Search(scenario.name, (verdict,), time.perf_counter() - started)


def _profiled(scenario: Scenario, seeds: Sequence[int], mutant: str | None) -> Search:
    from chaos.search.profile import Profile  # It needs the whole simulator's classes, and only few plays want it.

    told = Profile()
    with told.measured():
        found = search(scenario, seeds, 1, mutant)
    click.echo("\n".join(told.table()))
    return found


def _prove(scenarios: Sequence[Scenario], seeds: Sequence[int], processes: int) -> int:
    """Plays each scenario without a mutant over all seeds, and each of its mutants until a seed catches it. At the end
    it prints a line for each mutant: how many seeds it took, and which guarantees broke."""
    wrong: list[str] = []
    table = [("mutant", "scenario", "seeds to catch", "by")]
    for scenario in scenarios:
        found = search(scenario, seeds, processes)
        click.echo(report(found))
        if found.outcome is not Outcome.PASSED:
            wrong.append(scenario.name)
        for mutant in mutants_of(scenario):
            red = next((each for each in verdicts(scenario, seeds, 1, mutant) if each.red), None)
            played = len(seeds) if red is None else red.seed - seeds[0] + 1
            broken = () if red is None else red.broken or (red.outcome.name,)
            seed, target = -1 if red is None else red.seed, by_name(mutant).target
            ledger.remember(ledger.caught_now(mutant, target, scenario.name, "sim", played, tuple(broken), seed))
            if red is None:
                wrong.append(f"{scenario.name} with {mutant}")
                table.append((mutant, scenario.name, "none", ""))
                click.echo(f"  {mutant}: NOT caught")
            else:
                how = ", ".join(red.broken) or red.reasons[0]
                table.append((mutant, scenario.name, str(played), how))
                click.echo(f"  {mutant}: caught by seed {red.seed}: {how}")
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo(f"not as it must be: {', '.join(wrong)}" if wrong else "every control passed, every mutant was caught")
    return 1 if wrong else 0
