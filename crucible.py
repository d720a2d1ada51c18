"""Crucible's command line: parses and dispatches; each command imports what it needs, so that help is instant."""

import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.results import Results
    from reports.verdict import Verdict
    from scenarios.model import Scenario

ROOT = Path(__file__).resolve().parent
USAGE_ERROR = 2
SUITE_CRASHED = 4
CHILD_ENDS_WITHIN_S = 30


class Stopped(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP: whoever has started something ends it on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _stop(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # Ending takes seconds; a second Ctrl-C must leave nothing behind.
    raise Stopped(number)


class Commands(click.Group):
    """Exit codes that scripts can trust: 1 is a broken guarantee and nothing else."""

    def invoke(self, ctx: click.Context) -> Any:
        heard = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            heard.remove(signal.SIGHUP)  # Under nohup.
        before = {each: signal.signal(each, _stop) for each in heard}
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
            click.echo(f"crucible: stopped by {signal.Signals(number).name}", err=True)
            ctx.exit(128 + number)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (nobody reads any more)
            ctx.exit(128 + signal.SIGPIPE)
        except Exception as error:
            traceback.print_exc()
            click.echo(f"crucible: crashed: {type(error).__name__}: {error}", err=True)
            ctx.exit(SUITE_CRASHED)
        finally:
            for each, handler in before.items():
                if signal.getsignal(each) is not signal.SIG_IGN:  # Stopped: deaf until the process is gone.
                    signal.signal(each, handler)


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  ./crucible {line}" for line in lines)


@contextmanager
def _one_sentence(*errors: type[BaseException]) -> Iterator[None]:
    """Turns errors that a person can put right into one sentence and exit code 2."""
    try:
        yield
    except errors as error:
        click.echo(f"crucible: {error}", err=True)
        sys.exit(USAGE_ERROR)


def _progress(line: str) -> None:
    click.echo(f"  {line}", err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="crucible-kafka", prog_name="crucible")
def main() -> None:
    """Benchmarks, chaos tests and a reference broker for the Kafka protocol.

    Start with `./crucible demo`: a broker, a fleet, faults, and a report to look at.
    """
    sys.path.insert(0, str(ROOT))
    # Processes that we start find the rooms wherever this was called from.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


@main.command(epilog=_examples("demo", "demo --out runs/mine --seed 7"))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: runs/demo-...).")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
def demo(out: Path | None, seed: int) -> None:
    """The main job, small: node, fleet through Toxiproxy, faults, Spark, report."""
    sys.exit(_worst(_play_live([(each, "") for each in _found(["demo"], False)], "reference", out, seed)))


CHECKS: dict[str, tuple[str, list[str]]] = {
    "lint": ("style", [sys.executable, "-m", "ruff", "check", "."]),
    "contracts": ("imports between rooms", [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]),
    "types": ("types", [sys.executable, "-m", "mypy"]),
    "tests": ("tests, simulated and live scenarios", [sys.executable, "-m", "pytest", "--benchmark-disable", "-q"]),
}


@main.command("test", epilog=_examples("test", "test --only tests -- reference_broker -k session"))
@click.option("--only", multiple=True, type=click.Choice(list(CHECKS)), help="Run only these parts.")
@click.argument("pytest_words", nargs=-1)
def run_tests(only: Sequence[str], pytest_words: Sequence[str]) -> None:
    """Everything that CI runs. Words after -- go to pytest."""
    _need_java()
    failed = []
    for name, (what, command) in CHECKS.items():
        if only and name not in only:
            continue
        click.echo(f"== {what}", err=True)
        words = list(pytest_words) if name == "tests" else []
        if _status_of([*command, *words]) != 0:
            failed.append(name)
    if failed:
        click.echo(f"crucible: failed: {', '.join(failed)}", err=True)
    sys.exit(1 if failed else 0)


def _status_of(command: Sequence[str]) -> int:
    """Of a check; if we are stopped it is told, and has time to end what it has started."""
    with subprocess.Popen(command, cwd=ROOT) as child:
        try:
            return child.wait()
        except Stopped as stop:
            if stop.number != signal.SIGINT:  # Ctrl-C reaches the whole group anyway.
                child.send_signal(signal.SIGINT)
            try:
                child.wait(CHILD_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
            raise


def _pairs(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, separator, setting = value.partition("=")
        if not separator:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        pairs[key] = setting
    return pairs


_CONFIG = click.option("--config", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="Kafka's own settings.")


@main.command(epilog=_examples("broker --listen 127.0.0.1:9092 --data data --config num.partitions=8"))
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where clients connect; port 0 picks a free one.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of the node's files.")
@click.option("--node-id", type=click.IntRange(0), default=0, show_default=True)
@click.option("--advertise", metavar="HOST:PORT", help="What clients are told (default: the listen address).")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus here.")
@_CONFIG
def broker(
    listen: str, data: Path, node_id: int, advertise: str | None, metrics: str | None, config: dict[str, str]
) -> None:
    """One combined node. Prints one JSON line when it serves; SIGTERM is a clean shutdown."""
    from reference_broker.serve.main import run_broker

    sys.exit(run_broker(listen, data, node_id, config, advertised=advertise, metrics_listen=metrics))


@main.command(epilog=_examples("cluster --nodes 3 --data data", "cluster --nodes 3 --data data --toxiproxy --restart"))
@click.option("--nodes", type=int, default=1, show_default=True, help="How many combined nodes: 1, 3 or 5.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of the nodes' files.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="First client port (default: free ones).")
@click.option("--toxiproxy", is_flag=True, help="One proxy on every directed link.")
@click.option("--restart", is_flag=True, help="Start a dead node again after 2 s.")
@_CONFIG
def cluster(nodes: int, data: Path, port: int, toxiproxy: bool, restart: bool, config: dict[str, str]) -> None:
    """A local cluster of processes; prints one JSON line when ready, Ctrl-C or SIGTERM ends all."""
    from chaos.live.cluster import ClusterPlan, run_cluster

    sys.exit(run_cluster(ClusterPlan(data, nodes, port, config, toxiproxy, restart), click.echo))


_SCENARIOS = click.argument("scenarios", nargs=-1, metavar="SCENARIO...")
_ALL = click.option("--all", "everything", is_flag=True, help="Every scenario.")
_MUTANT = click.option("--mutant", help="Plant this defect first; the scenario must turn red (exit code 1).")
_WITH_MUTANTS = click.option(
    "--with-mutants", is_flag=True, help="The control and every mutant of each scenario; 0 if all are as they must."
)


@main.command(epilog=_examples("run 1 2", "run 27 --mutant counted_session_ids", "run plain-load --target HOST:PORT"))
@_SCENARIOS
@_ALL
@click.option("--target", default="reference", show_default=True, metavar="reference|HOST:PORT")
@_MUTANT
@_WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (or for all runs).")
@click.option("--seed", type=int, default=1, show_default=True)
def run(
    scenarios: Sequence[str], everything: bool, target: str, mutant: str | None, with_mutants: bool,
    out: Path | None, seed: int,
) -> None:  # fmt: skip
    """Scenarios with real processes: Locust, Toxiproxy, signals; then Spark judges.

    SCENARIO is a file, its stem, or the scenario's number.
    """
    _one_of(mutant, with_mutants)
    plays = [
        (scenario, planted)
        for scenario in _found(scenarios, everything)
        if not (everything and scenario.swarm)  # Drawn from seeds: only the simulator plays those.
        for planted in (("", *scenario.mutants) if with_mutants else (mutant or "",))
    ]
    verdicts = _play_live(plays, target, out, seed)
    sys.exit(_as_they_must(plays, verdicts) if with_mutants else _worst(verdicts))


def _one_of(mutant: str | None, with_mutants: bool) -> None:
    if mutant and with_mutants:
        raise click.UsageError("give --mutant or --with-mutants, not both")


def _found(names: Sequence[str], everything: bool) -> "list[Scenario]":
    from scenarios import loader

    with _one_sentence(loader.ScenarioError):
        if everything and names:
            raise loader.ScenarioError("name scenarios or give --all, not both")
        if everything:
            return list(loader.load_all())
        if not names:
            raise loader.ScenarioError("name a scenario (a file, its stem or its number), or give --all")
        return [loader.find(name) for name in names]


def _play_live(plays: "Sequence[tuple[Scenario, str]]", target: str, out: Path | None, seed: int) -> "list[Verdict]":
    """Plays one after the other, then judges all in one Spark session; one line a verdict."""
    _need_java()
    from chaos.live.errors import SetupError
    from chaos.live.runner import check_playable, play

    folders: list[Path] = []
    with _one_sentence(SetupError):
        for scenario, mutant in plays:
            check_playable(scenario, target, mutant)
        for number, (scenario, mutant) in enumerate(plays):
            name = f"{scenario.name}{'-' + mutant if mutant else ''}"
            folder = _run_folder(out, name, len(plays) > 1)
            planted = f" (mutant {mutant})" if mutant else ""
            click.echo(f"[{number + 1}/{len(plays)}] {scenario.title}{planted}", err=True)
            play(scenario, folder, seed=seed, target=target, mutant=mutant, command=_command(), progress=_progress)
            folders.append(folder)
    return _judge(folders)


def _run_folder(out: Path | None, name: str, several: bool) -> Path:
    if out is None:
        return ROOT / "runs" / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    return out / name if several else out


def _command() -> str:
    return " ".join(["./crucible", *sys.argv[1:]])


def _judge(folders: Sequence[Path], out: Path | None = None, baseline: Path | None = None) -> "list[Verdict]":
    from reports.errors import SetupError
    from reports.judge import judge_many
    from reports.manifest import ManifestError

    with _one_sentence(SetupError, ManifestError):
        verdicts = judge_many(folders, out=out, baseline=baseline, progress=_progress)
    for verdict in verdicts:
        click.echo(f"{verdict.outcome.name}: {verdict.summary}")
        if verdict.report is not None:
            click.echo(f"  report: {_shown(verdict.report)}")
        if verdict.exit_code:
            click.echo(f"  repeat with: {verdict.repeat_command}")
    return verdicts


def _shown(path: Path) -> Path:
    """Relative to where one is, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _worst(verdicts: "Sequence[Verdict]") -> int:
    from reports.verdict import worst_exit_code

    return worst_exit_code(verdicts)


def _as_they_must(plays: "Sequence[tuple[Scenario, str]]", verdicts: "Sequence[Verdict]") -> int:
    """Controls pass, mutants break a guarantee."""
    wrong = [
        f"{scenario.name}{' with ' + mutant if mutant else ''}: {verdict.outcome.name}"
        for (scenario, mutant), verdict in zip(plays, verdicts, strict=True)
        if verdict.exit_code != (1 if mutant else 0)
    ]
    click.echo(f"not as it must be: {'; '.join(wrong)}" if wrong else "every control passed, every mutant was caught")
    return 1 if wrong else 0


@main.command(epilog=_examples("sim 1 --seeds 1000", "sim 6 --seed 42", "sim --all --seeds 200 --with-mutants"))
@_SCENARIOS
@_ALL
@click.option("--seeds", type=click.IntRange(1), help="How many seeds (default 100, or the one given with --seed).")
@click.option("--seed", type=click.IntRange(0), help="The first seed; alone: just this one, with its trace hash.")
@_MUTANT
@_WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Write a single seed's run here, for Spark.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def sim(
    scenarios: Sequence[str], everything: bool, seeds: int | None, seed: int | None, mutant: str | None,
    with_mutants: bool, out: Path | None, processes: int,
) -> None:  # fmt: skip
    """The same scenarios in the simulator: one process, virtual time, one seed, one trace."""
    _one_of(mutant, with_mutants)
    if out is not None and (with_mutants or seed is None or seeds not in (None, 1)):
        raise click.UsageError("--out writes a single seed's run: give --seed, without --seeds or --with-mutants")
    names = [scenario.path for scenario in _found(scenarios, everything)]
    from chaos.search.run_sim import simulate

    sys.exit(simulate(names, seeds, seed, mutant, processes=processes, out=out, with_mutants=with_mutants))


@main.command(epilog=_examples("report runs/demo-20260101-120000", "report RUN_DIR --baseline OTHER_RUN_DIR"))
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR...")
@click.option("--out", type=click.Path(path_type=Path), help="Where the report goes (default: RUN_DIR/report).")
@click.option("--baseline", type=click.Path(path_type=Path), help="A run to compare with.")
def report(run_dirs: Sequence[Path], out: Path | None, baseline: Path | None) -> None:
    """Spark judges and draws; can be repeated on old runs."""
    _need_java()
    sys.exit(_worst(_judge(run_dirs, out, baseline)))


@main.command(epilog=_examples("bench", "bench --peer kafka", "bench --failover", "bench --metadata"))
@click.option("--peer", type=click.Choice(["kafka"]), help="Measure this broker beside ours, in alternation.")
@click.option("--failover", is_flag=True, help="Instead: how long three nodes are without a controller.")
@click.option("--metadata", is_flag=True, help="Instead: large topics, snapshots, and starting from them.")
def bench(peer: str | None, failover: bool, metadata: bool) -> None:
    """The figures of a whole node: fetch ladder, start, memory; beside a peer also produce."""
    if sum((peer is not None, failover, metadata)) > 1:
        raise click.UsageError("give one of --peer, --failover and --metadata")
    from rich.console import Console
    from rich.table import Table

    from bench.peers.errors import PeerError
    from bench.results import table

    with _one_sentence(PeerError):
        results = _measured(peer, failover, metadata)
    drawn = Table("work", "reference", peer or "", "ratio" if peer else "", "goal")
    for cells in table(results.rows):
        drawn.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(drawn)
    click.echo(f"stored: {_shown(results.store())}")


def _measured(peer: str | None, failover: bool, metadata: bool) -> "Results":
    if failover:
        from bench.failover import run as measure_failover

        return measure_failover(_progress)
    if metadata:
        from bench.metadata import run as measure_metadata

        return measure_metadata(_progress)
    from bench.compare import run as measure
    from bench.peers.jars import kafka_classpath

    if peer:
        kafka_classpath()  # What is missing is told now, not after minutes of measuring.
    return measure(peer, _progress)


@main.command()
def mutants() -> None:
    """One line a mutant: name, then the numbers of the scenarios that catch it."""
    from chaos.mutants.registry import table

    for name, numbers in table():
        click.echo(f"{name} {' '.join(numbers)}")


@main.command(epilog=_examples("clauses", "clauses --tests"))
@click.option("--tests", "show_tests", is_flag=True, help="Also the name of every test.")
def clauses(show_tests: bool) -> None:
    """One line a clause: status, code that names it, how many tests prove it, scenarios that exercise it."""
    from scenarios.clauses import all_clauses

    for each in all_clauses():
        proof = f"{len(each.tests)} tests" if each.tests else "no test"
        used = f" | scenarios {', '.join(each.scenarios)}" if each.scenarios else ""
        click.echo(f"{each.id:5} {each.status:20} {each.text} | {', '.join(each.code) or 'no code'} | {proof}{used}")
        if show_tests:
            for test in each.tests:
                click.echo(f"        {test}")


def _need_java() -> None:
    if shutil.which("java") is None:
        click.echo(
            "crucible: Spark needs a Java runtime, 17 or newer; install one "
            "(Debian: apt-get install openjdk-17-jre-headless) and try again.", err=True,
        )  # fmt: skip
        sys.exit(USAGE_ERROR)


if __name__ == "__main__":
    main()
