"""All mutants, and which scenarios catch each (read from the scenario files)."""

from chaos.mutants import (
    acknowledgements,
    cleaning,
    fetch_sessions,
    first_revision,
    groups,
    metadata_epochs,
    quorum,
    replication,
    snapshots,
    transactions,
)
from chaos.mutants.mutant import Mutant, MutantError
from scenarios import loader
from scenarios.model import Scenario


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, in the order of the scenarios' numbers."""
    sessions = (*fetch_sessions.MUTANTS, *first_revision.MUTANTS)
    metadata = (*snapshots.MUTANTS, *transactions.MUTANTS, *quorum.MUTANTS)
    epochs = (*metadata_epochs.MUTANTS, *groups.MUTANTS, *cleaning.MUTANTS)
    return (*sessions, *metadata, *acknowledgements.MUTANTS, *replication.MUTANTS, *epochs)


def by_name(name: str) -> Mutant:
    """Raises MutantError, naming those that exist."""
    for mutant in all_mutants():
        if mutant.name == name:
            return mutant
    raise MutantError(f"there is no mutant {name!r}; there are: {', '.join(each.name for each in all_mutants())}")


def mutants_of(scenario: Scenario) -> tuple[str, ...]:
    """Those that the scenario must turn red in one at least of its revisions (``scenarios.revisions``)."""
    return tuple(
        name for name in scenario.mutants if any(each in by_name(name).revisions for each in scenario.revisions)
    )


def caught_by(mutant: Mutant) -> tuple[str, ...]:
    """Names of the scenarios that list it."""
    return tuple(scenario.name for scenario in loader.load_all() if mutant.name in scenario.mutants)


def table() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """One row a mutant: its name, then the numbers (or names) of the scenarios that catch it."""
    scenarios = loader.load_all()
    return tuple(
        (each.name, tuple(str(found.number or found.name) for found in scenarios if each.name in found.mutants))
        for each in all_mutants()
    )
