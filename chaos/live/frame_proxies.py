"""The frame proxies of a run: in front of an external broker, and between nodes.

A frame proxy is a process of its own between the dialling side and Toxiproxy.
"""

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chaos.frame_proxy.process import ProxyProcess, Spec
from chaos.frame_proxy.proxy import AdvertisedNode, LinkPair
from chaos.frame_proxy.rules_file import PLACES
from chaos.interceptor.held_responses import LostKeys
from chaos.interceptor.rules import at_a_link, between_nodes
from chaos.live.fleet import ClusterAccess
from chaos.live.links import Links
from chaos.live.quorum import Dial
from chaos.live.run_folder import RunFolder
from reports.rows import FaultRow
from scenarios.loader import typed
from scenarios.model import Scenario


def has_frame_rules(scenario: Scenario) -> bool:
    """Return whether a rule is for requests or responses of clients."""
    return any(fault.on in PLACES and not at_a_link(fault) for fault in scenario.faults)


def has_link_rules(scenario: Scenario, is_ours: bool = True) -> bool:
    """Return whether a rule is for requests or responses between nodes, which needs a proxy there. Nodes of the
    reference broker see responses themselves."""
    is_there = at_a_link if is_ours else between_nodes
    return any(is_there(fault) for fault in scenario.faults if not fault.timed)


class Frames:
    """A frame proxy of one run. Its methods raise SetupError, NodeDied."""

    def __init__(self, spec: Spec, log: Path) -> None:
        self._fired: queue.SimpleQueue[FaultRow] = queue.SimpleQueue()
        self._lost: queue.SimpleQueue[tuple[int, LostKeys]] = queue.SimpleQueue()
        self._process = ProxyProcess(spec, log, self._fired.put, lambda node, lost: self._lost.put((node, lost)))
        self.check = self._process.check
        self._roles: dict[int, str] = {}
        self._processes: dict[int, int | str] = dict(spec.processes)

    def load_starts(self, at_us: int) -> None:
        self._process.send_command(load_from_us=at_us)

    def disarm(self) -> None:
        self._process.send_command(disarm=True)

    def role(self, node: int, role: str) -> None:
        """Pass on the role of a node, for rules that name a role."""
        if self._roles.get(node) != role:
            self._roles[node] = role
            self._process.send_command(role=[node, role])

    def has_processes(self, processes: Mapping[int, int | str]) -> None:
        """Update the processes of nodes, some of which may have been restarted."""
        if processes != self._processes:
            self._processes = dict(processes)
            self._process.send_command(processes={str(node): process for node, process in processes.items()})

    def fired(self) -> Iterator[FaultRow]:
        """Yield the faults that fired since the last call."""
        while True:
            try:
                yield self._fired.get_nowait()
            except queue.Empty:
                return

    def lost(self) -> Iterator[tuple[int, LostKeys]]:
        """Yield the responses that Toxiproxy has lost since the last call, by node."""
        while True:
            try:
                yield self._lost.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        self._process.terminate()
        self._process.close()


class ExternalFrames(Frames):
    """In front of each node of a target.

    ``access`` leads to the target's ``nodes`` through Toxiproxy, and ``self.access`` through the frame proxy, too.
    ``processes`` are those of nodes (``chaos.frame_proxy.fault_actions``). With ``roles_are_reported``, ``role``
    is called.
    """

    def __init__(
        self,
        scenario: Scenario,
        nodes: Sequence[AdvertisedNode],
        access: ClusterAccess,
        processes: Mapping[int, int | str],
        folder: RunFolder,
        seed: int,
        origin_us: int,
        roles_are_reported: bool,
        links: Links,
    ) -> None:
        spec = Spec(
            [(node.node_id, node.host, node.port) for node in nodes],
            dict(access.dial),
            scenario=typed(scenario),
            seed=seed,
            origin_us=origin_us,
            frames=str(folder.spools),
            topic=access.topic_prefix + scenario.load.hot.name,
            external_faults=names_of(scenario),
            roles_are_reported=roles_are_reported,
            processes=dict(processes),
        )
        super().__init__(spec, folder.logs / "frame-proxy.log")
        reached = fronts = self._process.fronts
        if any(fault.kind == "response_lost_by_proxy" for fault in scenario.faults):
            reached = [self._behind(links, node, front) for node, front in enumerate(fronts)]
        # Metadata names the fronts, so clients dial these, too.
        known = (*zip(fronts, reached, strict=True), *zip(access.bootstrap, reached, strict=True))
        self.access = replace(access, dial=dict(known))

    def _behind(self, links: Links, node: int, front: str) -> str:
        """Put Toxiproxy between clients and the front of a node. Return its address."""
        return links.add_front(node, front, lambda is_on: self._process.send_command(toxic=[node, is_on])).listen


class LinkFrames(Frames):
    """On each link between nodes. ``fronts`` are HOST:PORT on each of the ``pairs``."""

    def __init__(
        self, scenario: Scenario, pairs: Sequence[LinkPair], logs: Path, seed: int, origin_us: int, is_ours: bool = True
    ) -> None:
        names = None if is_ours else names_of(scenario)
        spec = Spec(pairs=list(pairs), scenario=typed(scenario), seed=seed, origin_us=origin_us, external_faults=names)
        super().__init__(spec, logs / "link-frames.log")
        self.fronts = self._process.fronts

    @classmethod
    def before(cls, dial: Dial, scenario: Scenario, logs: Path, seed: int, origin_us: int) -> tuple["LinkFrames", Dial]:
        """Return the addresses at which nodes reach each other through this frame proxy, in front of Toxiproxy."""
        pairs = [LinkPair(source, target, upstream) for (source, target), upstream in dial.items()]
        frames = cls(scenario, pairs, logs, seed, origin_us)
        return frames, dict(zip(dial, frames.fronts, strict=True))


def names_of(scenario: Scenario) -> list[str]:
    return [fault.name for fault in scenario.faults]
