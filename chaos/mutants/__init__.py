"""Variants of the broker and the client that lack one mechanism each. Every scenario must turn its own mutants red."""

from chaos.mutants.mutant import Applied, Mutant, MutantError, applied, apply
from chaos.mutants.registry import all_mutants, by_name, mutants_of, table

__all__ = [
    "Applied",
    "Mutant",
    "MutantError",
    "all_mutants",
    "applied",
    "apply",
    "by_name",
    "mutants_of",
    "table",
]
