"""A node of a live run over all its incarnations: same ports, same data, one process after another."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ports import free_port
from chaos.live.errors import EndedItself, NodeDied, SetupError
from chaos.live.node_process import NOT_YET, NodeSpec
from chaos.live.processes import Child, EvidencePipe


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What stays the same for a node. ``folder``: of the run's data; ``logs``, ``spools``, ``claims``: folders."""

    node_id: int
    folder: Path
    logs: Path
    spools: Path
    config: Mapping[str, str]
    scenario: str
    seed: int
    mutant: str
    origin_us: int
    claims: Path | None = None
    is_voter: bool = True
    revision: str = "final"


@dataclass(slots=True)
class LiveNode:
    """One node. ``child`` is None before the first start. ``introduction`` holds the settings of its quorum, beside its
    plan's config. ``changes`` holds later settings, for the next start. ``is_ready`` speaks of the incarnation that
    runs."""

    plan: NodePlan
    listen: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    metrics: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    advertised: str | None = None
    introduction: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    incarnation: int = -1
    child: Child | None = None
    is_ready: bool = False
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
        self.is_ready = False
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
            config={**plan.config, **self.changes, **self.introduction},
            scenario=plan.scenario,
            revision=plan.revision,
            load_from_us=self.load_from_us if self.armed else NOT_YET,
            seed=plan.seed,
            mutant=plan.mutant,
            spool=str(plan.spools / f"node-{plan.node_id}-{self.incarnation}.jsonl"),
            origin_us=plan.origin_us,
            claims="" if plan.claims is None else str(plan.claims),
            is_voter=plan.is_voter,
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
        """Raises NodeDied, SetupError."""
        assert self.child is not None
        if not self.is_ready:
            with self._no_first_start():
                self.child.await_line("ready")
            self._became_ready()

    def look_for_ready(self) -> None:
        """The same without waiting; a death that was announced is no error."""
        assert self.child is not None
        if self.is_ready or (self.child.exit_status is not None and self.child.expected_end):
            return
        with self._no_first_start():
            is_ready = self.child.said("ready", 0.0 if self.child.exit_status is None else 2.0)
        if is_ready:
            self._became_ready()

    @contextmanager
    def _no_first_start(self) -> Iterator[None]:
        """What a node refuses to start from that has run before is its own doing, and no error of the setup."""
        try:
            yield
        except SetupError as refusal:
            if self.incarnation == 0:
                raise
            raise EndedItself(f"node-{self.plan.node_id} could not start again: {refusal}") from refusal

    def _became_ready(self) -> None:
        self.is_ready = True
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
