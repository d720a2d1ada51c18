"""The process of a node under test: ``python -m chaos.live.node_side.node_process SPEC`` (``NodeSpec`` as JSON).

The mutant is applied before the node is built. ``inside`` then sets the named states, records the trace and injects the
faults at states.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.live.node_side.node_protocol import MUTANT_REACHED, CommandReader, Evidence, NodeSpec

if TYPE_CHECKING:
    from reference_broker.core.node import Node


def run_node(spec: NodeSpec) -> int:
    """Serve the node until it ends, and return the exit code."""
    from reference_broker.serve.main import run_broker
    from reference_broker.serve.server import Wrapper

    evidence = Evidence(spec.evidence_fd)
    scenario = pickle.loads(Path(spec.scenario).read_bytes())
    if spec.mutant:
        from chaos.mutants.mutant import apply
        from chaos.mutants.registry import by_name

        apply(by_name(spec.mutant), lambda: evidence.report(MUTANT_REACHED, spec.mutant))

    # This is imported after the mutant was applied: a module that imports a function by its name keeps what it gets.
    from chaos.live.node_side.instrumentation import NodeInstrumentation

    instrumentation = NodeInstrumentation(spec, scenario, evidence)
    commands = CommandReader(instrumentation.handle_command)

    def built(node: "Node") -> None:
        instrumentation.built(node)
        commands.start()  # Commands that came earlier are still in the pipe.

    return run_broker(
        spec.listen,
        spec.data,
        spec.node_id,
        spec.config,
        spec.advertised,
        spec.metrics_listen,
        Wrapper(instrumentation.attach, built),
    )


if __name__ == "__main__":
    sys.exit(run_node(NodeSpec(**json.loads(sys.argv[1]))))
