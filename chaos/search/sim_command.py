"""The command ``crucible sim``: play scenarios with one seed or many, and print outcome, coverage and failures."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

import click

from chaos.mutants import MutantError, by_name, mutants_of
from chaos.search.guided import PROGRESS_EVERY_S, scheduled, search_guided
from chaos.search.many_seeds import SeedSearch, quickly, search, verdicts
from chaos.sim.fault_scheduler import Cell
from chaos.sim.one_seed import play_seed
from chaos.sim.verdict import SimVerdict
from reports.ci_results import PlayResult, annotations, junit_document
from reports.verdict import Outcome, worst_outcome
from scenarios import ledger, loader
from scenarios.decision_points import PointError
from scenarios.loader import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The options of ``crucible sim``."""

    seeds: int | None = None
    """Number of seeds. None means the default of the mode."""
    seed: int | None = None
    """The first seed, 1 by default. Without ``seeds`` it is the only one."""
    mutant: str | None = None
    """Name of the mutant that is played."""
    processes: int = 2
    """Number of processes that play seeds."""
    out: Path | None = None
    """The folder of a single seed's run, for ``crucible report`` (several scenarios get a folder each below it), or of
    a guided search's corpus."""
    shrinks: bool = False
    """Whether the scenario of a failing seed is made smaller, unless several seeds of a mutant are played."""
    changes: tuple[int, ...] = ()
    """Changes that a guided search made to the single seed's scenario."""
    with_mutants: bool = False
    """Whether each mutant of the scenarios is played, too."""
    profile: bool = False
    """Whether a table of the time by part is printed."""
    guided: bool = False
    """Whether the search is guided by what its schedules reach."""
    near: str = ""
    """The file that a guided search reaches first."""
    seconds: float | None = None
    """Processor time after which the search ends."""
    event: int | None = None
    """The event after which the state of ``node`` is shown."""
    node: int | None = None
    """ID of the node whose state is shown."""
    junit: Path | None = None
    """The file that gets the results as JUnit XML."""
    annotates: bool = False
    """Whether to print lines with which GitHub Actions annotates failures."""

    @property
    def first_seed(self) -> int:
        return 1 if self.seed is None else self.seed

    @property
    def is_single(self) -> bool:
        return self.seed is not None and self.seeds in (None, 1)

    @property
    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + (self.seeds or 100))


Take: TypeAlias = Callable[[PlayResult], None]
"""Collects the results of a mode, play by play."""


def simulate(scenarios: Sequence[Scenario], options: SimOptions) -> int:
    """Run the mode that the options choose, and return the exit code (0, 1, 2, 3 or 4)."""
    results: list[PlayResult] = []
    try:
        if options.mutant:
            by_name(options.mutant)  # Here, and not with a traceback in each process of a search.
        code = _mode(options)(scenarios, options, results.append)
        if options.mutant and code in (Outcome.PASSED.value, Outcome.INVALID.value):
            for sentence in not_listed(scenarios, options.mutant):
                click.echo(sentence)
        if options.junit is not None:
            options.junit.write_text(junit_document("sim", results), encoding="utf-8")
    except (loader.ScenarioError, MutantError, PointError, OSError) as error:
        click.echo(f"crucible sim: {error}", err=True)
        return 2
    for line in annotations(results) if options.annotates else ():
        click.echo(line)
    return code


def not_listed(scenarios: Sequence[Scenario], mutant: str) -> list[str]:
    """Return a sentence for each scenario that need not turn red with the mutant, with the scenarios that must."""
    others = [scenario.name for scenario in scenarios if mutant not in scenario.mutants]
    listing = [each.name for each in loader.load_all() if mutant in each.mutants] if others else []
    which = f"it is listed by {', '.join(listing)}" if listing else "no scenario lists it"
    return [f"{name} does not list the mutant {mutant}, so it need not turn red: {which}." for name in others]


def _mode(options: SimOptions) -> Callable[[Sequence[Scenario], SimOptions, Take], int]:
    if options.seconds is not None:
        return search_for_seconds
    if options.event is not None:
        return show_node
    if options.guided:
        return search_with_guidance
    if options.with_mutants:
        return prove_mutants
    if options.is_single:
        return report_seed
    return profile_seeds if options.profile else search_seeds


def report_seed(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:
    """Play one seed of each scenario, and print the result with its trace hash."""
    code = Outcome.PASSED
    for each in scenarios:
        folder = options.out if options.out is None or len(scenarios) == 1 else options.out / each.name
        scenario = scheduled(each, options.first_seed, options.changes) if options.changes else each
        result = _single(scenario, options.first_seed, options.mutant, folder, options.changes)
        code = worst_outcome((code, _reported(scenario, result, options.shrinks, take)))
    return code.value


def search_seeds(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:
    """Play all seeds of each scenario, in several processes, and print the results.

    A mutant is played up to its first red seed, unless the number of seeds is given.
    """
    seeds, code = options.seed_range, Outcome.PASSED
    until_red = options.mutant is not None and options.seeds is None
    for scenario in scenarios:
        progress = SearchProgress(scenario.name, len(seeds))
        try:
            result = search(scenario, seeds, options.processes, options.mutant, progress.take, until_red)
        except KeyboardInterrupt:
            progress.interrupted()
            raise
        code = worst_outcome((code, _reported(scenario, result, options.shrinks and not options.mutant, take)))
    return code.value


def profile_seeds(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:
    """Play all seeds of each scenario in this process, and print the results and a table of the time by part."""
    code = Outcome.PASSED
    for scenario in scenarios:
        result = _profiled(scenario, options.seed_range, options.mutant)
        code = worst_outcome((code, _reported(scenario, result, options.shrinks and not options.mutant, take)))
    return code.value


def _reported(scenario: Scenario, result: SeedSearch, shrinks: bool, take: Take) -> Outcome:
    """Print the result, and return its outcome. A failing scenario is made smaller with ``shrinks``."""
    click.echo(report(result))
    failing = result.first_failing
    take(_result(result.scenario, failing, result.seconds))
    if shrinks and failing is not None and failing.outcome in (Outcome.FAILED, Outcome.CRASHED):
        _shrink_and_report(scenario, failing)
    return result.outcome


def search_for_seconds(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:
    """Play the first seed of each scenario in turn, then the next one of each, in this process, until one is red or the
    processor time is used up. Print what was played and the red seed."""
    seconds = options.seconds
    assert seconds is not None
    began, shown = time.process_time(), time.monotonic()
    played: dict[str, list[SimVerdict]] = {}
    red: SimVerdict | None = None
    for seed, scenario in ((options.first_seed + turn, each) for turn in count() for each in scenarios):
        spent = time.process_time() - began
        if red is not None or spent >= seconds:
            break
        if time.monotonic() - shown >= PROGRESS_EVERY_S:
            shown = time.monotonic()
            seeds = sum(map(len, played.values()))
            click.echo(f"{seeds} seeds, none red, {seconds - spent:.0f} s of processor time left", err=True)
        with quickly():
            verdict = play_seed(scenario, seed, options.mutant).verdict
        played.setdefault(loader.typed(scenario), []).append(verdict)
        red = verdict if verdict.outcome in (Outcome.FAILED, Outcome.CRASHED) else None
    every = [verdict for verdicts in played.values() for verdict in verdicts]
    spent = time.process_time() - began
    outcome = red.outcome if red is not None else Outcome.PASSED
    click.echo(
        f"{outcome.name}: {_counted(len(every), 'seed')} of {_counted(len(played), 'scenario')} in {spent:.0f} s of "
        f"processor time, {sum(each.events for each in every) / max(spent, 0.001):.0f} events/s"
    )
    thin = Counter(reason for each in every if each.outcome is Outcome.INVALID for reason in each.reasons)
    if thin and red is None:
        reason, times = thin.most_common(1)[0]
        click.echo(
            f"  {_counted(sum(thin.values()), 'seed')} showed too little to judge, most often: {reason} ({times})"
        )
    if red is not None:
        click.echo("\n".join(_failure(red)))
    for name in played:
        take(_result(name, red if red is not None and red is played[name][-1] else None))
    return outcome.value


@dataclass(slots=True)
class SearchProgress:
    """Prints a line on stderr every few seconds of a search, and the first red seed at once."""

    scenario: str
    seeds: int
    _started: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)
    _played: int = 0
    _red: int = 0
    _first_red: SimVerdict | None = None

    def interrupted(self) -> None:
        red = f"{self._red} red" if self._red else "no red"
        first = f", first: {self._first_red.repeat_command}" if self._first_red is not None else ""
        click.echo(f"{self.scenario}: ended after {self._played} of {self.seeds} seeds, {red}{first}", err=True)

    def take(self, verdict: SimVerdict) -> None:
        self._played += 1
        if verdict.outcome in (Outcome.FAILED, Outcome.CRASHED):
            self._red += 1
            self._first_red = self._first_red or verdict
            if self._red == 1 and not verdict.mutant:
                broken = ", ".join(verdict.broken) or verdict.reasons[0]
                click.echo(f"first red: {broken}: {verdict.repeat_command}", err=True)
        now = time.monotonic()
        if now - self._shown < PROGRESS_EVERY_S or self._played == self.seeds:
            return
        self._shown = now
        speed = self._played / (now - self._started)
        left_s = (self.seeds - self._played) / speed
        red = f"{self._red} red" if self._red else "no red"
        click.echo(
            f"{self.scenario}: {self._played} of {self.seeds} seeds, {speed:.1f}/s, {red}, {left_s:.0f} s left",
            err=True,
        )


def report(result: SeedSearch) -> str:
    """Return text for the terminal: the outcome and the speed. For a failure it adds the explanations and the command
    that repeats it."""
    verdicts, failing = result.verdicts, result.first_failing
    seeds, events = len(verdicts), sum(verdict.events for verdict in verdicts)
    points = sum(sum(verdict.reached.counts) for verdict in verdicts)
    lines = [
        f"{result.scenario}: {result.outcome.name}, {_counted(seeds, 'seed')}, {seeds / result.seconds:.1f} seeds/s, "
        f"{events / result.seconds:.0f} events/s, {events / seeds:.0f} events a seed"
        + (f", {points / result.seconds:.0f} points/s" if points else "")
        + (f", trace hash {verdicts[0].trace_hash}" if verdicts[0].trace_hash else "")
    ]
    if failing is not None:
        bad = sum(verdict.outcome is not Outcome.PASSED for verdict in verdicts)
        lines.append(f"  {bad} of {seeds} seeds did not pass; first: seed {failing.seed}")
        lines += _failure(failing)
    if seeds > 1:
        lines += [f"  {line}" for line in coverage_table(coverage_of(verdicts))]
    return "\n".join(lines)


def _result(name: str, failing: SimVerdict | None, seconds: float = 0.0) -> PlayResult:
    """Return the result of the plays of a scenario, of which one failed, or none."""
    if failing is None:
        return PlayResult(name, seconds)
    mutant = f" with {failing.mutant}" if failing.mutant else ""
    why = ", ".join(failing.broken) or next(iter(failing.reasons), "")
    problem = f"{failing.outcome.name} with seed {failing.seed}: {why}"
    is_error = failing.outcome is not Outcome.FAILED
    return PlayResult(f"{name}{mutant}", seconds, problem, is_error, "\n".join(_failure(failing)))


def _failure(failing: SimVerdict) -> list[str]:
    lines = [f"  {violation.guarantee}: {violation.explanation}" for violation in failing.violations[:3]]
    lines += [f"  {reason}" for reason in failing.reasons]
    if failing.show_command:
        lines.append(f"  the node after event {failing.events}, before the crash: {failing.show_command}")
    return [*lines, f"  repeat with: {failing.repeat_command}"]


def _shrink_and_report(scenario: Scenario, failing: SimVerdict) -> None:
    """Print the faults of a smaller scenario that fails in the same way. Without a mutant write it to a file."""
    from chaos.search.shrink import describe_faults, keep_as_regression, shrink

    small = shrink(scenario, failing)
    click.echo(f"  {describe_faults(small)}")
    if not failing.mutant:
        path, command = keep_as_regression(small, failing)
        click.echo(f"  written to {path}; repeat with: {command}")


def search_with_guidance(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:
    """Search with guidance (``chaos.search.guided``), and print progress, each red schedule and a summary. The exit
    code is 0 if none is red, else 1."""
    schedules, seed = options.seeds or 1000, options.first_seed
    red, summary = search_guided(
        scenarios, schedules, seed, options.processes, options.mutant, options.out, click.echo, options.near
    )
    for verdict in red[:3]:
        click.echo("\n".join(_failure(verdict)))
    click.echo(summary)
    for result in [_result(each.scenario, each) for each in red] or [PlayResult("guided search")]:
        take(result)
    return 1 if red else 0


def show_node(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:  # noqa: ARG001
    """Play the seed of the only scenario up to an event of all nodes, and print the state of a node. The exit code is
    0, or 2 if there is no such node."""
    from chaos.search.show_node import node_lines

    (scenario,), event, node = scenarios, options.event, options.node
    assert event is not None
    assert node is not None
    scenario = scheduled(scenario, options.first_seed, options.changes) if options.changes else scenario
    verdict, world = play_seed(scenario, options.first_seed, options.mutant, until_event=event)
    if node >= len(world.cluster.machines):
        count = len(world.cluster.machines)
        click.echo(f"crucible sim: there is no node {node}: {scenario.name} has nodes 0 to {count - 1}", err=True)
        return 2
    if world.events < event:
        click.echo(f"the run ended after event {world.events}, before event {event}")
        for reason in verdict.reasons:
            click.echo(f"  {reason}")
    for line in node_lines(world, node):
        click.echo(line)
    return 0


def _single(
    scenario: Scenario, seed: int, mutant: str | None, out: Path | None, changes: tuple[int, ...] = ()
) -> SeedSearch:
    started = time.perf_counter()
    verdict, world = play_seed(scenario, seed, mutant, hashed=True, keep_trace=out is not None)
    verdict = replace(verdict, changes=changes)
    if out is not None:
        from chaos.sim.run_folder import write_out  # pyarrow: only where it is needed

        write_out(verdict, world, out)
    return SeedSearch(scenario.name, (verdict,), time.perf_counter() - started)


def _profiled(scenario: Scenario, seeds: Sequence[int], mutant: str | None) -> SeedSearch:
    from chaos.search.profile import Profile  # It imports the whole simulator, and few plays need it.

    times = Profile()
    with times.measured():
        result = search(scenario, seeds, 1, mutant)
    click.echo("\n".join(times.table()))
    return result


def prove_mutants(scenarios: Sequence[Scenario], options: SimOptions, take: Take) -> int:
    """Play each scenario without a mutant over all seeds, and each of its mutants until a seed kills it. At the end
    print a line for each mutant: the number of seeds, and the guarantees that broke. The exit code is 0 if each
    scenario passed and each mutant was killed, else 1."""
    seeds = options.seed_range
    wrong: list[str] = []
    table = [("mutant", "scenario", "seeds to kill", "by")]
    for scenario in scenarios:
        result = search(scenario, seeds, options.processes, show=SearchProgress(scenario.name, len(seeds)).take)
        click.echo(report(result))
        take(_result(scenario.name, result.first_failing, result.seconds))
        if result.outcome is not Outcome.PASSED:
            wrong.append(scenario.name)
        for mutant in mutants_of(scenario):
            red = next((verdict for verdict in verdicts(scenario, seeds, 1, mutant) if verdict.red), None)
            played = len(seeds) if red is None else red.seed - seeds[0] + 1
            broken = () if red is None else red.broken or (red.outcome.name,)
            problem = "" if red is not None else f"none of {played} seeds killed the mutant"
            take(PlayResult(f"{scenario.name} with {mutant}", problem=problem))
            seed, target = -1 if red is None else red.seed, by_name(mutant).target
            ledger.remember(ledger.ended_search(mutant, target, scenario.name, "sim", played, tuple(broken), seed))
            if red is None:
                wrong.append(f"{scenario.name} with {mutant}")
                table.append((mutant, scenario.name, "none", ""))
                click.echo(f"  {mutant}: NOT killed")
            else:
                how = ", ".join(red.broken) or red.reasons[0]
                table.append((mutant, scenario.name, str(played), how))
                click.echo(f"  {mutant}: killed by seed {red.seed}: {how}")
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo(f"not as it must be: {', '.join(wrong)}" if wrong else "every control passed, every mutant was killed")
    return 1 if wrong else 0


def coverage_of(verdicts: Iterable[SimVerdict]) -> dict[Cell, int]:
    """Return how often faults fired in all seeds together, by (kind, role, state)."""
    coverage = Counter[Cell]()
    for verdict in verdicts:
        coverage.update(dict(verdict.coverage))
    return dict(sorted(coverage.items()))


def coverage_table(coverage: Mapping[Cell, int]) -> list[str]:
    """Return lines for the terminal. Each shows a kind and a role, and how often faults fired in each state."""
    if not coverage:
        return []
    rows: dict[tuple[str, str], list[str]] = {}
    for (kind, role, state), times in coverage.items():
        rows.setdefault((kind, role), []).append(f"{state} {times}")
    faults, cells = _counted(sum(coverage.values()), "fault"), _counted(len(coverage), "cell")
    lines = [f"{faults} fired in {cells} (kind, role, state):"]
    return lines + [f"  {kind:<18} {role:<9} {', '.join(states)}" for (kind, role), states in rows.items()]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
