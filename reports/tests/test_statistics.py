"""Rates, ratios and change points: what they say of numbers whose truth is known."""

from itertools import pairwise

import numpy as np
import pytest

from reports.statistics.change_points import change_points
from reports.statistics.confidence import Floats, ratios, wilson

DRAWS = 120
FIGURES = 8


def _side(random: np.random.Generator, units: int, spread: float = 1.0) -> Floats:
    """Figures of several runs: each run has its own luck, and each figure of it some more."""
    luck = random.normal(size=(units, 1)) * 0.02 + random.normal(size=(units, FIGURES)) * 0.03
    return 1_000.0 * np.exp(spread * luck)


def _words(old: Floats, new: Floats, seed: int = 1) -> list[str]:
    return [ratio.word(True) for ratio in ratios(old.tolist(), new.tolist(), [0.0] * FIGURES, seed)]


@pytest.mark.thorough
@pytest.mark.parametrize(("units", "spread"), [(3, 1.0), (5, 1.0), (10, 3.0)])
def test_sides_of_one_distribution_show_no_difference_but_at_the_stated_rate(units: int, spread: float) -> None:
    random = np.random.default_rng(units)
    false = sum(
        set(_words(_side(random, units), _side(random, units, spread), draw)) != {"no difference shown"}
        for draw in range(DRAWS)
    )
    assert false <= 12, "5 % are 6 of 120; 13 or more come once in 200 times"


def test_ten_percent_slowdown_is_detected_with_right_direction() -> None:
    random = np.random.default_rng(11)
    words = [word for _ in range(20) for word in _words(_side(random, 8), _side(random, 8) * 1.1)]
    assert words.count("worse") > 0.85 * len(words)
    assert "better" not in words
    slower = ratios([[1.0], [1.1], [0.9]], [[2.0], [2.1], [2.2]], [0.0])[0]
    assert slower.ratio == pytest.approx(2.114, abs=0.01)
    assert (slower.word(True), slower.word(False)) == ("worse", "better")


def test_three_runs_have_detectable_difference() -> None:
    random = np.random.default_rng(5)
    few, many = (ratios(_side(random, n).tolist(), _side(random, n).tolist(), [0.0] * FIGURES)[0] for n in (3, 12))
    assert few.least > many.least > 1.0
    assert few.low < 1 < few.high


def test_figures_that_never_vary_differ_only_by_more_than_they_are_exact_to() -> None:
    old, new = [[100.0, 100.0, 100.0]] * 3, [[100.0, 100.5, 103.0]] * 3
    assert [ratio.word(True) for ratio in ratios(old, new, [0.01] * 3)] == [
        "no difference shown",
        "no difference shown",
        "worse",
    ]


def test_two_units_are_too_few() -> None:
    with pytest.raises(ValueError, match="at least 3 units"):
        ratios([[1.0]] * 2, [[1.0]] * 5, [0.0])


def _series(random: np.random.Generator, *levels: tuple[float, int], noise: float = 0.04) -> list[float]:
    return [float(level + random.normal() * noise) for level, count in levels for _ in range(count)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("levels", "places"),
    [
        (((0.0, 20), (-0.2, 10)), [20]),
        (((0.0, 24), (0.3, 6)), [24]),
        (((0.0, 12), (0.25, 9), (0.0, 12)), [12, 21]),
        (((0.0, 10), (0.2, 10), (0.5, 10)), [10, 20]),
    ],
)
def test_planted_steps_are_found_where_they_are(levels: tuple[tuple[float, int], ...], places: list[int]) -> None:
    for seed in range(4):
        steps = change_points(_series(np.random.default_rng(seed), *levels))
        assert len(steps) == len(places)
        assert all(abs(step.at - place) <= 1 for step, place in zip(steps, places, strict=True))
        assert all(left.at < right.at for left, right in pairwise(steps))
        assert all(step.p_value <= 0.01 for step in steps)


@pytest.mark.thorough
def test_steady_series_has_a_change_only_at_the_stated_rate() -> None:
    random = np.random.default_rng(2)
    assert sum(bool(change_points(_series(random, (0.0, 30)))) for _ in range(100)) <= 5, "1 % are one of 100"


def test_outlier_or_a_short_series_is_no_change() -> None:
    values = _series(np.random.default_rng(4), (0.0, 30))
    values[17] = 3.0
    assert change_points(values) == []
    assert change_points([1.0, 1.0, 9.0, 9.0]) == []
    assert change_points([]) == []
    assert change_points([2.0] * 30) == []


def test_same_series_always_has_the_same_changes() -> None:
    values = _series(np.random.default_rng(9), (0.0, 15), (0.06, 15))
    assert change_points(values) == change_points(values)


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 3, 0.0615, 0.7923), (5, 50, 0.0435, 0.2136), (0, 0, 0.0, 1.0)],
)
def test_wilsons_interval_is_that_of_the_tables(count: int, of: int, low: float, high: float) -> None:
    assert wilson(count, of) == pytest.approx((low, high), abs=5e-4)


def test_wilson_interval_rejects_invalid_counts() -> None:
    with pytest.raises(ValueError, match="4 of 3"):
        wilson(4, 3)
