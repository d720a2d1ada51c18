"""``crucible bench --failover``: how long the cluster is without a controller that takes orders.

Three nodes with default settings. Again and again the active controller is killed (SIGKILL: its links close) or paused
(SIGSTOP: nobody hears of it but by silence), and a client that retries creates its next topic. Measured is the time
from the signal to the answer that the topic exists.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.fleet.behaviours.bodies import CREATE_TOPICS, METADATA, create_topics_request, metadata_request, new_topic
from bench.peers.errors import PeerError
from bench.reference_cluster import ClusterNode, reference_cluster, until
from bench.results import Figure, Results, Row
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.errors import Error

Progress = Callable[[str], None]

NODES = 3
ROUNDS = 20
GOAL_S = 2.0
CLIENT_ID = "crucible-bench-failover"
METADATA_VERSION = 12
CREATE_VERSION = 7
TRY_S = 0.3
"""How long the client waits for one answer before it asks elsewhere."""
AGAIN_AFTER_S = 0.01
"""Between two tries."""
SUSPECT_S = 0.5
"""How long it leaves a node alone that did not answer in time, though others still name it as the controller."""
ROUND_LIMIT_S = 30.0
SETTLE_S = 0.5
"""Quiet time between two rounds."""


def run(progress: Progress, rounds: int = ROUNDS) -> Results:
    """Raises bench.peers.errors.PeerError when the cluster does not come up or does not recover."""
    settings = {"nodes": str(NODES), "rounds": str(rounds), "one try of the client": f"{TRY_S} s"}
    results = Results(None, settings=settings)
    with (
        tempfile.TemporaryDirectory(prefix="crucible-failover-") as scratch,
        reference_cluster(Path(scratch), NODES) as nodes,
    ):
        course = Course(nodes)
        course.create(ROUND_LIMIT_S)  # Everybody's code is loaded before anything is measured.
        killed = Figure(tuple(_rounds("killed", course.kill, rounds, progress)), "s")
        paused = Figure(tuple(_rounds("paused", course.pause, rounds, progress)), "s")
    results.rows.append(_row("controller killed", killed))
    results.rows.append(_row("controller paused", paused))
    return results


def _rounds(what: str, strike: Callable[[], float], rounds: int, progress: Progress) -> list[float]:
    taken = []
    for number in range(rounds):
        taken.append(strike())
        progress(f"controller {what} {number + 1} of {rounds}: a topic after {taken[-1]:.2f} s")
    return taken


def _row(what: str, figure: Figure) -> Row:
    """The goal is for the worst."""
    return Row(
        f"{what}: next topic created, median (best-worst)",
        figure,
        goal=f"within {GOAL_S:g} s" if "killed" in what else "",
        reached=max(figure.values) <= GOAL_S if "killed" in what else None,
    )


class Course:
    """Strikes the controller of one cluster and brings it back."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._topics = 0

    def create(self, limit_s: float) -> None:
        self._topics += 1
        client = self._client()
        client.create(f"failover-{self._topics}", limit_s)
        client.close()

    def kill(self) -> float:
        """Seconds from the signal to the topic."""
        node, client = self._calm()
        taken_s = self._strike(node, client, signal.SIGKILL)
        node.reap()
        node.launch()
        node.await_ready()
        return taken_s

    def pause(self) -> float:
        node, client = self._calm()
        try:
            return self._strike(node, client, signal.SIGSTOP)
        finally:
            node.strike(signal.SIGCONT)

    def _strike(self, node: ClusterNode, client: "RetryingAdmin", number: signal.Signals) -> float:
        self._topics += 1
        started = time.perf_counter()
        node.strike(number)
        client.create(f"failover-{self._topics}", ROUND_LIMIT_S)
        taken_s = time.perf_counter() - started
        client.close()
        return taken_s

    def _calm(self) -> tuple[ClusterNode, "RetryingAdmin"]:
        """All nodes answer and name the same controller; a client that knows it."""
        witnesses = [RetryingAdmin([node.port]) for node in self._nodes.values()]
        until(lambda: _agree(witnesses), ROUND_LIMIT_S, "agreement on a controller")
        for witness in witnesses:
            witness.close()
        time.sleep(SETTLE_S)
        client = self._client()
        controller = client.find()
        if controller is None:
            raise PeerError("the controller has gone while nothing was done to it")
        return self._nodes[controller], client

    def _client(self) -> "RetryingAdmin":
        return RetryingAdmin([node.port for node in self._nodes.values()])


def _agree(witnesses: "Sequence[RetryingAdmin]") -> bool:
    named = [witness.find() for witness in witnesses]
    return None not in named and len(set(named)) == 1


class RetryingAdmin:
    """Creates topics, whatever happens to the nodes: asks one after the other who the controller is, and that one for
    the topic, until it is there. ``ports``: of the nodes on 127.0.0.1."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._next = 0
        self._connections: dict[int, Connection] = {}
        self._ports_by_node: dict[int, int] = {}
        self._suspects: dict[int, float] = {}

    def create(self, name: str, limit_s: float) -> None:
        """One partition. An attempt whose answer was lost may have made it: then "exists" is as good. Raises
        PeerError."""
        deadline = time.perf_counter() + limit_s
        error = None
        while error not in (Error.NONE, Error.TOPIC_ALREADY_EXISTS):
            controller = self.find()
            error = None if controller is None else self._ask_for(controller, name)
            if error not in (Error.NONE, Error.TOPIC_ALREADY_EXISTS):
                time.sleep(AGAIN_AFTER_S)
            if time.perf_counter() > deadline:
                raise PeerError(f"no topic could be created for {limit_s:g} s; the last error was {error}")

    def find(self) -> int | None:
        """The controller's node ID by the next node's word; None: it does not know, or does not answer."""
        port = self._ports[self._next % len(self._ports)]
        self._next += 1
        answer = self._call(port, METADATA, METADATA_VERSION, metadata_request(()))
        if answer is None:
            return None
        brokers = {broker.node_id: broker.port for broker in answer.brokers}
        self._ports_by_node.update(brokers)
        controller = int(answer.controller_id)
        return controller if controller in brokers else None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _ask_for(self, controller: int, name: str) -> int | None:
        body = create_topics_request([new_topic(name, 1, 1, {})], int(TRY_S * 1000))
        answer = self._call(self._ports_by_node[controller], CREATE_TOPICS, CREATE_VERSION, body)
        return None if answer is None else int(answer.topics[0].error_code)

    def _call(self, port: int, api_key: int, version: int, body: object) -> Any:
        """The answer, or None. A node that was silent is left alone for a while."""
        if self._suspects.get(port, 0.0) > time.perf_counter():
            return None
        try:
            connection = self._connections.get(port)
            if connection is None:
                connection = self._connections[port] = Connection.open("127.0.0.1", port, int(TRY_S * 1e6))
            return connection.call(api_key, version, CLIENT_ID, body, int(TRY_S * 1e6)).body
        except TransportError as failure:
            if failure.reason == "timeout":
                self._suspects[port] = time.perf_counter() + SUSPECT_S
            dropped = self._connections.pop(port, None)
            if dropped is not None:
                dropped.close()
            return None
