"""The life of a cluster: its nodes from the start to the end, the active controller, and the links between nodes."""

import os
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self
from uuid import uuid4

from crucible_kafka.library.arguments import checked
from crucible_kafka.library.carrier import START_LIMIT_S, Carrier, NodeSpec
from crucible_kafka.library.embedded import EmbeddedNode
from crucible_kafka.library.errors import CrucibleError, NodeDead, NotPossible, no_attribute
from crucible_kafka.library.folders import TemporaryFolder
from crucible_kafka.library.node_handle import LIMIT_S, Listeners, NodeHandle
from crucible_kafka.library.plain_values import Plain
from crucible_kafka.library.processes import ProcessNode
from crucible_kafka.library.requests import wait_for
from reference_broker.metadata.identifiers import uuid_text

SIZES: Final = (1, 3, 5)
OWN_MODULES: Final = ("crucible_kafka.library.", "crucible_kafka.pytest_plugin")
VOTERS: Final = "controller.quorum.voters"
CLUSTER_ID: Final = "crucible.cluster.id"
OWN_SETTINGS: Final = (
    VOTERS,
    CLUSTER_ID,
    "listeners",
    "advertised.listeners",
    "controller.listener.names",
    "inter.broker.listener.name",
    "crucible.peers",
)
"""Settings that the cluster gives to its nodes itself."""
TEST_DEFAULTS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "auto.leader.rebalance.enable": "false",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "200",
    "controller.quorum.fetch.timeout.ms": "1000",
}
"""Settings that make tests fast: Kafka's own defaults wait for seconds, or create 50 partitions. A leader that a test
has moved stays where it is."""


@checked()
class ClusterLife:
    """The base of all parts of ``Cluster``."""

    def __init__(
        self,
        nodes: int = 1,
        processes: bool | None = None,
        config: Mapping[str, object] | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        """``config`` has broker settings under Kafka's names. Raise ValueError for an argument that cannot be."""
        if nodes not in SIZES:
            raise ValueError(f"nodes is {nodes!r}: give 1, 3 or 5, so that a majority is left when a minority dies.")
        given = {key: setting(key, value) for key, value in (config or {}).items()}
        for key in OWN_SETTINGS:
            if key in given:
                raise ValueError(f"config has {key}, which the cluster sets itself: leave it out.")
        self.nodes = nodes
        self.has_processes = nodes > 1 if processes is None else processes
        self._config = {**TEST_DEFAULTS, **_replication(min(nodes, 3)), **given}
        self._cluster_id = _new_id()
        self._isolated: set[int] = set()
        self._start_limit_s = start_limit_s
        self._members: list[NodeHandle] = []
        self._folder: TemporaryFolder | None = None
        self._owner = os.getpid()
        self._made_at = _place_of_caller()
        self._end: weakref.finalize[..., ClusterLife] | None = None
        """Ends the nodes of a cluster that was never closed."""
        self._is_closed = False
        self._advertised: dict[str, tuple[str, int]] = {}
        """Host and port instead of its own, by node."""
        self._standing: dict[str, tuple[str, Mapping[str, Plain]]] = {}
        """Commands that hold for all nodes, also when they restart."""
        _check_settings(self._config)

    # Life

    def start(self) -> Self:
        """Start all nodes, and return the cluster when they serve clients. Raise StartFailed."""
        if self._is_closed:
            raise CrucibleError("The cluster was closed, and its data is gone: make another Cluster.")
        if self._members:
            raise CrucibleError("The cluster is started already: make another Cluster for a second one.")
        self._folder = TemporaryFolder()
        carriers, listeners = [self._carrier(number) for number in range(self.nodes)], list[Listeners]()
        self._end = weakref.finalize(self, _end_unclosed, self._made_at, os.getpid(), carriers, listeners, self._folder)
        try:
            for number, carrier in enumerate(carriers):
                listeners.append(Listeners(self.nodes > 1))
                folder = self._folder.path / f"node-{number}"
                self._members.append(NodeHandle(self, carrier, listeners[number], folder))
            for member in self._members:
                member.begin_start()
            for member in self._members:
                member.wait_ready(self._start_limit_s)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all nodes, and delete their data. A second call does nothing."""
        if self._is_closed or os.getpid() != self._owner:
            return
        self._is_closed = True
        if self._end is not None:
            self._end.detach()
        for member in self._members:
            member.end()
        if self._folder is not None:
            self._folder.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self.bootstrap_servers}" if self._members else "not started"
        return f"<Cluster of {self.nodes}: {state}>"

    if not TYPE_CHECKING:  # A type checker that saw it would take every name for an attribute.

        def __getattr__(self, name: str) -> NoReturn:
            of_node = None if name.startswith("_") else getattr(NodeHandle, name, None)
            call = f"call kafka.node(n).{name}{'()' if callable(of_node) else ''}" if of_node else ""
            raise no_attribute(self, name, call)

    def check_usable(self) -> None:
        """Raise CrucibleError unless the cluster runs, and this is the process that started it."""
        if os.getpid() != self._owner:
            raise CrucibleError("The cluster belongs to the process that started it: start one after the fork instead.")
        if self._is_closed:
            raise CrucibleError("The cluster is closed: use it inside of its with block.")
        if not self._members:
            raise CrucibleError("The cluster is not started: use it in a with block, or call start() first.")

    def _carrier(self, node: int) -> Carrier:
        assert self._folder is not None, "the cluster was not started"
        return ProcessNode(node, self._folder.path / f"node-{node}.log") if self.has_processes else EmbeddedNode(node)

    def spec_of(self, node: int, listeners: Listeners, folder: Path) -> NodeSpec:
        """Return what a node is started with now."""
        standing = list(self._standing.values())
        if self._isolated:
            standing.append(("cut", {"peers": self._cut_from(node)}))
        if self.nodes == 1:
            return NodeSpec(node, folder, self._config, listeners.clients.address, tuple(standing))
        voters = ",".join(f"{member.id}@{member.controller_address}" for member in self._members)
        config = {**self._config, **listeners.settings(), VOTERS: voters, CLUSTER_ID: self._cluster_id}
        return NodeSpec(node, folder, config, None, tuple(standing))

    # Nodes

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, as clients take them: ``HOST:PORT,HOST:PORT``. Raise CrucibleError before the
        start."""
        if not self._members:
            self.check_usable()
        return ",".join(member.address for member in self._members)

    def node(self, number: int) -> NodeHandle:
        """Return a node by its ID, from 0 on."""
        self.check_usable()
        if number not in range(self.nodes):
            raise ValueError(f"There is no node {number!r}: the cluster has 0 to {self.nodes - 1}.")
        return self._members[number]

    def check_nodes(self) -> None:
        """Raise NodeDead if a node has ended by itself, with its last errors. ``kill``, ``stop``, a full disk, SIGKILL
        and SIGTERM are a test's doing. The end of the ``with`` block, and of a test with the fixture ``kafka``, call
        it."""
        if text := self.crashes():
            raise NodeDead(text)

    def crashes(self) -> str:
        """Return what nodes that ended by themselves said last; empty if none did."""
        return "\n".join(text for member in self._members for text in member.crashes())

    def serving(self) -> list[NodeHandle]:
        self.check_usable()
        found = [member for member in self._members if member.is_serving]
        if not found:
            paused = any(member.is_running for member in self._members)
            raise NodeDead(f"No node {'serves: call resume()' if paused else 'runs: call restart()'} of one first.")
        return found

    def reachable(self) -> list[NodeHandle]:
        """Return the serving nodes that are not isolated, or all if there are no others: what the cluster agrees on
        reaches only these."""
        found = self.serving()
        return [member for member in found if member.id not in self._isolated] or found

    def hold(self, key: str, name: str, **arguments: Plain) -> None:
        """Carry out a command at all nodes, now and whenever one starts, until another one has this key."""
        self._standing[key] = (name, arguments)
        for member in self._members:
            if member.is_running:
                member.command(name, **arguments)

    def settle_rules(self, node: int) -> None:
        """Let other requests have what a node that has ended was to do to responses that it never sent."""

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def has_majority(self) -> bool:
        """Whether enough nodes serve, and reach each other, for a controller."""
        return len([handle for handle in self.serving() if handle.id not in self._isolated]) * 2 > self.nodes

    def active_controller(self, limit_s: float = LIMIT_S) -> NodeHandle:
        """Return the node that is the active controller, and wait until there is one."""

        def found() -> NodeHandle | None:
            views = {
                handle: handle.command("controller") for handle in self.serving() if handle.id not in self._isolated
            }
            active = [(view["epoch"], each.id, each) for each, view in views.items() if view["is_active"]]
            return max(active)[2] if active else None

        return wait_for(found, lambda: "no node is the active controller.", limit_s)

    def controller_command(self, name: str, limit_s: float, **arguments: Plain) -> Plain:
        """Carry out a command at the active controller, also if that changes meanwhile."""

        def carried_out() -> tuple[Plain] | None:
            try:
                return (self.active_controller(limit_s).command(name, limit_s, **arguments),)
            except NotPossible as refusal:
                if "not the active controller" in str(refusal):
                    return None
                raise

        return wait_for(carried_out, lambda: f"no active controller has carried out {name}.", limit_s)[0]

    def fence_killed(self, node: int, limit_s: float) -> None:
        """Let the controller fence a node that was killed, unless nobody can: no majority is left."""
        if self.nodes == 1 or not any(member.is_serving for member in self._members) or not self.has_majority:
            return

        def is_fenced() -> bool | None:
            self.controller_command("fence", limit_s, broker_id=node)
            views = [
                handle.command("broker", broker_id=node) for handle in self.serving() if handle.id not in self._isolated
            ]
            return True if all(view["fenced"] and not view["leads"] for view in views) else None

        wait_for(is_fenced, lambda: f"node {node} still leads partitions that others could lead.", limit_s)

    def await_in_sync(self, node: int, limit_s: float) -> None:
        """Wait until the replicas of a node are in sync, if the cluster can get there."""
        if self.nodes == 1 or not self.has_majority or node in self._isolated:
            return

        def behind() -> list[str]:
            return list(self.active_controller(limit_s).command("broker", broker_id=node)["not_in_sync"])

        wait_for(
            lambda: True if not behind() else None,
            lambda: f"the replicas of node {node} are not in sync: {', '.join(behind()[:5])}.",
            limit_s,
        )

    def isolate(self, node: int) -> None:
        """Isolate a node, as ``NodeHandle.isolate`` does."""
        self.need_others("isolated")
        self._isolated.add(node)
        self._apply_cuts()

    def heal(self, node: int) -> None:
        """Heal a node, as ``NodeHandle.heal`` does."""
        self._isolated.discard(node)
        self._apply_cuts()

    def _apply_cuts(self) -> None:
        for member in self._members:
            if member.is_running:
                member.command("cut", peers=self._cut_from(member.id))

    def _cut_from(self, node: int) -> list[int]:
        """Return the nodes whose requests a node does not take."""
        others = [number for number in range(self.nodes) if number != node]
        return others if node in self._isolated else [other for other in others if other in self._isolated]

    def need_others(self, verb: str) -> None:
        if self.nodes == 1:
            raise NotPossible(f"The only node cannot be {verb}: give nodes=3.")


def _place_of_caller() -> str:
    """Return file and line of the nearest call that is not the library's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(OWN_MODULES):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _end_unclosed(
    made_at: str,
    owner: int,
    carriers: Sequence[Carrier],
    listeners: Sequence[Listeners],
    folder: TemporaryFolder,
) -> None:
    """End what a cluster has left that was never closed, and warn. The collector of garbage calls it, perhaps in the
    thread of a node, or the end of the interpreter."""
    if os.getpid() != owner:
        return
    for carrier in carriers:
        carrier.kill()
    for listener in listeners:
        listener.release()
    folder.remove()
    text = f"The cluster that was made at {made_at} was never closed: use it in a with block, or call close()."
    warnings.warn(text, ResourceWarning, stacklevel=1)


def _replication(count: int) -> dict[str, str]:
    """Return the settings by which each node has a replica of the internal topics, as far as 3 of them go."""
    factors = ("default", "offsets.topic", "transaction.state.log")
    return {
        **{f"{factor}.replication.factor": str(count) for factor in factors},
        "transaction.state.log.min.isr": str(1 if count == 1 else 2),
    }


def _new_id() -> str:
    """Return a random cluster ID. It never begins with a dash, because tools would take it for an option."""
    return next(text for text in iter(lambda: uuid_text(uuid4().bytes), "") if not text.startswith("-"))


def setting(name: str, value: object) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError(f"{name} is {value!r}: give a string, a number, True or False.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_settings(config: Mapping[str, str]) -> None:
    from reference_broker.configuration.broker_config import BrokerConfig, ConfigError

    try:
        BrokerConfig.parse(dict(config))
    except ConfigError as wrong:
        raise ValueError(str(wrong)) from wrong
