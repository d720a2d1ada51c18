"""Confidence intervals: of ratios between two sides, for many figures at once, and of rates counted in a few plays.

``ratios`` returns how many times greater the figures of one side are than those of the other, with confidence
intervals. Each side has several units: runs, or blocks of seconds of a run. A unit has one value of each figure. Sides
are compared by the ratio of their geometric means. Its interval comes from a bootstrap that draws units, never single
operations, because operations of one unit are not independent.

The bootstrap draws from the deviations of both sides, each divided by its side's spread, and gives them the spread of
the side for which they are drawn. So a few units a side are enough, even if one side varies more (B. Efron and R.
Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 16). All figures of a unit are drawn together, and
intervals are wide enough for the figure that strays most (P. Westfall and S. Young, "Resampling-Based Multiple
Testing", 1993). So if nothing differs, one comparison of 20 shows a difference, however many figures it has.

``median_interval`` has the interval of one side's median, and ``wilson`` that of a rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Word: TypeAlias = Literal["better", "worse", "no difference shown"]
ERROR_RATE = 0.05
RESAMPLES = 2_000
MIN_UNITS = 3
BLOCKS, MIN_BLOCK_S = 12, 3
"""The most blocks of a run that is alone, and the least seconds of a block. Neighbouring seconds are not independent,
so that single ones are no units."""
BUCKET = 0.01
"""Latencies are recorded in buckets of this width, as a share."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two values with its confidence interval. A difference is shown if 1 is outside it."""

    old: float
    new: float
    ratio: float
    """new / old"""
    low: float
    high: float
    least: float
    """The least ratio above 1 that would have been shown; infinite if nothing could be shown."""

    def word(self, less_is_better: bool) -> Word:
        if self.low <= 1 <= self.high:
            return "no difference shown"
        return "better" if (self.ratio < 1) == less_is_better else "worse"


def ratios(
    old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], exact_to: Sequence[float], seed: int = 1
) -> list[Ratio]:
    """One for each figure. ``old`` and ``new`` have a row for each unit, with a positive value for each figure.

    ``exact_to`` says by which share each figure may be wrong as it was recorded; intervals are wider by that. Raise
    ValueError if a side has fewer than MIN_UNITS units.
    """
    sides = [np.log(np.asarray(side, dtype=np.float64)) for side in (old, new)]
    if min(len(side) for side in sides) < MIN_UNITS:
        raise ValueError(f"each side needs at least {MIN_UNITS} units")
    means = [side.mean(axis=0) for side in sides]
    difference = means[1] - means[0]
    error = _error(*sides)
    chance = np.multiply(
        _critical(sides, np.random.default_rng(seed)), error, out=np.zeros_like(error), where=error > 0
    )
    reach = np.log1p(np.asarray(exact_to, dtype=np.float64)) + chance
    columns = (*means, difference, difference - reach, difference + reach, reach)
    return [Ratio(*map(float, row)) for row in np.exp(np.column_stack(columns))]


MIN_MEDIAN_SAMPLES = 5
"""With five runs the interval is their range, which contains the median in 94 of 100 cases. With fewer it does not."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its confidence interval. Both ends are the median if there were too few values."""

    middle: float
    low: float
    high: float
    is_known: bool


def median_interval(values: Sequence[float], seed: int = 1) -> Interval:
    """Return the median and its percentile interval from a bootstrap that draws runs (B. Efron and R. Tibshirani, 1993,
    chapter 13). Raise ValueError without values."""
    if not values:
        raise ValueError("a median needs at least one value")
    middle = float(np.median(values))
    if len(values) < MIN_MEDIAN_SAMPLES:
        return Interval(middle, middle, middle, False)
    sample = np.asarray(values, dtype=np.float64)
    drawn = sample[np.random.default_rng(seed).integers(0, len(sample), (RESAMPLES, len(sample)))]
    low, high = np.quantile(np.median(drawn, axis=1), [ERROR_RATE / 2, 1 - ERROR_RATE / 2])
    return Interval(middle, float(low), float(high), True)


def _error(old: NDArray[Any], new: NDArray[Any]) -> Floats:
    """The standard error of the difference of means. The units are on the last axis but one."""
    squares = [side.var(axis=-2, ddof=1) / side.shape[-2] for side in (old, new)]
    return np.asarray(np.sqrt(squares[0] + squares[1]))


def _critical(sides: Sequence[Floats], random: np.random.Generator) -> float:
    """Return the standard errors by which the figure that strays most is away, except in ERROR_RATE of all samples."""
    spreads = [side.std(axis=0, ddof=1) for side in sides]
    varying = np.any([spread > 0 for spread in spreads], axis=0)
    if not varying.any():
        return 0.0
    spreads = [spread[varying] for spread in spreads]
    centred = [(side - side.mean(axis=0))[:, varying] for side in sides]
    deviations = [
        np.divide(values, spread, out=np.zeros_like(values), where=spread > 0)
        for values, spread in zip(centred, spreads, strict=True)
    ]
    pool = np.concatenate(deviations)
    drawn = [
        spread * pool[random.integers(0, len(pool), (RESAMPLES, len(side)))]
        for side, spread in zip(sides, spreads, strict=True)
    ]
    error = _error(*drawn)
    away = np.abs(drawn[1].mean(axis=1) - drawn[0].mean(axis=1))
    strayed = np.divide(away, error, out=np.where(away > 0, np.inf, 0.0), where=error > 0)
    return float(np.quantile(strayed.max(axis=1), 1 - ERROR_RATE, method="higher"))


Z_95 = 1.959963984540054
"""The number of standard deviations within which 95 % of the normal distribution are."""


def wilson(count: int, of: int, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of the rate that ``count`` of ``of`` plays show. Without plays it is (0, 1).

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927. It also holds for few
    plays and for rates near 0 and 1, where the usual interval has no width.
    """
    if not 0 <= count <= of:
        raise ValueError(f"{count} of {of} is not a count")
    if not of:
        return 0.0, 1.0
    share, weight = count / of, z * z / of
    middle = share + weight / 2
    spread = sqrt(weight * share * (1 - share) + weight * weight / 4)
    low, high = (middle - spread) / (1 + weight), (middle + spread) / (1 + weight)
    return (0.0 if count == 0 else low), (1.0 if count == of else high)
