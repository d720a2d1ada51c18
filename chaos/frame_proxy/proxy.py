"""The proxy of all nodes: one front for each, the rules of all, and the faults that fired."""

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.frame_proxy.fault_actions import NO_PROCESS, ProxyFaultActions
from chaos.frame_proxy.frames import MAX_FRAME_BYTES
from chaos.frame_proxy.node_front import Address, NodeFront
from chaos.frame_proxy.recorder import FrameRecorder, RequestLog
from chaos.frame_proxy.rules_file import why_not
from chaos.interceptor.held_responses import LostKeys
from chaos.interceptor.rules import Rule, RuleBook, SharedHitCounter, settled
from chaos.seeds import random_for
from reference_broker.serve.listeners import bound_port, listening_socket, parse_address, shown_address
from reference_broker.serve.process import StartError
from reports.rows import FaultRow
from scenarios.fields import ScenarioError
from scenarios.model import Fault
from scenarios.vocabulary import NODE_ROLES, PARTITION_ROLES

FLUSH_EVERY_S: Final = 0.5
KEPT_HITS: Final = 100_000
MAX_FRONTS: Final = 1_000
"""The most nodes and links that have a listener. Kafka's largest clusters have fewer nodes."""


@dataclass(frozen=True, slots=True)
class AdvertisedNode:
    """The address that a node advertises to clients."""

    node_id: int
    host: str
    port: int
    number: int | None = None
    """Number of the node in rules, if it differs from the ID."""


@dataclass(frozen=True, slots=True)
class LinkPair:
    """A link from one node to another, with the frame proxy between them."""

    source: int
    """ID of the node that connects."""
    target: int
    """ID of the node that it reaches."""
    upstream: str
    """Address of the target, HOST:PORT."""
    listen: str = "127.0.0.1:0"
    """Address to which the source connects, HOST:PORT."""


@dataclass(frozen=True, slots=True)
class ProxyPlan:
    """The options of a proxy."""

    host: str = "127.0.0.1"
    """Where it listens."""
    port: int = 0
    """Of the first node's front, the next one has the port above it, and so on; 0: free ports."""
    rules: Sequence[Fault] = ()
    dial: Mapping[str, str] = field(default_factory=dict)
    """What to dial instead of an advertised address, HOST:PORT."""
    processes: Mapping[int, int | str] = field(default_factory=dict)
    """Of nodes (fault_actions.ProxyFaultActions)."""
    is_alive: Callable[[int], bool] = lambda _: True
    """Whether the process of a node still runs."""
    log: Path | None = None
    topic: str = ""
    """``partition_leader`` and ``partition_follower`` are of its first partition; empty: none."""
    roles_are_reported: bool = False
    """All roles come by ``take_role``, and none from Metadata."""
    frames: Path | None = None
    """The folder for what is recorded for the judge of a run."""
    seed: int = 1
    origin_us: int | None = None
    """What times count from, on the monotonic clock."""
    most_frame_bytes: int = MAX_FRAME_BYTES
    behind_toxiproxy: bool = False


class FrameProxy:
    """Lives in one event loop, and is called only there. ``on_hit`` gets each hit, before its action."""

    def __init__(
        self,
        plan: ProxyPlan,
        on_hit: Callable[[FaultRow], None] = lambda _: None,
        lost: Callable[[int, LostKeys], None] = lambda *_: None,
    ) -> None:
        self._lost = lost
        self.log = RequestLog(plan.log)
        self.recorder: FrameRecorder | None = None
        self.most_frame_bytes = plan.most_frame_bytes
        self.hits: list[FaultRow] = []
        self._plan = plan
        self._on_hit = on_hit
        self._origin_us = time.monotonic_ns() // 1000 if plan.origin_us is None else plan.origin_us
        self._loop = asyncio.get_running_loop()
        self._rules: dict[str, Rule] = {}
        self._hit_counter = SharedHitCounter()
        self._fronts: list[NodeFront] = []
        self._roles: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        """The number of each node in rules, by its ID."""
        self._is_full = False
        self._actions: list[ProxyFaultActions] = []
        self._processes = dict(plan.processes)
        self._advertised: dict[tuple[int, str, int], tuple[str, int]] = {}
        self._servers: set[asyncio.Task[asyncio.Server]] = set()
        self._last_connection = 0
        self._load_from_us = 0
        self._disarmed = False
        self._draws = random_for(plan.seed, "rules")
        self._flushes = self._loop.call_later(FLUSH_EVERY_S, self._flush)

    # What fronts share

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000 - self._origin_us

    def next_connection(self) -> int:
        self._last_connection += 1
        return self._last_connection

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """Return the address to advertise to clients for a node's address. A node that is new gets a front now. Beyond
        MAX_FRONTS, or without a free port, its own address stays."""
        known = self._advertised.get((node_id, host, port))
        if known is not None:
            return known
        wrong = f"there are {MAX_FRONTS} already" if len(self._fronts) >= MAX_FRONTS else ""
        if not wrong:
            try:
                return self._open(AdvertisedNode(node_id, host, port), 0)
            except StartError as failure:
                wrong = str(failure)
        if not self._is_full:
            self._is_full = True
            self.complain(f"no front for node {node_id} at {host}:{port} ({wrong}); clients reach such nodes past it")
        return host, port

    def learn(self, topics: Iterable[Any]) -> None:
        """Take from a Metadata response the leader and the followers of the first partition of the plan's topic."""
        if self._plan.roles_are_reported:
            return
        for topic in topics:
            if self._plan.topic and topic.name == self._plan.topic:
                for partition in topic.partitions:
                    if partition.partition_index == 0:
                        self._take_partition(int(partition.leader_id), {int(node) for node in partition.replica_nodes})

    def _take_partition(self, leader: int, replicas: Collection[int]) -> None:
        for node_id, number in self._numbers.items():
            follows = "partition_follower" if node_id in replicas else ""
            self._roles[number] = "partition_leader" if node_id == leader else follows

    def role_of(self, node: int) -> str:
        """Return what the node is (``chaos.interceptor.roles.role_of``), as far as it is known."""
        return self._roles.get(node, "")

    def complain(self, sentence: str) -> None:
        print(f"crucible proxy: {sentence}", file=sys.stderr, flush=True)  # noqa: T201

    def lost_by_proxy(self, node: int, lost: LostKeys) -> None:
        self._lost(node, lost)

    def toxic(self, node: int, is_on: bool) -> None:
        """Note whether a toxic is on between clients and this proxy, in front of that node."""
        for front in self._fronts:
            if front.node == node and front.source is None:
                front.held.toxic(is_on)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, action)

    # The course

    def start(self, nodes: Sequence[AdvertisedNode], pairs: Sequence[LinkPair] = ()) -> list[str]:
        """Open a front for each node, and one for each link. Return HOST:PORT of each, in this order. Raise
        StartError, ScenarioError."""
        if self._plan.frames is not None:
            self.recorder = FrameRecorder(self._plan.frames, len(nodes), self.now_us)
        addresses = [
            self._open(node, self._plan.port + number if self._plan.port else 0) for number, node in enumerate(nodes)
        ]
        addresses += [self._stand_between(pair) for pair in pairs]
        for rule in self._plan.rules:
            self.add(rule)
        return [shown_address(*address) for address in addresses]

    def close(self) -> None:
        self._flushes.cancel()
        for server in self._servers:
            if server.done() and not server.cancelled() and server.exception() is None:
                server.result().close()
            else:
                server.cancel()
        for front in self._fronts:
            front.close()
        for actions in self._actions:
            actions.wake()
        self.log.close()
        if self.recorder is not None:
            self.recorder.close()

    def _open(self, node: AdvertisedNode, port: int) -> tuple[str, int]:
        upstream = self._plan.dial.get(shown_address(node.host, node.port))
        host, _, dialled = upstream.rpartition(":") if upstream else (node.host, "", str(node.port))
        number = self._numbers.setdefault(node.node_id, node.node_id if node.number is None else node.number)
        front = NodeFront(self, number, Address(host.strip("[]"), int(dialled)), self._hit_counter)
        address = self._serve(front, self._plan.host, port, "--listen", f"interceptor-{number}-0")
        self._advertised[node.node_id, node.host, node.port] = address
        return address

    def _stand_between(self, pair: LinkPair) -> tuple[str, int]:
        upstream = Address(*parse_address(pair.upstream, "a link's target"))
        front = NodeFront(self, pair.target, upstream, self._hit_counter, pair.source)
        host, port = parse_address(pair.listen, "a link")
        return self._serve(front, host, port, "a link", f"link-{pair.source}-{pair.target}")

    def _serve(self, front: NodeFront, host: str, port: int, option: str, chance: str) -> tuple[str, int]:
        """Let the front take connections. Return its address. ``chance`` names its generator of random numbers."""
        socket = listening_socket(host, port, option)
        requester_actions = None if front.source is None else self._actions_over(front.source, front)
        front.take_actions(
            self._actions_over(front.node, front), random_for(self._plan.seed, chance), requester_actions
        )
        for book in front.books:
            book.load_from(self._load_from_us)
            if self._disarmed:
                book.disarm()
        for rule in self._rules.values():
            front.add(rule)
        self._fronts.append(front)
        self._servers.add(self._loop.create_task(self._loop.create_server(front.accept, sock=socket)))
        return host, bound_port(socket)

    def _actions_over(self, node: int, front: NodeFront) -> ProxyFaultActions:
        def process() -> int | str:
            return self._processes.get(node, NO_PROCESS) if self._plan.is_alive(node) else NO_PROCESS

        actions = ProxyFaultActions(front, self._loop, process, self._report, self._missed)
        self._actions.append(actions)
        return actions

    def _report(self, row: FaultRow) -> None:
        if len(self.hits) < KEPT_HITS:
            self.hits.append(row)
        self._on_hit(row)

    def _missed(self, row: FaultRow) -> None:
        self.complain(
            f"rule {row.name!r}: the process of {row.target} has ended, so nothing was done. Start the proxy again "
            "with the new one in --process"
        )

    def _flush(self) -> None:
        self.log.flush()
        if self.recorder is not None:
            self.recorder.flush()
        self._flushes = self._loop.call_later(FLUSH_EVERY_S, self._flush)

    def has_process(self, node: int, process: int | str) -> None:
        """Note the process of a node that was started again."""
        self._processes[node] = process

    # Rules

    @property
    def rules(self) -> Sequence[Rule]:
        return tuple(self._rules.values())

    def add(self, fault: Fault) -> None:
        """Raise ScenarioError for a rule that cannot be played here, or whose name is taken."""
        nodes = {front.node: self._processes.get(front.node, NO_PROCESS) for front in self._fronts}
        known = NODE_ROLES if self._plan.roles_are_reported else PARTITION_ROLES if self._plan.topic else ()
        has_links = any(front.source is not None for front in self._fronts)
        wrong = why_not(fault, nodes, has_links, known, self._plan.behind_toxiproxy)
        if fault.name in self._rules:
            wrong = "the name is taken; give each rule one of its own, or remove the other first"
        if wrong:
            raise ScenarioError(f"rule {fault.name!r}: {wrong}")
        rule = self._rules[fault.name] = settled(fault, self._draws)
        for front in self._fronts:
            front.add(rule)

    def remove(self, name: str) -> bool:
        """Return whether there was such a rule. What it has begun ends as planned."""
        for book in self._books():
            book.remove(name)
        self._hit_counter.forget(name)
        return self._rules.pop(name, None) is not None

    def load_from(self, at_us: int) -> None:
        """Rules count their times from here."""
        self._load_from_us = at_us
        for book in self._books():
            book.load_from(at_us)

    def disarm(self) -> None:
        """End all rules. What they have begun ends as planned."""
        self._disarmed = True
        for front in self._fronts:
            front.held.disarm()
        for book in self._books():
            book.disarm()

    def _books(self) -> Iterator[RuleBook]:
        return (book for front in self._fronts for book in front.books)

    def take_role(self, node: int, role: str) -> None:
        """Take what the node is now (``chaos.interceptor.roles.role_of``). Rules that name a role go by that."""
        self._roles[node] = role
