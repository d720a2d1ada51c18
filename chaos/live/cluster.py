"""All nodes of a live run: each over all its incarnations, voters before observers, and the links between them."""

import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.ports import free_port, free_ports
from chaos.live.errors import EndedItself, NodeDied, NotBack, SetupError
from chaos.live.links import Links
from chaos.live.node_side.evidence import ROLE
from chaos.live.node_side.node_process import NOT_YET, NodeSpec
from chaos.live.processes import READY_LIMIT_S, Child, EvidencePipe
from chaos.live.quorum import Dial, introductions, new_cluster_id, shared_store
from chaos.live.run_folder import RunFolder
from chaos.live.targets import Roles
from chaos.seeds import random_for
from scenarios.model import Scenario


@dataclass(slots=True)
class LiveNode:
    """One node. ``logs`` is the folder of its log.

    ``spec`` is that of the latest start. ``changes`` holds settings for the next start, which add to or replace those
    of the spec. ``child`` is None before the first start. ``is_ready`` speaks of the incarnation that runs.
    """

    spec: NodeSpec
    logs: Path
    changes: Mapping[str, str] = field(default_factory=dict)
    child: Child | None = None
    is_ready: bool = False
    load_from_us: int = NOT_YET
    _pipe: EvidencePipe | None = None

    @property
    def name(self) -> str:
        return f"node-{self.spec.node_id}"

    @property
    def listen(self) -> str:
        """HOST:PORT without a proxy before it."""
        return self.spec.listen

    @property
    def advertised(self) -> str:
        """HOST:PORT of the proxy that leads clients here."""
        return self.spec.advertised

    @property
    def data(self) -> Path:
        return Path(self.spec.data)

    def launch(self) -> None:
        """Starts the next incarnation."""
        assert not self.running, f"{self.name} runs already"
        self.close()
        self.is_ready = False
        pipe = self._pipe = EvidencePipe()
        self.spec = replace(
            self.spec,
            incarnation=self.spec.incarnation + 1,
            evidence_fd=pipe.write_end,
            config={**self.spec.config, **self.changes},
            load_from_us=self.load_from_us,
        )
        self.child = Child(
            self.name,
            [sys.executable, "-m", "chaos.live.node_side.node_process", json.dumps(asdict(self.spec))],
            self.logs / f"{self.name}.log",
            pass_fds=(pipe.write_end,),
        )
        pipe.close_write_end()

    def await_ready(self) -> None:
        """Waits until the node serves. Raises NotBack for a node that was started again and does not, NodeDied,
        SetupError."""
        assert self.child is not None
        if not self.is_ready:
            with self._no_first_start():
                if self.child.said("ready", READY_LIMIT_S) is None:
                    story = f"within {READY_LIMIT_S:g} s; its log: {self.child.log}"
                    if self.spec.incarnation == 0:
                        raise NodeDied(f"{self.name} was not ready {story}")
                    raise NotBack(f"{self.name} did not come back {story}")
            self.is_ready = True

    def look_for_ready(self) -> None:
        """Notes that the node serves, if it does. It does not wait for that, and an announced death is no error."""
        assert self.child is not None
        if self.is_ready or (self.child.exit_status is not None and self.child.expected_end):
            return
        with self._no_first_start():
            self.is_ready = self.child.said("ready", 0.0 if self.child.exit_status is None else 2.0) is not None

    @contextmanager
    def _no_first_start(self) -> Iterator[None]:
        """Raises EndedItself for a node that refuses to start again from its own data. If it refuses its first start,
        the SetupError stays."""
        try:
            yield
        except SetupError as refusal:
            if self.spec.incarnation == 0:
                raise
            raise EndedItself(f"{self.name} could not start again: {refusal}") from refusal

    def load_starts(self, at_us: int) -> None:
        """Tells the node that the load starts. Faults at states may hit from now on. Their times and the interval to
        the next metadata snapshot count from here."""
        self.load_from_us = at_us
        if self.child is not None:
            self.child.order(load_from_us=at_us)

    def disarm(self) -> None:
        """Tells the node that the load is over. No fault at a state hits any more."""
        self.load_from_us = NOT_YET
        if self.child is not None:
            self.child.order(disarm=True)

    def evidence(self) -> list[dict[str, Any]]:
        """Returns the lines that came since the last call."""
        return [] if self._pipe is None else self._pipe.lines()

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.exit_status is None

    def end_cleanly(self) -> None:
        """Waits for the end, which was asked for. Raises NodeDied if the node does not shut down as it should."""
        assert self.child is not None, f"{self.name} was never started"
        how = self.child.terminate()
        if self.child.exit_status != 0:
            raise NodeDied(f"{self.name} did not shut down cleanly: {how}; {self.child.last_words()}")

    def close(self) -> None:
        """Closes the pipes of a process that has ended."""
        if self.child is not None:
            self.child.close()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


class Cluster:
    """The nodes of one run. A run against a foreign target has none. ``on_line`` gets each line of evidence with its
    node's ID."""

    def __init__(
        self,
        scenario: Scenario,
        folder: RunFolder,
        seed: int,
        mutant: str,
        origin_us: int,
        on_line: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._seed = seed
        self._mutant = mutant
        self._origin_us = origin_us
        self._on_line = on_line
        self.nodes: list[LiveNode] = []
        cluster = scenario.cluster
        self.roles = Roles(cluster.nodes, cluster.total, random_for(seed, "targets"), self.lives)

    def launch(self, links: Links, lead: Callable[[Dial], Dial]) -> tuple[str, ...]:
        """Starts all nodes behind their links, on which ``lead`` may put something more. Returns where clients reach
        them. Call ``look`` until ``is_ready``."""
        cluster, folder = self._scenario.cluster, self._folder
        listen = [f"127.0.0.1:{port}" for port in free_ports(cluster.total)]
        told = introductions(new_cluster_id(), listen, cluster.nodes, links, lead)
        store = shared_store(dict(cluster.config), folder.data)
        folder.scenario.write_bytes(pickle.dumps(self._scenario))
        for number, address in enumerate(listen):
            spec = NodeSpec(
                node_id=number,
                listen=address,
                advertised=links.add("client", number, address).listen,
                metrics_listen=f"127.0.0.1:{free_port()}",
                data=str(folder.data / f"node-{number}"),
                spools=str(folder.spools),
                hit_counts=str(folder.hit_counts),
                config={**cluster.config_of(number), **told[number], **store},
                is_voter=number < cluster.nodes,
                scenario=str(folder.scenario),
                seed=self._seed,
                mutant=self._mutant,
                origin_us=self._origin_us,
            )
            self.nodes.append(LiveNode(spec, folder.logs))
        for node in self.nodes:
            node.launch()
        return tuple(node.spec.advertised for node in self.nodes)

    @property
    def is_ready(self) -> bool:
        return all(node.is_ready for node in self.nodes)

    def lives(self, node: int) -> bool:
        """Returns whether the node's process exists, even if it is stopped. A foreign target's nodes count as alive."""
        return not self.nodes or self.nodes[node].running

    def restart(self, node: int) -> None:
        """Starts the node again if it has ended. It waits until a single node is ready. One of several is not waited
        for, because it may need a quorum."""
        if self.nodes[node].running:
            return
        self.nodes[node].launch()
        if len(self.nodes) == 1:
            self.nodes[node].await_ready()

    def look(self) -> None:
        """Hands on new evidence, then raises NodeDied for a death that nobody announced, or SetupError if the node said
        that it cannot start."""
        for number, node in enumerate(self.nodes):
            self.read(number)
            if node.child is None:
                continue
            if node.child.exit_status is not None:
                # The pipe may hold the announcement of this death, so it is read again before the death is called
                # unexpected.
                self.read(number)
            node.look_for_ready()
            node.child.check()

    def read(self, number: int) -> None:
        """Hands on new evidence of one node."""
        for line in self.nodes[number].evidence():
            if ROLE in line:
                self.roles.told(number, line[ROLE])
            self._on_line(number, line)

    def heal(self) -> None:
        """Lets everything that was struck run again, and waits until it is ready. Raises NodeDied."""
        for number, node in enumerate(self.nodes):
            if node.child is not None:
                node.child.resume()
            self.restart(number)
        for node in self.nodes:
            node.await_ready()

    def end_cleanly(self) -> None:
        """Asks all nodes at once to end, because the run is over. Raises NodeDied if one does not shut down cleanly."""
        for child in self._children:
            child.check()
        for child in self._children:
            child.ask_to_end()
        for node in self.nodes:
            node.end_cleanly()

    def close(self) -> None:
        """Ends every process in any state, and hands on the last evidence."""
        for child in self._children:
            child.ask_to_end()
        for child in self._children:
            child.terminate()
        for number, node in enumerate(self.nodes):
            self.read(number)
            node.close()

    @property
    def _children(self) -> list[Child]:
        return [node.child for node in self.nodes if node.child is not None]

    def samples(self) -> list[tuple[int, str, int]]:
        """Returns node ID, metrics address and pid of each node."""
        return [
            (node.spec.node_id, node.spec.metrics_listen, node.child.pid)
            for node in self.nodes
            if node.child is not None
        ]
