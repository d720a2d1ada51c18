"""Writes the page about two sets of runs: a word for each figure, intervals, distributions, and what else differs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from os.path import relpath
from pathlib import Path
from typing import Any

from reports.page import words
from reports.page.render import environment
from reports.plots import run_sets as plots
from reports.plots.catalogue import drawn
from reports.run_sets import FigureCompared, RunCompared, SetsCompared
from reports.statistics.ratios import ERROR_RATE, LEAST_UNITS

PAGE_NAME = "compared.html"
PHASES = {"quiet": "in quiet seconds", "struck": "in seconds with a fault"}
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
    """Something that is not the same on both sides, beside what was measured."""

    what: str
    old: str
    new: str


def write_sets(folder: Path, found: SetsCompared) -> Path:
    """``folder`` must exist. Figures are copied there as PNG."""
    lines = [_line(one) for one in found.figures]
    makers = {
        "intervals": lambda: plots.intervals(found.figures, [f"{one.name}, {one.phase}" for one in lines]),
        "percentiles": lambda: plots.percentiles(found.old, found.new),
    }
    page = folder / PAGE_NAME
    text = (
        environment()
        .get_template("run_sets.html.j2")
        .render(
            found=found,
            lines=lines,
            sides=[[_run(one, folder) for one in side] for side in (found.old, found.new)],
            differences=differences(found.old, found.new),
            notes=list(_notes(found)),
            error_rate=f"{100 * ERROR_RATE:.0f} %",
            drawings=drawn(makers, _CAPTIONS, folder, "compared-"),
        )
    )
    page.write_text(text, encoding="utf-8")
    return page


def _line(one: FigureCompared) -> Line:
    text = words.micros if one.is_time else _per_second
    ratio = one.ratio
    return Line(
        name=f"{one.operation} {one.figure}",
        phase=PHASES[one.phase],
        old=text(ratio.old),
        new=text(ratio.new),
        ratio=f"× {ratio.ratio:.3f}",
        interval=f"{ratio.low:.3f} to {ratio.high:.3f}" if isfinite(ratio.high) else "without end",
        least=f"× {ratio.least:.3f}" if isfinite(ratio.least) else "none",
        word=one.word,
    )


def _per_second(value: float) -> str:
    return f"{value:,.1f}" if value < 1_000 else words.count(value)


def _run(one: RunCompared, folder: Path) -> dict[str, str]:
    """``outcome`` and ``report`` are empty if the run has not been judged."""
    verdict, report = one.folder / "report" / "verdict.json", one.folder / "report" / "index.html"
    outcome = json.loads(verdict.read_text(encoding="utf-8")).get("outcome", "") if verdict.is_file() else ""
    return {
        "name": one.folder.name,
        "scenario": one.manifest.scenario,
        "seed": str(one.manifest.seed),
        "seconds": words.seconds(one.manifest.duration_us) if one.manifest.duration_us else words.NONE,
        "outcome": str(outcome).lower(),
        "report": relpath(report, folder) if report.is_file() else "",
    }


def differences(old: Sequence[RunCompared], new: Sequence[RunCompared]) -> list[Difference]:
    """What the manifests of the sides do not share. Seeds do not count, since runs of one set have several."""
    told = [[dict(_facts(one)) for one in side] for side in (old, new)]
    names = dict.fromkeys(name for side in told for facts in side for name in facts)
    found = []
    for name in names:
        values = [sorted({facts.get(name, "") for facts in side}) for side in told]
        if values[0] != values[1]:
            found.append(Difference(name, *(", ".join(each or words.NONE for each in side) for side in values)))
    return found


def _facts(one: RunCompared) -> Iterator[tuple[str, str]]:
    manifest = one.manifest
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


def _notes(found: SetsCompared) -> Iterator[str]:
    units = f"{found.units[0]} and {found.units[1]}"
    if found.drawn == "runs":
        yield f"The units are runs ({units}), so the intervals tell how far runs of the same thing differ."
        if min(found.units) < LEAST_UNITS + 2:
            yield "With so few runs only great differences can be shown; five or more on each side show much more."
    else:
        yield (
            f"A side has fewer than {LEAST_UNITS} runs, so the units are blocks of neighbouring seconds ({units}). The "
            "intervals tell how unsteady these runs were in themselves. Two runs of the same thing may differ by more."
        )
    if any(one.manifest.world == "sim" for one in (*found.old, *found.new)):
        yield "Simulated runs have virtual time. Their latencies say nothing about a machine."
    yield "A set's value is the geometric mean of its units' values. Latencies are exact to 1 %, the width of a bucket."
    yield from (f"Not compared: {each}." for each in found.left_out)
