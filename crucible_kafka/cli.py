"""Entry point: the commands, their exit codes, and starting nodes.

The commands are in ``commands/``, except those that start nodes, which are here. Each command imports what it needs
only when it runs, so that help is instant.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from crucible_kafka import installed

ROOT = Path(__file__).resolve().parents[1]
SUITE_CRASHED = 4
STOP_AGAIN_S = 0.05
COLLECTED = {
    "bench": "crucible_kafka.commands.bench",
    "clauses": "crucible_kafka.commands.scenarios",
    "client": "crucible_kafka.commands.client",
    "compare": "crucible_kafka.commands.compare",
    "completion": "crucible_kafka.commands.tools",
    "demo": "crucible_kafka.commands.runs",
    "differ": "crucible_kafka.commands.sim",
    "doctor": "crucible_kafka.commands.tools",
    "evidence": "crucible_kafka.commands.campaigns",
    "export": "crucible_kafka.commands.reports",
    "fleet": "crucible_kafka.commands.runs",
    "index": "crucible_kafka.commands.campaigns",
    "judge": "crucible_kafka.commands.reports",
    "mutants": "crucible_kafka.commands.chaos",
    "nightly": "crucible_kafka.commands.campaigns",
    "points": "crucible_kafka.commands.scenarios",
    "power-losses": "crucible_kafka.commands.sim",
    "probe": "crucible_kafka.commands.bench",
    "proxy": "crucible_kafka.commands.chaos",
    "report": "crucible_kafka.commands.reports",
    "run": "crucible_kafka.commands.runs",
    "runs": "crucible_kafka.commands.chaos",
    "sim": "crucible_kafka.commands.sim",
    "test": "crucible_kafka.commands.tools",
    "upgrade-path": "crucible_kafka.commands.campaigns",
    "worker": "crucible_kafka.commands.bench",
}
"""The module of each command. The command has the same name there, with an underscore for a hyphen."""

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # The rooms are found wherever this was called from.


class Stopped(KeyboardInterrupt):
    """Raised at Ctrl-C, SIGTERM or SIGHUP. Code that has started processes ends them on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _stop(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # Ending takes seconds; a second Ctrl-C must leave nothing behind.
    raise Stopped(number)


def _stop_later(lost: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised while a process forks, or in a destructor. A stop is raised once more then."""
    stop = lost.exc_value
    if not isinstance(stop, Stopped):
        sys.__unraisablehook__(lost)
        return
    number = stop.number
    signal.signal(signal.SIGALRM, lambda _number, frame: _stop(number, frame))
    signal.setitimer(signal.ITIMER_REAL, STOP_AGAIN_S)


def _stop_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the stop on whose way out this error came up. What could not be tidied up then is no crash."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, KeyboardInterrupt):
        at = at.__context__
    return at


def _exit_stopped(ctx: click.Context, stop: KeyboardInterrupt) -> NoReturn:
    number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
    click.echo(f"crucible: stopped by {signal.Signals(number).name}", err=True)
    ctx.exit(128 + number)


class Commands(click.Group):
    """Gives exit codes that scripts can trust: 1 is a broken guarantee and nothing else.

    A command is imported when it is called, and all are for `--help`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COLLECTED])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command. In an installed wheel it may be one that refuses."""
        command = super().get_command(ctx, cmd_name)
        if cmd_name in COLLECTED:
            command = getattr(import_module(COLLECTED[cmd_name]), cmd_name.replace("-", "_"))
        if command is None or _is_clone():
            return command
        return installed.adapt_help(command) if cmd_name in installed.COMMANDS else installed.CloneCommand(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands. In an installed wheel those that need a clone have a list of their own."""
        if _is_clone():
            super().format_commands(ctx, formatter)
            return
        names = self.list_commands(ctx)
        commands = {name: command for name in names if (command := self.get_command(ctx, name)) is not None}
        limit = formatter.width - 6 - max(map(len, commands))
        for heading, is_here in (("Commands", True), ("Commands of a clone (not installed)", False)):
            rows = [
                (name, command.get_short_help_str(limit))
                for name, command in commands.items()
                if (name in installed.COMMANDS) == is_here
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            handled.remove(signal.SIGHUP)  # Under nohup.
        before = {number: signal.signal(number, _stop) for number in handled}
        unraisable, sys.unraisablehook = sys.unraisablehook, _stop_later
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _exit_stopped(ctx, stop)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (nobody reads any more)
            ctx.exit(128 + signal.SIGPIPE)
        except Exception as error:
            if (before_it := _stop_behind(error)) is not None:
                _exit_stopped(ctx, before_it)
            traceback.print_exc()
            click.echo(f"crucible: crashed: {type(error).__name__}: {error}", err=True)
            ctx.exit(SUITE_CRASHED)
        finally:
            sys.unraisablehook = unraisable
            for number, handler in before.items():
                if signal.getsignal(number) is not signal.SIG_IGN:  # A stopped process stays deaf until it is gone.
                    signal.signal(number, handler)


def _print_version(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        click.echo(f"crucible {' '.join(filter(None, (_version(), _commit())))}")
        context.exit()


def _is_clone() -> bool:
    return (ROOT / "pyproject.toml").exists()


def _version() -> str:
    """Return the version that the clone says, or that was installed."""
    if _is_clone():
        import tomllib

        return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    from importlib.metadata import version

    return version("crucible-kafka")


def _commit() -> str:
    """Return the commit in brackets. It is empty outside a clone, and where there is no git."""
    if not (ROOT / ".git").exists():
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        output = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"({output.stdout.strip()})"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Version and commit."
)
def main() -> None:
    """Benchmarks, chaos tests and a reference broker for the Kafka protocol.

    Start with `./crucible demo`: three nodes, a fleet, faults, and a report to look at.
    """
    if not _is_clone():
        installed.enter_rooms()
        return
    # Processes that we start find the rooms wherever this was called from.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _pairs(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, separator, setting = value.partition("=")
        if not separator:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        pairs[key] = setting
    return pairs


_CONFIG = click.option("--config", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="Kafka's own settings.")


@main.command(epilog="\b\nExamples:\n  ./crucible broker --listen 127.0.0.1:9092 --data data --config num.partitions=8")
@click.option(
    "--listen", metavar="HOST:PORT", help="Where all connect (port 0: a free one), unless --config listeners is given."
)
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of the node's files.")
@click.option("--node-id", type=click.IntRange(0), default=0, show_default=True, help="The node's ID in the cluster.")
@click.option("--advertise", metavar="HOST:PORT", help="The address in Metadata responses (default: that of --listen).")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus here.")
@_CONFIG
def broker(
    listen: str | None, data: Path, node_id: int, advertise: str | None, metrics: str | None, config: dict[str, str]
) -> None:
    """Run one combined node. It prints one JSON line when it serves, and shuts down cleanly at SIGTERM."""
    if listen is None and "listeners" not in config:
        raise click.UsageError("Missing option '--listen': give it, or --config listeners=NAME://HOST:PORT,...")
    from reference_broker.serve.main import run_broker

    sys.exit(run_broker(listen, data, node_id, config, advertised=advertise, metrics_listen=metrics))


@main.command(
    epilog="\b\nExamples:"
    "\n  ./crucible serve"
    "\n  ./crucible serve --nodes 3 --config num.partitions=6"
    "\n  ./crucible serve --stay > ready.json &"
)
@click.option("--nodes", type=int, default=1, show_default=True, help="How many nodes: 1, 3 or 5.")
@_CONFIG
@click.option(
    "--control", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where the control API is."
)
@click.option("--stay", is_flag=True, help="Go on when the process that started it ends (for a step of CI).")
def serve(nodes: int, config: dict[str, str], control: str, stay: bool) -> None:
    """Run a cluster for the tests of any language, with an HTTP interface for faults, verbs and observation.

    It prints one JSON line with bootstrap_servers, the URL of the control API, and the token that each of its requests
    needs (docs/control-api.md). It ends at Ctrl-C or SIGTERM, or when its parent or its standard input (a pipe) ends.
    Its data is deleted then.
    """
    from crucible_kafka.control.serve_command import ServeOptions, run_serve

    sys.exit(run_serve(ServeOptions(nodes, config, control, stay)))


@main.group(
    invoke_without_command=True,
    epilog="\b\nExamples:"
    "\n  ./crucible cluster --nodes 3 --data data"
    "\n  ./crucible cluster --nodes 3 --data data --toxiproxy --restart"
    "\n  ./crucible cluster --data data kill leader hot/0",
)
@click.option("--nodes", type=int, default=1, show_default=True, help="How many combined nodes: 1, 3 or 5.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of the nodes' files.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="First client port (default: free ones).")
@click.option("--toxiproxy", is_flag=True, help="One proxy on every directed link.")
@click.option("--restart", is_flag=True, help="Start a dead node again after 2 s.")
@_CONFIG
@click.pass_context
def cluster(
    context: click.Context,
    nodes: int,
    data: Path,
    port: int,
    toxiproxy: bool,
    restart: bool,
    config: dict[str, str],
) -> None:
    """Run a local cluster of processes. It prints one JSON line when it is ready, and ends at Ctrl-C or SIGTERM.

    `kill` kills a node of a cluster that runs in the same folder.
    """
    if context.invoked_subcommand is not None:
        context.obj = data
        return
    if toxiproxy and not _is_clone():
        installed.refuse("--toxiproxy")
    from chaos.live.cluster_command import ClusterPlan, run_cluster

    sys.exit(run_cluster(ClusterPlan(data, nodes, port, config, toxiproxy, restart), click.echo))


@cluster.group("kill")
def cluster_kill() -> None:
    """Kill (SIGKILL) the node that has a role now. Print its ID and process ID as a JSON line."""


@cluster_kill.command("leader")
@click.argument("partition", metavar="TOPIC/PARTITION")
@click.pass_obj
def kill_leader(data: Path, partition: str) -> None:
    """The leader of a partition."""
    from chaos.live import kill

    _killed(lambda: kill.kill_leader(data, partition))


@cluster_kill.command("controller")
@click.pass_obj
def kill_controller(data: Path) -> None:
    """The active controller."""
    from chaos.live import kill

    _killed(lambda: kill.kill_controller(data))


@cluster_kill.command("coordinator")
@click.argument("key", metavar="GROUP")
@click.option("--transactional-id", is_flag=True, help="GROUP is a transactional ID.")
@click.pass_obj
def kill_coordinator(data: Path, key: str, transactional_id: bool) -> None:
    """The coordinator of a consumer group, or of a transactional ID."""
    from chaos.live import kill

    _killed(lambda: kill.kill_coordinator(data, key, kill.TRANSACTION if transactional_id else kill.GROUP))


def _killed(act: Callable[[], str]) -> None:
    from chaos.live.errors import SetupError

    try:
        click.echo(act())
    except SetupError as wrong:
        click.echo(f"crucible cluster: {wrong}", err=True)
        sys.exit(2)


if not _is_clone():
    main.help = installed.HELP
