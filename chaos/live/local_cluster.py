"""``crucible cluster`` runs a local cluster of processes for somebody's own clients, until Ctrl-C or SIGTERM.

The nodes and Toxiproxy end with it, even if it is killed or they are stopped (``bench.children``). A file in the data
folder holds the cluster's ID and size, and the process IDs and addresses of its nodes. A second start reads it, so that
its nodes form the same quorum.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.ports import free_ports
from chaos.live.errors import NodeDied, SetupError
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
    """What the file says. ``cluster_id`` is empty for a single node, which names itself in its meta.properties."""

    cluster_id: str
    nodes: int


def claim(data: Path, nodes: int, wanted_id: str = "") -> ClusterIdentity:
    """Reads the folder's identity, or writes it for a new cluster.

    A new cluster gets the ID ``wanted_id``, or a random one if that is empty. Raises SetupError for a folder of another
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
    """The nodes that ran when the file was last written: the process of each, and where clients reach it, HOST:PORT."""

    pids: Mapping[int, int]
    addresses: Sequence[str]

    def address(self, node: int) -> tuple[str, int]:
        host, _, port = self.addresses[node].rpartition(":")
        return host, int(port)


def running(data: Path) -> Running:
    """Read which nodes run. Raises SetupError."""
    path = data / FILE_NAME
    try:
        values = json.loads(path.read_text())
        pids = {int(node): int(pid) for node, pid in values.get("pids", {}).items()}
        addresses = [str(each) for each in values.get("addresses", ())]
    except FileNotFoundError:
        raise SetupError(f"{data} is no cluster's folder: start one with ./crucible cluster --data {data}.") from None
    except OSError as failure:
        raise SetupError(f"Cannot read {path} ({failure.strerror}).") from failure
    except (ValueError, TypeError, AttributeError) as damage:
        raise SetupError(f"{path} is damaged ({damage}).") from damage
    return Running({node: pid for node, pid in pids.items() if node < len(addresses)}, addresses)


def write_running(data: Path, pids: Mapping[int, int], addresses: Sequence[str]) -> None:
    """Write which process each node is, by its ID, and where it listens. A node that does not run has no process."""
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
EXIT_CLEAN = 0
EXIT_SETUP = 2
EXIT_CRASH = 4


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What a person asked for.

    ``port`` is the clients' port of node 0, and the other nodes have the ports above it. 0 means any free ports.
    ``toxiproxy`` puts a proxy on every directed link, clients to node and node to node. With ``restart`` a dead node is
    started again after 2 s.
    """

    data: Path
    nodes: int = 1
    port: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    toxiproxy: bool = False
    restart: bool = False


@dataclass(slots=True)
class Member:
    """One node over all its incarnations. ``has_listeners`` says that ``config`` names its listeners.

    ``again_at`` is when it is started again, on the monotonic clock. It is None while the node runs, or if it stays
    dead.
    """

    node_id: int
    listen: str
    advertised: str
    config: Mapping[str, str]
    data: Path
    has_listeners: bool = False
    child: Child | None = None
    again_at: float | None = None
    is_awaited: bool = False
    """Whether it was started again and does not serve yet."""

    def launch(self) -> None:
        words = [word for key, value in self.config.items() for word in ("--config", f"{key}={value}")]
        self.again_at = None
        self.child = Child(
            f"node-{self.node_id}",
            [
                sys.executable,
                "-m",
                "reference_broker.serve.main",
                *(() if self.has_listeners else ("--listen", self.listen, "--advertised", self.advertised)),
                "--node-id",
                str(self.node_id),
                "--data",
                str(self.data / f"node-{self.node_id}"),
                "--end-with-stdin",  # Child holds the other end. It ends the node where the kernel does not.
                *words,
            ],
            self.data / f"node-{self.node_id}.log",
        )


def run_cluster(plan: ClusterPlan, announce: Callable[[str], None] = print) -> int:
    """Runs the cluster until it is told to end, and returns the exit code. ``announce`` gets the ready line, JSON with
    ``bootstrap_servers`` and the process ID of each node. ``cluster.json`` has them, too, also after a restart."""
    try:
        return _run(plan, announce)
    except SetupError as wrong:
        _tell(str(wrong))
        return EXIT_SETUP
    except NodeDied as death:
        _tell(str(death))
        return EXIT_CRASH


def check_plan(plan: ClusterPlan) -> None:
    """Raises SetupError for a plan that cannot be carried out."""
    if plan.nodes not in SIZES:
        raise SetupError(f"--nodes is {plan.nodes}: give 1, 3 or 5, so that a majority is left when a minority dies.")
    if VOTERS_KEY in plan.config:
        raise SetupError(f"--config {VOTERS_KEY}: the cluster names its voters itself; leave it out.")
    if LISTENERS_KEY in plan.config:
        raise SetupError(f"--config {LISTENERS_KEY}: each node needs its own, which the cluster names; leave it out.")
    if plan.port and plan.port + plan.nodes - 1 > 65_535:
        raise SetupError(f"--port is {plan.port}, and {plan.nodes} nodes need the ports from it on: give a lower one.")


def _run(plan: ClusterPlan, announce: Callable[[str], None]) -> int:
    cluster_id = _claimed(plan)
    ending = threading.Event()
    await_end_signals(ending.set)
    with ExitStack() as stack:
        links, facts = None, {}
        if plan.toxiproxy:
            server = stack.enter_context(ToxiproxyServer(plan.data / "toxiproxy.log"))
            links, facts = Links(server.client), {"toxiproxy": server.address}
        members = stack.enter_context(_running(plan_members(plan, cluster_id, links), ending))
        told = pids_of(members)
        write_running(plan.data, told, addresses_of(members))
        if not ending.is_set():
            announce(_ready_line(members, facts))
            sys.stdout.flush()
        while not ending.wait(LOOK_EVERY_S):
            _look_after(members, plan.restart, time.monotonic())
            if told != pids_of(members):
                told = pids_of(members)
                write_running(plan.data, told, addresses_of(members))
    write_running(plan.data, {}, ())
    return EXIT_CLEAN


@contextmanager
def started(plan: ClusterPlan) -> Iterator[list[Member]]:
    """Runs a cluster without proxies for as long as the block lasts. Raises SetupError, NodeDied."""
    with _running(plan_members(plan, _claimed(plan), None), threading.Event()) as members:
        yield members


def _claimed(plan: ClusterPlan) -> str:
    """Makes the data folder this cluster's, and returns the cluster's ID. Raises SetupError."""
    check_plan(plan)
    return claim(plan.data, plan.nodes, plan.config.get(CLUSTER_ID_KEY, "")).cluster_id


@contextmanager
def _running(members: list[Member], ending: threading.Event) -> Iterator[list[Member]]:
    try:
        _start_all(members, ending)
        yield members
    finally:
        end_all([member.child for member in members if member.child is not None])


def addresses_of(members: Sequence[Member]) -> tuple[str, ...]:
    """Returns HOST:PORT of each node, as clients are told."""
    return tuple(member.advertised for member in members)


def pids_of(members: Sequence[Member]) -> dict[int, int]:
    """Returns the process IDs of the nodes that run, by the IDs of the nodes."""
    return {member.node_id: member.child.pid for member in members if member.child is not None}


def plan_members(plan: ClusterPlan, cluster_id: str, links: Links | None) -> list[Member]:
    """Plans where each node listens and how it dials the others. With ``links`` the proxies are made.

    Without proxies, nodes of a quorum have listeners of their own for what nodes ask of brokers and of controllers.
    With proxies, one listener takes all, so that whoever cuts a link cuts all that goes over it.
    """
    nodes = range(plan.nodes)
    config = {**plan.config, **shared_store(plan.config, plan.data)}
    separate = plan.nodes > 1 and links is None
    shown = [f"127.0.0.1:{plan.port + node}" if plan.port else ANY_PORT for node in nodes]
    listen = shown if plan.port and links is None else [f"127.0.0.1:{port}" for port in free_ports(plan.nodes)]
    advertised = (
        listen if links is None else [links.add("client", node, listen[node], shown[node]).listen for node in nodes]
    )
    if not separate:
        told = introductions(cluster_id, listen, plan.nodes, links)
        return [Member(node, listen[node], advertised[node], {**config, **told[node]}, plan.data) for node in nodes]
    ports = free_ports(2 * plan.nodes)
    replication, controllers = (
        [f"127.0.0.1:{port}" for port in each] for each in (ports[: plan.nodes], ports[plan.nodes :])
    )
    told = introductions(cluster_id, controllers, plan.nodes, None)
    return [
        Member(
            node,
            listen[node],
            listen[node],
            {**config, **told[node], **separate_listeners(listen[node], replication[node], controllers[node])},
            plan.data,
            has_listeners=True,
        )
        for node in nodes
    ]


def _start_all(members: Sequence[Member], ending: threading.Event) -> None:
    """Starts all nodes at once, because none is ready before a majority runs. Raises NodeDied, SetupError."""
    for member in members:
        member.launch()
    deadline = time.monotonic() + READY_LIMIT_S
    starting = [member.child for member in members if member.child is not None]
    while starting and not ending.is_set():
        starting = [child for child in starting if not child.said("ready", LOOK_EVERY_S / len(members))]
        if starting and time.monotonic() > deadline:
            raise NodeDied(f"{starting[0].name} was not ready within {READY_LIMIT_S:g} s: {starting[0].last_words()}")


def _ready_line(members: Sequence[Member], facts: Mapping[str, str]) -> str:
    return json.dumps(
        {
            "ready": True,
            "bootstrap_servers": ",".join(addresses_of(members)),
            "nodes": [member.listen for member in members],
            "pids": pids_of(members),
            **facts,
        }
    )


def _look_after(members: Sequence[Member], restart: bool, now: float) -> None:
    """Reports each death once. With ``restart`` it starts the dead node again, and reports that, and when it serves.
    Raises NodeDied when no node is left."""
    for member in members:
        if member.again_at is not None and now >= member.again_at:
            member.launch()
            _tell(f"node-{member.node_id} is started again")
            member.is_awaited = True
        if member.is_awaited and member.child is not None:
            with suppress(NodeDied, SetupError):  # Its end is reported below.
                if member.child.said("ready", 0) is not None:
                    _tell(f"node-{member.node_id} serves again")
                    member.is_awaited = False
        dead = member.child
        if dead is None or dead.exit_status is None:
            continue
        if not restart and not any(each.child is not None and each is not member for each in members):
            dead.check()
        member.child, member.is_awaited = None, False
        member.again_at = now + RESTART_AFTER_S if restart else None
        _tell(f"{dead.name} {dead.how_it_ended()}; the last line of its log: {dead.last_words()}")
        dead.close()


def end_all(children: Sequence[Child]) -> None:
    """Ends all nodes. All get SIGTERM first, so that a leader hands over and no node waits for a majority that is
    ending too."""
    for child in children:
        child.ask_to_end()
    for child in children:
        child.terminate()
        child.close()


def _tell(sentence: str) -> None:
    print(f"crucible cluster: {sentence}", file=sys.stderr)  # noqa: T201
