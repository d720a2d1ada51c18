"""A node of a live run over all its incarnations: same ports, same data, one process after another."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.live.errors import NodeDied
from chaos.live.node_process import NOT_YET, NodeSpec
from chaos.live.ports import free_port
from chaos.live.processes import Child, EvidencePipe


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What stays the same for a node. ``folder``: of the run's data; ``logs``, ``spools``: folders."""

    node_id: int
    folder: Path
    logs: Path
    spools: Path
    config: Mapping[str, str]
    scenario: str
    seed: int
    mutant: str
    origin_us: int


@dataclass(slots=True)
class LiveNode:
    """``child`` is None before the first start. ``hits``: by fault name, over all incarnations."""

    plan: NodePlan
    listen: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    metrics: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    advertised: str | None = None
    incarnation: int = -1
    child: Child | None = None
    hits: dict[str, int] = field(default_factory=dict)
    load_from_us: int = NOT_YET
    armed: bool = True
    ready_us: list[int] = field(default_factory=list)
    """How long each incarnation took from its start to its ready line."""
    _pipe: EvidencePipe | None = None

    def start(self) -> None:
        """Starts the next incarnation and waits until it serves. Raises NodeDied, SetupError."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        assert self.child is None or self.child.exit_status is not None, f"{self.plan.node_id} runs already"
        if self.child is not None:
            self.child.close()
        self.incarnation += 1
        pipe = EvidencePipe()
        plan = self.plan
        spec = NodeSpec(
            node_id=plan.node_id,
            incarnation=self.incarnation,
            listen=self.listen,
            data=str(plan.folder),
            evidence_fd=pipe.write_end,
            advertised=self.advertised,
            metrics_listen=self.metrics,
            config=dict(plan.config),
            scenario=plan.scenario,
            load_from_us=self.load_from_us if self.armed else NOT_YET,
            seed=plan.seed,
            mutant=plan.mutant,
            spool=str(plan.spools / f"node-{plan.node_id}-{self.incarnation}.jsonl"),
            origin_us=plan.origin_us,
            earlier=dict(self.hits),
        )
        started_ns = time.monotonic_ns()
        self.child = Child(
            f"node-{plan.node_id}",
            [sys.executable, "-m", "chaos.live.node_process", spec.to_json()],
            plan.logs / f"node-{plan.node_id}.log",
            pass_fds=(pipe.write_end,),
        )
        pipe.close_write_end()
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = pipe
        self.ready_us.append(-(started_ns // 1000))

    def await_ready(self) -> None:
        assert self.child is not None
        self.child.await_line("ready")
        self.ready_us[-1] += time.monotonic_ns() // 1000

    def load_starts(self, at_us: int) -> None:
        """Faults at states may hit from now on; their times count from here."""
        self.load_from_us = at_us
        if self.child is not None:
            self.child.order(load_from_us=at_us)

    def disarm(self) -> None:
        """The load is over: no fault at a state hits any more."""
        self.armed = False
        if self.child is not None:
            self.child.order(disarm=True)

    def evidence(self) -> list[dict[str, Any]]:
        """Lines that came since the last call."""
        return [] if self._pipe is None else self._pipe.lines()

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.exit_status is None

    def end_cleanly(self) -> None:
        """The run is over. Raises NodeDied if the node does not shut down as it should."""
        assert self.child is not None, f"node {self.plan.node_id} was never started"
        self.child.check()
        how = self.child.terminate()
        if self.child.exit_status != 0:
            raise NodeDied(f"node-{self.plan.node_id} did not shut down cleanly: {how}; {self.child.last_words()}")

    def close(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        """Ends the process, whatever its state; ``on_line`` gets the last evidence."""
        if self.child is not None and self.running:
            self.child.terminate()
        for line in self.evidence():
            on_line(line)
        if self.child is not None:
            self.child.close()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
