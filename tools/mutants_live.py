"""Find the mutants that runs with real processes show.

Call ``python -m tools.mutants_live [MUTANT...] [--missing] [--tries 3]``. Each mutant is played live, one after the
other, in the first scenario that must kill it and that a live world can play. It is played with further seeds until
one kills it. Spark judges. What was seen is kept in ``chaos/mutants/seen_live.jsonl``, which ``crucible mutants``
shows. Mutants that a live world cannot show (``registry.SIMULATED_ONLY``) are skipped.

A play that shows nothing (INVALID, CRASHED, or it could not start) is no try: the next seed is played instead, but
never more than twice as many plays as tries. A mutant of which every play showed nothing keeps what was known of it.
"""

import argparse
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.live.errors import SetupError
from chaos.live.runner import check_playable, play_scenario
from chaos.mutants import all_mutants
from chaos.mutants.registry import FIRST_SEEDS, SIMULATED_ONLY
from reports.manifest import read_manifest
from reports.verdict import Outcome, Verdict
from scenarios import loader
from scenarios.ledger import KEPT, MutantSearch, keep, searches_in
from scenarios.model import Scenario
from scenarios.revisions import each_revision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAYS_FOR_A_TRY = 2
AT_ONCE = 12
"""Number of plays that Spark judges together."""


@dataclass(slots=True)
class LiveSearch:
    """A mutant's plays in one scenario."""

    mutant: str
    scenario: Scenario
    first_seed: int = 1
    """The seeds count up from it."""
    plays: int = 0
    tries: int = 0
    """Plays that showed something."""
    guarantees: tuple[str, ...] = ()
    commit: str = ""

    @property
    def next_seed(self) -> int:
        return self.first_seed + self.plays

    def take(self, verdict: Verdict | None, commit: str = "") -> None:
        """Take what one play of that commit showed. It is None if the play could not be set up."""
        self.plays += 1
        self.commit = commit
        if verdict is not None and verdict.outcome in (Outcome.PASSED, Outcome.FAILED):
            self.tries += 1
            self.guarantees = tuple(one.name for one in verdict.guarantees if one.status == "broken")

    def is_over(self, tries: int) -> bool:
        return bool(self.guarantees) or self.tries >= tries or self.plays >= tries * PLAYS_FOR_A_TRY


def searches(wanted: Sequence[str]) -> list[LiveSearch]:
    """Return one for each of these mutants (of all, if none is named) that live worlds can show."""
    scenarios = [revised for each in loader.load_all() for revised in each_revision(each)]
    found = []
    for mutant in all_mutants():
        if mutant.name in SIMULATED_ONLY or (wanted and mutant.name not in wanted):
            continue
        theirs = (
            revised for revised in scenarios if mutant.name in revised.mutants and _is_playable(revised, mutant.name)
        )
        scenario = next(theirs, None)
        if scenario is not None:
            found.append(LiveSearch(mutant.name, scenario, FIRST_SEEDS.get(mutant.name, 1)))
    return found


def _is_playable(scenario: Scenario, mutant: str) -> bool:
    try:
        check_playable(scenario, mutant=mutant)
    except SetupError:
        return False
    return True


PlayNext = Callable[[Sequence[LiveSearch]], None]
"""Play the next seed of each search, compute the verdicts, and let the searches take them."""


def search(
    wanted: Sequence[LiveSearch], tries: int, minutes: float, play_next: PlayNext, kept: Callable[[LiveSearch], None]
) -> int:
    """Play until each mutant was killed or tried often enough, and begin nothing new when the time is over.

    ``kept`` is called with each search that has ended and had a try. Return the number of searches that were skipped.
    """
    until, open_ones = time.monotonic() + minutes * 60, deque(wanted)
    while open_ones and time.monotonic() < until:
        current = [open_ones.popleft() for _ in range(min(AT_ONCE, len(open_ones)))]
        play_next(current)
        for one in current:
            if not one.is_over(tries):
                open_ones.append(one)
            elif one.tries:
                kept(one)
    return len(open_ones)


def play_and_judge(
    current: Sequence[LiveSearch], folder: Path, spark: "SparkSession", report: Callable[[str], None]
) -> None:
    """Play what is not in ``folder`` yet, and compute all verdicts."""
    from reports.judge import compute_verdicts

    played = []
    for one in current:
        seed = one.next_seed
        out = folder / f"{one.scenario.name}-{one.mutant}-{seed}"
        try:
            if not (out / "manifest.json").is_file():
                play_scenario(one.scenario, out, seed=seed, mutant=one.mutant, command=_repeating(one, seed))
            played.append((one, out))
        except SetupError as why:
            report(f"{one.mutant}: {why}")
            one.take(None)
    if not played:
        return
    for (one, out), verdict in zip(played, compute_verdicts([out for _, out in played], spark), strict=True):
        one.take(verdict, read_manifest(out).commit)
        report(f"{verdict.outcome.name}: {verdict.scenario} --seed {verdict.seed}: {verdict.summary}")


def _repeating(one: LiveSearch, seed: int) -> str:
    return f"./crucible run {one.scenario.name} --seed {seed} --mutant {one.mutant}"


def main() -> int:
    """Return 0 if each mutant that was played was killed, 1 if one was not, 2 if there is no such mutant."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants_live", description=__doc__)
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="default: all that live worlds can show")
    parser.add_argument("--missing", action="store_true", help="skip those whose kill is kept")
    parser.add_argument("--tries", type=int, default=3, help="how many seeds of each (3)")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin nothing new after this time (240)")
    parser.add_argument("--out", type=Path, help="keep the runs there; one that is there is not played again")
    given = parser.parse_args()
    unknown = set(given.mutants) - {mutant.name for mutant in all_mutants()}
    if unknown:
        print(f"there is no mutant {', '.join(sorted(unknown))}", file=sys.stderr)  # noqa: T201
        return 2
    report = partial(print, flush=True)
    killed = {each.mutant for each in searches_in(KEPT["live"]) if each.guarantees} if given.missing else set()
    wanted = [one for one in searches(given.mutants) if one.mutant not in killed]
    missed: list[str] = []

    def kept(one: LiveSearch) -> None:
        ended = MutantSearch(one.mutant, one.scenario.name, "live", one.tries, one.guarantees, one.commit)
        keep(ended)
        missed.extend([one.mutant] if not one.guarantees else [])
        report(f"{one.mutant}: {ended}")

    with ExitStack() as stack:
        from reports.spark import spark_session

        folder = given.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crucible-live-")))
        spark = stack.enter_context(spark_session())
        left_out = search(
            wanted, given.tries, given.minutes, partial(play_and_judge, folder=folder, spark=spark, report=report), kept
        )
    report(f"not killed: {', '.join(missed) or 'none'}" + (f"; {left_out} skipped, the time was over" * bool(left_out)))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
