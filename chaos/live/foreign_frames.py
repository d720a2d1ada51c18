"""The rules of a scenario at requests and answers, in front of a broker that is not ours.

The frame proxy stands between the clients and Toxiproxy, in a process of its own.
"""

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chaos.frame_proxy.process import FAULT, ProxyProcess, Spec
from chaos.frame_proxy.proxy import Node
from chaos.frame_proxy.rules_file import PLACES
from chaos.live.load.fleet import Way
from reports.rows import FaultRow
from scenarios.loader import typed
from scenarios.model import Scenario

__all__ = ["FAULT", "ForeignFrames", "has_frame_faults"]


def has_frame_faults(scenario: Scenario) -> bool:
    return any(fault.on in PLACES for fault in scenario.faults)


class ForeignFrames:
    """The frame proxy of one run. Raises SetupError, NodeDied.

    ``way`` is the way to the target's ``nodes`` through Toxiproxy, and then ``self.way`` that through the frame proxy,
    too. ``processes`` are those of nodes (``chaos.frame_proxy.powers``).
    """

    def __init__(
        self,
        scenario: Scenario,
        nodes: Sequence[Node],
        way: Way,
        processes: Mapping[int, int | str],
        logs: Path,
        seed: int,
        origin_us: int,
    ) -> None:
        self._hits: queue.SimpleQueue[FaultRow] = queue.SimpleQueue()
        self._processes = dict(processes)
        told = [(each.node_id, each.host, each.port) for each in nodes]
        spec = Spec(told, dict(way.dial), typed(scenario), seed, origin_us, processes=self._processes)
        self._process = ProxyProcess(spec, logs / "frame-proxy.log", self._hits.put)
        self.way = replace(way, dial=dict(zip(way.bootstrap, self._process.fronts, strict=True)))
        self.check = self._process.check

    def load_starts(self, at_us: int) -> None:
        self._process.order(load_from_us=at_us)

    def disarm(self) -> None:
        self._process.order(disarm=True)

    def has_processes(self, processes: Mapping[int, int | str]) -> None:
        """Takes the processes of nodes, some of which may have been started again."""
        if processes != self._processes:
            self._processes = dict(processes)
            self._process.order(processes={str(node): process for node, process in processes.items()})

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
