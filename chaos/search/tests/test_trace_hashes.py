"""Two runs of the same seeds are compared by trace hash, or by verdict alone."""

from dataclasses import replace

import pytest

from chaos.search.trace_hashes import differences, hashed_plays, plays_of


@pytest.mark.thorough
def test_seed_has_the_same_trace_hash_twice_and_a_change_is_reported() -> None:
    plays = plays_of(["1"], [3], with_mutants=False)
    before = list(hashed_plays(plays[:1], processes=1))
    assert differences(before, list(hashed_plays(plays[:1], processes=1))) == []
    assert before[0].trace_hash
    moved = [replace(before[0], trace_hash="0")]
    assert len(differences(before, moved)) == 1
    assert differences(before, moved, verdicts_only=True) == []
    red = [replace(before[0], verdict="FAILED", broken=("lost-write",))]
    assert len(differences(before, red, verdicts_only=True)) == 1
    assert len(differences([], before)) == 1


def test_mutants_are_played_on_the_first_seed_only() -> None:
    mutants = [seed for _, mutant, seed in plays_of(["1"], [3, 4], with_mutants=True) if mutant]
    assert mutants
    assert set(mutants) == {3}
