"""Play scenarios with real processes, and report their verdicts.

Commands import this module when they run. Like them it imports the rooms lazily.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crucible_kafka.live_plays import LivePlay
from crucible_kafka.run_folder import ROOT, command_line, run_folder
from crucible_kafka.terminal import need_disk, need_java, one_sentence, progress
from crucible_kafka.verdicts import report_and_print

if TYPE_CHECKING:
    from reports.standby.process import StandbySpark
    from reports.verdict import Verdict
    from scenarios.model import Scenario

STANDBY_BEFORE_END_S = 60.0
"""Remaining load at which the Spark session is started, so that it is ready at the end. It must not idle beside a long
row of runs, because its Java takes a gigabyte."""


def play_scenarios(
    plays: Sequence[LivePlay], target: str, out: Path | None, seed: int, watch: bool = False
) -> "list[Verdict]":
    """Play one after the other, then compute all verdicts in one Spark session, and print a line for each. With
    ``watch`` another process also computes the verdict of each while it runs.

    The Spark session is started before the last plays, so that it is ready at their end.
    """
    need_java()
    need_disk(out or ROOT / "runs")
    from chaos.live.errors import SetupError
    from chaos.live.runner import play_scenario
    from crucible_kafka.progress import shown_live

    folders: list[Path] = []
    standby: StandbySpark | None = None
    with ExitStack() as resources, one_sentence(SetupError):
        for number, (scenario, mutant) in enumerate(plays):
            folder = run_folder(out, f"{scenario.name}{'-' + mutant if mutant else ''}", len(plays) > 1)
            planted = f" (mutant {mutant})" if mutant else ""
            click.echo(f"[{number + 1}/{len(plays)}] {scenario.title}{_shown_revision(scenario)}{planted}", err=True)
            load_s = sum(play.scenario.load.seconds for play in plays[number:])
            is_near_end = load_s <= STANDBY_BEFORE_END_S or number == len(plays) - 1
            if standby is None and not watch and is_near_end:
                standby = resources.enter_context(_standby(plays, target, folder, load_s))
            with watched(folder, watch), shown_live() as show:
                play_scenario(
                    scenario,
                    folder,
                    seed=seed,
                    target=target,
                    mutant=mutant,
                    command=command_line(),
                    progress=progress,
                    show=show,
                )
            folders.append(folder)
        return report_and_print(folders, standby=standby)


def _standby(plays: Sequence[LivePlay], target: str, folder: Path, load_s: float) -> "StandbySpark":
    """Start the process of the Spark session, and pass it what it will have to judge."""
    from chaos.checks.guarantee_selection import tables_left
    from reports.judge import OURS
    from reports.manifest import producer_expiration_us
    from reports.standby.expected import Expected
    from reports.standby.process import StandbySpark

    expected = Expected(
        tuple(tables_left(play.scenario.load) for play in plays),
        target != OURS,
        tuple(producer_expiration_us(dict(play.scenario.cluster.config)) for play in plays),
    )
    return StandbySpark(expected, folder, load_s)


def _shown_revision(scenario: "Scenario") -> str:
    from scenarios.revisions import revision_of

    revision = revision_of(scenario)
    return f" ({revision} revision)" if revision != "final" else ""


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Start ``crucible judge --watch`` for the run in this folder while the block plays it, if it is wanted.

    The process has a lower priority than the run. It is killed at the end of the block: it has nothing to lose, and
    could not end cleanly during a call to Java.
    """
    from reports.standby.process import SPARK_FOLDERS

    if not wanted:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "crucible_kafka"), "judge", "--watch", "--beside-run", str(os.getpid())]
    words = ["nice", *command, str(folder)]
    with tempfile.TemporaryDirectory(prefix="crucible-watch-", ignore_cleanup_errors=True) as scratch:
        settings = {**os.environ, "TMPDIR": scratch, SPARK_FOLDERS: scratch}
        watcher = subprocess.Popen(words, stdin=subprocess.DEVNULL, env=settings, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(watcher.pid, signal.SIGKILL)
            watcher.wait()
