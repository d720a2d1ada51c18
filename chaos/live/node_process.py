"""The wrapper process of a node under test: ``python -m chaos.live.node_process SPEC`` (JSON of ``NodeSpec``).

Applies the mutant before the first node is built, sets the named states, records the trace and injects the faults at
states (``inside``). Evidence goes to an inherited pipe before its action, so that a SIGKILL leaves it.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_broker.core.node import Node

NOT_YET = 2**62
"""``load_from_us`` before the load has started: no fault hits."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What one incarnation of a node is started with. Addresses are HOST:PORT.

    ``origin_us`` is the run's start on the machine's monotonic clock. ``scenario`` is the file with the faults at
    states, empty for none. It is played in ``revision`` with the run's ``seed``. ``claims`` is the folder in which all
    nodes count the hits of a rule. ``spool`` is the trace file, empty for no trace. ``evidence_fd`` is the inherited
    pipe. ``load_from_us`` is the load's start, from which the faults' own times count.
    """

    node_id: int
    incarnation: int
    listen: str
    data: str
    evidence_fd: int
    advertised: str | None = None
    metrics_listen: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    is_voter: bool = True
    scenario: str = ""
    revision: str = "final"
    seed: int = 0
    mutant: str = ""
    spool: str = ""
    origin_us: int = 0
    claims: str = ""
    load_from_us: int = NOT_YET

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Orders(threading.Thread):
    """Follows the runner's lines on stdin: ``{"load_from_us": N}`` when the load starts, ``{"disarm": true}`` when it
    ends, ``{"disk": {...}}`` for a fault of the disk. The end of stdin means that the runner is gone, so the node ends
    too."""

    def __init__(self, order: Callable[[dict[str, object]], None]) -> None:
        super().__init__(name="orders", daemon=True)
        self._order = order

    def run(self) -> None:
        for line in sys.stdin:
            self._order(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)


def run(spec: NodeSpec) -> int:
    """Serves the node until it ends; the exit code."""
    from chaos.live.casting import cast
    from chaos.live.evidence import MUTANT_REACHED, Evidence
    from reference_broker.serve.main import run_broker
    from reference_broker.serve.server import Wrapper
    from scenarios.loader import load
    from scenarios.revisions import in_revision

    evidence = Evidence(spec.evidence_fd)
    scenario = cast(in_revision(load(Path(spec.scenario)), spec.revision), spec.seed) if spec.scenario else None
    if spec.mutant:
        _apply_mutant(spec.mutant, lambda: evidence.tell(MUTANT_REACHED, spec.mutant))

    # After the mutant: whoever imports a function by its name gets what is there then.
    from chaos.live.inside import Inside
    from chaos.presets import presets_for

    inside = Inside(spec, scenario, presets_for(scenario.state if scenario is not None else ()), evidence)
    orders = Orders(inside.order)

    def built(node: "Node") -> None:
        inside.built(node)
        orders.start()  # What came before is still in the pipe.

    return run_broker(
        spec.listen,
        spec.data,
        spec.node_id,
        spec.config,
        spec.advertised,
        spec.metrics_listen,
        Wrapper(inside.attach, built),
    )


def _apply_mutant(name: str, reached: Callable[[], None]) -> None:
    from chaos.mutants.mutant import apply
    from chaos.mutants.registry import by_name

    apply(by_name(name), reached)


def main() -> int:
    return run(NodeSpec(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
