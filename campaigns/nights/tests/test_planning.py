"""The plan of a night: seeds, shares, turns, and its canary. Nothing is played here."""

from datetime import date, timedelta

import pytest

from campaigns.nights.night import (
    SEEDS_A_NIGHT,
    SHARES,
    canary_of,
    in_turn,
    interleaved,
    next_seed,
    seed_of,
    share_s,
)
from chaos.mutants.registry import mutants_of
from scenarios import loader

DAY = date(2026, 3, 1)


def test_each_day_has_seeds_of_its_own_that_depend_on_nothing_else() -> None:
    today, tomorrow = seed_of(DAY), seed_of(DAY + timedelta(days=1))
    assert today == seed_of(date(2026, 3, 1))
    assert tomorrow - today == SEEDS_A_NIGHT


def test_nights_start_at_different_alternatives() -> None:
    for alternatives in (2, 3, 10, 24):
        starts = {seed_of(DAY + timedelta(days=each)) % alternatives for each in range(alternatives)}
        assert len(starts) == alternatives


def test_second_night_of_day_continues_after_seeds_of_first() -> None:
    first = seed_of(DAY)
    assert next_seed(first, []) == first
    assert next_seed(first, [first - 1, first + SEEDS_A_NIGHT]) == first
    assert next_seed(first, [first, first + 7, first + 3]) == first + 8


def test_unused_time_of_stage_goes_to_next_ones() -> None:
    stages = list(SHARES)
    assert share_s(stages[0], stages, 100.0) == 100.0 * SHARES[stages[0]] / sum(SHARES.values())
    assert share_s("bench", ["bench", "checks"], 100.0) == 100.0 * SHARES["bench"] / (
        SHARES["bench"] + SHARES["checks"]
    )
    assert share_s("checks", ["checks"], 100.0) == 100.0


def test_untried_then_longest_untried_is_first() -> None:
    assert in_turn(["a", "b", "c", "d"], [["b", "c"], ["a"], ["b"]], 0) == ["d", "c", "a", "b"]


@pytest.mark.parametrize("at_once", [1, 3])
def test_in_some_nights_everything_has_its_turn(at_once: int) -> None:
    items, tried = [f"item-{each}" for each in range(10)], list[list[str]]()
    while len(tried) * at_once < len(items):
        tried.append(in_turn(items, tried, len(tried))[:at_once])
    assert {each for night in tried for each in night} == set(items)


def test_without_any_history_each_night_begins_with_another_one() -> None:
    assert {in_turn(["a", "b", "c"], [], turn)[0] for turn in range(3)} == {"a", "b", "c"}
    assert in_turn([], [], 3) == []


def test_interleaving_keeps_all_items() -> None:
    assert interleaved(["a", "b", "c"], ["x", "y", "z"], 2) == ["a", "b", "x", "c", "y", "z"]


def test_each_night_plants_another_mutant_until_all_had_theirs() -> None:
    killed_in = {name: ["01-x", "02-y"] for name in "abcdef"}
    planted: list[str] = []
    for night in range(12):
        planted.append(canary_of(killed_in, planted, night)[0])
    assert set(planted[:6]) == set(planted[6:]) == set(killed_in)


def test_canary_is_drawn_from_the_night_s_seed_alone() -> None:
    killed_in = {mutant: [each.name] for each in loader.load_all() for mutant in mutants_of(each)}
    drawn = {canary_of(killed_in, [], seed) for seed in range(20)}
    assert canary_of(killed_in, [], 7) == canary_of(dict(reversed(killed_in.items())), [], 7)
    assert len(drawn) > 10
    assert all(scenario in killed_in[mutant] for mutant, scenario in drawn)
