"""All mutants, and which scenarios catch each (read from the scenario files)."""

from chaos.mutants import (
    acknowledgements,
    cleaning,
    client_transactions,
    damage,
    disk_errors,
    drafts,
    eligible_leaders,
    fetch_sessions,
    first_revision,
    groups,
    metadata_epochs,
    node_requests,
    producers,
    quorum,
    replication,
    snapshots,
    tiering,
    tombstone_horizon,
    transactions,
)
from chaos.mutants.mutant import Mutant, MutantError
from scenarios import loader
from scenarios.fields import did_you_mean
from scenarios.model import Scenario

FILES = (
    *(fetch_sessions, first_revision, snapshots, transactions, quorum),
    *(acknowledgements, replication, metadata_epochs, groups, cleaning, damage, eligible_leaders),
    *(disk_errors, node_requests, producers, drafts, client_transactions, tiering, tombstone_horizon),
)


def all_mutants() -> tuple[Mutant, ...]:
    """Returns every mutant, in the order of FILES and of the definitions in each file. A partner is none of its own."""
    found = [each for file in FILES for each in vars(file).values() if isinstance(each, Mutant)]
    partners = [each.partner.name for each in found if each.partner is not None]
    return tuple(each for each in found if each.name not in partners)


def by_name(name: str) -> Mutant:
    """Returns the mutant. Raises MutantError, which names those that exist."""
    mutants = {each.name: each for each in all_mutants()}
    if name not in mutants:
        if near := did_you_mean(name, mutants):
            raise MutantError(f"there is no mutant {name!r}{near}?")
        raise MutantError(f"there is no mutant {name!r}; there are: {', '.join(mutants)}")
    return mutants[name]


def mutants_of(scenario: Scenario) -> tuple[str, ...]:
    """Returns the names of the mutants that the scenario must turn red. A mutant counts if at least one of the
    scenario's revisions has its mechanism."""
    return tuple(
        name for name in scenario.mutants if any(each in by_name(name).revisions for each in scenario.revisions)
    )


def table() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns one row for each mutant: its name, then the numbers (or names) of the scenarios that catch it."""
    scenarios = loader.load_all()
    return tuple(
        (each.name, tuple(str(found.number or found.name) for found in scenarios if each.name in found.mutants))
        for each in all_mutants()
    )
