"""One course: a cluster, the honest client, hostile peers of each kind at once, kill -9 in their midst, and the end."""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.hostile.honest import Honest, Newcomers, Used, Wait, inside, numbered, used_by_event_loops
from bench.hostile.lives import HOSTILE_TOPIC, KINDS, TOPIC
from bench.hostile.swarm import SwarmProcess, swarming
from bench.peers.clients import RetryingClient
from bench.peers.cluster import PeerCluster, System
from bench.peers.node import PeerError
from bench.peers.systems import REFERENCE
from bench.rows.context import make_topic
from reference_broker.blocking.transport import TransportError

MIB = 1 << 20
BUDGET_BYTES = 256 * MIB
"""``queued.max.request.bytes``, as it is by default."""
BESIDE_BUDGET_BYTES = 100 * MIB
"""Memory of a node beside the budget: everything that is no request and no response."""
READY_AGAIN_S = 60.0
LOOK_EVERY_S = 0.1
LOAD = 20
LOAD_BYTES = 1_000_000
"""LOAD values of this size are written before the swarm comes, so that there is something to fetch."""


@dataclass(frozen=True, slots=True)
class CoursePlan:
    """The attackers, their cluster, and the duration."""

    nodes: int
    peers: int  # number of peers of each kind, spread over all nodes
    seconds: float  # duration of the attack
    kills: bool = True  # each node is killed once during the attack, one after the other
    kinds: Sequence[str] = tuple(KINDS)
    seed: int = 1
    config: Mapping[str, str] = field(default_factory=dict)  # further settings of the nodes
    longest_wait_s: float | None = None
    """The longest that the honest client may wait while the nodes have processors. None: it is measured only."""


@dataclass(frozen=True, slots=True)
class Longest:
    """The largest of each figure of ``Wait``, be it of one wait or of several."""

    took_s: float = 0.0
    on_nodes_s: float = 0.0
    worked_s: float = 0.0

    @staticmethod
    def of(waits: Sequence[Wait]) -> "Longest":
        if not waits:
            return Longest()
        return Longest(
            max(wait.took_s for wait in waits),
            max(wait.on_nodes_s for wait in waits),
            max(wait.worked_s for wait in waits),
        )


@dataclass(slots=True)
class CourseResult:
    """Measurements of the honest clients, and violated limits."""

    written: int = 0
    waits: Sequence[Wait] = ()  # the honest client's while no node was down
    newcomers: Sequence[Wait] = ()  # those of new clients
    longest_wait_across_kills_s: float = 0.0
    quiet_wait_s: float = 0.0
    """The longest wait before the swarm came."""
    largest_rss_bytes: int = 0
    kills: int = 0
    swarm: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # what did not hold

    def __str__(self) -> str:
        waits = f"longest wait {_longest(self.waits)} (before the swarm {self.quiet_wait_s * 1000:.0f} ms"
        across = f", across {self.kills} kills {self.longest_wait_across_kills_s * 1000:.0f} ms)" if self.kills else ")"
        newcomers = f"{len(self.newcomers)} newcomers, longest wait {_longest(self.newcomers)}"
        lives = ", ".join(f"{kind} {counts['lives']}" for kind, counts in self.swarm.items())
        sent = sum(counts["sent_bytes"] for counts in self.swarm.values()) // MIB
        return (
            f"{self.written} writes acknowledged, {waits}{across}; {newcomers}; largest node "
            f"{self.largest_rss_bytes // MIB} MiB; lives: {lives}; {sent} MiB sent"
        )


def _longest(waits: Sequence[Wait]) -> str:
    longest = Longest.of(waits)
    return (
        f"{longest.took_s * 1000:.0f} ms, {longest.on_nodes_s * 1000:.0f} ms without waits for a processor, "
        f"{longest.worked_s * 1000:.0f} ms of nodes' work"
    )


class _Memory(threading.Thread):
    """Looks at the resident memory of the nodes, ten times a second."""

    def __init__(self, cluster: PeerCluster) -> None:
        super().__init__(name="memory", daemon=True)
        self.largest_bytes = 0
        self._cluster = cluster
        self._stops = threading.Event()

    def run(self) -> None:
        while not self._stops.wait(LOOK_EVERY_S):
            for member in self._cluster.members:
                process = member.process
                if process is None or process.poll() is not None:
                    continue
                with suppress(psutil.Error):
                    self.largest_bytes = max(self.largest_bytes, psutil.Process(process.pid).memory_info().rss)

    def stop(self) -> None:
        self._stops.set()
        self.join()


def play(plan: CoursePlan, folder: Path, progress: Callable[[str], None], system: System = REFERENCE) -> CourseResult:
    """Play the course. Raise PeerError if the cluster cannot be had at all."""
    outcome = CourseResult()
    replicas = {"min.insync.replicas": "2", "default.replication.factor": "3"} if plan.nodes >= 3 else {}
    with system.launched(folder, plan.nodes, {**replicas, **plan.config}) as cluster:
        for topic in (TOPIC, HOSTILE_TOPIC):
            make_topic(cluster, topic, 1, plan.nodes)
        _load(cluster.ports)

        def used() -> Mapping[int, Used]:
            return used_by_event_loops(cluster.pids)

        honest, newcomers, memory = Honest(cluster.ports, used), Newcomers(cluster.ports, used), _Memory(cluster)
        honest.start()
        newcomers.start()
        memory.start()
        time.sleep(1.0)
        began = time.monotonic()
        outcome.quiet_wait_s = honest.longest_s(until_s=began)
        down: list[tuple[float, float]] = []
        with swarming(SwarmProcess(cluster.ports, plan.peers, plan.kinds, plan.seed)) as swarm:
            swarm.await_attack()
            _attack(plan, cluster, down, progress)
            outcome.swarm = swarm.end()
        ended = time.monotonic()
        memory.stop()
        honest.stop()
        newcomers.stop()
        _judge(plan, outcome, cluster, honest)
    edges = [began, *(edge for times in down for edge in times), ended]
    between = list(zip(edges[::2], edges[1::2], strict=True))
    outcome.waits = [wait for times in between for wait in inside(honest.waits, *times)]
    outcome.newcomers = [wait for times in between for wait in inside(newcomers.waits, *times)]
    if not outcome.newcomers:
        outcome.broken.append("no newcomer was served")
    waited_s = Longest.of(outcome.waits).on_nodes_s
    if plan.longest_wait_s is not None and waited_s > plan.longest_wait_s:
        outcome.broken.append(f"the honest client waited {waited_s * 1000:.0f} ms for the nodes")
    outcome.longest_wait_across_kills_s = honest.longest_s(began, ended)
    outcome.largest_rss_bytes = memory.largest_bytes
    outcome.kills = len(down)
    if memory.largest_bytes > BUDGET_BYTES + BESIDE_BUDGET_BYTES:
        outcome.broken.append(f"a node took {memory.largest_bytes // MIB} MiB")
    return outcome


def _load(ports: Sequence[int]) -> None:
    """Write values that are not read back, since they have no number of their own."""
    with RetryingClient(ports) as client:
        for _ in range(LOAD):
            client.acknowledged(TOPIC, 0, numbered(-1, LOAD_BYTES), READY_AGAIN_S)


def _attack(
    plan: CoursePlan, cluster: PeerCluster, down: list[tuple[float, float]], progress: Callable[[str], None]
) -> None:
    """Let the swarm do its work, and kill nodes meanwhile. ``down`` gets from when to when one was missing."""
    kills = len(cluster.members) if plan.kills else 0
    pause_s = plan.seconds / (kills + 1)
    time.sleep(pause_s)
    for member in cluster.members[:kills]:
        progress(f"node {member.node_id} is killed among {plan.peers} peers of each kind")
        killed = time.monotonic()
        member.send_signal(signal.SIGKILL)
        member.back()
        down.append((killed, time.monotonic()))
        time.sleep(pause_s)


def _judge(plan: CoursePlan, outcome: CourseResult, cluster: PeerCluster, honest: Honest) -> None:
    outcome.written = len(honest.acknowledged)
    if honest.failure:
        outcome.broken.append(f"the honest client was not served: {honest.failure}")
    if not outcome.written:
        outcome.broken.append("nothing was acknowledged, so nothing was proven")
    idle = [kind for kind in plan.kinds if not outcome.swarm.get(kind, {}).get("lives")]
    if idle:
        outcome.broken.append(f"peers of these kinds did nothing: {', '.join(idle)}")
    for member in cluster.members:
        process = member.process
        if process is None or process.poll() is not None:
            status = None if process is None else process.returncode
            outcome.broken.append(f"node {member.node_id} ended by itself (status {status})")
            continue
        try:
            with RetryingClient([member.port], READY_AGAIN_S) as client:
                client.led(TOPIC, 0, READY_AGAIN_S)
        except PeerError as refusal:
            outcome.broken.append(f"node {member.node_id} does not serve: {refusal}")
    try:
        missing = honest.missing()
        if missing:
            outcome.broken.append(f"{len(missing)} acknowledged values are gone, the first is number {missing[0]}")
    except (PeerError, TransportError, OSError) as refusal:
        outcome.broken.append(f"what was written cannot be read back: {refusal}")
