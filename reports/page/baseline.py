"""Compare this run with a baseline: each figure has old, new, the ratio with its interval, and a word.

The units are blocks of neighbouring seconds, so the interval shows the variation within each run. Both sides omit the
seconds with a fault. ``crucible compare`` compares sets of runs, and also shows the variation between runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from reports.collect import Findings
from reports.job_rows import without_presets
from reports.page import words
from reports.page.faults import disturbed_seconds
from reports.statistics.confidence import BLOCKS, BUCKET, MIN_BLOCK_S, MIN_UNITS, Ratio, Word, ratios


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of this run beside the baseline's."""

    figure: str
    is_time: bool
    ratio: Ratio
    """This run to the baseline."""

    @property
    def word(self) -> Word:
        return self.ratio.word(less_is_better=self.is_time)


def comparisons(new: Findings, old: Findings) -> list[Comparison]:
    """Empty if a run has too few quiet seconds."""
    sides = [_figures(findings) for findings in (old, new)]
    names = [name for name in sides[0] if name in sides[1]]
    before, now = (_blocks([side[name] for name in names]) for side in sides)
    if not names or min(len(before), len(now)) < MIN_UNITS:
        return []
    exact = [BUCKET if is_time else 0.0 for _, is_time in names]
    return [Comparison(*name, ratio) for name, ratio in zip(names, ratios(before, now, exact), strict=True)]


def _figures(findings: Findings) -> dict[tuple[str, bool], Mapping[int, float]]:
    """Each figure, whether it is a time, and its value in each quiet second."""
    figures: dict[tuple[str, bool], Mapping[int, float]] = {}
    for kind in ("fetch", "produce"):
        for column, title in (("p50_us", "p50"), ("p99_us", "p99")):
            figures[f"{kind} {title}, response time", True] = _quiet(findings, _latencies(findings, kind, column))
        figures[f"{kind}, operations per second", False] = _quiet(findings, _rates(findings, kind))
    return {name: values for name, values in figures.items() if values}


def _latencies(findings: Findings, kind: str, column: str) -> dict[int, float]:
    rows = [row for row in findings.latency if row["operation"] == kind and row["measure"] == "response"]
    return {row["second"]: float(max(row[column], 1)) for row in rows}


def _rates(findings: Findings, kind: str) -> dict[int, float]:
    rows = [row for row in findings.throughput if row["f"] == kind and row["type"] == "ok"]
    seconds = {row["second"]: float(row["operations"]) for row in rows}
    return {second: seconds[second] for second in sorted(seconds)[1:-1]}  # the first and last are cut


def _quiet(findings: Findings, values: dict[int, float]) -> dict[int, float]:
    disturbed = disturbed_seconds(without_presets(findings.fault_hits))
    return {second: value for second, value in values.items() if second not in disturbed}


def _blocks(figures: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """Blocks of the seconds that all figures have. A block has geometric means."""
    seconds = sorted(set[int]().union(*figures[:1]).intersection(*figures))
    count = min(BLOCKS, len(seconds) // MIN_BLOCK_S)
    cuts = [seconds[len(seconds) * n // count : len(seconds) * (n + 1) // count] for n in range(count)]
    return [[geometric_mean([figure[second] for second in cut]) for figure in figures] for cut in cuts]


def rows_for_page(compared: Sequence[Comparison]) -> list[dict[str, str]]:
    rows = []
    for comparison in compared:
        text = words.micros if comparison.is_time else words.count
        rows.append(
            {
                "figure": comparison.figure,
                "old": text(comparison.ratio.old),
                "new": text(comparison.ratio.new),
                "ratio": f"× {comparison.ratio.ratio:.2f}",
                "interval": f"{comparison.ratio.low:.2f} … {comparison.ratio.high:.2f}",
                "word": comparison.word,
            }
        )
    return rows
