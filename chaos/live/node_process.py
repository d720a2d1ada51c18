"""The wrapper process of a node under test: ``python -m chaos.live.node_process SPEC`` (JSON of ``NodeSpec``).

Applies the mutant before the first node is built, sets the named states, records the trace and injects the faults at
states. Evidence goes to an inherited pipe before its action, so that a SIGKILL leaves it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.evidence import FaultRow
    from chaos.interceptor import Interceptor
    from chaos.presets import Preset
    from reference_broker.core.node import Node
    from reference_broker.log.disk import Disk
    from reference_broker.serve.powers import DriverPowers
    from reference_broker.serve.server import Attached
    from scenarios.model import Scenario

NOT_YET = 2**62
"""``load_from_us`` before the load has started: no fault hits."""
MUTANT_REACHED = "mutant_reached"
"""Key of the evidence line that says that a mutant's replacement was called."""
FAULT = "fault"
"""Key of the evidence line that carries a row of the faults table."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What one incarnation of a node is started with. Addresses are HOST:PORT.

    ``origin_us``: the run's start on the machine's monotonic clock. ``scenario``: file with the faults at states, empty
    for none; ``seed``: the run's. ``earlier``: hits by fault name in earlier incarnations. ``spool``: trace file, empty
    for no trace. ``evidence_fd``: inherited pipe. ``load_from_us``: the load's start, the zero of the faults'
    own times.
    """

    node_id: int
    incarnation: int
    listen: str
    data: str
    evidence_fd: int
    advertised: str | None = None
    metrics_listen: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    scenario: str = ""
    seed: int = 0
    mutant: str = ""
    spool: str = ""
    origin_us: int = 0
    earlier: Mapping[str, int] = field(default_factory=dict)
    load_from_us: int = NOT_YET

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Evidence:
    """Writes whole lines to the pipe. A line is shorter than PIPE_BUF, so it goes out at once or not at all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, key: str, value: object) -> None:
        os.write(self._descriptor, json.dumps({key: value}).encode() + b"\n")


class ReportingPowers:
    """``chaos.interceptor.Powers``: the driver's, with the report going to the pipe."""

    def __init__(self, powers: "DriverPowers", evidence: Evidence) -> None:
        self._evidence = evidence
        self.kill = powers.kill
        self.power_off = powers.power_off
        self.pause = powers.pause
        self.step_clock = powers.step_clock
        self.discard_connection = powers.discard_connection
        self.deliver_later = powers.deliver_later
        self.reply_later = powers.reply_later

    def report(self, row: "FaultRow") -> None:
        self._evidence.tell(FAULT, list(row.values()))


class Orders(threading.Thread):
    """Follows the runner's lines on stdin: ``{"load_from_us": N}`` when the load starts, ``{"disarm": true}`` when it
    ends. Both set one attribute of the interceptor, so no lock is needed. The end of stdin means that the runner is
    gone: then the node goes too."""

    def __init__(self) -> None:
        super().__init__(name="orders", daemon=True)
        self.interceptor: Interceptor | None = None

    def run(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if self.interceptor is not None and "load_from_us" in order:
                self.interceptor.load_from(order["load_from_us"])
            if self.interceptor is not None and order.get("disarm"):
                self.interceptor.disarm()
        os.kill(os.getpid(), signal.SIGTERM)


def run(spec: NodeSpec) -> int:
    """Serves the node until it ends; the exit code."""
    from chaos.presets import presets_for
    from reference_broker.serve.main import run_broker
    from reference_broker.serve.server import Wrapper
    from scenarios.loader import load

    evidence = Evidence(spec.evidence_fd)
    scenario = load(Path(spec.scenario)) if spec.scenario else None
    presets = presets_for(scenario.state if scenario is not None else ())
    if spec.mutant:
        _apply_mutant(spec.mutant, lambda: evidence.tell(MUTANT_REACHED, spec.mutant))
    return run_broker(
        spec.listen,
        spec.data,
        spec.node_id,
        spec.config,
        spec.advertised,
        spec.metrics_listen,
        Wrapper(
            lambda powers, disk: _attach(spec, scenario, presets, evidence, powers, disk),
            lambda node: _set_state(spec, presets, evidence, node),
        ),
    )


def _apply_mutant(name: str, reached: Callable[[], None]) -> None:
    from chaos.mutants.mutant import apply
    from chaos.mutants.registry import by_name

    apply(by_name(name), reached)


def _set_state(spec: NodeSpec, presets: "Sequence[Preset]", evidence: Evidence, node: "Node") -> None:
    for preset in presets:
        preset.built(node)
        at_us = time.monotonic_ns() // 1000 - spec.origin_us
        evidence.tell(FAULT, list(preset.evidence(spec.node_id, at_us).values()))


def _attach(
    spec: NodeSpec,
    scenario: "Scenario | None",
    presets: "Sequence[Preset]",
    evidence: Evidence,
    powers: "DriverPowers",
    disk: "Disk",
) -> "Attached":
    from chaos.interceptor import Interceptor
    from chaos.live.trace_spool import TraceSpool
    from chaos.rules import rules_for
    from chaos.seeds import random_for
    from chaos.trace import TraceRecorder
    from reference_broker.core.hooks import Hooks
    from reference_broker.serve.server import Attached

    hooks: list[Hooks] = []
    orders = Orders()
    if spec.spool:
        spool = TraceSpool(Path(spec.spool))
        hooks.append(TraceRecorder(spec.node_id, spec.incarnation, lambda row: spool.add(row.values()), spec.origin_us))
    if scenario is not None:
        rules = rules_for(scenario, spec.node_id, random_for(spec.seed, "rules"))
        random = random_for(spec.seed, f"interceptor-{spec.node_id}-{spec.incarnation}")
        if rules:
            interceptor = Interceptor(
                spec.node_id, rules, ReportingPowers(powers, evidence), random, spec.origin_us, spec.earlier
            )
            interceptor.load_from(spec.load_from_us)
            orders.interceptor = interceptor
            hooks.append(interceptor)
            disk = interceptor.watch(disk)
    orders.start()
    return Attached((*hooks, *presets), disk)


def main() -> int:
    return run(NodeSpec(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
