"""Find permanent changes in a series of figures: E-divisive with its permutation test.

D. S. Matteson and N. A. James, "A nonparametric approach for multiple change point analysis of multivariate data",
2014. The difference of two parts of a series is the excess of the distances between them over those within them. The
   place with the greatest difference is a change point if few permutations of the series have such a difference. Then
   both sides are searched in the same way. Nothing is assumed about the distribution, and a single outlier is no
   change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
MIN_LENGTH = 3
"""The least number of values on each side of a change that shows."""
SIGNIFICANCE = 0.01
"""The share of series without a change in which one is found."""
SHUFFLES = 999
_AT_ONCE = 111
"""The number of shufflings of one step. A series without a change needs only one step."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A place where a series changes its level."""

    at: int
    """The first value after the change."""
    p_value: float
    """Probability that chance alone causes such a difference."""


def change_points(values: Sequence[float], significance: float = SIGNIFICANCE, seed: int = 1) -> list[ChangePoint]:
    """The changes of the series, in its order. The same values and seed always give the same ones."""
    random = np.random.default_rng(seed)
    series = np.asarray(values, dtype=np.float64)
    bounds = [0, len(series)]
    changes: list[ChangePoint] = []
    while True:
        parts = [series[start:end] for start, end in pairwise(bounds)]
        searched = [_best(part[np.newaxis]) for part in parts]
        differences = [float(difference[0]) for difference, _ in searched]
        place = int(np.argmax(differences))
        if differences[place] <= 0.0:
            return changes
        p_value = _p_value(parts, differences[place], significance, random)
        if p_value > significance:
            return changes
        at = bounds[place] + int(searched[place][1][0])
        changes = sorted([*changes, ChangePoint(at, p_value)], key=lambda change: change.at)
        bounds = sorted([*bounds, at])


def _p_value(parts: Sequence[Floats], difference: float, significance: float, random: np.random.Generator) -> float:
    """Shuffle each part within itself, so that changes already found stay. It stops once the value is above
    ``wanted``."""
    as_great, done = 0, 0
    while done < SHUFFLES and as_great <= significance * (SHUFFLES + 1) - 1:
        several = min(_AT_ONCE, SHUFFLES - done)
        mixed = (random.permuted(np.tile(part, (several, 1)), axis=1) for part in parts)
        greatest = np.max([_best(shuffled)[0] for shuffled in mixed], axis=0)
        as_great += int(np.sum(greatest >= difference * (1 - 1e-12)))
        done += several
    return (1 + as_great) / (done + 1)


def _best(series: Floats) -> tuple[Floats, NDArray[Any]]:
    """The greatest difference in each of many series (rows), and the first place after it. It is 0 if they are short.

    A later change may hide an earlier one. So the right part may end anywhere, and the best end counts.
    """
    rows, length = series.shape
    best, at = np.zeros(rows), np.zeros(rows, dtype=np.int64)
    if length < 2 * MIN_LENGTH:
        return best, at
    distances = np.abs(series[:, :, np.newaxis] - series[:, np.newaxis, :])
    sums = np.zeros((rows, length + 1, length + 1))
    sums[:, 1:, 1:] = distances.cumsum(axis=1).cumsum(axis=2)
    for split in range(MIN_LENGTH, length - MIN_LENGTH + 1):
        ends = np.arange(split + MIN_LENGTH, length + 1)
        difference = _difference(sums, split, ends).max(axis=1)
        at = np.where(difference > best, split, at)
        best = np.maximum(best, difference)
    return best, at


def _difference(sums: Floats, split: int, ends: NDArray[Any]) -> Floats:
    """Return the weighted energy distance between the values before ``split`` and those up to each of ``ends``."""
    left, right = split, ends - split
    within_left = sums[:, split, split][:, np.newaxis]
    between = sums[:, split, ends] - within_left
    within_right = sums[:, ends, ends] - 2 * sums[:, split, ends] + within_left
    energy = 2 * between / (left * right) - within_left / (left * (left - 1)) - within_right / (right * (right - 1))
    return np.asarray(energy * left * right / (left + right))
