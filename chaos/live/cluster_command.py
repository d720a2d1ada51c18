"""``crucible cluster``: a local cluster for a user's own clients.

It runs until Ctrl-C or SIGTERM. The nodes and Toxiproxy end with it, even if it is killed or they are stopped
(``bench.children``). A file in the data folder contains the cluster's ID and size, and the process IDs and addresses of
its nodes. The next start reads it, so that the nodes form the same quorum.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path

from bench.ports import free_ports
from bench.program import PROGRAM
from chaos.live.cluster import LiveCluster, LiveNode
from chaos.live.errors import NodeDied, SetupError
from chaos.live.launchers import BrokerLauncher
from chaos.live.links import ANY_PORT, Links
from chaos.live.processes import READY_LIMIT_S, Child
from chaos.live.quorum import (
    CLUSTER_ID_KEY,
    LISTENERS_KEY,
    VOTERS_KEY,
    introductions,
    new_cluster_id,
    separate_listeners,
    shared_store,
)
from chaos.live.toxiproxy_server import ToxiproxyServer
from reference_broker.serve.process import await_end_signals

FILE_NAME = "cluster.json"


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The content of ``cluster.json``."""

    cluster_id: str
    """ID of the cluster. Empty for a single node, whose meta.properties has its ID."""
    nodes: int


def claim(data: Path, nodes: int, wanted_id: str = "") -> ClusterIdentity:
    """Read the folder's identity, or write it for a new cluster.

    A new cluster gets the ID ``wanted_id``, or a random one if that is empty. Raise SetupError for a folder of another
    cluster, or one that cannot be written.
    """
    path = data / FILE_NAME
    try:
        data.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return _checked(_read(path), data, nodes, wanted_id)
        if (data / "node-1").exists():
            raise SetupError(
                f"{data} holds a cluster's nodes, but {FILE_NAME} is gone: restore it or give --data another directory."
            )
        if nodes > 1 and (data / "node-0").exists():
            raise SetupError(f"{data} holds a single node's data: give --nodes 1, or --data another directory.")
        identity = ClusterIdentity(wanted_id or (new_cluster_id() if nodes > 1 else ""), nodes)
        _write(path, asdict(identity))
    except OSError as failure:
        raise SetupError(
            f"Cannot write to {data} ({failure.strerror}): give --data a directory of your own."
        ) from failure
    return identity


@dataclass(frozen=True, slots=True)
class Running:
    """The nodes that ran when the file was last written: the process ID and the client address (HOST:PORT) of each."""

    pids: Mapping[int, int]
    addresses: Sequence[str]

    def address(self, node: int) -> tuple[str, int]:
        host, _, port = self.addresses[node].rpartition(":")
        return host, int(port)


def running(data: Path) -> Running:
    """Return the running nodes. Raise SetupError."""
    path = data / FILE_NAME
    try:
        values = json.loads(path.read_text())
        pids = {int(node): int(pid) for node, pid in values.get("pids", {}).items()}
        addresses = [str(each) for each in values.get("addresses", ())]
    except FileNotFoundError:
        raise SetupError(f"{data} is no cluster's folder: start one with {PROGRAM} cluster --data {data}.") from None
    except OSError as failure:
        raise SetupError(f"Cannot read {path} ({failure.strerror}).") from failure
    except (ValueError, TypeError, AttributeError) as damage:
        raise SetupError(f"{path} is damaged ({damage}).") from damage
    return Running({node: pid for node, pid in pids.items() if node < len(addresses)}, addresses)


def write_running(data: Path, pids: Mapping[int, int], addresses: Sequence[str]) -> None:
    """Write the process ID of each node by its node ID, and its address. A node that does not run has no process ID."""
    path = data / FILE_NAME
    try:
        _write(path, {**asdict(_read(path)), "pids": pids, "addresses": addresses})
    except OSError as failure:
        raise SetupError(f"Cannot write to {path} ({failure.strerror}).") from failure


def _write(path: Path, values: Mapping[str, object]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(values) + "\n")
    os.replace(temporary, path)


def _read(path: Path) -> ClusterIdentity:
    try:
        values = json.loads(path.read_text())
        return ClusterIdentity(str(values["cluster_id"]), int(values["nodes"]))
    except (ValueError, KeyError, TypeError) as damage:
        raise SetupError(f"{path} is damaged ({damage}): restore it, or give --data another directory.") from damage


def _checked(found: ClusterIdentity, data: Path, nodes: int, wanted_id: str) -> ClusterIdentity:
    if found.nodes != nodes:
        raise SetupError(
            f"{data} holds a cluster of {found.nodes}, and voters cannot be added or removed: give --nodes "
            f"{found.nodes}, or --data another directory."
        )
    if wanted_id and found.cluster_id and wanted_id != found.cluster_id:
        raise SetupError(
            f"{data} holds the cluster {found.cluster_id}, not {wanted_id}: give --data another directory."
        )
    return found


SIZES = (1, 3, 5)
RESTART_AFTER_S = 2.0
LOOK_EVERY_S = 0.1
START_LOOK_EVERY_S = 0.02
EXIT_CLEAN = 0
EXIT_SETUP = 2
EXIT_CRASH = 4


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The options of the command."""

    data: Path
    nodes: int = 1
    port: int = 0
    """Clients' port of node 0; node N has the port N above it. 0: any free ports."""
    config: Mapping[str, str] = field(default_factory=dict)
    toxiproxy: bool = False
    """Whether there is a proxy on each directed link, from clients to a node and from node to node."""
    restart: bool = False
    """Whether a dead node is restarted after 2 s."""


def run_cluster(plan: ClusterPlan, announce: Callable[[str], None] = print) -> int:
    """Run the cluster until Ctrl-C or SIGTERM, and return the exit code. ``announce`` gets the ready line, JSON with
    ``bootstrap_servers`` and the process ID of each node. ``cluster.json`` contains both, and is updated after a
    restart."""
    try:
        return _run_nodes(plan, announce)
    except SetupError as wrong:
        _log(str(wrong))
        return EXIT_SETUP
    except NodeDied as death:
        _log(str(death))
        return EXIT_CRASH


def check_plan(plan: ClusterPlan) -> None:
    """Raise SetupError for a plan that cannot be carried out."""
    if plan.nodes not in SIZES:
        raise SetupError(f"--nodes is {plan.nodes}: give 1, 3 or 5, so that a majority is left when a minority dies.")
    if VOTERS_KEY in plan.config:
        raise SetupError(f"--config {VOTERS_KEY}: the cluster names its voters itself; leave it out.")
    if LISTENERS_KEY in plan.config:
        raise SetupError(f"--config {LISTENERS_KEY}: each node needs its own, which the cluster names; leave it out.")
    if plan.port and plan.port + plan.nodes - 1 > 65_535:
        raise SetupError(f"--port is {plan.port}, and {plan.nodes} nodes need the ports from it on: give a lower one.")


def _run_nodes(plan: ClusterPlan, announce: Callable[[str], None]) -> int:
    cluster_id = _claimed(plan)
    ending = threading.Event()
    await_end_signals(ending.set)
    with ExitStack() as stack:
        links, facts = None, {}
        if plan.toxiproxy:
            server = stack.enter_context(ToxiproxyServer(plan.data / "toxiproxy.log"))
            links, facts = Links(server.client), {"toxiproxy": server.address}
        cluster = stack.enter_context(_running(planned_nodes(plan, cluster_id, links), ending))
        caretaker = Caretaker(cluster, plan.restart)
        pids = pids_of(cluster)
        write_running(plan.data, pids, cluster.addresses)
        if not ending.is_set():
            announce(_ready_line(cluster, facts))
            sys.stdout.flush()
        while not ending.wait(LOOK_EVERY_S):
            caretaker.poll(time.monotonic())
            if pids != pids_of(cluster):
                pids = pids_of(cluster)
                write_running(plan.data, pids, cluster.addresses)
    write_running(plan.data, {}, ())
    return EXIT_CLEAN


@contextmanager
def started(plan: ClusterPlan) -> Iterator[LiveCluster]:
    """Run a cluster without proxies for as long as the block lasts. Raise SetupError, NodeDied."""
    with _running(planned_nodes(plan, _claimed(plan), None), threading.Event()) as cluster:
        yield cluster


def _claimed(plan: ClusterPlan) -> str:
    """Bind the data folder to this cluster, and return the cluster's ID. Raise SetupError."""
    check_plan(plan)
    return claim(plan.data, plan.nodes, plan.config.get(CLUSTER_ID_KEY, "")).cluster_id


@contextmanager
def _running(nodes: Sequence[LiveNode], ending: threading.Event) -> Iterator[LiveCluster]:
    """Start the nodes, and wait until they are ready or the command is stopped."""
    cluster = LiveCluster(len(nodes), len(nodes), ours=True)
    try:
        cluster.launch(nodes)
        deadline = time.monotonic() + READY_LIMIT_S
        while not cluster.is_ready and not ending.wait(START_LOOK_EVERY_S):
            cluster.poll()
            if not cluster.is_ready and time.monotonic() > deadline:
                raise next(node for node in nodes if not node.is_ready).launcher.failure(is_first=True)
        yield cluster
    finally:
        cluster.close()


def pids_of(cluster: LiveCluster) -> dict[int, int]:
    """Return the process IDs of the nodes that run, by the IDs of the nodes."""
    running = [(node.number, node.process) for node in cluster.nodes if node.running]
    return {number: process.pid for number, process in running if isinstance(process, Child)}


def planned_nodes(plan: ClusterPlan, cluster_id: str, links: Links | None) -> list[LiveNode]:
    """Assign the addresses at which each node listens and reaches the others. With ``links``, create the proxies.

    Without proxies, each node of a quorum has separate listeners for requests of brokers and of controllers. With
    proxies it has one listener, so that a cut link affects all requests.
    """
    nodes = range(plan.nodes)
    shown = [f"127.0.0.1:{plan.port + node}" if plan.port else ANY_PORT for node in nodes]
    listen = shown if plan.port and links is None else [f"127.0.0.1:{port}" for port in free_ports(plan.nodes)]
    advertised = (
        listen if links is None else [links.add("client", node, listen[node], shown[node]).listen for node in nodes]
    )
    separate = plan.nodes > 1 and links is None
    if separate:
        ports = [f"127.0.0.1:{port}" for port in free_ports(2 * plan.nodes)]
        replication, controllers = ports[: plan.nodes], ports[plan.nodes :]
    introduced = introductions(cluster_id, controllers if separate else listen, plan.nodes, links)
    planned = []
    for node in nodes:
        config = {**plan.config, **shared_store(plan.config, plan.data), **introduced[node]}
        where = ["--listen", listen[node], "--advertised", advertised[node]]
        if separate:
            config |= separate_listeners(listen[node], replication[node], controllers[node])
            where = []
        data, log = plan.data / f"node-{node}", plan.data / f"node-{node}.log"
        own = ["--node-id", str(node), "--data", str(data), "--end-with-stdin"]  # Where the kernel does not end it.
        words = [sys.executable, "-m", "reference_broker.serve.main", *where, *own]
        planned.append(
            LiveNode(node, listen[node], BrokerLauncher(f"node-{node}", words, config, data, log), advertised[node])
        )
    return planned


def _ready_line(cluster: LiveCluster, facts: Mapping[str, str]) -> str:
    return json.dumps(
        {
            "ready": True,
            "bootstrap_servers": ",".join(cluster.addresses),
            "nodes": [node.listen for node in cluster.nodes],
            "pids": pids_of(cluster),
            **facts,
        }
    )


class Caretaker:
    """Reports each death once. With ``restart`` it restarts a dead node, and reports the restart and when the node
    serves."""

    def __init__(self, cluster: LiveCluster, restart: bool) -> None:
        self._cluster = cluster
        self._restart = restart
        self._dead: dict[int, float] = {}
        """Times at which dead nodes are restarted, on the monotonic clock; infinite means never."""
        self._starting: set[int] = set()

    def poll(self, now: float) -> None:
        """Raise NodeDied when no node is left."""
        for number, node in enumerate(self._cluster.nodes):
            if now >= self._dead.get(number, inf):
                del self._dead[number]
                node.launch()
                self._starting.add(number)
                _log(f"{node.name} is started again")
            if number in self._dead:
                continue
            with suppress(NodeDied, SetupError):  # Its end is reported below.
                node.look_for_ready()
            if node.is_ready and number in self._starting:
                self._starting.remove(number)
                _log(f"{node.name} serves again")
            dead = node.process
            if dead is None or dead.exit_status is None:
                continue
            if not self._restart and len(self._dead) == len(self._cluster.nodes) - 1:
                dead.check()
            self._dead[number] = now + RESTART_AFTER_S if self._restart else inf
            self._starting.discard(number)
            _log(f"{node.name} {dead.how_it_ended()}; the last line of its log: {dead.last_words()}")
            node.launcher.close()


def _log(sentence: str) -> None:
    print(f"crucible cluster: {sentence}", file=sys.stderr)  # noqa: T201
