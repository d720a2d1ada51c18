"""The process of a node under test: ``python -m chaos.live.node_side.node_process SPEC`` (``NodeSpec`` as JSON).

The mutant is applied before the node is built. ``inside`` then sets the named states, records the trace and injects the
faults at states. Evidence goes to an inherited pipe before its action, so that it outlives a SIGKILL.
"""

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_broker.core.node import Node

NOT_YET = 2**62
"""The value of ``load_from_us`` until the load starts. Until then only faults with ``boot`` hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node is started with. Addresses are HOST:PORT.

    ``data`` is the node's folder, and ``spools`` is the folder for the traces of all nodes. The file ``scenario`` has
    the pickled Scenario of the run, with the faults that the run's ``seed`` has drawn. All nodes count the hits of a
    rule in the folder ``hit_counts``. ``origin_us`` is the run's start on the machine's monotonic clock.

    ``incarnation``, ``evidence_fd`` (the inherited pipe) and ``load_from_us`` (the load's start, from which the faults'
    own times count) differ at each start.
    """

    node_id: int
    listen: str
    advertised: str
    metrics_listen: str
    data: str
    spools: str
    hit_counts: str
    config: Mapping[str, str]
    is_voter: bool
    scenario: str
    seed: int
    mutant: str
    origin_us: int
    incarnation: int = -1
    evidence_fd: int = -1
    load_from_us: int = NOT_YET

    @property
    def spool(self) -> Path:
        """The trace of this incarnation."""
        return Path(self.spools) / f"node-{self.node_id}-{self.incarnation}.jsonl"

    def now_us(self) -> int:
        """Return the time since the run's start."""
        return time.monotonic_ns() // 1000 - self.origin_us


class Orders(threading.Thread):
    """Follows the runner's lines on stdin: ``{"load_from_us": N}`` when the load starts, ``{"disarm": true}`` when it
    ends, ``{"disk": {...}}`` for a fault of the disk. At the end of stdin the runner is gone, so the node ends too."""

    def __init__(self, order: Callable[[dict[str, object]], None]) -> None:
        super().__init__(name="orders", daemon=True)
        self._order = order

    def run(self) -> None:
        for line in sys.stdin:
            self._order(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)


def run(spec: NodeSpec) -> int:
    """Serve the node until it ends, and return the exit code."""
    from chaos.live.node_side.evidence import MUTANT_REACHED, Evidence
    from reference_broker.serve.main import run_broker
    from reference_broker.serve.server import Wrapper

    evidence = Evidence(spec.evidence_fd)
    scenario = pickle.loads(Path(spec.scenario).read_bytes())
    if spec.mutant:
        from chaos.mutants.mutant import apply
        from chaos.mutants.registry import by_name

        apply(by_name(spec.mutant), lambda: evidence.report(MUTANT_REACHED, spec.mutant))

    # This is imported after the mutant was applied: a module that imports a function by its name keeps what it gets.
    from chaos.live.node_side.inside import Inside

    inside = Inside(spec, scenario, evidence)
    orders = Orders(inside.order)

    def built(node: "Node") -> None:
        inside.built(node)
        orders.start()  # Orders that came earlier are still in the pipe.

    return run_broker(
        spec.listen,
        spec.data,
        spec.node_id,
        spec.config,
        spec.advertised,
        spec.metrics_listen,
        Wrapper(inside.attach, built),
    )


if __name__ == "__main__":
    sys.exit(run(NodeSpec(**json.loads(sys.argv[1]))))
