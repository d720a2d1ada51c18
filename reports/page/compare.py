"""Compares this run with a baseline: each figure has old, new, the ratio with a bootstrap interval, and a word.

The values are those of single seconds, so the interval shows how unsteady the runs themselves are. Noise below NOISE
counts as none. Both sides leave out the seconds in which a fault lasted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from reports.collect import Findings, without_presets
from reports.page import words
from reports.page.impact import disturbed_seconds

NOISE = 0.05
RESAMPLES = 1_000
LEAST_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """95 % of the bootstrap ratios new/old lie from ``low`` to ``high``.

    ``word`` is better, worse, same or undecided.
    """

    figure: str
    is_time: bool
    old: float
    new: float
    ratio: float
    low: float
    high: float
    word: str


def comparisons(new: Findings, old: Findings) -> list[Comparison]:
    found = []
    for kind in ("fetch", "produce"):
        for column, title in (("p50_us", "p50"), ("p99_us", "p99")):
            pair = [_quiet(one, _latencies(one, kind, column)) for one in (new, old)]
            found += _compare(f"{kind} {title}, response time", *pair, is_time=True)
        pair = [_quiet(one, _rates(one, kind)) for one in (new, old)]
        found += _compare(f"{kind}, operations per second", *pair, is_time=False)
    return found


def _latencies(one: Findings, kind: str, column: str) -> dict[int, float]:
    rows = [row for row in one.latency if row["operation"] == kind and row["measure"] == "response"]
    return {row["second"]: float(row[column]) for row in rows}


def _rates(one: Findings, kind: str) -> dict[int, float]:
    rows = [row for row in one.throughput if row["f"] == kind and row["type"] == "ok"]
    seconds = {row["second"]: float(row["operations"]) for row in rows}
    return {second: seconds[second] for second in sorted(seconds)[1:-1]}  # the first and last are cut


def _quiet(one: Findings, values: dict[int, float]) -> list[float]:
    disturbed = disturbed_seconds(without_presets(one.fault_hits))
    return [value for second, value in sorted(values.items()) if second not in disturbed]


def _compare(figure: str, new: Sequence[float], old: Sequence[float], *, is_time: bool) -> list[Comparison]:
    if min(len(new), len(old)) < LEAST_SECONDS or not median(old):
        return []
    random = Random(f"bootstrap of {figure}")
    ratios = sorted(_resampled(random, new) / max(_resampled(random, old), 1e-9) for _ in range(RESAMPLES))
    low, high = ratios[int(RESAMPLES * 0.025)], ratios[int(RESAMPLES * 0.975) - 1]
    value = median(new) / median(old)
    return [Comparison(figure, is_time, median(old), median(new), value, low, high, word(low, high, is_time))]


def _resampled(random: Random, values: Sequence[float]) -> float:
    return median(random.choices(values, k=len(values)))


def word(low: float, high: float, is_time: bool) -> str:
    """The word for an interval of new/old. It is decided only if the interval lies wholly on one side of the noise."""
    if low > 1 + NOISE:
        return "worse" if is_time else "better"
    if high < 1 - NOISE:
        return "better" if is_time else "worse"
    return "same" if low >= 1 - NOISE and high <= 1 + NOISE else "undecided"


def rows_for_page(found: Sequence[Comparison]) -> list[dict[str, str]]:
    rows = []
    for one in found:
        text = words.micros if one.is_time else words.count
        rows.append(
            {
                "figure": one.figure,
                "old": text(one.old),
                "new": text(one.new),
                "ratio": f"× {one.ratio:.2f}",
                "interval": f"{one.low:.2f} … {one.high:.2f}",
                "word": one.word,
            }
        )
    return rows
