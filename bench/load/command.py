"""Plays workloads on targets for ``crucible bench WORKLOAD``. It writes the page and OpenMessaging's JSON."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import msgspec

from bench.load import benchmark_json
from bench.load.calibration import BATCH_BYTES, Batches, Calibrations
from bench.load.clients import JAVA, NATIVE
from bench.load.comparison import FIGURES, Entry, compared, sentences, series_of
from bench.load.openmessaging import Published, document_of, read_published
from bench.load.options import LoadError, LoadOptions, client_of
from bench.load.page import lines, reasons, searched, write
from bench.load.requirements import check_playable
from bench.load.results import LoadResult
from bench.load.run import run
from bench.load.search import sustained_rate
from bench.load.target import LoadTarget, MakesLinks, check_links, chosen_target, future_node_ids, started
from bench.load.workload import Workload, read_workload
from bench.machine import where_measured

STEP_S: Final = 10.0
"""Duration of a step of a search, or of a point of a curve, unless ``--seconds`` says otherwise."""
STEP_WARMUP_S: Final = 3.0
OUT: Final = Path(".benchmarks/workloads")
EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 3


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Arguments of ``crucible bench WORKLOAD...``."""

    workloads: Sequence[Path]
    targets: Sequence[str]
    load: LoadOptions
    rates: Sequence[float] = ()
    search: bool = False
    p99_limit_ms: float = 1_000.0
    repeat: int = 1
    published: Sequence[Path] = ()  # results of OpenMessaging Benchmark, to be drawn beside our own
    out: Path = OUT
    make_links: MakesLinks | None = None  # for faults of links


def play(
    options: BenchOptions, progress: Callable[[str], None], failed: Callable[[str], None] | None = None
) -> list[Entry]:
    """Play all workloads on all targets. Each repetition has the reverse order of the previous one, so that a drift of
    the machine affects all targets alike. Once something is measured, ``failed`` is called for runs that could not be
    carried out, and the other runs continue.

    :raises WorkloadError: a file cannot be read. :raises LoadError: a run could not be carried out.
    :raises CalibrationError: what the generator reaches alone could not be measured.
    """
    workloads = [read_workload(path) for path in options.workloads]
    for workload in workloads:
        for text in options.targets:
            check_call(workload, text, options)
    calibrations = Calibrations(options.out, progress)
    entries: list[Entry] = []
    for repetition in range(options.repeat):
        for workload in workloads:
            for text in options.targets if repetition % 2 == 0 else reversed(options.targets):
                make_links = options.make_links if workload.needs_links else None
                settings, failed_logs = workload.crucible.broker_settings, run_folder(options.out / "failed", text)
                try:
                    with started(text, progress, settings, make_links, failed_logs) as target:
                        # At an error, entries has what came before it.
                        entries.extend(_entries(workload, target, options, calibrations, progress))
                except LoadError as error:
                    if failed is None or not entries:
                        raise
                    failed(str(error))
    return entries


def check_call(workload: Workload, text: str, options: BenchOptions) -> None:
    """Check what can be checked of a workload on a target before anything is started.

    :raises LoadError: it cannot be carried out.
    """
    chosen = chosen_target(text)
    if options.search and client_of(workload, options.load) == JAVA:
        raise LoadError("--max judges rates by measures of its own, and the client java has none: give --rates.")
    if options.search and options.load.acks == 0:
        raise LoadError("--max judges rates by acknowledgements, and with acks=0 there are none: give --rates.")
    has_links = workload.needs_links and options.make_links is not None
    if has_links:
        check_links(chosen)
    node_ids = future_node_ids(chosen)
    folder = None if node_ids is None else Path(gettempdir())  # where started brokers have their data
    load = _stepwise(options)
    for rate in options.rates or (load.records_per_s,):
        check_playable(workload, replace(load, records_per_s=rate), text, node_ids, has_links, folder)


def _stepwise(options: BenchOptions) -> LoadOptions:
    """Return the options of each run. Steps of a search and points of a curve are short."""
    load = options.load
    if not options.search and not options.rates:
        return load
    return replace(
        load,
        seconds=STEP_S if load.seconds is None else load.seconds,
        warmup_s=STEP_WARMUP_S if load.warmup_s is None else load.warmup_s,
    )


def _entries(
    workload: Workload,
    target: LoadTarget,
    options: BenchOptions,
    calibrations: Calibrations,
    progress: Callable[[str], None],
) -> Iterator[Entry]:
    if options.search and client_of(workload, options.load) == NATIVE:
        calibrations.known(batches_of(workload, options.load.compression))
    load = _stepwise(options)

    def at_rate(rate: float | None) -> LoadResult:
        wanted = load if rate is None else replace(load, records_per_s=rate)
        if rate is not None:
            progress(f"{target.name}: {rate:,.0f} records/s")
        result = run(workload, target, wanted, run_folder(options.out / "runs", target.name), progress)
        return with_capacity(result, options.load, calibrations)

    if options.search:
        search = sustained_rate(at_rate, options.p99_limit_ms)
        best = next((step.result for step in reversed(search.steps) if step.rate == search.rate), None)
        yield Entry(best or search.steps[-1].result, search)
        return
    for rate in options.rates or (None,):
        yield Entry(at_rate(rate))


RUNS_KEPT: Final = 50
"""The newest runs whose history stays."""


def run_folder(runs: Path, target: str) -> Path:
    """Return the folder of a new run. The oldest ones that are too many are removed."""
    kept = sorted(folder for folder in runs.glob("[0-9]*") if folder.is_dir())
    for folder in kept[: max(0, len(kept) - RUNS_KEPT + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    label = re.sub(r"[^\w.@+-]+", "-", target).strip("-")
    return runs / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{label}"


BUSY_PERMILLE: Final = 400
"""A worker that wants less of a processor is far from its limit, so that nothing needs to be measured."""


def batches_of(workload: Workload, compression: str, records: int = 0) -> Batches:
    """Return the batches of a workload; full ones unless the number of records is known."""
    own = workload.crucible
    records = records or max(1, BATCH_BYTES // workload.record_bytes)
    return Batches(workload.value_bytes, records, compression, own.message_sizes, own.headers)


def with_capacity(result: LoadResult, options: LoadOptions, calibrations: Calibrations) -> LoadResult:
    """Return the result with what the generator reaches alone with such batches, if that is known or the run comes near
    it. The figures are of the native client on this machine."""
    if result.client != NATIVE or options.joining or not result.batch_records:
        return result
    batches = batches_of(result.workload, options.compression, result.batch_records)
    is_near = result.wanted_permille >= BUSY_PERMILLE
    calibrated = calibrations.known(batches) if is_near else calibrations.find(batches)
    if calibrated is None:
        return result
    own = result.workload
    workers = min(options.workers, own.producers + own.readers + own.transformers)
    # A client that transforms reads each record, and sends it once more.
    between = int(own.crucible.transform is not None)
    capacity = calibrated.capacity(workers, own.subscriptions_per_topic + between, 1 + between)
    return msgspec.structs.replace(result, generator_capacity=capacity)


def imported(options: BenchOptions) -> list[Published]:
    """Read the published results. :raises PublishedError: a file is no such result."""
    return [read_published(path) for path in options.published]


def store(entries: Sequence[Entry], published: Sequence[Published], options: BenchOptions) -> Path:
    """Write each run as OpenMessaging's JSON and its figures, all of them as pytest-benchmark's JSON, and the page.
    Return the page's path."""
    options.out.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name[:4]) for path in options.out.glob("[0-9][0-9][0-9][0-9]-*")), default=0)
    named = [(series.name, entry) for series in series_of(entries) for entry in series.entries]
    for place, (name, entry) in enumerate(named):
        label = re.sub(r"[^\w.@+-]+", "-", name).strip("-")
        path = options.out / f"{number:04}-{place}-{label}.json"
        path.write_text(json.dumps(document_of(entry.result)), encoding="utf-8")
        # OpenMessaging's own reader refuses fields that it does not know.
        path.with_suffix(".figures.json").write_text(json.dumps(figures_of(entry)), encoding="utf-8")
    if entries:
        stored = benchmark_json.document(series_of(entries))
        (options.out / f"{number:04}-benchmarks.json").write_text(json.dumps(stored, indent=1), encoding="utf-8")
    command = shlex.join(["./crucible", *sys.argv[1:]])
    return write(entries, options.out / f"{number:04}-page.html", command, where_measured(), published)


def figures_of(entry: Entry) -> dict[str, float]:
    """Return the figures of a run that were measured, by name and unit, as the page shows them."""
    values = {f"{figure.name}, {figure.unit}": figure.value(entry) for figure in FIGURES}
    measured = {name: value for name, value in values.items() if value is not None}
    return {**measured, "records verified": float(entry.result.findings.read)}


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def table_of(entries: Sequence[Entry], published: Sequence[Published]) -> Table:
    """Return the headings and rows of the table in the terminal, whose columns are targets and published results."""
    every = series_of(entries)
    headings = ("", *(series.name for series in every), *(result.name for result in published))
    rows = [("outcome", *(series.outcome for series in every), *("not verified" for _ in published))]
    for line in lines(compared(every), published):
        rows.append((f"{line.name}, {line.unit}" if line.unit else line.name, *(cell.text for cell in line.cells)))
        if any(cell.comparison for cell in line.cells):
            rows.append(("", *(cell.comparison for cell in line.cells)))
    return headings, rows


def remarks(entries: Sequence[Entry]) -> list[str]:
    """Return what searches found, what is wrong, and how the targets compare, a sentence each."""
    every = series_of(entries)
    texts = [f"{series.name}: {text}" for series in every for text in (*searched(series), *reasons(series))]
    for series in every:
        for entry in series.entries:
            texts.extend(f"{series.name}: {fault.sentence}" for fault in entry.result.fault_figures)
    return [*texts, *sentences(compared(every))]


def exit_code(entries: Sequence[Entry]) -> int:
    """Return the exit code of the worst series. INVALID runs of a series of which most are valid do not count."""
    outcomes = {series.outcome for series in series_of(entries)}
    return EXIT_FAILED if "FAILED" in outcomes else EXIT_INVALID if "INVALID" in outcomes else 0
