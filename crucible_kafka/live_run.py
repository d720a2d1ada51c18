"""Live runs of commands: find scenarios, play them with real processes, judge them, and print the verdicts.

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

from crucible_kafka.terminal import need_disk, need_java, one_sentence, progress, show_page, shown

if TYPE_CHECKING:
    from reports.verdict import Verdict
    from reports.warm_judge.process import WarmJudge
    from scenarios.model import Scenario

ROOT = Path(__file__).resolve().parents[1]
JUDGE_PREPARES_S = 60.0
"""Remaining load at which the judge is started, so that it is ready at the end. It must not idle beside a long row of
runs, because its Java takes a gigabyte."""


def find_scenarios(names: Sequence[str], everything: bool) -> "list[Scenario]":
    from chaos.checks.guarantee_selection import checked
    from scenarios import loader

    with one_sentence(loader.ScenarioError):
        if everything and names:
            raise loader.ScenarioError("name scenarios or give --all, not both")
        if everything:
            return [checked(each) for each in loader.load_all()]
        if not names:
            raise loader.ScenarioError("name a scenario (a file, its stem or its number), or give --all")
        return [checked(loader.find(name)) for name in names]


def in_revisions(scenario: "Scenario", wanted: str | None) -> "Sequence[Scenario]":
    """Returns the scenario in the wanted revision, or in all that it has. One that was named with its revision
    (``1@first``) is played only in that."""
    from scenarios.revisions import MARK, each_revision

    return (scenario,) if MARK in scenario.name and not wanted else each_revision(scenario, wanted or "")


def live_plays(
    scenarios: "Sequence[Scenario]", revision: str | None, planted: str | None, target: str, everything: bool
) -> "list[tuple[Scenario, str]]":
    """Returns what is played live: each scenario in its revisions, with the mutant ``planted`` (empty: none). With
    None each is played without a mutant, and then with each of its own whose mechanism the revision has.

    Of ``everything`` what cannot be played is left out, such as power losses. A scenario that was named is not.
    """
    from chaos.live.errors import SetupError
    from chaos.live.runner import check_playable
    from chaos.mutants.registry import by_name, mutants_of

    def is_left_out(spoken: "Scenario", mutant: str) -> bool:
        if planted is None and mutant and not set(spoken.revisions) & set(by_name(mutant).revisions):
            return True
        try:
            check_playable(spoken, target)
        except SetupError:
            return everything
        return False

    return [
        (spoken, mutant)
        for scenario in scenarios
        for spoken in in_revisions(scenario, revision or _outside_revision(scenario, target))
        for mutant in (("", *mutants_of(scenario)) if planted is None else (planted,))
        if not is_left_out(spoken, mutant)
    ]


def _outside_revision(scenario: "Scenario", target: str) -> str | None:
    """Returns the revision that any broker speaks, if the target is not ours and the scenario has it."""
    return "final" if target != "reference" and "final" in scenario.revisions and "@" not in scenario.name else None


def play_live(
    plays: "Sequence[tuple[Scenario, str]]", target: str, out: Path | None, seed: int, watch: bool = False
) -> "list[Verdict]":
    """Plays one after the other, then judges all in one Spark session, and prints one line for each verdict. With
    ``watch`` each is also judged while it runs.

    The judge of the whole is started when the load of the last plays begins, so that it is ready at their end.
    """
    need_java()
    need_disk(out or ROOT / "runs")
    from chaos.checks.guarantee_selection import tables_left
    from chaos.live.errors import SetupError
    from chaos.live.runner import check_playable, play
    from crucible_kafka.progress import shown_live
    from reports.judge import OURS
    from reports.warm_judge.expected import Expected
    from reports.warm_judge.process import WarmJudge

    folders: list[Path] = []
    warm: WarmJudge | None = None
    with ExitStack() as judges, one_sentence(SetupError):
        for scenario, mutant in plays:
            check_playable(scenario, target, mutant)
        for number, (scenario, mutant) in enumerate(plays):
            name = f"{scenario.name}{'-' + mutant if mutant else ''}"
            folder = run_folder(out, name, len(plays) > 1)
            planted = f" (mutant {mutant})" if mutant else ""
            click.echo(f"[{number + 1}/{len(plays)}] {scenario.title}{_shown_revision(scenario)}{planted}", err=True)
            load_s = sum(each.load.seconds for each, _ in plays[number:])
            if warm is None and not watch and (load_s <= JUDGE_PREPARES_S or number == len(plays) - 1):
                expected = Expected(tuple(tables_left(each.load) for each, _ in plays), target != OURS)
                warm = judges.enter_context(WarmJudge(expected, folder, load_s))
            with watched(folder, watch), shown_live() as show:
                play(
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
        return judge(folders, warm=warm)


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Has another process judge the run in this folder while the block plays it (``crucible judge --watch``). It steps
    back for the run, and is killed at the end of the block. It has nothing to lose, and in the middle of a question to
    Java it could not end in order."""
    from reports.warm_judge.process import SPARK_FOLDERS

    if not wanted:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    judge_it = [sys.executable, str(ROOT / "crucible_kafka"), "judge", "--watch", "--beside-run", str(os.getpid())]
    words = ["nice", *judge_it, str(folder)]
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
    """Returns the folder of a new run. Without ``out`` it is made here. It is named after the next second that is free,
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


def judge(
    folders: Sequence[Path],
    out: Path | None = None,
    baseline: Path | None = None,
    warm: "WarmJudge | None" = None,
    away: Sequence[Path] = (),
) -> "list[Verdict]":
    """Judges the runs and prints the verdicts. The reports below ``away`` are about to be moved."""
    from reports.errors import SetupError
    from reports.judge import judge_many
    from reports.manifest import ManifestError

    with one_sentence(SetupError, ManifestError):
        if warm is None:
            verdicts = judge_many(folders, out=out, baseline=baseline, progress=progress)
        else:
            verdicts = warm.judge_many(folders, progress=progress)
    print_verdicts(verdicts, away)
    hint_at_old_runs()
    return verdicts


def hint_at_old_runs() -> None:
    """Names ``crucible runs --prune`` if there is something for it to delete. Nothing is deleted unasked."""
    from chaos.live.kept_runs import KEEP, surplus

    old = surplus(ROOT / "runs")
    if old:
        size = f"{sum(each.size_bytes() for each in old) / 1e6:,.0f} MB"
        progress(
            f"runs/ holds {len(old)} more than {KEEP} runs that ended as they must ({size}); "
            "./crucible runs --prune deletes the oldest"
        )


def print_verdicts(verdicts: "Sequence[Verdict]", away: Sequence[Path] = ()) -> None:
    for verdict in verdicts:
        click.echo(f"{verdict.outcome.name}: {verdict.summary}")
        if verdict.unjudged:
            click.echo(f"  promised, but not judged in this run: {', '.join(verdict.unjudged)}")
        if verdict.report is not None and not any(verdict.report.is_relative_to(folder) for folder in away):
            click.echo(f"  report: {shown(verdict.report)}")
        if verdict.exit_code:
            click.echo(f"  repeat with: {verdict.repeat_command}")


def open_worst(verdicts: "Sequence[Verdict]") -> None:
    """Opens the page of the run that ended worst, or of the first if all ended well."""
    worst_one = max(verdicts, key=lambda each: each.exit_code)
    if worst_one.report is not None:
        show_page(worst_one.report)


def worst(verdicts: "Sequence[Verdict]") -> int:
    from reports.verdict import worst_exit_code

    return worst_exit_code(verdicts)


def exit_code_with_mutants(plays: "Sequence[tuple[Scenario, str]]", verdicts: "Sequence[Verdict]") -> int:
    """Returns 0 if all controls passed and all mutants broke a guarantee, else 1. Remembers what caught which."""
    from chaos.mutants import by_name
    from scenarios.ledger import caught_now, remember

    for (scenario, mutant), verdict in zip(plays, verdicts, strict=True):
        if mutant:
            broken = tuple(one.name for one in verdict.guarantees if one.status == "broken")
            target = by_name(mutant).target
            remember(caught_now(mutant, target, scenario.name, "live", 1, broken, verdict.seed))
    wrong = [
        f"{scenario.name}{' with ' + mutant if mutant else ''}: {verdict.outcome.name}"
        for (scenario, mutant), verdict in zip(plays, verdicts, strict=True)
        if verdict.exit_code != (1 if mutant else 0)
    ]
    click.echo(f"not as it must be: {'; '.join(wrong)}" if wrong else "every control passed, every mutant was caught")
    return 1 if wrong else 0


def play_compared(scenario: str, out: Path | None, seed: int) -> int:
    """Plays the scenario in its variants, and judges and compares them. Returns the exit code of the worst."""
    need_java()
    from chaos.live.comparison import compare as play_all
    from chaos.live.errors import SetupError
    from reports.comparison import compare_runs as lay_beside
    from reports.errors import SetupError as NoSpark

    (found,) = find_scenarios([scenario], False)
    with one_sentence(SetupError):
        folder = run_folder(out, f"compare-{found.name}", False)
        played = play_all(found, folder, seed=seed, command=command_line(), progress=progress)
    with one_sentence(NoSpark):
        compared = lay_beside([run for _, run in played], folder, progress=progress)
    print_verdicts(compared.verdicts)
    click.echo(f"comparison: {shown(compared.page)}")
    return worst(compared.verdicts)


def compare_runs(first: Sequence[Path], second: Sequence[Path], out: Path | None) -> None:
    """Compares two sets of runs that were played before."""
    need_java()
    from reports.errors import SetupError
    from reports.manifest import ManifestError
    from reports.run_sets import check_comparable, compare_sets, find_runs

    with one_sentence(SetupError, ManifestError):
        sets = find_runs(first), find_runs(second)
        check_comparable(*sets)
        compared, page = compare_sets(*sets, run_folder(out, "compared", False))
    for one in compared.figures:
        if one.word != "no difference shown":
            click.echo(f"{one.word}: {one.operation} {one.figure} ({one.phase}) x {one.ratio.ratio:.3f}")
    click.echo(compared.summary)
    click.echo(f"comparison: {shown(page)}")
