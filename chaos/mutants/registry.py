"""All mutants, and which scenarios catch each (read from the scenario files)."""

from chaos.mutants import fetch_sessions, quorum, snapshots, transactions
from chaos.mutants.mutant import Mutant, MutantError
from scenarios import loader


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, in the order of the scenarios' numbers."""
    return (*fetch_sessions.MUTANTS, *snapshots.MUTANTS, *transactions.MUTANTS, *quorum.MUTANTS)


def by_name(name: str) -> Mutant:
    """Raises MutantError, naming those that exist."""
    for mutant in all_mutants():
        if mutant.name == name:
            return mutant
    raise MutantError(f"there is no mutant {name!r}; there are: {', '.join(each.name for each in all_mutants())}")


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
