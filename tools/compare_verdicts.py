"""Compare the verdicts of the checks and of Spark on simulated runs.

``python -m tools.compare_verdicts [SCENARIO...] [--seeds 20]`` plays each scenario without a mutant and with each of
its own, computes both verdicts, and prints each guarantee that differs. A run's guarantee is broken, holds, or could
not be judged. Where both are broken they must also have the same time for the first violation.

What only one side can judge is not compared: guarantees that are seen from inside a node (``SeenFrom.INSIDE``), and
``EXCUSED``.

``--done FILE`` records each run that was compared, and skips those that are recorded. So a comparison that was stopped
continues. Delete the file when the code has changed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from chaos.mutants import mutants_of
from chaos.sim.one_seed import play_seed
from chaos.sim.run_folder import is_judged_here, write_out
from chaos.sim.world import SimWorld
from reports.guarantees import GUARANTEES, SeenFrom, names_seen_from
from reports.verdict import Outcome
from scenarios import loader
from scenarios.revisions import each_revision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.verdict import Verdict

Status = Literal["holds", "broken", "nothing to judge", "no violation"]
"""``no violation``: it holds, or there was nothing to judge. The verdict does not say which."""
COMPARED = names_seen_from(SeenFrom.CLIENTS, SeenFrom.TRACE)
EXCUSED: dict[tuple[str, str], str] = {}
"""(mutant, guarantee): the physical reason why only one of the two can see what the mutant breaks."""
BATCH = 60
"""The number of runs that Spark judges together."""


class Opinion(NamedTuple):
    """The status of one guarantee in a verdict."""

    status: Status
    at_us: int = -1
    """The time of the first violation, -1 if there is none."""
    explanation: str = ""


class Run(NamedTuple):
    """One simulated run."""

    scenario: str
    """May end in a revision's mark."""
    mutant: str
    """Empty if there is none."""
    seed: int

    def __str__(self) -> str:
        planted = f" --mutant {self.mutant}" if self.mutant else ""
        return f"{self.scenario} --seed {self.seed}{planted}"


@dataclass(frozen=True, slots=True)
class Played:
    """A run that was written to a folder, and what the simulator says of it."""

    run: Run
    folder: Path
    outcome: Outcome
    opinions: dict[str, Opinion]
    """Empty for a run that did not come to its end: most checks judge only then."""


def played(run: Run, folder: Path) -> Played:
    verdict, world = play_seed(loader.find(run.scenario), run.seed, run.mutant or None, keep_trace=True)
    write_out(verdict, world, folder)
    ended = verdict.outcome is not Outcome.CRASHED and world.stage == "end"
    return Played(run, folder, verdict.outcome, opinions_of_checks(world) if ended else {})


def opinions_of_checks(world: SimWorld) -> dict[str, Opinion]:
    """Return what the simulator's checks say of each guarantee that is compared in this run."""
    opinions: dict[str, Opinion] = {}
    for name in COMPARED:
        if GUARANTEES[name].keeps_writes and not world.history.writes_guaranteed:
            continue  # Physical: the only replica lost what it had not synced.
        checks = [check for check in world.checks if check.guarantee == name and not is_judged_here(check)]
        violations = sorted(
            (violation for check in checks for violation in check.violations), key=lambda check: check.at_us
        )
        if violations:
            opinions[name] = Opinion("broken", violations[0].at_us, violations[0].explanation)
        else:
            opinions[name] = Opinion("holds" if any(check.evidence for check in checks) else "nothing to judge")
    return opinions


def opinions_of_jobs(verdict: "Verdict") -> dict[str, Opinion]:
    """Return what the Spark jobs say of each guarantee."""
    opinions: dict[str, Opinion] = {}
    for one in verdict.guarantees:
        if one.judged_by != "history":
            # The verdict has the simulator's result if that is a violation that the job did not see, or if it is none
            # and the job had nothing to judge.
            opinions[one.name] = Opinion("nothing to judge" if one.status == "holds" else "no violation")
        elif one.status.startswith("broken"):
            opinions[one.name] = Opinion("broken", one.examples[0].at_us, one.examples[0].detail)
        else:
            opinions[one.name] = Opinion("holds" if one.status == "holds" else "nothing to judge")
    return opinions


def differences(one: Played, verdict: "Verdict") -> Iterator[str]:
    """Yield a sentence for each difference between the two verdicts on a run."""
    if one.outcome is not verdict.outcome:
        yield f"{one.run}: the simulator says {one.outcome.name}, Spark {verdict.outcome.name}: {verdict.summary}"
    jobs = opinions_of_jobs(verdict)
    for name, check in one.opinions.items():
        job = jobs[name]
        if (one.run.mutant, name) in EXCUSED or (job.status == "no violation" and check.status != "broken"):
            continue
        if check.status != job.status:
            explanation = check.explanation or job.explanation
            yield f"{one.run}: {name}: the simulator says {check.status}, Spark {job.status}: {explanation}"
        elif check.at_us != job.at_us:
            yield (
                f"{one.run}: {name}: first broken at {check.at_us} us in the simulator ({check.explanation}), "
                f"for Spark at {job.at_us} us ({job.explanation})"
            )


def runs_of(names: Sequence[str], seeds: Iterable[int]) -> Iterator[Run]:
    """Yield the runs of these scenarios (of all, if none is named), seed by seed, so that one that is stopped early
    has seen all scenarios."""
    files = [loader.find(name) for name in names] or loader.load_all()
    scenarios = [each for file in files for each in each_revision(file)]
    for seed in seeds:
        for scenario in scenarios:
            for mutant in ("", *mutants_of(scenario)):
                yield Run(scenario.name, mutant, seed)


@dataclass(slots=True)
class Compared:
    """Counts over all runs."""

    runs: int = 0
    cut_short: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Statuses of the compared guarantees in the simulator."""
    differing: list[str] = field(default_factory=list)

    def take(self, one: Played, verdict: "Verdict") -> list[str]:
        found = list(differences(one, verdict))
        self.add(Counter(opinion.status for opinion in one.opinions.values()), found)
        return found

    def add(self, statuses: Mapping[str, int], found: Sequence[str]) -> None:
        """Count a run. One without any status was cut short."""
        self.runs += 1
        self.cut_short += not statuses
        self.statuses.update(statuses)
        self.differing += found

    def __str__(self) -> str:
        counted = ", ".join(f"{count:,} {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.runs:,} runs: {sum(self.statuses.values()):,} guarantees compared ({counted}), {self.cut_short:,} "
            f"runs cut short and compared by their outcome only, {len(self.differing):,} differences"
        )


class Done:
    """The runs that were compared, in a file of one line of JSON each. Without a file nothing is kept.

    A last line that was cut off is skipped, and its run is compared again.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.found = Compared()
        self.runs: set[str] = set()
        if file is not None and file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                with suppress(json.JSONDecodeError):
                    self._read(json.loads(line))

    def _read(self, values: dict[str, Any]) -> None:
        self.runs.add(values["run"])
        self.found.add(values["statuses"], values["differences"])

    def note(self, one: Played, verdict: "Verdict") -> list[str]:
        """Count the run and keep it. Return its differences."""
        found = self.found.take(one, verdict)
        if self._file is not None:
            statuses = Counter(opinion.status for opinion in one.opinions.values())
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"run": str(one.run), "statuses": statuses, "differences": found}) + "\n")
        return found


def compare(runs: Sequence[Run], minutes: float, processes: int, done: Done, report: Any = print) -> int:
    """Play and judge what is not done, batch by batch, and stop to begin new batches when the time is over.

    Return how many runs were skipped.
    """
    until = time.monotonic() + minutes * 60
    wanted = [run for run in runs if str(run) not in done.runs]
    batches = [wanted[at : at + BATCH] for at in range(0, len(wanted), BATCH)]
    if not batches:
        return 0
    judged = 0
    with _scratch() as scratch, _spark() as spark, ProcessPoolExecutor(processes) as pool:
        following = _begin(pool, batches[0], scratch / "0")
        for number, _ in enumerate(batches, 1):
            current = [each.result() for each in following]
            is_last = number == len(batches) or time.monotonic() > until
            if not is_last:  # It is played while Spark judges.
                following = _begin(pool, batches[number], scratch / str(number))
            _compare(current, done, spark, report)
            shutil.rmtree(scratch / str(number - 1))
            judged += len(current)
            report(f"{judged:,} of {len(wanted):,} runs, {len(done.found.differing)} differences")
            if is_last:
                break
    return len(wanted) - judged


def _begin(pool: ProcessPoolExecutor, runs: Sequence[Run], folder: Path) -> list[Any]:
    return [pool.submit(played, run, folder / str(number)) for number, run in enumerate(runs)]


def _compare(current: Sequence[Played], done: Done, spark: "SparkSession", report: Any) -> None:
    from reports.judge import compute_verdicts

    for one, verdict in zip(current, compute_verdicts([each.folder for each in current], spark), strict=True):
        for line in done.note(one, verdict):
            report(f"DIFFERENT: {line}")


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="crucible-verdicts-") as folder:
        yield Path(folder)


@contextmanager
def _spark() -> "Iterator[SparkSession]":
    from reports.spark import spark_session

    with spark_session() as session:
        yield session


def main() -> int:
    """Return 0 if the verdicts agree, 1 if they differ, 2 if the arguments are wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare_verdicts", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="a file, its stem or its number; default: all")
    parser.add_argument("--seeds", type=int, default=20, help="how many of each scenario and mutant (20)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (1)")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin nothing new after this time (240)")
    parser.add_argument("--processes", type=int, default=2, help="how many runs are played at once (2)")
    parser.add_argument("--done", type=Path, metavar="FILE", help="skip the runs that it names, and add to it")
    given = parser.parse_args()
    if min(given.seeds, given.processes) < 1:
        parser.error("--seeds and --processes must be at least 1")
    report = partial(print, flush=True)
    try:
        runs = list(runs_of(given.scenarios, range(given.seed, given.seed + given.seeds)))
    except loader.ScenarioError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    done = Done(given.done)
    left_out = compare(runs, given.minutes, given.processes, done, report)
    report(str(done.found) + (f"; the time was over, {left_out:,} runs were skipped" if left_out else ""))
    return int(bool(done.found.differing))


if __name__ == "__main__":
    sys.exit(main())
