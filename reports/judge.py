"""Compute verdicts with Spark, and write pages.

This is also a program: ``python -m reports.judge RUN_DIR...``, or ``spark-submit reports/judge.py RUN_DIR...`` on a
cluster.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reports.errors import SetupError
from reports.manifest import Manifest, ManifestError, read_manifest
from reports.verdict import Verdict, worst_exit_code, write_junit, write_verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.collect import Findings
    from reports.standby.rehearsal import Rehearsal

Progress = Callable[[str], None]
OURS = "reference"
"""The name of our own broker in a manifest (``target``)."""


def silent(text: str) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A finished run with its findings and its verdict."""

    manifest: Manifest
    findings: "Findings"
    verdict: Verdict


def report_runs(
    run_dirs: Sequence[Path],
    out: Path | None = None,
    baseline: Path | None = None,
    spark: "SparkSession | None" = None,
    progress: Progress = silent,
    rehearsal: "Rehearsal | None" = None,
) -> list[Verdict]:
    """Compute the verdicts of all runs in one Spark session, and write their reports.

    The report has index.html, figures, verdict.json and junit.xml. It goes to ``out`` (default RUN_DIR/report), or with
    several runs to a folder for each in ``out``. ``baseline`` is a run to compare with; it gets no report.
    ``progress`` is called with short texts, from several threads. ``rehearsal`` has prepared the queries in ``spark``.

    Raise ManifestError (not a run) or SetupError (no Java), each one sentence for the person at the terminal.
    """
    return [report.verdict for report in compute_reports(run_dirs, out, baseline, spark, progress, rehearsal)]


def compute_verdicts(run_dirs: Sequence[Path], spark: "SparkSession | None" = None) -> list[Verdict]:
    """Compute the verdicts as ``report_runs`` does, without writing files."""
    from reports.decide import decide

    folders = [Path(folder).resolve() for folder in run_dirs]
    manifests = [read_manifest(folder) for folder in folders]
    findings = _findings(folders, manifests, spark, silent)
    return [decide(*parts) for parts in zip(manifests, findings, folders, strict=True)]


def compute_reports(
    run_dirs: Sequence[Path],
    out: Path | None = None,
    baseline: Path | None = None,
    spark: "SparkSession | None" = None,
    progress: Progress = silent,
    rehearsal: "Rehearsal | None" = None,
) -> "list[RunReport]":
    """Do what ``report_runs`` does, and also return the manifest and the findings behind each verdict."""
    started = time.monotonic()
    folders = [Path(folder).resolve() for folder in (*run_dirs, *([baseline] if baseline else []))]
    manifests = [read_manifest(folder) for folder in folders]
    findings = _findings(folders, manifests, spark, progress, rehearsal)
    compared = (manifests[-1], findings[-1]) if baseline else None
    reports = []
    for number, run_dir in enumerate(folders[: len(run_dirs)]):
        target = _target(run_dir, number, len(run_dirs), out)
        verdict = _report(manifests[number], findings[number], run_dir, target, compared)
        reports.append(RunReport(manifests[number], findings[number], verdict))
        progress(f"wrote {target / 'index.html'}")
    progress(f"judged {len(reports)} run{'s' * (len(reports) != 1)} in {time.monotonic() - started:.1f} s")
    return reports


def _findings(
    folders: Sequence[Path],
    manifests: Sequence[Manifest],
    spark: "SparkSession | None",
    progress: Progress,
    rehearsal: "Rehearsal | None" = None,
) -> "list[Findings]":
    from reports.schema import damaged_file, history_bytes
    from reports.spark import (
        SMALL_HISTORY_BYTES,
        sized_for,
        spark_session,
    )  # imported here: the command line must start without Spark

    damaged = damaged_file(folders)
    if damaged is not None:
        raise SetupError(f"{damaged} is damaged or cut short: restore it from a copy, or play the run again.")
    progress("starting Spark" if spark is None else "reading the history")
    size = history_bytes(folders)
    with nullcontext(spark) if spark is not None else spark_session(history_bytes=size) as session:
        from reports.collect import JOBS_AT_ONCE, collect
        from reports.read_tables import JobConfig, RunConfig, reading

        settings = {
            run: RunConfig(
                warm_up_us=manifest.warm_up_us,
                external=int(manifest.target != OURS),
                clock_tick_us=manifest.clock_tick_ms * 1000,
                producer_expiration_us=manifest.producer_expiration_us,
            )
            for run, manifest in enumerate(manifests)
        }
        config = JobConfig(runs=settings)
        if rehearsal is not None and rehearsal.suits(folders, config):
            progress("the queries are planned already")
            findings = rehearsal.findings(folders, progress)
        else:
            at_once = JOBS_AT_ONCE if size < SMALL_HISTORY_BYTES else 1
            with sized_for(session, size), reading(session, folders, config) as tables:
                findings = collect(tables, len(folders), progress, at_once)
        # Frames refer to each other in cycles, and Java keeps the plans of all frames that Python holds: about 100 MB
        # for each call.
        gc.collect()
        return findings


def _report(
    manifest: Manifest,
    findings: "Findings",
    run_dir: Path,
    target: Path,
    compared: "tuple[Manifest, Findings] | None",
) -> Verdict:
    from reports.decide import decide
    from reports.page.render import write_page

    target.mkdir(parents=True, exist_ok=True)
    verdict = replace(decide(manifest, findings, run_dir), report=target / "index.html")
    write_verdict(target / "verdict.json", verdict)
    write_junit(target / "junit.xml", verdict, manifest.duration_us / 1e6)
    write_page(target, manifest, findings, verdict, compared)
    return verdict


def _target(run_dir: Path, number: int, runs: int, out: Path | None) -> Path:
    if out is None:
        return run_dir / "report"
    return Path(out).resolve() if runs == 1 else Path(out).resolve() / f"{number:02d}-{run_dir.name}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="reports.judge", description="Judge runs and draw their reports.")
    parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="folder of the report (default: RUN_DIR/report)")
    parser.add_argument("--baseline", type=Path, metavar="RUN_DIR", help="a run to compare with")
    options = parser.parse_args(arguments)
    try:
        verdicts = report_runs(options.run_dirs, options.out, options.baseline, progress=_to_stderr)
    except (SetupError, ManifestError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for verdict in verdicts:
        sys.stdout.write(f"{verdict.outcome.name}: {verdict.scenario}: {verdict.summary}\n{verdict.report}\n")
    return worst_exit_code(verdicts)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    # spark-submit starts a file, and Python then looks into its folder first, where `statistics` is ours.
    sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).parent.resolve()]
    sys.exit(main())
