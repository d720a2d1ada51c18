"""Measures the time from the loss of the active controller to the creation of the next topic.

Three nodes have default settings. Again and again the active controller is killed by SIGKILL, which closes its links,
or paused by SIGSTOP, which others notice only by its silence. A client that retries then creates its next topic. The
time runs from the signal to the response that the topic exists. Only the reference broker is measured, because only it
names its controller in its metadata.
"""

import signal
import time
from collections.abc import Callable, Sequence

from bench.peers.clients import RetryingClient
from bench.peers.cluster import PeerCluster, until
from bench.peers.node import BrokerNode, PeerError
from bench.rows.context import BenchRun, Progress, row
from bench.rows.results import Figure, ResultRow

NODES = 3
GOAL_S = 2.0
TRY_S = 0.3
"""Time for which the client waits for one response before it tries another node."""
SUSPECT_S = 0.5
"""Time for which the client skips a node that was silent, even if others still name it as the controller."""
ROUND_LIMIT_S = 30.0
SETTLE_S = 0.5
"""Quiet time between two rounds."""


@row("failover")
def measure_failover(bench: BenchRun) -> None:
    if NODES not in bench.options.nodes:
        return
    rounds = bench.options.sizes.failovers
    bench.results.settings |= {"one try of the client": f"{TRY_S} s"}
    with bench.systems[0].launched(bench.folder / "failover", NODES, {}) as cluster:
        course = Course(cluster)
        course.create()  # All nodes load their code before anything is measured.
        killed = Figure(tuple(_rounds("killed", course.kill, rounds, bench.progress)), "s")
        paused = Figure(tuple(_rounds("paused", course.pause, rounds, bench.progress)), "s")
    bench.results.rows.append(_row("controller killed", killed, GOAL_S))
    bench.results.rows.append(_row("controller paused", paused))


def _rounds(what: str, measure: Callable[[], float], rounds: int, progress: Progress) -> list[float]:
    taken = []
    for number in range(rounds):
        taken.append(measure())
        progress(f"controller {what} {number + 1} of {rounds}: a topic after {taken[-1]:.2f} s")
    return taken


def _row(what: str, figure: Figure, goal_s: float | None = None) -> ResultRow:
    """Make a row. If there is a goal, the worst time must reach it."""
    work = f"{what}: next topic created"
    if goal_s is None:
        return ResultRow(work, figure)
    return ResultRow(work, figure, goal=f"within {goal_s:g} s", reached=max(figure.values) <= goal_s)


class Course:
    """Kills or pauses the controller of one cluster, and brings it back."""

    def __init__(self, cluster: PeerCluster) -> None:
        self._cluster = cluster
        self._topics = 0

    def create(self) -> None:
        """Create a topic. Raise PeerError."""
        with self._client() as client:
            self._create(client)

    def kill(self) -> float:
        """Return the seconds from SIGKILL to the next topic. The node is back afterwards."""
        node, taken_s = self._signal_controller(signal.SIGKILL)
        node.back()
        return taken_s

    def pause(self) -> float:
        """Return the seconds from SIGSTOP to the next topic. The node goes on afterwards."""
        node, taken_s = self._signal_controller(signal.SIGSTOP)
        node.send_signal(signal.SIGCONT)
        return taken_s

    def _signal_controller(self, number: signal.Signals) -> tuple[BrokerNode, float]:
        """Return the node that got the signal, and the seconds to the next topic. If no topic can be created, a stopped
        node ends with the cluster."""
        self._await_agreement()
        with self._client() as client:
            controller = client.named_controller()
            if controller is None:
                raise PeerError("the controller has gone while nothing was done to it")
            node = self._cluster.member(controller)
            began = time.perf_counter()
            node.send_signal(number)
            self._create(client)
            return node, time.perf_counter() - began

    def _create(self, client: RetryingClient) -> None:
        self._topics += 1
        client.create_topic(f"failover-{self._topics}", 1, 1, ROUND_LIMIT_S)

    def _await_agreement(self) -> None:
        """Wait until all nodes respond and name the same controller."""
        witnesses = [RetryingClient([port], TRY_S) for port in self._cluster.ports]
        try:
            until(lambda: _agree(witnesses), ROUND_LIMIT_S, "agreement on a controller", every_s=0.02)
        finally:
            for witness in witnesses:
                witness.close()
        time.sleep(SETTLE_S)

    def _client(self) -> RetryingClient:
        return RetryingClient(self._cluster.ports, TRY_S, SUSPECT_S)


def _agree(witnesses: Sequence[RetryingClient]) -> bool:
    named = [witness.named_controller() for witness in witnesses]
    return None not in named and len(set(named)) == 1
