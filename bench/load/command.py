"""Plays workloads on targets (``crucible bench WORKLOAD``), and writes the page and OpenMessaging's JSON."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.load.page import Entry, cells, name_of, sentence, write
from bench.load.results import LoadResult, omb_document
from bench.load.run import LoadOptions, LoadTarget, run, started
from bench.load.search import sustained_rate
from bench.load.workload import Workload, read_workload
from bench.machine import where_measured

STEP_S: Final = 10.0
"""How long a step of a search, or a point of a curve, is measured unless ``--seconds`` says otherwise."""
STEP_WARMUP_S: Final = 3.0
EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 3


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What ``crucible bench WORKLOAD...`` was called with."""

    workloads: Sequence[Path]
    targets: Sequence[str]
    load: LoadOptions
    rates: Sequence[float] = ()
    search: bool = False
    p99_limit_ms: float = 1_000.0
    repeat: int = 1
    out: Path = Path(".benchmarks/workloads")


def play(options: BenchOptions, progress: Callable[[str], None]) -> list[Entry]:
    """Play all workloads on all targets, which take turns in each repetition.

    :raises WorkloadError: a file cannot be read. :raises LoadError: a run could not be carried out.
    """
    workloads = [read_workload(path) for path in options.workloads]
    entries: list[Entry] = []
    for _ in range(options.repeat):
        for workload in workloads:
            for text in options.targets:
                with started(text, progress) as target:
                    entries.extend(_entries(workload, target, options, progress))
    return entries


def _entries(
    workload: Workload, target: LoadTarget, options: BenchOptions, progress: Callable[[str], None]
) -> list[Entry]:
    stepwise = options.search or bool(options.rates)
    load = options.load
    if stepwise:
        load = replace(
            load,
            seconds=STEP_S if load.seconds is None else load.seconds,
            warmup_s=STEP_WARMUP_S if load.warmup_s is None else load.warmup_s,
        )

    def at_rate(rate: float | None) -> LoadResult:
        wanted = load if rate is None else replace(load, records_per_s=rate)
        if rate is not None:
            progress(f"{target.name}: {rate:,.0f} records/s")
        return run(workload, target, wanted, options.out / "runs", progress)

    if options.search:
        found = sustained_rate(at_rate, options.p99_limit_ms)
        best = next((each.result for each in reversed(found.steps) if each.rate == found.rate), found.steps[-1].result)
        return [Entry(best, found)]
    return [Entry(at_rate(rate)) for rate in options.rates or (None,)]


def store(entries: Sequence[Entry], options: BenchOptions) -> Path:
    """Write each run as OpenMessaging's JSON, and the page. Return the page's path."""
    options.out.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(each.name[:4]) for each in options.out.glob("[0-9][0-9][0-9][0-9]-*")), default=0)
    for place, entry in enumerate(entries):
        label = re.sub(r"[^\w.@+-]+", "-", name_of(entry, entries)).strip("-")
        path = options.out / f"{number:04}-{place}-{label}.json"
        path.write_text(json.dumps(omb_document(entry.result)), encoding="utf-8")
    command = " ".join(["./crucible", *sys.argv[1:]])
    return write(entries, options.out / f"{number:04}-page.html", command, where_measured())


def lines(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return the rows of the table, whose columns are the runs."""
    return [(name_of(each, entries), each.result.outcome, *cells(each.result)) for each in entries]


def sentences(entries: Sequence[Entry]) -> list[str]:
    """Return what a search found and what is wrong, a sentence for each run that has one."""
    found = []
    for each in entries:
        name = name_of(each, entries)
        if each.search is not None:
            found.append(f"{name}: {sentence(each.search)}")
        if each.result.reason:
            found.append(f"{name}: {each.result.reason}")
    return found


def exit_code(entries: Sequence[Entry]) -> int:
    outcomes = {each.result.outcome for each in entries}
    return EXIT_FAILED if "FAILED" in outcomes else EXIT_INVALID if "INVALID" in outcomes else 0
