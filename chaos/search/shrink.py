"""Shrinks a failure: finds the smallest scenario with which a seed still breaks the same guarantee. Smaller means fewer
faults, less load, fewer nodes."""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from chaos.search.write_scenario import text_of, write_scenario
from chaos.sim.one_seed import play_seed
from chaos.sim.swarm import materialised
from chaos.sim.verdict import SimVerdict
from scenarios import loader
from scenarios.declared import simulated
from scenarios.derived import drawn
from scenarios.load import Load
from scenarios.model import Fault, NodeChoice, Scenario
from scenarios.revisions import MARK

MAX_RUNS = 200
MIN_SECONDS = 1.0
MIN_RATE = 0.1


def shrink(
    scenario: Scenario,
    failing: SimVerdict,
    max_runs: int = MAX_RUNS,
    is_smaller: Callable[[Scenario], None] = lambda _: None,
) -> Scenario:
    """Try smaller scenarios until all were tried or ``max_runs`` are used up. Return the smallest that still fails.

    ``is_smaller`` is called with each failing one as soon as it is found, so that an interrupted search has a result.

    ``failing`` is the scenario's verdict with its seed and mutant. A smaller scenario must break the same first
    guarantee, or crash in the same way, and the loader must take it. The scenario that is returned has no swarm and no
    alternatives: all of its faults are explicit.
    """
    smallest = drawn(materialised(scenario, failing.seed), failing.seed)
    runs = 0

    def still_fails(candidate: Scenario) -> bool:
        nonlocal runs
        if runs == max_runs or not _is_loadable(candidate):
            return False
        runs += 1
        verdict = play_seed(candidate, failing.seed, failing.mutant or None).verdict
        if failing.broken:
            return failing.broken[0] in verdict.broken
        return verdict.outcome is failing.outcome and verdict.reasons[:1] == failing.reasons[:1]

    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in (_halves_of_faults, _fewer_faults, _simpler_faults, _shorter, _less_load, _smaller_cluster):
            while (candidate := next(filter(still_fails, smaller(smallest)), None)) is not None:
                smallest, shrunk = candidate, True
                is_smaller(smallest)
    return smallest


def _is_loadable(scenario: Scenario) -> bool:
    """Return whether the scenario can be kept as a file. A load may be too short for a fault, for example."""
    try:
        loader.parse(tomllib.loads(text_of(scenario)), Path(scenario.path))
    except loader.ScenarioError:
        return False
    return True


def _halves_of_faults(scenario: Scenario) -> Iterator[Scenario]:
    faults = scenario.faults
    if len(faults) > 3:
        middle = len(faults) // 2
        yield replace(scenario, faults=faults[:middle])
        yield replace(scenario, faults=faults[middle:])


def _fewer_faults(scenario: Scenario) -> Iterator[Scenario]:
    faults = scenario.faults
    for place in range(len(faults)):
        yield replace(scenario, faults=faults[:place] + faults[place + 1 :])


def _simpler_faults(scenario: Scenario) -> Iterator[Scenario]:
    """Reduce the number of times that one fault fires."""
    faults = scenario.faults
    for place, fault in enumerate(faults):
        at_time = (replace(fault, repeat=1),)
        at_state = (replace(fault, every=0, times=1), replace(fault, total=1))
        for simpler in at_time if fault.timed else at_state:
            if simpler != fault:
                yield replace(scenario, faults=(*faults[:place], simpler, *faults[place + 1 :]))


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    seconds = scenario.load.in_simulator.seconds
    for part in (0.5, 0.75):
        if seconds * part >= MIN_SECONDS:
            yield _with_load(scenario, sim_seconds=round(seconds * part, 2))


def _less_load(scenario: Scenario) -> Iterator[Scenario]:
    """Drop a group, or give it fewer members or a lower rate."""
    load = scenario.load
    for name in ("metadata_readers", "fetchers", "admins", "strays", "producers"):
        groups = getattr(load, name)
        for place, group in enumerate(groups):
            yield _with_load(scenario, **{name: groups[:place] + groups[place + 1 :]})
            played = simulated(group)
            less = [replace(group, sim_count=1)] if played.count > 1 else []
            rate = getattr(played, "rate_per_s", 0.0)
            less += [replace(group, sim_rate_per_s=round(rate / 2, 3))] if rate / 2 >= MIN_RATE else []
            for each in less:
                yield _with_load(scenario, **{name: (*groups[:place], each, *groups[place + 1 :])})


def _with_load(scenario: Scenario, **changes: object) -> Scenario:
    """Return the scenario with another load. Less traffic does not make the run INVALID."""
    load: Load = replace(scenario.load, **changes)  # type: ignore[arg-type]
    return replace(scenario, load=load, sim_min_fetches=0, sim_min_acked=0)


def _smaller_cluster(scenario: Scenario) -> Iterator[Scenario]:
    """Drop an observer, then two voters, unless a fault names the dropped nodes."""
    cluster = scenario.cluster
    smaller = [replace(cluster, observers=cluster.observers - 1)] if cluster.observers else []
    smaller += [replace(cluster, nodes=cluster.nodes - 2)] if cluster.nodes > 2 else []
    for each in smaller:
        lost = {"observer"} if not each.observers else set[str]()
        lost |= {"follower"} if each.nodes == 1 else set[str]()
        if scenario.load.hot.replicas > each.total:
            continue
        if all(_names(fault, each.total, lost) for fault in scenario.faults):
            yield replace(scenario, cluster=each)


def _names(fault: Fault, nodes: int, lost: set[str]) -> bool:
    ends: tuple[NodeChoice, ...] = (fault.node, *(fault.link or ()))
    return all(end < nodes if isinstance(end, int) else end not in lost for end in ends)


def describe_faults(scenario: Scenario) -> str:
    """Return text for the terminal that names the remaining faults."""
    if not scenario.faults:
        return "no fault is needed for it"
    words = (f"{fault.name}{'' if fault.timed or fault.total != 1 else ' (one hit)'}" for fault in scenario.faults)
    return f"these faults are enough for it: {', '.join(words)}"


def keep_as_regression(scenario: Scenario, failing: SimVerdict, folder: Path = loader.REGRESSIONS) -> tuple[Path, str]:
    """Write the shrunk scenario. Return the file, and the one command that repeats the failure."""
    broken = failing.broken[0] if failing.broken else failing.outcome.name.lower()
    name = scenario.name.removeprefix("regression-").replace(MARK, "-")  # The loader would look for a revision.
    path = folder / f"{name}-{broken}-{failing.seed}.toml"
    mutant = f" --mutant {failing.mutant}" if failing.mutant else ""
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    command = f"./crucible sim {shown} --seed {failing.seed}{mutant}"
    explanation = failing.violations[0].explanation if failing.violations else "; ".join(failing.reasons)
    scenario = replace(scenario, mutants=(failing.mutant,) if failing.mutant else (), points=())
    write_scenario(scenario, path, f"{broken}: {explanation}\nRepeat with: {command}")
    return path, command
