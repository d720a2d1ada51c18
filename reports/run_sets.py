"""Compares any two sets of runs: is the second better or worse than the first, and how sure is that?

Runs are the units if both sides have a few. Otherwise each run is cut into blocks of seconds. That shows how unsteady
these runs were in themselves, but not how far runs of the same thing differ. ``statistics/ratios.py`` has the method.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from reports.manifest import MANIFEST_NAME, Manifest, ManifestError, read_manifest
from reports.statistics.ratios import BLOCKS, BUCKET, ERROR_RATE, LEAST_UNITS, Ratio, Word, ratios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETS_VERSION = 1
NUMBERS_NAME = "compared.json"
TAIL_SAMPLES = 5
"""A quantile is compared if at least so many values lie beyond it, in each unit."""
LEAST_OPERATIONS = 30
"""A rate is compared if at least so many operations ended in each unit of a side."""
TITLES = {"p50_us": ("p50", 0.5), "p90_us": ("p90", 0.1), "p99_us": ("p99", 0.01), "p999_us": ("p99.9", 0.001)}
"""A quantile's title, and the share of values that lie beyond it."""
RATE = "per second"
Units: TypeAlias = Literal["runs", "blocks"]
Row: TypeAlias = dict[str, Any]
Name: TypeAlias = tuple[str, str, str]
"""A figure's phase, operation and title."""


@dataclass(frozen=True, slots=True)
class RunCompared:
    """``curves`` has points of each operation's distribution in quiet seconds: (latency in us, how many)."""

    folder: Path
    manifest: Manifest
    curves: Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class FigureCompared:
    """``phase`` is quiet, or struck: in seconds with a fault. Values are microseconds, or operations per second."""

    phase: str
    operation: str
    figure: str
    is_time: bool
    ratio: Ratio
    word: Word


@dataclass(frozen=True, slots=True)
class SetsCompared:
    """``left_out`` says what could not be compared, and why. ``units`` counts those of each side."""

    old: tuple[RunCompared, ...]
    new: tuple[RunCompared, ...]
    drawn: Units
    units: tuple[int, int]
    figures: tuple[FigureCompared, ...]
    left_out: tuple[str, ...]

    @property
    def words(self) -> Mapping[Word, int]:
        found: dict[Word, int] = {"better": 0, "worse": 0, "no difference shown": 0}
        for one in self.figures:
            found[one.word] += 1
        return found

    @property
    def summary(self) -> str:
        """The comparison in one sentence, of the second set beside the first."""
        if not self.figures:
            return "Nothing could be compared."
        better, worse, of = self.words["better"], self.words["worse"], len(self.figures)
        if not better and not worse:
            return f"No difference shown in {of} figures."
        counted = [(count, word) for count, word in ((better, "better"), (worse, "worse")) if count]
        told = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for count, word in counted)
        return f"Of {of} figures {told}; no difference shown in {of - better - worse}."


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among ``paths``, or one level below them. Raises ManifestError for a path without a run."""
    found: list[Path] = []
    for path in paths:
        below = sorted(each.parent for each in path.glob(f"*/{MANIFEST_NAME}"))
        runs = [path] if (path / MANIFEST_NAME).is_file() else below
        if not runs:
            raise ManifestError(f"{path} is neither a run nor a folder of runs: it has no {MANIFEST_NAME}")
        found += runs
    return found


def check_comparable(old: Sequence[Path], new: Sequence[Path]) -> None:
    """Raises ManifestError if the two sets have no scenario in common."""
    first, second = ({read_manifest(each).scenario for each in runs} for runs in (old, new))
    if not first & second:
        told = [", ".join(sorted(each)) for each in (first, second)]
        raise ManifestError(
            f"The first runs are of {told[0]}, the second of {told[1]}: only runs of the same scenario can be compared."
        )


def compare_sets(
    old: Sequence[Path], new: Sequence[Path], out: Path, spark: "SparkSession | None" = None
) -> tuple[SetsCompared, Path]:
    """Writes the page and the numbers to ``out``. Returns what was found, and the page.

    Raises ManifestError and SetupError, each one sentence.
    """
    from reports.page.run_sets import write_sets

    compared = measure_sets(old, new, spark)
    out.mkdir(parents=True, exist_ok=True)
    (out / NUMBERS_NAME).write_text(json.dumps(_numbers(compared), indent=2) + "\n", encoding="utf-8")
    return compared, write_sets(out, compared)


def measure_sets(old: Sequence[Path], new: Sequence[Path], spark: "SparkSession | None" = None) -> SetsCompared:
    """Compares without writing. Spark reads the runs and sums them up; what is left are a few numbers of each unit."""
    from reports.jobs.compared import distribution, latencies_of_units, rates_of_units
    from reports.read_tables import JobConfig, RunConfig, reading
    from reports.schema import history_bytes
    from reports.spark import sized_for, spark_session

    folders = [each.resolve() for each in (*old, *new)]
    manifests = [read_manifest(each) for each in folders]
    drawn: Units = "runs" if min(len(old), len(new)) >= LEAST_UNITS else "blocks"
    size = history_bytes(folders)
    config = JobConfig(
        blocks=1 if drawn == "runs" else BLOCKS,
        runs={run: RunConfig(warm_up_us=one.warm_up_us) for run, one in enumerate(manifests)},
    )
    with (
        nullcontext(spark) if spark is not None else spark_session("crucible-compare", size) as session,
        sized_for(session, size),
        reading(session, folders, config) as tables,
    ):
        frames = latencies_of_units(tables), rates_of_units(tables), distribution(tables)
        latencies, rates, points = ([row.asDict() for row in frame.collect()] for frame in frames)
    runs = [RunCompared(*one) for one in zip(folders, manifests, _curves(points, len(folders)), strict=True)]
    return compared_units(runs[: len(old)], runs[len(old) :], drawn, latencies, rates)


def _curves(points: Sequence[Row], runs: int) -> list[dict[str, list[tuple[int, int]]]]:
    found: list[dict[str, list[tuple[int, int]]]] = [defaultdict(list) for _ in range(runs)]
    for row in sorted(points, key=lambda row: row["high_us"]):
        found[row["run"]][row["operation"]].append((row["high_us"], row["count"]))
    return found


def compared_units(
    old: Sequence[RunCompared], new: Sequence[RunCompared], drawn: Units, latencies: Sequence[Row], rates: Sequence[Row]
) -> SetsCompared:
    """Runs 0, 1, ... of the rows are those of ``old``; then follow those of ``new``."""
    values = dict(_values(latencies, rates, drawn))
    units = sorted({(row["run"], row["block"]) for row in rates if row["phase"] == "quiet"})
    sides = [[unit for unit in units if (unit[0] < len(old)) == is_old] for is_old in (True, False)]
    whole = [name for name, known in values.items() if _suffices(name, known, sides)]
    figures: tuple[FigureCompared, ...] = ()
    if min(len(side) for side in sides) < LEAST_UNITS:
        left_out = [f"a side has fewer than {LEAST_UNITS} units: play longer, or more runs"]
    else:
        left_out = _left_out(values, whole)
        before, after = ([[values[name][unit].value for name in whole] for unit in side] for side in sides)
        exact = [BUCKET if name[2] != RATE else _one_operation(name, rates) for name in whole]
        figures = tuple(map(_figure, whole, ratios(before, after, exact) if whole else ()))
    return SetsCompared(tuple(old), tuple(new), drawn, (len(sides[0]), len(sides[1])), figures, tuple(left_out))


@dataclass(frozen=True, slots=True)
class _Value:
    """``suffices`` says that enough operations are behind the value."""

    value: float
    suffices: bool


def _values(
    latencies: Sequence[Row], rates: Sequence[Row], drawn: Units
) -> Iterator[tuple[Name, dict[tuple[int, int], _Value]]]:
    """Each figure's value in each unit, in the order of the page."""
    found: dict[Name, dict[tuple[int, int], _Value]] = defaultdict(dict)
    for row in (*latencies, *rates):
        place, unit = (row["phase"], row["operation"]), (row["run"], row["block"])
        if row["phase"] != "quiet" and drawn == "blocks":
            continue
        if "seconds" in row:
            per_s = (
                max(row["operations"], 0.5) / row["seconds"]
            )  # A stall has a rate, too, which must have a logarithm.
            found[*place, RATE][unit] = _Value(per_s, row["operations"] >= LEAST_OPERATIONS)
            continue
        for column, (title, beyond) in TITLES.items():
            found[*place, title][unit] = _Value(max(row[column], 1), row["count"] * beyond >= TAIL_SAMPLES)
    yield from sorted(found.items(), key=lambda one: one[0][:2])


def _suffices(name: Name, known: Mapping[tuple[int, int], _Value], sides: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """A quantile needs enough operations in each unit, and a rate on one side: the other may have stalled."""
    enough = [all(unit in known and known[unit].suffices for unit in side) for side in sides]
    everywhere = all(unit in known for side in sides for unit in side)
    return everywhere and (any(enough) if name[2] == RATE else all(enough))


def _left_out(values: Mapping[Name, Any], whole: Sequence[Name]) -> list[str]:
    compared = {name[1] for name in whole}
    quiet = [name for name in values if name[0] == "quiet" and name not in whole and name[2] != RATE]
    few = dict.fromkeys(" ".join(name[1:]) if name[1] in compared else name[1] for name in quiet)
    return [f"{', '.join(few)}, because not every unit has {TAIL_SAMPLES} values beyond"] if few else []


def _one_operation(name: Name, rates: Sequence[Row]) -> float:
    """A count is exact to one."""
    counts: list[int] = [row["operations"] for row in rates if (row["phase"], row["operation"]) == name[:2]]
    return 1 / max(1, min(counts))


def _figure(name: Name, ratio: Ratio) -> FigureCompared:
    is_time = name[2] != RATE
    return FigureCompared(*name, is_time, ratio, ratio.word(less_is_better=is_time))


def _numbers(found: SetsCompared) -> dict[str, Any]:
    return {
        "version": SETS_VERSION,
        "old": [str(one.folder) for one in found.old],
        "new": [str(one.folder) for one in found.new],
        "drawn": found.drawn,
        "units": list(found.units),
        "error_rate": ERROR_RATE,
        "summary": found.summary,
        "figures": [{**asdict(one), "ratio": _finite(asdict(one.ratio))} for one in found.figures],
        "left_out": list(found.left_out),
    }


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """JSON has no infinity: an interval without an end has null there."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}
