"""``python -m campaigns.suites [SUITE...]``: play client suites and write their report card."""

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from bench.peers.systems import KAFKA, REFERENCE
from campaigns.suites.card import PAGE, Card, keep, kept, page
from campaigns.suites.play import Result, play
from campaigns.suites.suite import FOLDER, SuiteError, SuiteOutcome, bundled, load


@click.command(
    epilog="\b\nExamples:\n  python -m campaigns.suites\n  python -m campaigns.suites kafka-go --no-peer\n"
    "  python -m campaigns.suites sarama --test TestFuncAdminUpdateFeatures\n"
    "  python -m campaigns.suites --write"
)
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@click.option("--peer/--no-peer", default=True, help="Play a suite with failures on Apache Kafka, too (needs Java).")
@click.option("--test", default="", metavar="NAME", help="Play this test only.")
@click.option("--write", is_flag=True, help="Write what was seen into docs/evidence/suites.md.")
@click.option("--logs", type=click.Path(path_type=Path), default=Path("runs/suites"), show_default=True)
def main(names: tuple[str, ...], peer: bool, test: str, write: bool, logs: Path) -> None:
    """Play other people's client suites on the reference broker.

    Exit code 1: a test fails here and not on Apache Kafka, 2: a suite cannot be fetched or started, 3: a suite ran no
    test.
    """
    if test and write:
        raise click.UsageError("--write needs a whole suite: leave --test out.")
    results: list[Result] = []
    status = 0
    for name in names or bundled():
        try:
            suite = load(FOLDER / f"{name}.toml")
            click.echo(f"{suite.title} {suite.version} ...", err=True)
            result = play(suite, REFERENCE, KAFKA if peer else None, logs, test)
        except SuiteError as error:
            click.echo(f"crucible: {error}", err=True)
            status = status or 2
            continue
        results.append(result)
        counts = ", ".join(f"{result.count(outcome)} {outcome.value}" for outcome in SuiteOutcome)
        click.echo(f"{suite.name}: {counts}, {len(result.red)} red")
        for test in result.red:
            click.echo(f"  red: {test}")
        if not result.ours:
            status = status or 3
        status = 1 if result.red else status
    if write:
        seen = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        for each in results:
            keep(each.suite.name, Card.of(each, seen))
        PAGE.write_text(page(kept(), [load(FOLDER / f"{name}.toml") for name in bundled()]), encoding="utf-8")
    sys.exit(status)


if __name__ == "__main__":
    main()
