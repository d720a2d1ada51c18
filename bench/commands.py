"""The commands that measure and that question brokers. Each imports what it needs only when it runs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from bench.options import Options
    from bench.results import Results


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible bench"
    "\n  ./crucible bench --peer kafka"
    "\n  ./crucible bench --peer kafka --row fetch"
    "\n  ./crucible bench --row failover"
)
@click.option("--peer", type=click.Choice(["kafka"]), help="Measure this broker, too. It takes turns with ours.")
@click.option("--row", "rows", multiple=True, metavar="NAME", help="Measure only this row (a file in bench/rows).")
@click.option("--nodes", type=click.Choice(["1", "3"]), multiple=True, help="Measure only clusters of this size.")
@click.option(
    "--quick", is_flag=True, help="Measure little of everything, to see that it works. No figure is worth quoting."
)
def bench(peer: str | None, rows: Sequence[str], nodes: Sequence[str], quick: bool) -> None:
    """Measures one node and three, alone or beside a peer, and writes a page that shows the figures."""
    from rich.console import Console
    from rich.table import Table

    from bench.options import NODES, QUICK, Options, Sizes
    from bench.peers.errors import PeerError
    from bench.report import write
    from bench.results import table
    from terminal import USAGE_ERROR, one_sentence, shown

    with one_sentence(ValueError):
        wanted = Options(peer, tuple(rows), tuple(map(int, nodes)) or NODES, QUICK if quick else Sizes())
    with one_sentence(PeerError):
        results = _measured(wanted)
    drawn = Table("work", "reference", peer or "", "ratio" if peer else "", "goal")
    for cells in table(results.rows):
        drawn.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(drawn)
    stored = results.store()
    click.echo(f"stored: {shown(stored)}, drawn: {shown(write(results, stored))}")
    for row, why in results.missing.items():
        click.echo(f"crucible: {row} could not be measured: {why}", err=True)
    sys.exit(USAGE_ERROR if results.missing else 0)


def _measured(wanted: "Options") -> "Results":
    from bench.compare import run as measure
    from bench.peers.jars import kafka_classpath
    from terminal import progress

    if wanted.peer:
        kafka_classpath()  # Whatever is missing is told now, and not after minutes of measuring.
    return measure(progress, wanted)


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible probe 127.0.0.1:9092"
    "\n  ./crucible probe HOST:PORT --section fetch"
    "\n  ./crucible probe kafka@4.3.1 --case fetch/session/wrong-epoch"
    "\n  ./crucible probe HOST:PORT --dry-run"
)
@click.argument("target", metavar="TARGET")
@click.option("--section", "sections", multiple=True, metavar="NAME", help="Play these cases only, such as fetch.")
@click.option("--case", "cases", multiple=True, metavar="ID", help="Play this case only, and show all of it.")
@click.option("--strict", is_flag=True, help="A SHOULD that differs fails, too.")
@click.option("--dry-run", is_flag=True, help="List the cases and play none.")
@click.option("--hostile", is_flag=True, help="Play hostile cases also against a target beyond loopback.")
@click.option("--oracle", metavar="TARGET", help="Play each case here, too, and tell the first field that differs.")
@click.option("--baseline", type=click.Path(path_type=Path), help="An older --json. Only what got worse fails.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all of it to this file.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@click.option("--page", type=click.Path(path_type=Path), help="Write an HTML page to this file.")
def probe(
    target: str,
    sections: Sequence[str],
    cases: Sequence[str],
    strict: bool,
    dry_run: bool,
    hostile: bool,
    oracle: str | None,
    baseline: Path | None,
    json_file: Path | None,
    junit: Path | None,
    page: Path | None,
) -> None:
    """Asks any broker of the Kafka protocol whether it keeps to it, case by case.

    TARGET is HOST:PORT, or a target file or its name (bench/targets), which is started with one node. The probe needs
    no rights beyond topics and groups of its own, which it deletes at its end. Exit code 1: a MUST failed.
    """
    from bench.peers.errors import PeerError
    from bench.probe import command
    from bench.probe.baseline import NoBaseline
    from bench.probe.broker import NotKafka
    from bench.probe.registry import UnknownCase
    from terminal import one_sentence

    wanted = command.Wanted(target, sections, cases, strict, dry_run, hostile, oracle, baseline, json_file, junit, page)
    with one_sentence(command.UsageError, UnknownCase, NoBaseline, NotKafka, PeerError):
        sys.exit(command.run(wanted, click.echo))
