"""The rules of a scenario at requests and answers, in front of a broker that is not ours and between nodes of ours.

The frame proxy stands between whoever dials and Toxiproxy, in a process of its own.
"""

import queue
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from chaos.frame_proxy.process import FAULT, ProxyProcess, Spec
from chaos.frame_proxy.proxy import Pair
from chaos.frame_proxy.rules_file import NEED_A_PROCESS, PLACES, why_not
from chaos.frame_proxy.target import nodes_of
from chaos.live.load.fleet import Way
from chaos.live.quorum import Dial
from chaos.live.run_folder import RunFolder
from chaos.rules import at_a_link
from reports.rows import FaultRow
from scenarios.consistency import needed_by
from scenarios.loader import typed
from scenarios.model import Scenario

__all__ = ["FAULT", "ForeignFrames", "Frames", "LinkFrames", "has_frame_faults", "has_link_faults", "lacking"]


def has_frame_faults(scenario: Scenario) -> bool:
    return any(fault.on in PLACES for fault in scenario.faults)


def lacking(scenario: Scenario, nodes: Sequence[str]) -> str:
    """Returns what of a scenario nobody can do in front of these nodes, and why. It is empty if all can be done."""
    if scenario.state:
        return "[state] is set inside the broker's process"
    for fault in scenario.faults:
        if fault.timed and needed_by(fault) == "interceptor":
            return f"fault {fault.name} needs what other nodes have sent"
        if fault.kind in NEED_A_PROCESS and not fault.timed:
            return f"fault {fault.name} needs a process that we started"
        wrong = "" if fault.timed else why_not(fault, dict.fromkeys(range(len(nodes)), 0), topic=scenario.load.hot.name)
        if wrong:
            return f"fault {fault.name}: {wrong}"
    return ""


def has_link_faults(scenario: Scenario) -> bool:
    return any(at_a_link(fault) for fault in scenario.faults if not fault.timed)


class Frames:
    """A frame proxy of one run. Raises SetupError, NodeDied."""

    def __init__(self, spec: Spec, log: Path) -> None:
        self._hits: queue.SimpleQueue[FaultRow] = queue.SimpleQueue()
        self._process = ProxyProcess(spec, log, self._hits.put)
        self.check = self._process.check

    def load_starts(self, at_us: int) -> None:
        self._process.order(load_from_us=at_us)

    def disarm(self) -> None:
        self._process.order(disarm=True)

    def hits(self) -> Iterator[FaultRow]:
        """Yields what was struck since the last call."""
        while True:
            try:
                yield self._hits.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        self._process.terminate()
        self._process.close()


class ForeignFrames(Frames):
    """Stands before each node of a target.

    ``way`` is the way to the target through Toxiproxy, and then ``self.way`` that through the frame proxy, too.
    """

    def __init__(self, scenario: Scenario, target: str, way: Way, folder: RunFolder, seed: int, origin_us: int) -> None:
        nodes = [(each.node_id, each.host, each.port) for each in nodes_of(target)]
        spec = Spec(
            nodes,
            dict(way.dial),
            scenario=typed(scenario),
            seed=seed,
            origin_us=origin_us,
            frames=str(folder.spools),
            topic=way.topic_prefix + scenario.load.hot.name,
        )
        super().__init__(spec, folder.logs / "frame-proxy.log")
        self.way = replace(way, dial=dict(zip(way.bootstrap, self._process.fronts, strict=True)))


class LinkFrames(Frames):
    """Stands on each link between nodes.

    ``dial`` is the way from node to node through Toxiproxy, and then ``self.dial`` that through the frame proxy, too.
    """

    def __init__(self, scenario: Scenario, dial: Dial, logs: Path, seed: int, origin_us: int) -> None:
        pairs = [Pair(source, target, upstream) for (source, target), upstream in dial.items()]
        spec = Spec(pairs=pairs, scenario=typed(scenario), seed=seed, origin_us=origin_us)
        super().__init__(spec, logs / "link-frames.log")
        self.dial: Dial = dict(zip(dial, self._process.fronts, strict=True))

    def role(self, node: int, role: str) -> None:
        """Tells what a node is now, for rules that strike links to a role."""
        self._process.order(role=[node, role])
