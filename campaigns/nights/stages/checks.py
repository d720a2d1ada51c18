"""Runs what takes too long for a push: tests with more of Hypothesis's examples, those that are marked ``nightly``, the
two judges of the same runs, and the revisions of fetch sessions. Another stage runs the test suites of clients. Each
night begins with another one."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from campaigns.nights import processes
from campaigns.nights.night import Work, in_turn
from campaigns.suites.suite import bundled
from reports.verdict import Outcome

MIN_S = 30.0
NO_TESTS = 5
"""Pytest's exit code if there was no test to run."""
SUITE_MISSING = 2
"""Exit code of ``campaigns.suites`` if a suite cannot be fetched or started."""


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """A command that must succeed."""

    words: Sequence[str]
    environment: tuple[tuple[str, str], ...] = ()
    """Set beside the night's own."""
    good: tuple[int, ...] = (0,)
    """Exit codes that are no failure."""


def checks(seed: int, minutes: float) -> dict[str, CheckCommand]:
    """All of them. ``minutes`` is for those that end by themselves in time.

    Those in Hypothesis' profile "nightly" play all tests that commits play in turns."""
    tests = ("-m", "pytest", "--benchmark-disable", "-q", "--timeout", "1800")
    crucible = str(processes.ROOT / "crucible_kafka")
    within = ("--minutes", f"{minutes:.1f}", "--seed", str(seed))
    return {
        "quick tests": CheckCommand(
            (*tests, "--part", "quick", "--part", "thorough", "--part", "simulated"),
            (("HYPOTHESIS_PROFILE", "nightly"),),
            (0, NO_TESTS),
        ),
        "live tests": CheckCommand((*tests, "--part", "live"), (("HYPOTHESIS_PROFILE", "nightly"),), (0, NO_TESTS)),
        "tests with Spark": CheckCommand(
            (*tests, "--part", "spark"), (("HYPOTHESIS_PROFILE", "nightly"),), (0, NO_TESTS)
        ),
        "nightly tests": CheckCommand((*tests, "-m", "nightly"), good=(0, NO_TESTS)),
        "power losses": CheckCommand((crucible, "power-losses", "--with-mutants")),
        "power losses in resumes": CheckCommand((crucible, "power-losses", "log", "quorum", "tier", "--deep")),
        "differential runs": CheckCommand((crucible, "differ", "--seed", str(seed), "--seeds", "40", "--with-mutants")),
        "two judges": CheckCommand(("-m", "tools.compare_verdicts", "--seeds", "20", *within)),
        "revisions compared": CheckCommand(("-m", "campaigns.experiments.revisions", "--seeds", "5")),
    }


def suites(seed: int, minutes: float) -> dict[str, CheckCommand]:  # noqa: ARG001
    """All test suites of clients. One that cannot be fetched here says nothing of the broker."""
    return {name: CheckCommand(("-m", "campaigns.suites", name), good=(0, SUITE_MISSING)) for name in bundled()}


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Run the checks until the time is over. One that has no time to end says nothing."""
    return _play(work, until, "checks", checks)


def play_suites(work: Work, until: float) -> tuple[Outcome, str]:
    """Run the suites likewise."""
    return _play(work, until, "suites", suites)


def _play(
    work: Work, until: float, stage: str, commands: Callable[[int, float], dict[str, CheckCommand]]
) -> tuple[Outcome, str]:
    failed, ended = [], True
    for name in in_turn(list(commands(0, 0)), work.tried_before(stage), work.turn):
        left_s = until - time.monotonic()
        if left_s < MIN_S or not ended:
            break
        work.try_(name)
        check = commands(work.night.seed, left_s / 60 * 0.8)[name]
        done = processes.run(
            [sys.executable, *check.words],
            until,
            work.folder / "logs" / f"{name.replace(' ', '-')}.log",
            partial(work.beat, f"{stage}: {name}"),
            {**work.environment, **dict(check.environment)},
        )
        ended = done.code != processes.OVER
        if not ended:
            work.tell(f"{name} had no time to end")
        elif done.code in check.good:
            work.tell(f"{name}: well")
        else:
            failed.append(f"{name}: {done.last_line}")
            work.tell(f"FAILED: {failed[-1]}")
    return Outcome.FAILED if failed else Outcome.PASSED, "; ".join(failed)
