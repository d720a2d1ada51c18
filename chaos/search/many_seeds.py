"""Plays many seeds of a scenario, in several processes."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from chaos.search.children import in_children
from chaos.sim.decision_counts import watch
from chaos.sim.one_seed import play_seed
from chaos.sim.speedups import plain_values
from chaos.sim.verdict import SimVerdict
from reports.verdict import Outcome, worst_outcome
from scenarios.loader import Scenario
from scenarios.revisions import own_points

SEEDS_EACH = 8
"""The number of seeds that a child process plays, since the memory of their worlds is freed only at its end."""


@dataclass(frozen=True, slots=True)
class SeedSearch:
    """The result of many seeds of one scenario."""

    scenario: str
    verdicts: tuple[SimVerdict, ...]
    """In the order of the seeds."""
    seconds: float

    @property
    def outcome(self) -> Outcome:
        return worst_outcome(verdict.outcome for verdict in self.verdicts)

    @property
    def first_failing(self) -> SimVerdict | None:
        """The verdict of the first seed that had the search's outcome. It is None if the search PASSED."""
        return next(
            (verdict for verdict in self.verdicts if verdict.outcome is self.outcome is not Outcome.PASSED), None
        )


def search(
    scenario: Scenario,
    seeds: Sequence[int],
    processes: int = 2,
    mutant: str | None = None,
    show: Callable[[SimVerdict], None] = lambda _: None,
    until_red: bool = False,
) -> SeedSearch:
    """Play all seeds in ``processes`` processes, or with ``until_red`` those up to the first red one. Few seeds, or a
    single process, are played in this one. ``show`` is called with each verdict as soon as it is known."""
    started = time.perf_counter()
    played: list[SimVerdict] = []
    for verdict in verdicts(scenario, seeds, processes, mutant):
        played.append(verdict)
        show(verdict)
        if until_red and verdict.red:
            break
    return SeedSearch(scenario.name, tuple(played), time.perf_counter() - started)


def verdicts(scenario: Scenario, seeds: Sequence[int], processes: int, mutant: str | None) -> Iterator[SimVerdict]:
    """Yield each seed's verdict in their order, as soon as it is known."""
    if processes <= 1 or len(seeds) < 2 * processes:
        for seed in seeds:
            with quickly():
                verdict = play_seed(scenario, seed, mutant).verdict
            yield verdict
        return
    if own_points(scenario):
        watch()  # Here, so that the processes need not do it each.
    with quickly():
        yield from in_children(
            partial(_play, scenario, mutant), seeds, processes, parts_each=SEEDS_EACH, first_here=True
        )


def _play(scenario: Scenario, mutant: str | None, seed: int) -> SimVerdict:
    return play_seed(scenario, seed, mutant).verdict


@contextmanager
def quickly() -> Iterator[None]:
    """Inside the block values are not frozen (``plain_values``), and garbage is collected only at its end.

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
