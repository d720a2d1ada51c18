"""``crucible proxy``, ``mutants`` and ``runs``. Each imports what it needs only when it runs."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chaos.live.kept_runs import KeptRun

ROOT = Path(__file__).resolve().parents[2]


def _processes(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[int, int]:
    process_by_node = {}
    for value in values:
        node, _separator, process = value.partition("=")
        if not (node.isdecimal() and process.isdecimal() and int(process) > 1):
            raise click.BadParameter(f"{value!r} is not NODE=PID")
        process_by_node[int(node)] = int(process)
    return process_by_node


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible proxy --target 127.0.0.1:9092"
    "\n  ./crucible proxy --target HOST:PORT --rules lost.toml"
    "\n  ./crucible proxy --target kafka/1"
)
@click.option(
    "--target",
    required=True,
    metavar="TARGET",
    help="What to stand in front of: HOST:PORT, or a target that is started (FILE.toml; in a clone kafka, too).",
)
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect.",
)
@click.option("--rules", type=click.Path(path_type=Path), help="A TOML file with [[fault]] tables, as in scenarios.")
@click.option(
    "--control", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where the HTTP interface is."
)
@click.option("--log", type=click.Path(path_type=Path), help="Write each request that passes here, as JSON lines.")
@click.option(
    "--process",
    multiple=True,
    callback=_processes,
    metavar="NODE=PID",
    help="Rules may kill or pause this process.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
@click.option("--topic", default="", help="Rules for partition_leader or partition_follower mean its first partition.")
def proxy(
    target: str,
    listen: str,
    rules: Path | None,
    control: str,
    log: Path | None,
    process: dict[int, int],
    seed: int,
    topic: str,
) -> None:
    """Proxy a cluster and inject faults into requests and responses by rules, while unmodified clients use it.

    It prints one JSON line with bootstrap_servers, the URL of its HTTP interface and the token for the rules of the
    control API (docs/frame-proxy.md), and ends at Ctrl-C or SIGTERM.
    """
    from chaos.frame_proxy.proxy_command import ProxyOptions, run_proxy

    sys.exit(run_proxy(ProxyOptions(target, listen, rules, control, log, process, seed, topic), click.echo))


@click.command(
    epilog="\b\nExamples:\n  ./crucible mutants\n  ./crucible mutants --second-set\n"
    "  ./crucible sim --all --with-mutants --seeds 200 --seed 1000"
)
@click.option("--unplanned", is_flag=True, help="List the mutants that no scenario names instead, of both sets.")
@click.option("--second-set", is_flag=True, help="List only the second set of those.")
def mutants(unplanned: bool, second_set: bool) -> None:
    """List the mutants, one line each: its name, the clauses that it lacks, the numbers of the scenarios that must
    kill it. Then it says by which guarantees, in which world, after how many seeds and at which commit each was last
    killed, or why real processes cannot show it. A kill older than 30 days, or than 300 commits of the room whose
    function the mutant replaces, is stale.

    Tests, nights and every command with --with-mutants remember what they saw, in runs/mutants.jsonl. The test of a
    commit plays a part of the mutants, each with the seed that kills it fastest; the night plays all.

    Mutants that no scenario names have their target and their defect instead.
    """
    from datetime import date

    from chaos.mutants.registry import by_name, live_standing, second_unplanned_mutants, table, unplanned_mutants
    from scenarios.ledger import is_stale, last

    if unplanned or second_set:
        for mutant in second_unplanned_mutants() if second_set else unplanned_mutants():
            lacking = ", ".join(mutant.clauses) or "no clause"
            defect = " ".join((mutant.replacement.__doc__ or "").split())
            click.echo(f"{mutant.name} | {lacking} | {mutant.target}\n        {defect}")
        return
    searches = last()
    for name, numbers in table():
        lacking = ", ".join(by_name(name).clauses) or "no clause"
        click.echo(f"{name} | {lacking} | scenarios {' '.join(numbers)}")
        simulated = searches.get((name, "sim"))
        stale = " (stale)" if simulated is not None and is_stale(simulated, date.today()) else ""
        click.echo(f"        {simulated or 'sim: not played yet'}{stale}")
        click.echo(f"        {live_standing(name, searches.get((name, 'live')))}")


@click.command(
    epilog="\b\nExamples:\n  ./crucible runs\n  ./crucible runs --prune\n  ./crucible runs --prune --keep 0 --red"
)
@click.option("--prune", is_flag=True, help="Delete old runs that passed, or whose mutant was killed.")
@click.option("--keep", type=click.IntRange(0), default=20, show_default=True, help="Newest runs to keep.")
@click.option("--red", is_flag=True, help="Count and delete also runs that are red, INVALID or crashed.")
def runs(prune: bool, keep: int, red: bool) -> None:
    """List the runs in runs/ with verdict, size and age, the newest last. With --prune it deletes old ones instead.

    Folders given by --out are ignored. Runs without a verdict are kept.
    """
    from chaos.live.kept_runs import listed

    if prune:
        _prune(keep, red)
        return
    kept_runs = listed(ROOT / "runs")
    if not kept_runs:
        click.echo("there are no runs yet; ./crucible demo makes one")
        return
    sizes = [run.size_bytes() for run in kept_runs]
    _print_runs(kept_runs, sizes)
    click.echo(f"{len(kept_runs)} runs, {sum(sizes) / 1e6:,.1f} MB; {_left(ROOT)} are free on their disk")


def _print_runs(kept_runs: "Sequence[KeptRun]", sizes: Sequence[int]) -> None:
    from datetime import datetime

    from crucible_kafka.terminal import print_table, shown

    now = datetime.now()
    rows = [
        (
            run.path.name,
            ", ".join(run.outcomes) or "not judged",
            f"{size / 1e6:,.1f} MB",
            _age(int((now - run.made).total_seconds())),
            str(shown(run.page)) if run.page else "",
        )
        for run, size in zip(kept_runs, sizes, strict=True)
    ]
    print_table(("run", "verdict", "size", "age", "page"), rows)


def _age(seconds: int) -> str:
    steps = ((86_400, "d"), (3_600, "h"), (60, "min"))
    return next((f"{seconds // unit_s} {unit}" for unit_s, unit in steps if seconds >= unit_s), f"{max(seconds, 0)} s")


def _left(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 1e9:,.1f} GB"


def _prune(keep: int, red: bool) -> None:
    from chaos.live.kept_runs import surplus
    from crucible_kafka.terminal import shown

    old = surplus(ROOT / "runs", keep, red)
    freed_bytes = 0
    for run in old:
        freed_bytes += run.size_bytes()
        run.delete()
        click.echo(f"deleted {shown(run.path)}")
    counted = "runs" if red else "runs that ended as they must"
    click.echo(f"{len(old)} runs deleted, {freed_bytes / 1e6:.1f} MB; the newest {keep} {counted} stay")
