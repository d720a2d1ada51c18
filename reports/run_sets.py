"""Compare two sets of runs (`crucible compare --with`).

Runs are the units if both sides have enough of them. Otherwise each run is cut into blocks of seconds, which shows the
variation within these runs, but not between runs. The method is in ``statistics/confidence.py``.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from math import isfinite
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports.job_rows import Rows
from reports.manifest import MANIFEST_NAME, Manifest, ManifestError, read_manifest
from reports.page import words
from reports.page.render import environment
from reports.plots import style
from reports.plots.catalogue import drawn
from reports.plots.latency import percentile_axis, percentile_curve
from reports.statistics.confidence import BLOCKS, BUCKET, ERROR_RATE, MIN_UNITS, Ratio, Word, ratios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SETS_VERSION = 1
NUMBERS_NAME = "compared.json"
TAIL_SAMPLES = 5
"""The least number of values beyond a quantile, in each unit, with which it is compared."""
MIN_OPERATIONS = 30
"""The least number of operations that ended in each unit of a side, with which a rate is compared."""
TITLES = {"p50_us": ("p50", 0.5), "p90_us": ("p90", 0.1), "p99_us": ("p99", 0.01), "p999_us": ("p99.9", 0.001)}
"""A quantile's title, and the share of values that lie beyond it."""
RATE = "per second"
Units: TypeAlias = Literal["runs", "blocks"]
Name: TypeAlias = tuple[str, str, str]
"""A figure's phase, operation and title."""


@dataclass(frozen=True, slots=True)
class RunCompared:
    """One run of a set."""

    folder: Path
    manifest: Manifest
    curves: Mapping[str, Sequence[tuple[int, int]]]
    """Points of each operation's distribution in quiet seconds: (latency in us, how many)."""


@dataclass(frozen=True, slots=True)
class FigureCompared:
    """One figure of both sets. Values are microseconds, or operations per second."""

    phase: str
    """quiet, or faulty: in seconds with a fault."""
    operation: str
    figure: str
    is_time: bool
    ratio: Ratio
    word: Word


@dataclass(frozen=True, slots=True)
class SetsCompared:
    """The comparison of two sets of runs."""

    old: tuple[RunCompared, ...]
    new: tuple[RunCompared, ...]
    drawn: Units
    units: tuple[int, int]
    """The number of units of each side."""
    figures: tuple[FigureCompared, ...]
    left_out: tuple[str, ...]
    """Figures that could not be compared, with the reasons."""

    @property
    def words(self) -> Mapping[Word, int]:
        counts: dict[Word, int] = {"better": 0, "worse": 0, "no difference shown": 0}
        for figure in self.figures:
            counts[figure.word] += 1
        return counts

    @property
    def summary(self) -> str:
        """The comparison in one sentence, of the second set beside the first."""
        if not self.figures:
            return "Nothing could be compared."
        better, worse, of = self.words["better"], self.words["worse"], len(self.figures)
        if not better and not worse:
            return f"No difference shown in {of} figures."
        counted = [(count, word) for count, word in ((better, "better"), (worse, "worse")) if count]
        text = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for count, word in counted)
        return f"Of {of} figures {text}; no difference shown in {of - better - worse}."


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among ``paths``, or one level below them. Raise ManifestError for a path without a run."""
    folders: list[Path] = []
    for path in paths:
        below = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST_NAME}"))
        runs = [path] if (path / MANIFEST_NAME).is_file() else below
        if not runs:
            raise ManifestError(f"{path} is neither a run nor a folder of runs: it has no {MANIFEST_NAME}")
        folders += runs
    return folders


def check_comparable(old: Sequence[Path], new: Sequence[Path]) -> None:
    """Raise ManifestError if the two sets have no scenario in common."""
    first, second = ({read_manifest(run).scenario for run in runs} for runs in (old, new))
    if not first & second:
        scenarios = [", ".join(sorted(names)) for names in (first, second)]
        raise ManifestError(
            f"The first runs are of {scenarios[0]}, the second of {scenarios[1]}: only runs of the same scenario can "
            "be compared."
        )


def compare_sets(
    old: Sequence[Path], new: Sequence[Path], out: Path, spark: "SparkSession | None" = None
) -> tuple[SetsCompared, Path]:
    """Write the page and the numbers to ``out``. Return what was found, and the page.

    Raise ManifestError and SetupError, each one sentence.
    """

    compared = measure_sets(old, new, spark)
    out.mkdir(parents=True, exist_ok=True)
    (out / NUMBERS_NAME).write_text(json.dumps(_numbers(compared), indent=2) + "\n", encoding="utf-8")
    return compared, write_sets(out, compared)


def measure_sets(old: Sequence[Path], new: Sequence[Path], spark: "SparkSession | None" = None) -> SetsCompared:
    """Compare without writing. Spark reads the runs and sums them up; what is left are a few numbers of each unit."""
    from reports.jobs.compared import distribution, latencies_of_units, rates_of_units
    from reports.read_tables import JobConfig, RunConfig, reading
    from reports.schema import history_bytes
    from reports.spark import sized_for, spark_session

    folders = [folder.resolve() for folder in (*old, *new)]
    manifests = [read_manifest(folder) for folder in folders]
    drawn: Units = "runs" if min(len(old), len(new)) >= MIN_UNITS else "blocks"
    size = history_bytes(folders)
    config = JobConfig(
        blocks=1 if drawn == "runs" else BLOCKS,
        runs={run: RunConfig(warm_up_us=manifest.warm_up_us) for run, manifest in enumerate(manifests)},
    )
    with (
        nullcontext(spark) if spark is not None else spark_session("crucible-compare", size) as session,
        sized_for(session, size),
        reading(session, folders, config) as tables,
    ):
        frames = latencies_of_units(tables), rates_of_units(tables), distribution(tables)
        latencies, rates, points = ([row.asDict() for row in frame.collect()] for frame in frames)
    runs = [RunCompared(*parts) for parts in zip(folders, manifests, _curves(points, len(folders)), strict=True)]
    return compared_units(runs[: len(old)], runs[len(old) :], drawn, latencies, rates)


def _curves(points: Rows, runs: int) -> list[dict[str, list[tuple[int, int]]]]:
    curves: list[dict[str, list[tuple[int, int]]]] = [defaultdict(list) for _ in range(runs)]
    for row in sorted(points, key=lambda row: row["high_us"]):
        curves[row["run"]][row["operation"]].append((row["high_us"], row["count"]))
    return curves


def compared_units(
    old: Sequence[RunCompared], new: Sequence[RunCompared], drawn: Units, latencies: Rows, rates: Rows
) -> SetsCompared:
    """Run 0, 1, ... of the rows are those of ``old``; then follow those of ``new``."""
    values = dict(_values(latencies, rates, drawn))
    units = sorted({(row["run"], row["block"]) for row in rates if row["phase"] == "quiet"})
    sides = [[unit for unit in units if (unit[0] < len(old)) == is_old] for is_old in (True, False)]
    whole = [name for name, known in values.items() if _suffices(name, known, sides)]
    figures: tuple[FigureCompared, ...] = ()
    if min(len(side) for side in sides) < MIN_UNITS:
        left_out = [f"a side has fewer than {MIN_UNITS} units: play longer, or more runs"]
    else:
        left_out = _left_out(values, whole)
        before, after = ([[values[name][unit].value for name in whole] for unit in side] for side in sides)
        exact = [BUCKET if name[2] != RATE else _one_operation(name, rates) for name in whole]
        figures = tuple(map(_figure, whole, ratios(before, after, exact) if whole else ()))
    return SetsCompared(tuple(old), tuple(new), drawn, (len(sides[0]), len(sides[1])), figures, tuple(left_out))


@dataclass(frozen=True, slots=True)
class _Value:
    """A figure of one unit."""

    value: float
    suffices: bool
    """Enough operations are behind the value."""


def _values(latencies: Rows, rates: Rows, drawn: Units) -> Iterator[tuple[Name, dict[tuple[int, int], _Value]]]:
    """Each figure's value in each unit, in the order of the page."""
    by_figure: dict[Name, dict[tuple[int, int], _Value]] = defaultdict(dict)
    for row in (*latencies, *rates):
        place, unit = (row["phase"], row["operation"]), (row["run"], row["block"])
        if row["phase"] != "quiet" and drawn == "blocks":
            continue
        if "seconds" in row:
            per_s = (
                max(row["operations"], 0.5) / row["seconds"]
            )  # A stall has a rate, too, which must have a logarithm.
            by_figure[*place, RATE][unit] = _Value(per_s, row["operations"] >= MIN_OPERATIONS)
            continue
        for column, (title, beyond) in TITLES.items():
            by_figure[*place, title][unit] = _Value(max(row[column], 1), row["count"] * beyond >= TAIL_SAMPLES)
    yield from sorted(by_figure.items(), key=lambda entry: entry[0][:2])


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


def _one_operation(name: Name, rates: Rows) -> float:
    """A count is exact to one."""
    counts: list[int] = [row["operations"] for row in rates if (row["phase"], row["operation"]) == name[:2]]
    return 1 / max(1, min(counts))


def _figure(name: Name, ratio: Ratio) -> FigureCompared:
    is_time = name[2] != RATE
    return FigureCompared(*name, is_time, ratio, ratio.word(less_is_better=is_time))


def _numbers(compared: SetsCompared) -> dict[str, Any]:
    return {
        "version": SETS_VERSION,
        "old": [str(run.folder) for run in compared.old],
        "new": [str(run.folder) for run in compared.new],
        "drawn": compared.drawn,
        "units": list(compared.units),
        "error_rate": ERROR_RATE,
        "summary": compared.summary,
        "figures": [{**asdict(figure), "ratio": _finite(asdict(figure.ratio))} for figure in compared.figures],
        "left_out": list(compared.left_out),
    }


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """JSON has no infinity: an interval without an end has null there."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}


PAGE_NAME = "compared.html"
PHASES = {"quiet": "in quiet seconds", "faulty": "in seconds with a fault"}
_CAPTIONS = {
    "intervals": "The ratio of each figure, with its interval. Where the interval has × 1 in it, no difference is "
    "shown. For latencies less is better, and for rates more.",
    "percentiles": "Latency by percentile. Every step to the right is ten times rarer. Thick lines are whole sets, and "
    "thin ones runs. A curve ends where fewer than ten samples lie beyond.",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One figure in words."""

    name: str
    phase: str
    old: str
    new: str
    ratio: str
    interval: str
    least: str
    word: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between both sides that is no measurement, such as a setting."""

    what: str
    old: str
    new: str


def write_sets(folder: Path, comparison: SetsCompared) -> Path:
    """``folder`` must exist. Figures are copied there as PNG."""
    lines = [_line(figure) for figure in comparison.figures]
    makers = {
        "intervals": lambda: draw_intervals(comparison.figures, [f"{line.name}, {line.phase}" for line in lines]),
        "percentiles": lambda: draw_curves(comparison.old, comparison.new),
    }
    page = folder / PAGE_NAME
    text = (
        environment()
        .get_template("run_sets.html.j2")
        .render(
            found=comparison,
            lines=lines,
            sides=[[_run_row(run, folder) for run in side] for side in (comparison.old, comparison.new)],
            differences=differences(comparison.old, comparison.new),
            notes=list(_notes(comparison)),
            error_rate=f"{100 * ERROR_RATE:.0f} %",
            drawings=drawn(makers, _CAPTIONS, folder, "compared-"),
        )
    )
    page.write_text(text, encoding="utf-8")
    return page


def _line(figure: FigureCompared) -> Line:
    text = words.micros if figure.is_time else _per_second
    ratio = figure.ratio
    return Line(
        name=f"{figure.operation} {figure.figure}",
        phase=PHASES[figure.phase],
        old=text(ratio.old),
        new=text(ratio.new),
        ratio=f"× {ratio.ratio:.3f}",
        interval=f"{ratio.low:.3f} to {ratio.high:.3f}" if isfinite(ratio.high) else "without end",
        least=f"× {ratio.least:.3f}" if isfinite(ratio.least) else "none",
        word=figure.word,
    )


def _per_second(value: float) -> str:
    return f"{value:,.1f}" if value < 1_000 else words.count(value)


def _run_row(run: RunCompared, folder: Path) -> dict[str, str]:
    """``outcome`` and ``report`` are empty if the run has not been judged."""
    verdict, report = run.folder / "report" / "verdict.json", run.folder / "report" / "index.html"
    outcome = json.loads(verdict.read_text(encoding="utf-8")).get("outcome", "") if verdict.is_file() else ""
    return {
        "name": run.folder.name,
        "scenario": run.manifest.scenario,
        "seed": str(run.manifest.seed),
        "seconds": words.seconds(run.manifest.duration_us) if run.manifest.duration_us else words.NONE,
        "outcome": str(outcome).lower(),
        "report": relpath(report, folder) if report.is_file() else "",
    }


def differences(old: Sequence[RunCompared], new: Sequence[RunCompared]) -> list[Difference]:
    """Return the fields that differ between the manifests of the sides. Seeds do not count, since runs of one set have
    several."""
    facts_of = [[dict(_facts(run)) for run in side] for side in (old, new)]
    names = dict.fromkeys(name for side in facts_of for facts in side for name in facts)
    different = []
    for name in names:
        values = [sorted({facts.get(name, "") for facts in side}) for side in facts_of]
        if values[0] != values[1]:
            different.append(Difference(name, *(", ".join(value or words.NONE for value in side) for side in values)))
    return different


def _facts(run: RunCompared) -> Iterator[tuple[str, str]]:
    manifest = run.manifest
    yield "scenario", manifest.scenario
    yield "world", manifest.world
    yield "target", manifest.target
    yield "revision", manifest.revision
    yield "variant", manifest.variant
    yield "mutant", manifest.mutant
    yield "commit", manifest.commit + (" with changes" if manifest.dirty else "")
    groups: Mapping[str, Mapping[str, Any]] = {
        "machine": manifest.machine,
        "version of": manifest.versions,
        "load": manifest.load,
        "broker": manifest.config,
    }
    for group, pairs in groups.items():
        for key, value in sorted(pairs.items()):
            yield f"{group} {key}", str(value)


def _notes(compared: SetsCompared) -> Iterator[str]:
    units = f"{compared.units[0]} and {compared.units[1]}"
    if compared.drawn == "runs":
        yield f"The units are runs ({units}), so the intervals show how far runs of the same thing differ."
        if min(compared.units) < MIN_UNITS + 2:
            yield "With so few runs only great differences can be shown; five or more on each side show much more."
    else:
        yield (
            f"A side has fewer than {MIN_UNITS} runs, so the units are blocks of neighbouring seconds ({units}). The "
            "intervals show how unsteady these runs were in themselves. Two runs of the same thing may differ by more."
        )
    if any(run.manifest.world == "sim" for run in (*compared.old, *compared.new)):
        yield "Simulated runs have virtual time. Their latencies say nothing about a machine."
    yield "A set's value is the geometric mean of its units' values. Latencies are exact to 1 %, the width of a bucket."
    yield from (f"Not compared: {reason}." for reason in compared.left_out)


_SIDES = (("first set", style.BLUE), ("second set", style.ORANGE))
_WORDS = {"better": style.GREEN, "worse": style.RED, "no difference shown": style.MUTED}
_FURTHEST = 10.0
"""An interval that reaches beyond this ratio is cut there."""


def draw_intervals(figures: "Sequence[FigureCompared]", names: Sequence[str]) -> Figure | None:
    """A line for each figure. ``names`` are what the lines are called."""
    if not figures:
        return None
    drawing, (axes,) = style.canvas([0.27 * len(figures) + 0.35])
    for place, figure in enumerate(figures):
        colour, ratio = _WORDS[figure.word], figure.ratio
        low, high = max(ratio.low, 1 / _FURTHEST), min(ratio.high, _FURTHEST)
        axes.plot([low, high], [place, place], color=colour, linewidth=2.4, alpha=0.55, solid_capstyle="butt")
        axes.plot([ratio.ratio], [place], "o", color=colour, markersize=5)
    axes.axvline(1.0, color=style.INK, linewidth=1)
    axes.set_xscale("log")
    narrow = all(isfinite(figure.ratio.high) and figure.ratio.high < 2 and figure.ratio.low > 0.5 for figure in figures)
    axes.xaxis.set_major_locator(MaxNLocator(8) if narrow else LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"× {value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    style.rows(axes, names, 0.4)
    axes.set_xlabel("second set / first set")
    axes.grid(False, axis="y")
    return drawing


def draw_curves(old: "Sequence[RunCompared]", new: "Sequence[RunCompared]") -> Figure | None:
    """A strip for each operation: each run as a thin line, and each side's runs together as a thick one."""
    operations = sorted({name for run in (*old, *new) for name in run.curves if percentile_curve(run.curves[name])[0]})
    if not operations:
        return None
    figure, strips = style.canvas([2.6] * len(operations))
    furthest = max(_draw_strip(axes, name, old, new) for axes, name in zip(strips, operations, strict=True))
    percentile_axis(strips[-1], furthest)
    style.legend(strips[0], 2)
    return figure


def _draw_strip(axes: Axes, operation: str, old: "Sequence[RunCompared]", new: "Sequence[RunCompared]") -> float:
    furthest = 0.0
    for (label, colour), runs in zip(_SIDES, (old, new), strict=True):
        points = [run.curves.get(operation, ()) for run in runs]
        if len(runs) > 1:
            for point in points:
                axes.plot(*percentile_curve(point), color=colour, linewidth=0.8, alpha=0.45)
        together = Counter[int]()
        for point in points:
            together.update(dict(point))
        x, y = percentile_curve(sorted(together.items()))
        axes.plot(x, y, color=colour, linewidth=2, label=label)
        furthest = max(furthest, *x, 0.0)
    style.micros_axis(axes)
    axes.set_title(f"{operation}, response time in quiet seconds")
    return furthest
