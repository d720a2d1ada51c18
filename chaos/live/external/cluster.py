"""All nodes of an external target, with proxies on the directed links between those that we start.

``standing`` runs a target without proxies and without a run, for as long as a block lasts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple, TypeAlias

from bench.targets.layout import FIRST_LEVELS, HOST, OURS, Plan, Via
from bench.targets.model import Chosen, TargetError
from chaos.frame_proxy.proxy import Pair
from chaos.live.errors import SetupError
from chaos.live.external.needs import chosen
from chaos.live.external.node import ShellNode, TargetNode, of_commands, of_process
from chaos.live.external.roles import RolesSeen
from chaos.live.external.target import nodes_of
from chaos.live.links import ANY_PORT, Links
from chaos.live.targets import Roles
from chaos.seeds import random_for
from scenarios.model import Cluster

BLOCKS = range(20, 250)
Lead: TypeAlias = Callable[[Sequence[Pair]], Sequence[str]]
"""Puts something more on links, and returns HOST:PORT before each of them."""


def via_proxies(plan: Plan, links: Links, lead: Lead | None = None) -> dict[tuple[int, int], str]:
    """Makes a proxy for each directed link, and for each port of it if nodes have several. Returns where a node finds
    another one then (``bench.targets.layout.Via``). It is empty if the target does not let us in between. ``lead`` may
    put something more before the proxies.

    Nodes that look names up find each other at addresses of their own in 127.0.0.0/8, one for each pair, with the same
    ports. Runs side by side draw different blocks of these.
    """
    pairs = [(node, other) for node in range(plan.total) for other in range(plan.total) if node != other]
    if plan.node.links == "none":
        return {}
    if plan.node.links == "peers":
        ends = [_End(node, other, plan.ports[other]["client"]) for node, other in pairs]
        return dict(zip(pairs, _stand_on(ends, links, lead), strict=True))
    block = SystemRandom().choice(BLOCKS)
    via = {(node, other): f"127.{block}.{node + 1}.{other + 1}" for node, other in pairs}
    ends = [
        _End(node, other, port, f"{via[node, other]}:{port}", name)
        for node, other in pairs
        for name, port in plan.ports[other].items()
        if name != "client"
    ]
    _stand_on(ends, links, lead)
    return via


class _End(NamedTuple):
    """One port of a link's target, where to listen before it, and its name if there are several."""

    node: int
    other: int
    port: int
    listen: str = ANY_PORT
    name: str = ""


def _stand_on(ends: Sequence[_End], links: Links, lead: Lead | None) -> Sequence[str]:
    """Returns HOST:PORT before each of them."""
    if lead is None:
        return [_add(links, end, end.listen) for end in ends]
    return lead([Pair(end.node, end.other, _add(links, end, ANY_PORT), end.listen) for end in ends])


def _add(links: Links, end: _End, listen: str) -> str:
    try:
        return links.add(end.node, end.other, f"{HOST}:{end.port}", listen, end.name).listen
    except SetupError as failure:
        raise SetupError(
            f"No proxy can listen on {listen}, an address of its own for one link between nodes: {failure}"
        ) from failure


DEATH_IS_TOLD_WITHIN_S = 1.0
"""The frame proxy tells of a kill before it kills. The line may still come after we have seen the death."""


class ExternalCluster:
    """The nodes of one run. Addresses alone have none that we can strike. Raises SetupError, TargetDied.

    ``cluster`` is that of the scenario. ``folder`` gets data and files, ``logs`` the nodes' logs.
    """

    def __init__(self, chosen: Chosen, cluster: Cluster, folder: Path, logs: Path, seed: int) -> None:
        self.nodes: list[TargetNode] = []
        self._chosen = chosen
        self._folder = folder
        self._logs = logs
        self._cluster = cluster
        self.voters = max(chosen.nodes, cluster.nodes)
        self._total = self.voters + cluster.observers
        self._changes: dict[int, Mapping[str, str]] = {}
        self._plan: Plan | None = None
        self._via: Via = {}
        self._first_seen_dead: dict[int, float] = {}
        self.roles = Roles(self.voters, self._total, random_for(seed, "targets"), self.lives)
        self.seen: RolesSeen | None = None

    @property
    def total(self) -> int:
        """The number of nodes that the cluster must tell."""
        file = self._chosen.file
        return self._total if file.node is not None else len(file.addresses) if file.commands is not None else 0

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the first node, without a proxy before it."""
        return self.nodes[0].listen if self.nodes else self._chosen.file.addresses[0]

    def launch(self, links: Links | None = None, lead: Lead | None = None) -> None:
        """Starts all nodes, with a proxy on each directed link if ``links`` are given and the target lets us. ``lead``
        puts something more there. Call ``look`` until ``is_ready``."""
        file = self._chosen.file
        if file.node is not None:
            self.nodes = self._made(links, lead)
        elif file.commands is not None:
            self.nodes = [
                of_commands(number, self._chosen, file.commands, self._logs / f"node-{number}.log")
                for number in range(self._chosen.nodes)
            ]
        for node in self.nodes:
            node.launch()

    def settings(self, node: int) -> dict[str, str]:
        """Returns the scenario's settings for one node, without those that only the reference broker has."""
        wanted = {**self._cluster.config_of(node), **self._changes.get(node, {})}
        return {key: value for key, value in wanted.items() if not key.startswith(OURS)}

    def reconfigure(self, node: int, config: Mapping[str, str]) -> None:
        """Gives these settings to the next incarnations of a node that we start, beside or instead of what it had."""
        self._changes[node] = {**self._changes.get(node, {}), **config}
        if self._plan is not None:
            layout = self.nodes[node].layout = self._plan.laid(node, self._via)
            layout.write()

    def _made(self, links: Links | None, lead: Lead | None) -> list[TargetNode]:
        config = self._cluster.config_of(0)
        features = {name: config[key] for key, name in FIRST_LEVELS.items() if key in config}
        plan = Plan(self._chosen, self._folder, self.voters, self._total, settings=self.settings, features=features)
        self._plan, self._via = plan, {} if links is None else via_proxies(plan, links, lead)
        try:
            layouts = plan.lay_out(self._via)
            with ThreadPoolExecutor() as several:
                list(several.map(lambda layout: layout.make(), layouts))
        except TargetError as wrong:
            raise SetupError(str(wrong)) from wrong
        return [of_process(each, plan.node, self._logs / f"node-{each.number}.log") for each in layouts]

    @property
    def is_ready(self) -> bool:
        return all(node.is_ready for node in self.nodes)

    def lives(self, node: int) -> bool:
        """Returns whether the node's process exists, even if it is stopped. Nodes that are addresses count as alive."""
        return node >= len(self.nodes) or self.nodes[node].running

    def restart(self, node: int) -> None:
        """Starts a node that has ended. Nothing else happens while an empty data folder is prepared."""
        if not self.nodes[node].running:
            self._first_seen_dead.pop(node, None)
            self.nodes[node].make_anew()
            self.nodes[node].launch()

    def look(self) -> None:
        """Raises for a death that nobody announced, and for a node that does not get ready."""
        if self.seen is not None:
            self.seen.tell(self.roles)
        for number, node in enumerate(self.nodes):
            child = node.child
            if child is None or child.expected_end:
                continue
            if child.exit_status is not None:
                first = self._first_seen_dead.setdefault(number, time.monotonic())
                if time.monotonic() - first < DEATH_IS_TOLD_WITHIN_S:
                    continue
            node.look_for_ready()
            if node.is_ready:  # One that ends just now, before it is ready, is told as that at the next look.
                child.check()

    def read(self, number: int) -> None:
        """There is no evidence from inside a node."""

    def heal(self) -> None:
        """Lets everything that was struck run again, and waits until it is ready."""
        for number, node in enumerate(self.nodes):
            if node.child is not None:
                node.child.resume()
            self.restart(number)
        for node in self.nodes:
            node.await_ready()

    def end_cleanly(self) -> None:
        """Looks a last time. How a broker shuts down that is not ours is not judged."""
        for node in self.nodes:
            if node.child is not None:
                node.child.check()

    def close(self) -> None:
        """Ends all nodes that we have started. Raises SetupError for the first that a command could not leave as it
        was."""
        if self.seen is not None:
            self.seen.close()
        failures = []
        for node in self.nodes:
            try:
                node.close()
            except SetupError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def samples(self) -> list[tuple[int, str, int]]:
        """No node has metrics that we know."""
        return []

    def processes(self) -> dict[int, int | str]:
        """Returns for each node that can be killed or paused at a state its process group, as a negative number, or the
        command that kills it."""
        file = self._chosen.file.node
        struck = () if file is not None and file.one_process and len(self.nodes) > 1 else self.nodes
        return {node.number: _struck_by(node) for node in struck if node.child is not None}


def _struck_by(node: TargetNode) -> int | str:
    assert node.child is not None
    return node.child.command("kill") if isinstance(node.child, ShellNode) else -node.child.pid


ASK_EVERY_S = 0.1
TOLD_LIMIT_S = 60.0


@contextmanager
def standing(target: str, folder: Path, cluster: Cluster | None = None) -> Iterator[ExternalCluster]:
    """Starts the nodes of a target if that is ours to do, and ends them with the block. It only asks addresses alone.

    ``folder`` gets data, files and logs. ``cluster`` is what a scenario asks for: at least so many nodes, with these
    settings. Raises SetupError, TargetDied.
    """
    wanted = chosen(target)
    crew = ExternalCluster(wanted, replace(cluster or Cluster(), observers=0), folder, folder, 0)
    try:
        crew.launch()
        while not crew.is_ready:
            crew.look()
            time.sleep(ASK_EVERY_S)
        if crew.total:
            _await_all(crew, target)
        yield crew
    finally:
        crew.close()


def _await_all(crew: ExternalCluster, target: str) -> None:
    """Waits until the cluster tells clients of all its nodes."""
    deadline = time.monotonic() + TOLD_LIMIT_S
    while (found := len(nodes_of(crew.bootstrap))) < crew.total:
        if time.monotonic() > deadline:
            raise SetupError(f"{target} told clients of {found} nodes within {TOLD_LIMIT_S:g} s; it has {crew.total}.")
        crew.look()
        time.sleep(ASK_EVERY_S)
