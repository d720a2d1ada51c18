"""``crucible bench`` and ``probe``."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crucible_kafka.commands.ci_options import GITHUB

if TYPE_CHECKING:
    from bench.load.driver import Driver
    from bench.load.options import LoadOptions
    from bench.rows.options import Options
    from bench.rows.results import Results

CALIBRATED_BYTES = (100, 1_024)
"""Sizes of the values with which the generator is measured alone."""


def _rates(_: click.Context, __: click.Parameter, text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    rates = []
    for word in text.split(","):
        number, thousands = word.strip().removesuffix("k"), word.strip().endswith("k")
        if not number.replace(".", "", 1).isdigit() or float(number) <= 0:
            raise click.BadParameter("give rates such as 10k,50k,100000")
        rates.append(float(number) * (1000 if thousands else 1))
    return tuple(rates)


class Finite(click.FloatRange):
    """A number in a range, which neither NaN nor infinity is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number in the range {self._describe_range()}.", param, ctx)
        return number


LISTEN = ("127.0.0.1", 5557)
"""Locust's own port."""


def _address(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise click.BadParameter("give HOST:PORT")
    return host.strip("[]"), int(port)


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible bench"
    "\n  ./crucible bench --peer kafka"
    "\n  ./crucible bench --peer kafka --row fetch"
    "\n  ./crucible bench --row failover"
    "\n  ./crucible bench docs/workloads/1-topic-16-partitions-1kb.yaml --target kafka --target reference --max"
    "\n  ./crucible bench docs/workloads/end-to-end-latency.yaml --target 127.0.0.1:9092 --rates 10k,50k,100k"
    "\n  ./crucible bench docs/workloads/100-partitions.yaml --target reference --target kafka --repeat 5"
    "\n  ./crucible bench --import 1-topic-1-partition-1kb-Kafka.json --import 1-topic-1-partition-1kb-Pulsar.json"
    "\n  ./crucible bench --calibrate --peer kafka"
)
@click.argument("workloads", nargs=-1, type=click.Path(path_type=Path), metavar="[WORKLOAD]...")
@click.option("--peer", type=click.Choice(["kafka"]), help="Measure this broker, too. It takes turns with ours.")
@click.option("--row", "rows", multiple=True, metavar="NAME", help="Measure only this row (see bench/rows/options.py).")
@click.option("--nodes", type=click.Choice(["1", "3"]), multiple=True, help="Measure only clusters of this size.")
@click.option(
    "--quick", is_flag=True, help="Measure little of everything, to see that it works. No figure is worth quoting."
)
@click.option("--out", type=click.Path(path_type=Path), help="Store it in this folder (default: in .benchmarks).")
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure the load generator alone, against a sink that keeps nothing; later benchmarks use the figures. With "
    "--peer kafka, compare its processor time with that of Kafka's perf tests, too.",
)
@click.option("--target", "targets", multiple=True, metavar="TARGET", help="Play workloads there (default: reference).")
@click.option("--max", "search", is_flag=True, help="Search the maximum sustainable rate of each target.")
@click.option(
    "--p99",
    "p99_limit_ms",
    type=Finite(0, min_open=True),
    default=1_000.0,
    metavar="MS",
    help="A sustained rate's limit (default: 1000).",
)
@click.option("--rates", callback=_rates, metavar="LIST", help="Play each of these rates, such as 10k,50k,100k.")
@click.option("--seconds", type=Finite(1), help="Duration of the measurement (default: the workload's).")
@click.option("--warmup", type=Finite(0), metavar="SECONDS", help="Duration of the warm-up (default: the workload's).")
@click.option("--workers", type=click.IntRange(1, 64), default=1, help="Processes that make the load (default: 1).")
@click.option(
    "--repeat", type=click.IntRange(1, 100), default=1, help="Number of repetitions, in which targets take turns."
)
@click.option(
    "--driver",
    "driver_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A driver file of OpenMessaging Benchmark for Kafka. The options below come before it.",
)
@click.option("--replication", type=click.IntRange(1, 9), help="Replicas of each topic (default: 1).")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), help="What a Produce request waits for (default: all).")
@click.option(
    "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), help="Of batches (default: none)."
)
@click.option(
    "--expect-workers",
    "joining",
    type=click.IntRange(1, 64),
    help="Wait for workers of other machines (crucible worker), and start none here unless --workers says so.",
)
@click.option(
    "--listen",
    callback=_address,
    metavar="HOST:PORT",
    help="Where these workers join (default: 127.0.0.1:5557). Locust's protocol has no authentication.",
)
@click.option(
    "--client",
    type=click.Choice(["native", "librdkafka", "kafka-python", "java"]),
    help="Library of producers and readers (default: the workload's, or native). java: Kafka's perf tests, which "
    "verify nothing.",
)
@click.option(
    "--import",
    "published",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw this published result of OpenMessaging Benchmark (JSON) on the same page, with or without a WORKLOAD.",
)
@click.pass_context
def bench(
    context: click.Context,
    /,
    workloads: Sequence[Path],
    peer: str | None,
    rows: Sequence[str],
    nodes: Sequence[str],
    quick: bool,
    out: Path | None,
    calibrate: bool,
    **load: Any,
) -> None:
    """Measure brokers, and write a page that shows the figures.

    A WORKLOAD is a YAML file of OpenMessaging Benchmark (docs/workloads has some). It is played on each target, and
    every record that is read is verified. Without one, the reference broker is measured row by row, with one node and
    three, alone or beside a peer.
    """
    typed_options = {
        name for name in load if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if workloads or load["published"]:
        if peer or rows or nodes or calibrate:
            raise click.UsageError("--peer, --row, --nodes and --calibrate measure without a workload: leave them out.")
        if "joining" in typed_options and "workers" not in typed_options:
            load["workers"] = 0
        _play_workloads(WorkloadOptions(workloads=workloads, quick=quick, out=out, **load))
    elif typed_options:
        raise click.UsageError(f"--{sorted(typed_options)[0]} goes with a WORKLOAD, such as one of docs/workloads.")
    elif calibrate:
        if rows or nodes:
            raise click.UsageError(
                "--calibrate measures the generator alone: it goes with --peer, --quick and --out only."
            )
        _calibrate(1.0 if quick else 5.0, out)
        if peer:
            _calibrate_beside(2 if quick else 10)
    else:
        _measure_rows(peer, rows, nodes, quick, out)


def _measure_rows(peer: str | None, rows: Sequence[str], nodes: Sequence[str], quick: bool, out: Path | None) -> None:
    from bench.peers.node import PeerError
    from bench.rows.options import NODES, QUICK, Options, Sizes
    from bench.rows.report import write
    from bench.rows.results import STORE, table
    from crucible_kafka.terminal import USAGE_ERROR, one_sentence, print_table, shown

    with one_sentence(ValueError):
        options = Options(peer, tuple(rows), tuple(map(int, nodes)) or NODES, QUICK if quick else Sizes())
    with one_sentence(PeerError):
        results = _measured(options)
    print_table(("work", "reference", peer or "", "ratio" if peer else "", "goal"), table(results.rows))
    stored = results.store(out or STORE)
    click.echo(f"stored: {shown(stored)}, drawn: {shown(write(results, stored))}")
    for row, why in results.missing.items():
        click.echo(f"crucible: {row} could not be measured: {why}", err=True)
    sys.exit(USAGE_ERROR if results.missing else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Options of the command line for workloads, as click converts them."""

    workloads: Sequence[Path]
    quick: bool
    out: Path | None
    targets: Sequence[str]
    search: bool
    p99_limit_ms: float
    rates: tuple[float, ...]
    seconds: float | None
    warmup: float | None
    workers: int
    joining: int | None
    listen: tuple[str, int] | None
    repeat: int
    driver_file: Path | None
    replication: int | None
    acks: str | None
    compression: str | None
    client: str | None
    published: Sequence[Path]

    def check(self) -> None:
        """Raise click.UsageError for options that do not go together."""
        if self.listen and not self.joining:
            raise click.UsageError("--listen is where workers join: say with --expect-workers how many.")
        if self.search and self.rates:
            raise click.UsageError("--max searches a rate by itself: leave --rates out.")

    def load(self, driver: "Driver") -> "LoadOptions":
        """Return the options of each run. Those of the command line come before the driver file's."""
        from bench.load.options import LoadOptions

        acks = int(self.acks.replace("all", "-1")) if self.acks else -1 if driver.acks is None else driver.acks
        return LoadOptions(
            seconds=QUICK_S if self.quick and self.seconds is None else self.seconds,
            warmup_s=QUICK_WARMUP_S if self.quick and self.warmup is None else self.warmup,
            workers=self.workers,
            joining=self.joining or 0,
            listen=(self.listen or LISTEN) if self.joining else None,
            replication=self.replication or driver.replication or 1,
            acks=acks,
            idempotent=driver.idempotent is not False and acks != 0,
            compression=self.compression or driver.compression or "none",
            client=self.client,
            driver=driver,
        )


def _play_workloads(wanted: WorkloadOptions) -> None:
    from bench.load.calibration import CalibrationError
    from bench.load.command import BenchOptions, exit_code, imported, play, remarks, store, table_of
    from bench.load.driver import Driver, DriverError, read_driver
    from bench.load.openmessaging import PublishedError
    from bench.load.options import LoadError
    from bench.load.workload import WorkloadError
    from crucible_kafka.bench_links import toxiproxy_links
    from crucible_kafka.terminal import USAGE_ERROR, one_sentence, print_table, progress, shown

    wanted.check()
    with one_sentence(DriverError):
        driver = Driver() if wanted.driver_file is None else read_driver(wanted.driver_file)
    for note in driver.notes:
        click.echo(f"  {note}", err=True)
    options = BenchOptions(
        wanted.workloads,
        wanted.targets or ("reference",),
        wanted.load(driver),
        wanted.rates,
        wanted.search,
        wanted.p99_limit_ms,
        wanted.repeat,
        wanted.published,
    )
    options = replace(options, make_links=toxiproxy_links, out=wanted.out or options.out)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out {options.out}: cannot be made: {error.strerror}.") from error
    failures: list[str] = []
    with one_sentence(WorkloadError, LoadError, PublishedError, CalibrationError):
        others = imported(options)
        entries = play(options, progress, failures.append)
    print_table(*table_of(entries, others))
    for remark in remarks(entries):
        click.echo(remark)
    click.echo(f"drawn: {shown(store(entries, others, options))}")
    for failure in failures:
        click.echo(f"crucible: {failure}", err=True)
    sys.exit(USAGE_ERROR if failures else exit_code(entries))


QUICK_S = 5.0
QUICK_WARMUP_S = 2.0


def _calibrate(seconds: float, out: Path | None) -> None:
    from bench.load.calibration import CalibrationError, Calibrations, calibrate, full
    from bench.load.command import OUT
    from crucible_kafka.terminal import one_sentence, print_table, progress, shown

    rows: list[tuple[str, ...]] = []
    calibrations = Calibrations(out or OUT, progress)
    with one_sentence(CalibrationError):
        for value_bytes in CALIBRATED_BYTES:
            batches = full(value_bytes)
            reached = calibrate(batches, seconds, progress)
            calibrations.add(batches, reached)
            rows.extend(
                (
                    f"{direction.work}, {value_bytes:,}-byte values",
                    f"{direction.records_per_s / 1e6:.2f} million/s",
                    f"{direction.megabytes_per_s:,.0f} MB/s",
                    f"{direction.cpu_us_per_record:.3f} us",
                )
                for direction in reached
            )
    print_table(("one worker against a sink", "records", "values", "processor time of a record"), rows)
    click.echo(f"stored: {shown(calibrations.path)}")


def _calibrate_beside(millions: int) -> None:
    from bench.load.beside_kafka import PAIRS, measure
    from bench.load.calibration import CalibrationError
    from bench.peers.node import PeerError
    from crucible_kafka.terminal import one_sentence, print_table, progress

    with one_sentence(CalibrationError, PeerError):
        costs = {cost.work: cost for cost in measure(millions, progress)}
    rows: list[tuple[str, ...]] = []
    for ours, theirs in PAIRS:
        own, other = costs[ours], costs[theirs]
        rows.extend(
            (cost.work, f"{cost.first_million_s:.2f} s", f"{cost.further_million_s:.2f} s") for cost in (own, other)
        )
        shares = (own.first_million_s / other.first_million_s, own.further_million_s / other.further_million_s)
        rows.append(("share", *(f"{share:.0%}" for share in shares)))
    heading = "processor time, 100-byte records, one broker of Kafka"
    print_table((heading, "the first million, with its start", "each million more"), rows)


def _measured(options: "Options") -> "Results":
    from bench.peers.kafka import kafka_classpath
    from bench.rows.compare import run as measure
    from crucible_kafka.terminal import progress

    if options.peer:
        kafka_classpath()  # What is missing is reported now, and not after minutes of measuring.
    return measure(progress, options)


def _settings(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    settings = dict(value.partition("=")[::2] for value in values)
    if "" in settings or any("=" not in value for value in values):
        raise click.BadParameter("a setting is KEY=VALUE")
    return settings


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible probe 127.0.0.1:9092"
    "\n  ./crucible probe HOST:PORT --section fetch"
    "\n  ./crucible probe kafka@4.3.1 --case fetch/session/wrong-epoch"
    "\n  ./crucible probe HOST:PORT --dry-run"
)
@click.argument("target", metavar="TARGET")
@click.option("--section", "sections", multiple=True, metavar="NAME", help="Play these cases only, such as fetch.")
@click.option("--case", "cases", multiple=True, metavar="ID", help="Play this case only, and show all of it.")
@click.option("--strict", is_flag=True, help="A SHOULD that differs fails, too.")
@click.option("--dry-run", is_flag=True, help="List the cases and play none.")
@click.option("--hostile", is_flag=True, help="Play hostile cases also against a target beyond loopback.")
@click.option("--oracle", metavar="TARGET", help="Play each case here, too, and print the first field that differs.")
@click.option(
    "--config",
    multiple=True,
    callback=_settings,
    metavar="KEY=VALUE",
    help="A setting of a target that is started, by Kafka's name.",
)
@click.option("--baseline", type=click.Path(path_type=Path), help="An older --json. Only what got worse fails.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all of it to this file.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@click.option("--page", type=click.Path(path_type=Path), help="Write an HTML page to this file.")
@GITHUB
def probe(
    target: str,
    sections: Sequence[str],
    cases: Sequence[str],
    strict: bool,
    dry_run: bool,
    hostile: bool,
    oracle: str | None,
    config: dict[str, str],
    baseline: Path | None,
    json_file: Path | None,
    junit: Path | None,
    page: Path | None,
    annotates: bool,
) -> None:
    """Check case by case whether a broker conforms to the Kafka protocol.

    TARGET is HOST:PORT, or a target file or its name (bench/targets), which is started with one node. The probe needs
    no rights beyond topics and groups of its own, which it deletes at its end. Exit code 1: a MUST failed.
    """
    from bench.peers.node import PeerError
    from bench.probe import probe_command
    from bench.probe.broker import NotKafka
    from bench.probe.cases import UnknownCase
    from bench.probe.comparison import NoBaseline
    from crucible_kafka.terminal import one_sentence

    options = probe_command.ProbeOptions(
        target, sections, cases, strict, dry_run, hostile, oracle, baseline, json_file, junit, page, annotates, config
    )
    with one_sentence(probe_command.UsageError, UnknownCase, NoBaseline, NotKafka, PeerError):
        sys.exit(probe_command.run(options, click.echo))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible worker --join 10.0.0.5:5557"
    "\n  ./crucible bench docs/workloads/100-partitions.yaml --target 10.0.0.9:9092 --expect-workers 2 "
    "--listen 0.0.0.0:5557"
)
@click.option("--join", callback=_address, required=True, metavar="HOST:PORT", help="Where the benchmark listens.")
@click.option("--once", is_flag=True, help="End after one run (default: wait for the next one, until Ctrl-C).")
def worker(join: tuple[str, int], once: bool) -> None:
    """Make a part of the load of a benchmark on another machine.

    The benchmark waits for its workers with --expect-workers, and sends them what to do. Results go back to it; nothing
    is stored here. Its brokers must be reachable from here by the addresses that they advertise.
    """
    from bench.load.worker import MasterGoneError, serve
    from crucible_kafka.terminal import one_sentence, progress

    with one_sentence(MasterGoneError):
        sys.exit(serve(join, once, progress))
