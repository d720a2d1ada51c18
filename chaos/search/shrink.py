"""The fewest faults, hit the fewest times, with which a seed still breaks the same guarantee."""

from collections.abc import Iterator
from dataclasses import replace

from chaos.search.run_sim import run
from chaos.sim.outcome import Outcome
from scenarios.model import Fault, Scenario

MAX_RUNS = 60


def shrink(scenario: Scenario, failing: Outcome) -> Scenario:
    """Tries smaller lists of faults until none is left to try (or after MAX_RUNS runs); gives the smallest that fails.

    ``failing``: what the scenario came to with its seed and mutant; its first broken guarantee is the one to keep.
    """
    wanted = failing.broken[0]
    mutant = failing.mutant or None
    smallest, runs, progress = scenario, 0, True
    while progress:
        progress = False
        for faults in _smaller(smallest.faults):
            if runs >= MAX_RUNS:
                return smallest
            runs += 1
            candidate = replace(smallest, faults=faults)
            if wanted in run(candidate, failing.seed, mutant).broken:
                smallest, progress = candidate, True
                break
    return smallest


def _smaller(faults: tuple[Fault, ...]) -> Iterator[tuple[Fault, ...]]:
    """One fault less, or one that hits less often."""
    for place in range(len(faults)):
        yield faults[:place] + faults[place + 1 :]
    for place, fault in enumerate(faults):
        fewer: list[Fault] = []
        if not fault.timed and (fault.every or fault.times != 1):
            fewer.append(replace(fault, every=0, times=1))
        if not fault.timed and fault.total != 1:
            fewer.append(replace(fault, total=1))
        if fault.repeat > 1:
            fewer.append(replace(fault, repeat=1))
        for each in fewer:
            yield (*faults[:place], each, *faults[place + 1 :])


def told(scenario: Scenario) -> str:
    """For the terminal: the faults that are left."""
    if not scenario.faults:
        return "no fault is needed for it"
    words = []
    for fault in scenario.faults:
        once = not fault.timed and fault.total == 1
        words.append(f"{fault.name}{' (one hit)' if once else ''}")
    return f"these faults are enough for it: {', '.join(words)}"
