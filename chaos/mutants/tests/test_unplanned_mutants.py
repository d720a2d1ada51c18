"""The mutants that no scenario names: each can be applied and undone, has a name of its own, and is found by it."""

import importlib
import inspect
from typing import Any

import pytest

from chaos.mutants.mutant import Mutant, MutantError, applied
from chaos.mutants.registry import all_mutants, by_name, rule_mutants, unplanned_mutants

UNNAMED = (*unplanned_mutants(), *rule_mutants())


def _target(mutant: Mutant) -> Any:
    module, _, path = mutant.target.partition(":")
    *outer, attribute = path.split(".")
    owner: Any = importlib.import_module(module)
    for name in outer:
        owner = getattr(owner, name)
    return inspect.getattr_static(owner, attribute)


@pytest.mark.parametrize("mutant", UNNAMED, ids=lambda mutant: mutant.name)
def test_is_applied_and_undone(mutant: Mutant) -> None:
    original = _target(mutant)
    with applied(mutant):
        assert _target(mutant) is not original
    assert _target(mutant) is original


def test_has_a_name_of_its_own_and_is_found_by_it() -> None:
    names = [mutant.name for mutant in (*all_mutants(), *UNNAMED)]
    assert len(set(names)) == len(names)
    assert [by_name(each.name) for each in UNNAMED] == list(UNNAMED)


def test_is_not_planned() -> None:
    assert not set(all_mutants()) & set(UNNAMED)
    with pytest.raises(MutantError, match="there is no mutant"):
        by_name("no_such_mutant")


@pytest.mark.parametrize("mutant", UNNAMED, ids=lambda mutant: mutant.name)
def test_describes_its_defect(mutant: Mutant) -> None:
    """The docstring ends with the clauses or the KIPs that the mutant violates."""
    text = mutant.replacement.__doc__ or ""
    assert mutant.clauses or "KIP-" in text
