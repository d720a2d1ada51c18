"""``crucible report``, ``judge`` and ``export``: verdicts and histories of runs that have ended or go on."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from crucible_kafka import shell_completion

OPEN = click.option("--open", "opened", is_flag=True, help="Open the page in the browser at the end.")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible report runs/demo-20260101-120000"
    "\n  ./crucible report RUN_DIR --baseline OTHER_RUN_DIR"
    "\n  ./crucible report s3://BUCKET/RUN"
)
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", shell_complete=shell_completion.run_folders)
@click.option("--out", type=click.Path(path_type=Path), help="Where the report goes (default: RUN_DIR/report).")
@click.option("--baseline", help="A run to compare with.")
@OPEN
def report(run_dirs: Sequence[str], out: Path | None, baseline: str | None, opened: bool) -> None:
    """Let Spark judge and draw runs, also old ones again.

    The runs of ``crucible bench WORKLOAD`` (.benchmarks/workloads/runs) are judged from their history, too.

    A run may be in S3 (s3://BUCKET/RUN), and its report is written there, or into runs if S3 refuses it. The AWS_*
    variables supply the credentials, and AWS_ENDPOINT_URL names another server.
    """
    from crucible_kafka.terminal import need_java, one_sentence
    from crucible_kafka.verdicts import ROOT, open_worst, report_and_print, worst
    from reports import s3
    from reports.errors import SetupError
    from reports.load_rows import RUN_NAME

    need_java()
    if all((Path(run_dir) / RUN_NAME).is_file() for run_dir in run_dirs):
        sys.exit(_report_loads([Path(run_dir) for run_dir in run_dirs]))
    places, rejected = [*run_dirs, *([baseline] if baseline else [])], dict[str, s3.RejectedReport]()

    def kept(one: s3.RejectedReport) -> None:
        rejected[one.place] = one

    with one_sentence(SetupError), s3.local_folders(places, kept_in=ROOT / "runs", on_rejected=kept) as folders:
        away = [folder for place, folder in zip(places, folders, strict=True) if s3.is_remote(place) and out is None]
        verdicts = report_and_print(folders[: len(run_dirs)], out, folders[-1] if baseline else None, away=away)
        if opened:
            open_worst(verdicts)
    for run_dir in run_dirs if out is None else ():
        if run_dir in rejected:
            click.echo(f"crucible: {rejected[run_dir].sentence}", err=True)
        elif s3.is_remote(run_dir):
            click.echo(f"  report in S3: {run_dir.rstrip('/')}/report/index.html")
    sys.exit(worst(verdicts))


def _report_loads(folders: Sequence[Path]) -> int:
    """Judge runs of benchmarks. Return the exit code."""
    from crucible_kafka.terminal import one_sentence, print_table, shown
    from reports.errors import SetupError
    from reports.jobs.load_ledger import differing_counts, judge_load, outcome_of
    from reports.spark import spark_session
    from reports.verdict import Outcome, worst_outcome

    rows, outcomes = [], []
    size_bytes = sum(path.stat().st_size for folder in folders for path in folder.glob("history/*.parquet"))
    with one_sentence(SetupError), spark_session("crucible-load", size_bytes) as spark:
        for folder in folders:
            run, counts = judge_load(spark, folder)
            found = asdict(counts)
            differs = differing_counts(run, counts)
            outcomes.append(outcome_of(run, counts))
            rows.append((str(shown(folder)), *(f"{count:,}" for count in found.values()), ", ".join(differs) or "same"))
    print_table(("run", *(name.replace("_", " ") for name in found), "beside the ledger"), rows)
    for folder, outcome in zip(folders, outcomes, strict=True):
        if outcome is Outcome.INVALID:
            click.echo(f"INVALID: {shown(folder)}: its history is not the one that the run left and counted.")
    return int(worst_outcome(outcomes))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible export --elle runs/48-consume-transform-produce-20260101-120000"
    "\n  ./crucible export --elle RUN_DIR --whole-transactions --out history.edn"
)
@click.argument(
    "run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR", shell_complete=shell_completion.run_folders
)
@click.option("--elle", "for_elle", is_flag=True, required=True, help="As a list-append history in EDN.")
@click.option("--whole-transactions", "whole", is_flag=True, help="Each transaction as one operation.")
@click.option("--out", type=click.Path(path_type=Path), help="The file (default: RUN_DIR/elle.edn).")
def export(run_dir: Path, for_elle: bool, whole: bool, out: Path | None) -> None:  # noqa: ARG001
    """Write a run's history for another checker: for Elle, which looks for cycles of dependencies.

    Each partition is a list to which records are appended, each record of a transaction by an operation of its own.
    Whole transactions form legal cycles, because Kafka isolates readers and not writers. Let Elle look for G1a, G0 and
    G1c, and their variants with processes and time. Kafka promises nothing beyond.
    """
    from crucible_kafka.terminal import one_sentence, shown
    from reports.elle import exported
    from reports.errors import SetupError

    target = out or run_dir / "elle.edn"
    with one_sentence(SetupError, OSError):
        history = exported(run_dir, whole)
        with target.open("w", encoding="utf-8") as file:
            count = history.write(file)
    click.echo(f"{count:,} operations on {len(history.keys)} lists: {shown(target)}")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible judge runs/demo-20260101-120000"
    "\n  ./crucible judge --watch runs/fleet-plain-load-20260101-120000"
    "\n  ./crucible judge --watch --fail-fast RUN_DIR"
)
@click.argument(
    "run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR", shell_complete=shell_completion.run_folders
)
@click.option("--watch", is_flag=True, help="Judge what is whole while the run goes on, and all of it at the end.")
@click.option("--every", "every_s", type=click.FloatRange(1), default=60, show_default=True, help="Seconds.")
@click.option("--fail-fast", is_flag=True, help="End as soon as a guarantee is broken, with exit code 1.")
@click.option("--beside-run", type=int, hidden=True, help="End with this process, which plays the run.")
def judge(run_dir: Path, watch: bool, every_s: float, fail_fast: bool, beside_run: int | None) -> None:
    """Compute the verdict of a run with Spark and print it, without a page.

    With --watch the run may still go on. A line says how far it was judged, and a red one what is broken. Guarantees
    that something may still excuse wait for the end.
    """
    from crucible_kafka.terminal import need_java, one_sentence, progress
    from crucible_kafka.verdicts import print_verdicts, worst

    if fail_fast and not watch:
        raise click.UsageError("--fail-fast ends a --watch: give both")
    if beside_run is not None:
        from reports.standby.process import end_with_parent

        end_with_parent(beside_run)
    need_java()
    from chaos.live.run_folder import RunFolder, SpoolFollower
    from reports.errors import SetupError
    from reports.judge import compute_verdicts
    from reports.manifest import ManifestError
    from reports.watch import Watch

    with one_sentence(SetupError, ManifestError):
        if not watch:
            verdicts, broken = compute_verdicts([run_dir]), {}
        else:
            folder = RunFolder(run_dir)
            take_trace = SpoolFollower(folder.spools).take
            watched = Watch(run_dir, take_trace, folder.producer_expiration_us, progress, every_s)
            verdicts, broken = watched.until_red_or_ended(fail_fast), watched.broken
    print_verdicts(verdicts)
    sys.exit(1 if broken else worst(verdicts))
