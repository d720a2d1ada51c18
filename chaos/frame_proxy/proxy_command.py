"""``crucible proxy``: runs the proxy until Ctrl-C or SIGTERM."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from chaos.frame_proxy.control import Control
from chaos.frame_proxy.proxy import AdvertisedNode, FrameProxy, ProxyPlan
from chaos.frame_proxy.rules_file import read_rules
from chaos.live.errors import SetupError, TargetDied
from chaos.live.external.target import nodes_of
from chaos.live.processes import require_psutil
from reference_broker.serve.listeners import parse_address
from reference_broker.serve.process import StartError, await_end_signals
from scenarios.fields import ScenarioError

if TYPE_CHECKING:
    import psutil

EXIT_CLEAN = 0
EXIT_SETUP = 2
MAX_PORT = 65_535
TOKEN_BYTES = 24
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """The options of one call."""

    target: str
    listen: str = "127.0.0.1:0"
    rules: Path | None = None
    control: str = "127.0.0.1:0"
    log: Path | None = None
    processes: Mapping[int, int] = field(default_factory=dict)
    seed: int = 1
    topic: str = ""


def run_proxy(options: ProxyOptions, announce: Callable[[str], None] = print) -> int:
    """Start the target's nodes if that is ours to do; they end with the proxy. Return the exit code.

    ``announce`` gets the ready line, JSON with ``bootstrap_servers``, ``control`` and its ``token``.
    """
    from chaos.live.external.cluster import standing  # A proxy that is part of a run starts nothing.

    try:
        listen, control = parse_address(options.listen, "--listen"), parse_address(options.control, "--control")
        for option, (host, _) in (("--listen", listen), ("--control", control)):
            if host not in LOOPBACK:
                raise SetupError(f"{option}: {host} is not the loopback interface, and nothing protects the proxy.")
        rules = () if options.rules is None else read_rules(options.rules)
        with TemporaryDirectory() as folder, standing(options.target, Path(folder)) as target:
            nodes = nodes_of(target.bootstrap)
            processes = _processes_of(options.processes, nodes)
            _check_ports(options.listen, listen[1], len(nodes))
            known = {**target.processes(), **options.processes}
            plan = ProxyPlan(
                *listen,
                rules,
                processes=known,
                is_alive=lambda node: node not in processes or _runs(processes[node]),
                log=options.log,
                seed=options.seed,
                topic=options.topic,
            )
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(_serve(plan, nodes, control, announce))
    except (SetupError, StartError, ScenarioError, TargetDied) as wrong:
        print(f"crucible proxy: {wrong}", file=sys.stderr)  # noqa: T201
        return EXIT_SETUP
    except OSError as wrong:
        print(f"crucible proxy: --log {options.log}: {wrong.strerror}.", file=sys.stderr)  # noqa: T201
        return EXIT_SETUP
    return EXIT_CLEAN


def _check_ports(listen: str, port: int, nodes: int) -> None:
    """Raise SetupError if there are fewer ports from this one on than nodes."""
    if port and port + nodes - 1 > MAX_PORT:
        raise SetupError(f"--listen is {listen}, and {nodes} nodes need the ports from it on: give a lower one.")


def _processes_of(processes: Mapping[int, int], nodes: Sequence[AdvertisedNode]) -> "dict[int, psutil.Process]":
    """Return the processes by node. Each knows when it started, so another one with its ID later is not taken for it.

    Raise SetupError for a node that the target does not have, or a process that cannot be killed.
    """
    if not processes:
        return {}
    require_psutil("--process")
    import psutil

    known = {node.node_id for node in nodes}
    found = {}
    for node, process in processes.items():
        if node not in known:
            shown = ", ".join(map(str, sorted(known)))
            raise SetupError(f"--process: node {node} is not among the target's: {shown}.")
        try:
            os.kill(process, 0)
            found[node] = psutil.Process(process)
        except OSError as wrong:
            raise SetupError(f"--process: process {process} of node {node}: {wrong.strerror}.") from wrong
        except psutil.NoSuchProcess as wrong:
            raise SetupError(f"--process: process {process} of node {node}: No such process.") from wrong
    return found


def _runs(process: "psutil.Process") -> bool:
    """Return whether it is still that process, and not only its exit status that nobody has collected."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _serve(
    plan: ProxyPlan, nodes: Sequence[AdvertisedNode], control: tuple[str, int], announce: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()

    def end() -> None:
        with suppress(RuntimeError):  # The loop is closed already.
            loop.call_soon_threadsafe(ending.set)

    await_end_signals(end)
    proxy = FrameProxy(plan)
    try:
        fronts = proxy.start(nodes)
        token = token_urlsafe(TOKEN_BYTES)
        served = Control(proxy, loop, *control, token)
        try:
            ready = {"ready": True, "bootstrap_servers": ",".join(fronts), "control": served.url, "token": token}
            announce(json.dumps(ready))
            sys.stdout.flush()
            await ending.wait()
        finally:
            await loop.run_in_executor(None, served.close)
    finally:
        proxy.close()
        await asyncio.sleep(0)


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
