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
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crucible_kafka.commands.scenario_options import in_revisions
from crucible_kafka.terminal import need_disk, need_java, one_sentence, progress
from crucible_kafka.verdicts import report_and_print

if TYPE_CHECKING:
    from reports.verdict import Verdict
    from scenarios.model import Scenario

ROOT = Path(__file__).resolve().parents[1]
STANDBY_BEFORE_END_S = 60.0
"""Remaining load at which the Spark session is started, so that it is ready at the end. It must not idle beside a long
row of runs, because its Java takes a gigabyte."""


def live_plays(
    scenarios: "Sequence[Scenario]", revision: str | None, planted: str | None, target: str, everything: bool
) -> "list[tuple[Scenario, str]]":
    """Return what is played live: each scenario in its revisions, with the mutant ``planted`` (empty: none). With
    None each is played without a mutant, and then with each of its own whose mechanism the revision has.

    Of ``everything`` what cannot be played is omitted, such as power losses. Otherwise raise SetupError for it.
    """
    from chaos.live.errors import SetupError
    from chaos.live.runner import check_mutant, check_playable
    from chaos.mutants.registry import by_name, mutants_of

    plays = []
    for scenario in scenarios:
        own = [each for each in mutants_of(scenario) if planted is None]
        for revised in in_revisions(scenario, revision or _external_revision(scenario, target)):
            try:
                check_playable(revised, target)
            except SetupError:
                if everything:
                    continue
                raise
            fitting = [each for each in own if set(revised.revisions) & set(by_name(each).revisions)]
            for mutant in (planted or "", *fitting):
                if mutant:
                    check_mutant(revised, target, mutant)
                plays.append((revised, mutant))
    return plays


def _external_revision(scenario: "Scenario", target: str) -> str | None:
    """Return the revision that any broker supports, if the target is external and the scenario has it."""
    return "final" if target != "reference" and "final" in scenario.revisions and "@" not in scenario.name else None


def play_scenarios(
    plays: "Sequence[tuple[Scenario, str]]", target: str, out: Path | None, seed: int, watch: bool = False
) -> "list[Verdict]":
    """Play one after the other, then compute all verdicts in one Spark session, and print a line for each. With
    ``watch`` another process also computes the verdict of each while it runs.

    The Spark session is started when the load of the last plays begins, so that it is ready at their end.
    """
    need_java()
    need_disk(out or ROOT / "runs")
    from chaos.checks.guarantee_selection import tables_left
    from chaos.live.errors import SetupError
    from chaos.live.runner import play_scenario
    from crucible_kafka.progress import shown_live
    from reports.judge import OURS
    from reports.manifest import producer_expiration_us
    from reports.standby.expected import Expected
    from reports.standby.process import StandbySpark

    folders: list[Path] = []
    standby: StandbySpark | None = None
    with ExitStack() as resources, one_sentence(SetupError):
        for number, (scenario, mutant) in enumerate(plays):
            name = f"{scenario.name}{'-' + mutant if mutant else ''}"
            folder = run_folder(out, name, len(plays) > 1)
            planted = f" (mutant {mutant})" if mutant else ""
            click.echo(f"[{number + 1}/{len(plays)}] {scenario.title}{_shown_revision(scenario)}{planted}", err=True)
            load_s = sum(each.load.seconds for each, _ in plays[number:])
            if standby is None and not watch and (load_s <= STANDBY_BEFORE_END_S or number == len(plays) - 1):
                expected = Expected(
                    tuple(tables_left(each.load) for each, _ in plays),
                    target != OURS,
                    tuple(producer_expiration_us(dict(each.cluster.config)) for each, _ in plays),
                )
                standby = resources.enter_context(StandbySpark(expected, folder, load_s))
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


def _shown_revision(scenario: "Scenario") -> str:
    from scenarios.revisions import revision_of

    revision = revision_of(scenario)
    return f" ({revision} revision)" if revision != "final" else ""


def run_folder(out: Path | None, name: str, several: bool) -> Path:
    """Return the folder of a new run. Without ``out`` it is made here. It is named after the next second that is free,
    because several runs may start in the same second."""
    if out is not None:
        return out / name if several else out
    moment = datetime.now()
    while True:
        folder = ROOT / "runs" / f"{name}-{moment:%Y%m%d-%H%M%S}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            moment += timedelta(seconds=1)
        else:
            return folder


def command_line() -> str:
    return " ".join(["./crucible", *sys.argv[1:]])


def exit_code_with_mutants(plays: "Sequence[tuple[Scenario, str]]", verdicts: "Sequence[Verdict]") -> int:
    """Return 0 if all controls passed and all mutants broke a guarantee, else 1. Record which guarantees each broke."""
    from chaos.mutants import by_name
    from scenarios.ledger import ended_search, remember

    for (scenario, mutant), verdict in zip(plays, verdicts, strict=True):
        if mutant:
            broken = tuple(one.name for one in verdict.guarantees if one.status == "broken")
            target = by_name(mutant).target
            remember(ended_search(mutant, target, scenario.name, "live", 1, broken, verdict.seed))
    wrong = [
        f"{scenario.name}{' with ' + mutant if mutant else ''}: {verdict.outcome.name}"
        for (scenario, mutant), verdict in zip(plays, verdicts, strict=True)
        if verdict.exit_code != (1 if mutant else 0)
    ]
    click.echo(f"not as it must be: {'; '.join(wrong)}" if wrong else "every control passed, every mutant was killed")
    return 1 if wrong else 0


def report_to_ci(verdicts: "Sequence[Verdict]", with_mutants: bool, junit: Path | None, annotates: bool) -> None:
    """Write the results of runs to a file of JUnit XML, and print annotations of GitHub.

    A run has a suite with a test case for each guarantee. ``with_mutants``: one with a mutant must break a guarantee,
    and has a single test case.
    """
    from reports.ci_results import annotations, junit_of_runs, result_of

    must_fail = [with_mutants and bool(each.mutant) for each in verdicts]
    results = [result_of(each, killed) for each, killed in zip(verdicts, must_fail, strict=True)]
    if junit is not None:
        own = [each.report and each.report.with_name("junit.xml") for each in verdicts]
        files = [None if killed else file for killed, file in zip(must_fail, own, strict=True)]
        junit.write_text(junit_of_runs(zip(results, files, strict=True)), encoding="utf-8")
    for line in annotations(results) if annotates else ():
        click.echo(line)
