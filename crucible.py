"""Crucible's command line. Each command imports what it needs only when it runs, so that help is instant."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.options import Options
    from bench.results import Results

ROOT = Path(__file__).resolve().parent
SUITE_CRASHED = 4


class Stopped(KeyboardInterrupt):
    """Raised at Ctrl-C, SIGTERM or SIGHUP. Whoever has started something ends it on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _stop(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # Ending takes seconds; a second Ctrl-C must leave nothing behind.
    raise Stopped(number)


class Commands(click.Group):
    """Gives exit codes that scripts can trust: 1 is a broken guarantee and nothing else."""

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
                if signal.getsignal(each) is not signal.SIG_IGN:  # A stopped process stays deaf until it is gone.
                    signal.signal(each, handler)


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  ./crucible {line}" for line in lines)


def _tell_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"crucible {' '.join(filter(None, (_version(), _commit())))}")
        context.exit()


def _version() -> str:
    """Returns the version that the clone says, or that was installed."""
    if (ROOT / "pyproject.toml").exists():
        import tomllib

        return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    from importlib.metadata import version

    return version("crucible-kafka")


def _commit() -> str:
    """Returns the commit in brackets. It is empty outside a clone, and where there is no git."""
    if not (ROOT / ".git").exists():
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        told = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"({told.stdout.strip()})"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_tell_version, help="Version and commit."
)
def main() -> None:
    """Benchmarks, chaos tests and a reference broker for the Kafka protocol.

    Start with `./crucible demo`: three nodes, a fleet, faults, and a report to look at.
    """
    sys.path.insert(0, str(ROOT))
    # Processes that we start find the rooms wherever this was called from.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


@main.command(epilog=_examples("demo", "demo --out runs/mine --seed 7"))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: runs/demo-...).")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
def demo(out: Path | None, seed: int) -> None:
    """Shows the main job in small: a cluster, a fleet through Toxiproxy, faults, Spark, a report."""
    from playing import find_scenarios, play_live, worst

    sys.exit(worst(play_live([(each, "") for each in find_scenarios(["demo"], False)], "reference", out, seed)))


_ONLY = ("lint", "format", "contracts", "types", "tests", "pure", "live", "spark")


@main.command("test", epilog=_examples("test --fast", "test", "test --only tests -- reference_broker -k session"))
@click.option("--fast", is_flag=True, help="Run lint, format, contracts and quick tests: a minute and a half, no Java.")
@click.option(
    "--only", multiple=True, type=click.Choice(_ONLY), help="Run only these parts; tests are pure, live and spark."
)
@click.argument("pytest_words", nargs=-1)
def run_tests(fast: bool, only: Sequence[str], pytest_words: Sequence[str]) -> None:
    """Runs what CI runs. --fast leaves out what needs Java or starts processes. Words after -- go to pytest."""
    if fast and only:
        raise click.UsageError("give --fast or --only, not both")
    from playing import need_java
    from tools import checks

    names = checks.wanted(only, fast)
    if {"live", "spark"} & {*names}:
        need_java()
    sys.exit(checks.run(names, pytest_words))


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
@click.option(
    "--listen", metavar="HOST:PORT", help="Where all connect (port 0: a free one), unless --config listeners is given."
)
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of the node's files.")
@click.option("--node-id", type=click.IntRange(0), default=0, show_default=True, help="The node's ID in the cluster.")
@click.option("--advertise", metavar="HOST:PORT", help="The address that clients are told (default: that of --listen).")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus here.")
@_CONFIG
def broker(
    listen: str | None, data: Path, node_id: int, advertise: str | None, metrics: str | None, config: dict[str, str]
) -> None:
    """Runs one combined node. It prints one JSON line when it serves, and shuts down cleanly at SIGTERM."""
    if listen is None and "listeners" not in config:
        raise click.UsageError("Missing option '--listen': give it, or --config listeners=NAME://HOST:PORT,...")
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
    """Runs a local cluster of processes. It prints one JSON line when it is ready, and ends at Ctrl-C or SIGTERM."""
    from chaos.live.cluster import ClusterPlan, run_cluster

    sys.exit(run_cluster(ClusterPlan(data, nodes, port, config, toxiproxy, restart), click.echo))


def _processes(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[int, int]:
    found = {}
    for value in values:
        node, _separator, process = value.partition("=")
        if not (node.isdecimal() and process.isdecimal() and int(process) > 1):
            raise click.BadParameter(f"{value!r} is not NODE=PID")
        found[int(node)] = int(process)
    return found


@main.command(epilog=_examples("proxy --target 127.0.0.1:9092", "proxy --target HOST:PORT --rules lost.toml"))
@click.option("--target", required=True, metavar="HOST:PORT", help="A node of the cluster to stand in front of.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect.",
)
@click.option("--rules", type=click.Path(path_type=Path), help="A TOML file with [[fault]] tables, as in scenarios.")
@click.option(
    "--control", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where the HTTP interface is."
)
@click.option("--log", type=click.Path(path_type=Path), help="Write each request that passes here, as JSON lines.")
@click.option(
    "--process",
    multiple=True,
    callback=_processes,
    metavar="NODE=PID",
    help="Rules may kill or pause this process.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
def proxy(
    target: str, listen: str, rules: Path | None, control: str, log: Path | None, process: dict[int, int], seed: int
) -> None:
    """Stands in front of a cluster and strikes requests and answers by rules, while unmodified clients use it.

    It prints one JSON line with bootstrap_servers and the URL of its HTTP interface, and ends at Ctrl-C or SIGTERM.
    """
    from chaos.frame_proxy.command import Wish, run_proxy

    sys.exit(run_proxy(Wish(target, listen, rules, control, log, process, seed), click.echo))


_SCENARIOS = click.argument("scenarios", nargs=-1, metavar="SCENARIO...")
_ALL = click.option("--all", "everything", is_flag=True, help="Every scenario.")
_REVISION = click.option(
    "--revision",
    type=click.Choice(["final", "first"]),
    help="Revision of fetch sessions (default: each of a scenario's).",
)
_MUTANT = click.option("--mutant", help="Plant this defect. The scenario must turn red (exit code 1).")
_WITH_MUTANTS = click.option(
    "--with-mutants",
    is_flag=True,
    help="Play each scenario without a mutant and with each of its own; exit code 0 if all ends as it must.",
)


@main.command(epilog=_examples("run 1 2", "run 27 --mutant counted_session_ids", "run plain-load --target HOST:PORT"))
@_SCENARIOS
@_ALL
@_REVISION
@click.option(
    "--target", default="reference", show_default=True, metavar="reference|HOST:PORT", help="What is played against."
)
@_MUTANT
@_WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (or for all runs).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
def run(
    scenarios: Sequence[str],
    everything: bool,
    revision: str | None,
    target: str,
    mutant: str | None,
    with_mutants: bool,
    out: Path | None,
    seed: int,
) -> None:
    """Plays scenarios with real processes (Locust, Toxiproxy, signals). Then Spark judges.

    SCENARIO is a file, its stem, or the scenario's number.
    """
    from playing import as_they_must, find_scenarios, live_plays, play_live, worst

    _one_of(mutant, with_mutants)
    planted = None if with_mutants else mutant or ""
    plays = live_plays(find_scenarios(scenarios, everything), revision, planted, target, everything)
    verdicts = play_live(plays, target, out, seed)
    sys.exit(as_they_must(plays, verdicts) if with_mutants else worst(verdicts))


def _one_of(mutant: str | None, with_mutants: bool) -> None:
    if mutant and with_mutants:
        raise click.UsageError("give --mutant or --with-mutants, not both")


@main.command(epilog=_examples("compare fetch-revisions", "compare mirror --seed 7 --out runs/compared"))
@click.argument("scenario")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the runs and the page (default: in runs/).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
def compare(scenario: str, out: Path | None, seed: int) -> None:
    """Plays a scenario in both revisions of fetch sessions and with full fetches, and lays the runs side by side.

    The runs have the same load, faults and seed. They are played one after the other with real processes, and judged. A
    scenario with a mirror is played with metadata epochs and without them instead.
    """
    from playing import command_line, find_scenarios, need_java, one_sentence, progress, run_folder, shown, tell, worst

    need_java()
    from chaos.live.comparison import compare as play_all
    from chaos.live.errors import SetupError
    from reports.comparison import compare_runs
    from reports.errors import SetupError as NoSpark

    (found,) = find_scenarios([scenario], False)
    with one_sentence(SetupError):
        folder = run_folder(out, f"compare-{found.name}", False)
        played = play_all(found, folder, seed=seed, command=command_line(), progress=progress)
    with one_sentence(NoSpark):
        compared = compare_runs([run for _, run in played], folder, progress=progress)
    tell(compared.verdicts)
    click.echo(f"comparison: {shown(compared.page)}")
    sys.exit(worst(compared.verdicts))


@main.command(epilog=_examples("fleet plain-load --web", "fleet plain-load --clients 1000 --workers 3 --shape step"))
@click.argument("scenario", default="plain-load")
@click.option(
    "--target", default="reference", show_default=True, metavar="reference|HOST:PORT", help="What is played against."
)
@click.option("--web", is_flag=True, help="Locust's web page starts and stops the load, until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), default=8089, show_default=True, help="The page's port.")
@click.option("--clients", type=click.IntRange(1), help="How many fetchers (default: the scenario's).")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Locust's processes.")
@click.option("--seconds", type=click.IntRange(1), help="How long (default: the scenario's).")
@click.option(
    "--shape", type=click.Choice(["step", "spike", "soak"]), help="How clients join the load (default: all at once)."
)
@click.option(
    "--revision",
    type=click.Choice(["final", "first", "none"]),
    default="final",
    show_default=True,
    help="The fetch sessions of the fetchers, or none.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the run (default: in runs/).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every random choice.")
def fleet(
    scenario: str,
    target: str,
    web: bool,
    port: int,
    clients: int | None,
    workers: int,
    seconds: int | None,
    shape: str | None,
    revision: str,
    out: Path | None,
    seed: int,
) -> None:
    """Runs a scenario's load alone, without its faults, straight to the brokers. It is judged at its end.

    The run is INVALID if the fleet, and not the broker, was what limited it.
    """
    from playing import command_line, find_scenarios, judge, need_java, one_sentence, progress, run_folder, worst

    need_java()
    from chaos.live.errors import NodeDied, SetupError
    from chaos.live.load.load_alone import LoadPlan, drive
    from scenarios.revisions import in_revision

    (found,) = find_scenarios([scenario], False)
    spoken = in_revision(found, revision)
    plan = LoadPlan(
        run_folder(out, f"fleet-{spoken.name}", False),
        target,
        seed,
        seconds or 0,
        clients or 0,
        workers,
        shape or "",
        port if web else 0,
    )
    with one_sentence(SetupError, NodeDied):
        folder = drive(spoken, plan, command_line(), progress)
    sys.exit(worst(judge([folder.path])))


@main.command(epilog=_examples("sim 1 --seeds 1000", "sim 6 --seed 42", "sim --all --seeds 200 --with-mutants"))
@_SCENARIOS
@_ALL
@_REVISION
@click.option("--seeds", type=click.IntRange(1), help="How many seeds (default 100, or the one given with --seed).")
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The first seed. Without --seeds only this one is played, and its trace hash told.",
)
@_MUTANT
@_WITH_MUTANTS
@click.option("--out", type=click.Path(path_type=Path), help="Folder for a single seed's run, which Spark can judge.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="How many seeds at once.")
@click.option("--profile", is_flag=True, help="Tell where the time went, by part and by kind of event. Needs --seeds.")
def sim(
    scenarios: Sequence[str],
    everything: bool,
    revision: str | None,
    seeds: int | None,
    seed: int | None,
    mutant: str | None,
    with_mutants: bool,
    out: Path | None,
    processes: int,
    profile: bool,
) -> None:
    """Plays scenarios in the simulator: one process, virtual time. A seed always gives the same trace."""
    _one_of(mutant, with_mutants)
    if out is not None and (with_mutants or seed is None or seeds not in (None, 1)):
        raise click.UsageError("--out writes a single seed's run: give --seed, without --seeds or --with-mutants")
    if profile and (with_mutants or seeds in (None, 1)):
        raise click.UsageError("--profile measures a search: give --seeds, at least 2, and no --with-mutants")
    from chaos.search.run_sim import simulate
    from playing import find_scenarios
    from scenarios.revisions import marked, revision_of

    names = [marked(each.path, revision_of(each)) for each in find_scenarios(scenarios, everything)]
    sys.exit(simulate(names, seeds, seed, mutant, processes, out, with_mutants, revision or "", profile))


@main.command(epilog=_examples("report runs/demo-20260101-120000", "report RUN_DIR --baseline OTHER_RUN_DIR"))
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR...")
@click.option("--out", type=click.Path(path_type=Path), help="Where the report goes (default: RUN_DIR/report).")
@click.option("--baseline", type=click.Path(path_type=Path), help="A run to compare with.")
def report(run_dirs: Sequence[Path], out: Path | None, baseline: Path | None) -> None:
    """Lets Spark judge and draw runs, also old ones again."""
    from playing import judge, need_java, worst

    need_java()
    sys.exit(worst(judge(run_dirs, out, baseline)))


@main.command(epilog=_examples("prune", "prune --keep 5", "prune --keep 0 --red"))
@click.option("--keep", type=click.IntRange(0), default=20, show_default=True, help="So many of the newest runs stay.")
@click.option("--red", is_flag=True, help="Count and delete also runs that are red, INVALID or crashed.")
def prune(keep: int, red: bool) -> None:
    """Deletes old runs in runs/ that passed, or whose mutant was caught.

    Folders that --out named, and runs that were not judged, stay.
    """
    import playing

    playing.prune(keep, red)


@main.command(epilog=_examples("bench", "bench --peer kafka", "bench --peer kafka --row fetch", "bench --row failover"))
@click.option("--peer", type=click.Choice(["kafka"]), help="Measure this broker, too. It takes turns with ours.")
@click.option("--row", "rows", multiple=True, metavar="NAME", help="Measure only this row (a file in bench/rows).")
@click.option("--nodes", type=click.Choice(["1", "3"]), multiple=True, help="Measure only clusters of this size.")
@click.option(
    "--quick", is_flag=True, help="Measure little of everything, to see that it works. No figure is worth quoting."
)
def bench(peer: str | None, rows: Sequence[str], nodes: Sequence[str], quick: bool) -> None:
    """Measures one node and three, alone or beside a peer, and writes a page that shows the figures."""
    from rich.console import Console
    from rich.table import Table

    from bench.options import NODES, QUICK, Options, Sizes
    from bench.peers.errors import PeerError
    from bench.report import write
    from bench.results import table
    from playing import USAGE_ERROR, one_sentence, shown

    with one_sentence(ValueError):
        wanted = Options(peer, tuple(rows), tuple(map(int, nodes)) or NODES, QUICK if quick else Sizes())
    with one_sentence(PeerError):
        results = _measured(wanted)
    drawn = Table("work", "reference", peer or "", "ratio" if peer else "", "goal")
    for cells in table(results.rows):
        drawn.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(drawn)
    stored = results.store()
    click.echo(f"stored: {shown(stored)}, drawn: {shown(write(results, stored))}")
    for row, why in results.missing.items():
        click.echo(f"crucible: {row} could not be measured: {why}", err=True)
    sys.exit(USAGE_ERROR if results.missing else 0)


def _measured(wanted: "Options") -> "Results":
    from bench.compare import run as measure
    from bench.peers.jars import kafka_classpath
    from playing import progress

    if wanted.peer:
        kafka_classpath()  # Whatever is missing is told now, and not after minutes of measuring.
    return measure(progress, wanted)


@main.command(epilog=_examples("probe 127.0.0.1:9092", "probe HOST:PORT --section fetch", "probe HOST:PORT --dry-run"))
@click.argument("target", metavar="HOST:PORT")
@click.option("--section", "sections", multiple=True, metavar="NAME", help="Play these cases only, such as fetch.")
@click.option("--case", "cases", multiple=True, metavar="ID", help="Play this case only, and show all of it.")
@click.option("--strict", is_flag=True, help="A SHOULD that differs fails, too.")
@click.option("--dry-run", is_flag=True, help="List the cases and play none.")
@click.option("--hostile", is_flag=True, help="Play hostile cases also against a target beyond loopback.")
@click.option("--oracle", metavar="HOST:PORT", help="Play each case here, too, and tell the first field that differs.")
@click.option("--baseline", type=click.Path(path_type=Path), help="An older --json. Only what got worse fails.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all of it to this file.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@click.option("--page", type=click.Path(path_type=Path), help="Write an HTML page to this file.")
def probe(
    target: str,
    sections: Sequence[str],
    cases: Sequence[str],
    strict: bool,
    dry_run: bool,
    hostile: bool,
    oracle: str | None,
    baseline: Path | None,
    json_file: Path | None,
    junit: Path | None,
    page: Path | None,
) -> None:
    """Asks any broker of the Kafka protocol whether it keeps to it, case by case.

    It needs no rights beyond topics and groups of its own, which it deletes at its end. Exit code 1: a MUST failed.
    """
    from bench.probe import command
    from bench.probe.baseline import NoBaseline
    from bench.probe.broker import NotKafka
    from bench.probe.registry import UnknownCase
    from playing import one_sentence

    wanted = command.Wanted(target, sections, cases, strict, dry_run, hostile, oracle, baseline, json_file, junit, page)
    with one_sentence(command.UsageError, UnknownCase, NoBaseline, NotKafka):
        sys.exit(command.run(wanted, click.echo))


@main.command(epilog=_examples("mutants", "sim --all --with-mutants --seeds 200 --seed 1000"))
def mutants() -> None:
    """Lists the mutants, one line each: its name, the clauses that it lacks, the numbers of the scenarios that must
    catch it. Then it says by which guarantees, in which world and after how many seeds each was last caught, or why
    real processes cannot show it.

    Every command with --with-mutants remembers what it saw, in runs/mutants.jsonl.
    """
    from chaos.mutants import live_worlds
    from chaos.mutants.catches import last
    from chaos.mutants.registry import by_name, table

    caught = last()
    for name, numbers in table():
        lacking = ", ".join(by_name(name).clauses) or "no clause"
        click.echo(f"{name} | {lacking} | scenarios {' '.join(numbers)}")
        simulated = caught.get((name, "sim"))
        if simulated is not None:
            click.echo(f"        {simulated}")
        click.echo(f"        {live_worlds.told(name, caught.get((name, 'live')))}")


@main.command(epilog=_examples("clauses", "clauses --tests"))
@click.option("--tests", "show_tests", is_flag=True, help="Show the name of every test, too.")
def clauses(show_tests: bool) -> None:
    """Lists the clauses, one line each: status, the code that names it, how many tests prove it, the scenarios that
    exercise it, the mutants that lack it. Then lists the behaviours that Kafka's own tests assert: status, and how many
    of our tests show it.

    Exits with 1 if a clause has no test or no mutant, and is not listed as open."""
    from scenarios.clauses import all_clauses
    from scenarios.conformance import all_behaviours

    found = all_clauses()
    for each in found:
        proof = _tests(len(each.tests)) if each.tests else "no test"
        used = f" | scenarios {', '.join(each.scenarios)}" if each.scenarios else ""
        lacking = f" | open: {each.open}" if each.open else f" | mutants {', '.join(each.mutants) or 'none'}"
        code = ", ".join(each.code) or "no code"
        click.echo(f"{each.id:5} {each.status:9} {each.text} | {code} | {proof}{used}{lacking}")
        _list_tests(each.tests, show_tests)
    for behaviour in all_behaviours():
        proof = "" if behaviour.unlike else f" | {_tests(len(behaviour.tests))}"
        click.echo(f"{behaviour.id} {behaviour.status}: {behaviour.text}{proof}")
        _list_tests(behaviour.tests, show_tests)
    faults = [each.fault for each in found if each.fault]
    for fault in faults:
        click.echo(f"crucible: {fault}", err=True)
    sys.exit(1 if faults else 0)


def _tests(count: int) -> str:
    return f"{count} test{'s' * (count != 1)}"


def _list_tests(tests: tuple[str, ...], shown: bool) -> None:
    for test in tests if shown else ():
        click.echo(f"        {test}")


if __name__ == "__main__":
    main()
