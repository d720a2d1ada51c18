"""Compute, print and export verdicts of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crucible_kafka.terminal import one_sentence, progress, show_page, shown

if TYPE_CHECKING:
    from reports.standby.process import StandbySpark
    from reports.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]


def report_and_print(
    folders: Sequence[Path],
    out: Path | None = None,
    baseline: Path | None = None,
    standby: "StandbySpark | None" = None,
    away: Sequence[Path] = (),
) -> "list[Verdict]":
    """Compute the verdicts of runs, write their reports, and print the verdicts. ``standby`` has the Spark session.

    The reports below ``away`` are about to be moved.
    """
    from reports.errors import SetupError
    from reports.judge import report_runs
    from reports.manifest import ManifestError

    with one_sentence(SetupError, ManifestError):
        if standby is None:
            verdicts = report_runs(folders, out=out, baseline=baseline, progress=progress)
        else:
            verdicts = standby.request_reports(folders, progress=progress)
    print_verdicts(verdicts, away)
    hint_at_old_runs()
    return verdicts


def print_verdicts(verdicts: "Sequence[Verdict]", away: Sequence[Path] = ()) -> None:
    for verdict in verdicts:
        click.echo(f"{verdict.outcome.name}: {verdict.summary}")
        if verdict.unjudged:
            click.echo(f"  promised, but not judged in this run: {', '.join(verdict.unjudged)}")
        if verdict.report is not None and not any(verdict.report.is_relative_to(folder) for folder in away):
            click.echo(f"  report: {shown(verdict.report)}")
        if verdict.exit_code:
            click.echo(f"  repeat with: {verdict.repeat_command}")


def report_to_ci(verdicts: "Sequence[Verdict]", with_mutants: bool, junit: Path | None, annotates: bool) -> None:
    """Write the results of runs to a file of JUnit XML, and print annotations of GitHub.

    A run has a suite with a test case for each guarantee. ``with_mutants``: one with a mutant must break a guarantee,
    and has a single test case.
    """
    from reports.ci_results import annotations, junit_of_runs, result_of

    must_fail = [with_mutants and bool(verdict.mutant) for verdict in verdicts]
    results = [result_of(verdict, killed) for verdict, killed in zip(verdicts, must_fail, strict=True)]
    if junit is not None:
        own = [verdict.report and verdict.report.with_name("junit.xml") for verdict in verdicts]
        files = [None if killed else file for killed, file in zip(must_fail, own, strict=True)]
        junit.write_text(junit_of_runs(zip(results, files, strict=True)), encoding="utf-8")
    for line in annotations(results) if annotates else ():
        click.echo(line)


def hint_at_old_runs() -> None:
    """Name ``crucible runs --prune`` if there is something for it to delete. Nothing is deleted unasked."""
    from chaos.live.kept_runs import KEEP, surplus

    old = surplus(ROOT / "runs")
    if old:
        size = f"{sum(run.size_bytes() for run in old) / 1e6:,.0f} MB"
        progress(
            f"runs/ holds {len(old)} more than {KEEP} runs that ended as they must ({size}); "
            "./crucible runs --prune deletes the oldest"
        )


def open_worst(verdicts: "Sequence[Verdict]") -> None:
    """Open the page of the run that ended worst, or of the first if all ended well."""
    worst_one = max(verdicts, key=lambda verdict: verdict.exit_code)
    if worst_one.report is not None:
        show_page(worst_one.report)


def worst(verdicts: "Sequence[Verdict]") -> int:
    from reports.verdict import worst_exit_code

    return worst_exit_code(verdicts)
