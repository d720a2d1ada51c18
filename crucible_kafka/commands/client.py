"""``crucible client``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from crucible_kafka.commands.ci_options import writable

_FILE = click.Path(path_type=Path)


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible client kafka-python"
    "\n  ./crucible client ./my-adapter --section sessions"
    "\n  ./crucible client confluent-kafka --case sessions/response-lost"
    "\n  ./crucible client kafka-python@2.2.15 --json now.json --baseline before.json"
    "\n  ./crucible client --list"
)
@click.argument("adapter", metavar="ADAPTER", required=False)
@click.option("--section", "sections", multiple=True, metavar="NAME", help="Play these cases only, such as sessions.")
@click.option("--case", "cases", multiple=True, metavar="ID", help="Play this case only, and show all of it.")
@click.option(
    "--strict", is_flag=True, help="A SHOULD that differs fails, too, and so does a case that showed nothing."
)
@click.option("--list", "lists", is_flag=True, help="List the cases and play none.")
@click.option("--baseline", type=_FILE, help="An older --json. Only what got worse fails.")
@click.option("--json", "json_file", type=_FILE, callback=writable, help="Write all of it to this file.")
@click.option("--junit", type=_FILE, callback=writable, help="Write JUnit XML to this file.")
@click.option("--page", type=_FILE, callback=writable, help="Write an HTML page to this file.")
def client(
    adapter: str | None,
    sections: Sequence[str],
    cases: Sequence[str],
    strict: bool,
    lists: bool,
    baseline: Path | None,
    json_file: Path | None,
    junit: Path | None,
    page: Path | None,
) -> None:
    """Check case by case whether a Kafka client survives what brokers do.

    ADAPTER is the name of a bundled adapter, with the client's version after an @ if it is another, or the path of an
    executable that speaks the protocol of docs/client-adapters.md. Exit code 1: a MUST failed.
    """
    from crucible_kafka.clients import client_command
    from crucible_kafka.clients.bundled import AdapterNotFound
    from crucible_kafka.clients.case import AdapterFailed
    from crucible_kafka.clients.cases import UnknownCase
    from crucible_kafka.clients.report import NoBaseline
    from crucible_kafka.terminal import one_sentence

    options = client_command.ClientOptions(adapter, sections, cases, strict, lists, baseline, json_file, junit, page)
    with one_sentence(client_command.UsageError, UnknownCase, AdapterNotFound, NoBaseline, AdapterFailed):
        sys.exit(client_command.run(options, click.echo))
