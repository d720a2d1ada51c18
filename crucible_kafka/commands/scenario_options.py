"""Options of the commands that play scenarios, and the scenarios that their arguments name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from crucible_kafka import shell_completion
from crucible_kafka.terminal import one_sentence

if TYPE_CHECKING:
    from scenarios.model import Scenario

SCENARIOS = click.argument("scenarios", nargs=-1, metavar="SCENARIO...", shell_complete=shell_completion.scenarios)
ALL = click.option("--all", "everything", is_flag=True, help="Every scenario.")
REVISION = click.option(
    "--revision",
    type=click.Choice(["final", "first"]),
    help="Revision of fetch sessions (default: each of a scenario's).",
)
MUTANT = click.option(
    "--mutant",
    help="Plant this defect. The scenario must turn red (exit code 1).",
    shell_complete=shell_completion.mutants,
)
WITH_MUTANTS = click.option(
    "--with-mutants",
    is_flag=True,
    help="Play each scenario without a mutant and with each of its own; exit code 0 if all ends as it must.",
)


def check_mutant_options(mutant: str | None, with_mutants: bool) -> None:
    if mutant and with_mutants:
        raise click.UsageError("give --mutant or --with-mutants, not both")


def find_scenarios(names: Sequence[str], everything: bool) -> "list[Scenario]":
    """Load the scenarios with these names, or all, and check the names of their guarantees."""
    from chaos.checks.guarantee_selection import checked
    from scenarios import loader

    with one_sentence(loader.ScenarioError):
        if everything and names:
            raise loader.ScenarioError("name scenarios or give --all, not both")
        if everything:
            return [checked(scenario) for scenario in loader.load_all()]
        if not names:
            raise loader.ScenarioError("name a scenario (a file, its stem or its number), or give --all")
        return [checked(loader.find(name)) for name in names]


def in_revisions(scenario: "Scenario", wanted: str | None) -> "Sequence[Scenario]":
    """Return the scenario in the wanted revision, or in all that it has. One that was named with its revision
    (``1@first``) is only played in that."""
    from scenarios.revisions import MARK, each_revision

    return (scenario,) if MARK in scenario.name and not wanted else each_revision(scenario, wanted or "")
