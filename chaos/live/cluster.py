"""``crucible cluster``: a local cluster of processes for somebody's own clients, until Ctrl-C or SIGTERM."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from chaos.live.errors import NodeDied, SetupError
from chaos.live.links import Links
from chaos.live.ports import free_port
from chaos.live.processes import Child
from chaos.live.toxiproxy_server import ToxiproxyServer

RESTART_AFTER_S = 2.0
LOOK_EVERY_S = 0.1
EXIT_CLEAN = 0
EXIT_SETUP = 2
EXIT_CRASH = 4


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """``port`` 0: any free one. ``toxiproxy``: clients reach the node through a proxy. ``restart``: a dead node is
    started again after 2 s instead of ending the cluster."""

    data: Path
    nodes: int = 1
    port: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    toxiproxy: bool = False
    restart: bool = False


def run_cluster(plan: ClusterPlan, announce: Callable[[str], None] = print) -> int:
    """Runs it until it is told to end; the exit code. ``announce`` gets the ready line, JSON with
    ``bootstrap_servers``."""
    ending = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _run(plan, announce, ending)
    except SetupError as wrong:
        print(f"crucible cluster: {wrong}", file=sys.stderr)  # noqa: T201
        return EXIT_SETUP
    except NodeDied as death:
        print(f"crucible cluster: {death}", file=sys.stderr)  # noqa: T201
        return EXIT_CRASH
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(plan: ClusterPlan, announce: Callable[[str], None], ending: threading.Event) -> int:
    if plan.nodes != 1:
        raise SetupError(f"--nodes is {plan.nodes}, but clusters have one node so far: give --nodes 1.")
    try:
        plan.data.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise SetupError(
            f"Cannot write to {plan.data} ({failure.strerror}): give --data a directory of your own."
        ) from failure
    with ExitStack() as stack:
        listen = f"127.0.0.1:{plan.port or free_port()}"
        bootstrap, facts = listen, {}
        if plan.toxiproxy:
            server = stack.enter_context(ToxiproxyServer(plan.data / "toxiproxy.log"))
            bootstrap = Links(server.client).add("client", 0, listen).listen
            facts["toxiproxy"] = server.client.address
        child = _start(plan, listen, bootstrap)
        try:
            announce(json.dumps({"ready": True, "bootstrap_servers": bootstrap, "nodes": [listen], **facts}))
            sys.stdout.flush()
            while not ending.wait(LOOK_EVERY_S):
                if child.exit_status is not None:
                    child = _start_again(plan, child, listen, bootstrap, ending)
        finally:
            child.terminate()
            child.close()
    return EXIT_CLEAN


def _start(plan: ClusterPlan, listen: str, advertised: str) -> Child:
    words = [word for key, value in plan.config.items() for word in ("--config", f"{key}={value}")]
    child = Child(
        "node-0",
        [
            sys.executable, "-m", "reference_broker.serve.main", "--listen", listen, "--advertised", advertised,
            "--data", str(plan.data / "node-0"), *words,
        ],
        plan.data / "node-0.log",
    )  # fmt: skip
    try:
        child.await_line("ready")
    except BaseException:
        child.kill()
        child.close()
        raise
    return child


def _start_again(plan: ClusterPlan, dead: Child, listen: str, advertised: str, ending: threading.Event) -> Child:
    """Raises NodeDied unless the plan says to restart."""
    if not plan.restart:
        dead.check()
    print(f"crucible cluster: node-0 {dead.how_it_ended()}", file=sys.stderr)  # noqa: T201
    dead.close()
    if ending.wait(RESTART_AFTER_S):
        return dead
    return _start(plan, listen, advertised)
