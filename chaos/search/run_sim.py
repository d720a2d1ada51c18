"""One seed, or many: plays a scenario in the simulator and says what it came to."""

import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.mutants import Applied, MutantError, applied, by_name, mutants_of
from chaos.promises import checked
from chaos.search.coverage import coverage_of, coverage_table
from chaos.search.swarm import materialised
from chaos.sim.network import CODED_SHARE
from chaos.sim.verdict import SimVerdict
from chaos.sim.world import RunStuckError, World
from reports.verdict import Outcome, worst_outcome
from scenarios import loader
from scenarios.loader import Scenario
from scenarios.revisions import each_revision, marked, revision_of

CHUNK = 20
"""Seeds that one worker process plays between two reports."""


def run(
    scenario: Scenario,
    seed: int,
    mutant: str | None = None,
    *,
    hashed: bool = False,
    coded_share: float = CODED_SHARE,
) -> SimVerdict:
    """Plays one seed. Raises MutantError if there is no such mutant or it does not fit the code."""
    return play(scenario, seed, mutant, hashed=hashed, coded_share=coded_share)[0]


def play(
    scenario: Scenario,
    seed: int,
    mutant: str | None = None,
    *,
    hashed: bool = False,
    keep_trace: bool = False,
    coded_share: float = CODED_SHARE,
) -> tuple[SimVerdict, World]:
    """As ``run``, with the world as it was at the end (for writing the run out)."""
    with applied(by_name(mutant) if mutant else None) as at_work:
        world = World(materialised(scenario, seed), seed, hashed=hashed, keep_trace=keep_trace, coded_share=coded_share)
        crash = ""
        stuck = ""
        try:
            world.play()
        except RunStuckError as error:
            stuck = str(error)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            crash = (
                f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno}, during {world.stage})"
            )
        return _verdict(world, at_work, crash, stuck), world


def _verdict(world: World, at_work: Applied | None, crash: str, stuck: str) -> SimVerdict:
    scenario, history = world.scenario, world.history
    fired: dict[str, int] = {}
    for row in world.faults:
        fired[row.name] = fired.get(row.name, 0) + 1
    fetches = sum(row.f == "fetch" and row.type == "ok" for row in history.operations)
    acked = sum(row.count for row in history.runs if row.kind == "send" and row.first_offset >= 0)
    slip_us = max((row.invoke_us - row.intended_us for row in history.operations if row.f == "produce"), default=0)
    violations = sorted((each for check in world.checks for each in check.violations), key=lambda each: each.at_us)
    reasons = [crash] if crash else []
    if not crash:
        reasons = [stuck] if stuck else []
        for name, times in Counter(scenario.expected_faults).items():
            if name not in fired:
                reasons.append(f"the fault {name} never fired")
            elif fired[name] < times:
                reasons.append(f"the fault {name} fired {fired[name]} of {times} times")
        if fetches < scenario.sim_min_fetches:
            reasons.append(f"{fetches} fetches, at least {scenario.sim_min_fetches} are needed")
        if acked < scenario.sim_min_acked:
            reasons.append(f"{acked} acknowledged records, at least {scenario.sim_min_acked} are needed")
        if slip_us > scenario.max_schedule_slip_ms * 1000:
            reasons.append(
                f"the schedule slipped by {slip_us // 1000} ms, at most {scenario.max_schedule_slip_ms} are allowed"
            )
        if at_work is not None and at_work.calls == 0:
            reasons.append(f"the mutant {at_work.mutant.name} was never called")
    # A broken guarantee stays broken, however thin the run was; without one, a run that shows nothing is INVALID.
    outcome = Outcome.PASSED
    if crash:
        outcome = Outcome.CRASHED
    elif violations and not (at_work is not None and at_work.calls == 0):
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
        tuple(world.cluster.nemesis.coverage.items()),
    )


@dataclass(frozen=True, slots=True)
class Search:
    """Many seeds of one scenario. ``first_failing``: in the order of the seeds, the first that did not pass."""

    scenario: str
    verdicts: tuple[SimVerdict, ...]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        return worst_outcome(each.outcome for each in self.verdicts)

    @property
    def seeds_per_s(self) -> float:
        return len(self.verdicts) / self.seconds if self.seconds > 0 else 0.0

    @property
    def events_per_s(self) -> float:
        return sum(each.events for each in self.verdicts) / self.seconds if self.seconds > 0 else 0.0

    @property
    def events_per_seed(self) -> float:
        return sum(each.events for each in self.verdicts) / max(len(self.verdicts), 1)

    @property
    def first_failing(self) -> SimVerdict | None:
        return next((each for each in self.verdicts if each.outcome is self.outcome is not Outcome.PASSED), None)


def search(
    scenario: Scenario,
    seeds: Sequence[int],
    processes: int = 2,
    mutant: str | None = None,
    progress: Callable[[SimVerdict], None] | None = None,
) -> Search:
    """Plays all seeds; ``processes`` 1 stays in this process. Verdicts come in the order of the seeds."""
    started = time.perf_counter()
    verdicts = []
    for verdict in _verdicts(scenario, seeds, processes, mutant):
        verdicts.append(verdict)
        if progress is not None:
            progress(verdict)
    return Search(scenario.name, tuple(verdicts), time.perf_counter() - started)


def _verdicts(scenario: Scenario, seeds: Sequence[int], processes: int, mutant: str | None) -> Iterator[SimVerdict]:
    if processes <= 1 or len(seeds) < 2 * processes:
        yield from (run(scenario, seed, mutant) for seed in seeds)
        return
    chunks = [tuple(seeds[start : start + CHUNK]) for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        file = marked(scenario.path, revision_of(scenario))
        for chunk in pool.map(_run_chunk, [file] * len(chunks), chunks, [mutant] * len(chunks)):
            yield from chunk


def _run_chunk(file: str, seeds: Sequence[int], mutant: str | None) -> list[SimVerdict]:
    """In a worker process: the scenario is read again, nothing but plain values crosses."""
    scenario = loader.find(file)
    with _collected_afterwards():
        return [run(scenario, seed, mutant) for seed in seeds]


@contextmanager
def _collected_afterwards() -> Iterator[None]:
    """Collects garbage only afterwards. A world is one large cycle that lives as long as its run, and looking for
    garbage in it costs a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def report(found: Search) -> str:
    """For the terminal: the outcome, the speed, and for a failure its story and the one command that repeats it."""
    failing = found.first_failing
    coverage = coverage_of(found.verdicts) if len(found.verdicts) > 1 else {}
    lines = [
        f"{found.scenario}: {found.outcome.name}, {len(found.verdicts)} seeds, {found.seeds_per_s:.1f} seeds/s, "
        f"{found.events_per_s:.0f} events/s, {found.events_per_seed:.0f} events a seed"
        + (f", trace hash {found.verdicts[0].trace_hash}" if found.verdicts and found.verdicts[0].trace_hash else "")
    ]
    if failing is not None:
        bad = sum(each.outcome is not Outcome.PASSED for each in found.verdicts)
        lines.append(f"  {bad} of {len(found.verdicts)} seeds did not pass; first: seed {failing.seed}")
        lines += [f"  {each.guarantee}: {each.story}" for each in failing.violations[:3]]
        lines += [f"  {reason}" for reason in failing.reasons]
        lines.append(f"  repeat with: {failing.repeat_command}")
    lines += [f"  {line}" for line in coverage_table(coverage)]
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
) -> int:
    """``crucible sim``: plays, prints, and returns the exit code (0, 1, 2, 3 or 4).

    ``seed`` alone plays that seed, with its trace hash. ``seeds`` (default 100) plays so many, from ``seed`` or 1 on.
    A single seed's run is written to the folder ``out``, for ``crucible report`` (with several scenarios to a folder
    below it for each). With ``with_mutants`` the control of each scenario must pass, and each of its mutants must fail
    with at least one seed; the exit code is 0 if all is so, else 1. ``revision`` plays only that one; else each
    scenario is played in all its revisions.
    """
    try:
        scenarios = [each for name in names for each in each_revision(checked(loader.find(name)), revision)]
        single = seed is not None and seeds in (None, 1)
        if with_mutants:
            first = seed if seed is not None else 1
            return _prove(scenarios, range(first, first + (seeds or 100)), processes)
        code = Outcome.PASSED
        for scenario in scenarios:
            if single and seed is not None:
                folder = out if out is None or len(scenarios) == 1 else out / scenario.name
                found = _single(scenario, seed, mutant, folder)
            else:
                first = seed if seed is not None else 1
                found = search(scenario, range(first, first + (seeds or 100)), processes, mutant)
            print(report(found), flush=True)  # noqa: T201
            failing = found.first_failing
            if failing is not None and failing.outcome in (Outcome.FAILED, Outcome.CRASHED) and (single or not mutant):
                _shrink_and_tell(scenario, failing)
            code = worst_outcome((code, found.outcome))
    except (loader.ScenarioError, MutantError, OSError) as error:
        print(f"crucible sim: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return code.value


def _shrink_and_tell(scenario: Scenario, failing: SimVerdict) -> None:
    """A short schedule with which it fails in the same way; kept as a file of its own, if no mutant is to blame."""
    from chaos.search.shrink import keep_as_regression, shrink, told

    small = shrink(scenario, failing)
    print(f"  {told(small)}", flush=True)  # noqa: T201
    if not failing.mutant:
        path, command = keep_as_regression(small, failing)
        print(f"  written to {path}; repeat with: {command}", flush=True)  # noqa: T201


def _single(scenario: Scenario, seed: int, mutant: str | None, out: Path | None) -> Search:
    started = time.perf_counter()
    verdict, world = play(scenario, seed, mutant, hashed=True, keep_trace=out is not None)
    if out is not None:
        from chaos.sim.run_folder import write_out  # pyarrow: only where it is needed

        write_out(verdict, world, out)
    return Search(scenario.name, (verdict,), time.perf_counter() - started)


def _table_of(catches: Sequence[tuple[str, str, str, str]]) -> str:
    """One line a mutant: how many seeds it took, and which guarantees broke."""
    rows = [("mutant", "scenario", "seeds to catch", "by"), *catches]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def _prove(scenarios: Sequence[Scenario], seeds: Sequence[int], processes: int) -> int:
    """Controls over all seeds; mutants until the first seed that catches them."""
    wrong: list[str] = []
    catches: list[tuple[str, str, str, str]] = []
    for scenario in scenarios:
        found = search(scenario, seeds, processes)
        print(report(found), flush=True)  # noqa: T201
        if found.outcome is not Outcome.PASSED:
            wrong.append(scenario.name)
        for mutant in mutants_of(scenario):
            red = next((each for each in _verdicts(scenario, seeds, 1, mutant) if each.red), None)
            how = "" if red is None else ", ".join(red.broken) or red.reasons[0]
            caught = f"caught by seed {red.seed}: {how}" if red is not None else "NOT caught"
            print(f"  {mutant}: {caught}", flush=True)  # noqa: T201
            catches.append((mutant, scenario.name, str(red.seed - seeds[0] + 1) if red is not None else "none", how))
            if red is None:
                wrong.append(f"{scenario.name} with {mutant}")
    print(_table_of(catches))  # noqa: T201
    told = f"not as it must be: {', '.join(wrong)}" if wrong else "every control passed, every mutant was caught"
    print(told)  # noqa: T201
    return 1 if wrong else 0


__all__ = ["Outcome", "Search", "SimVerdict", "play", "report", "run", "search", "simulate"]
