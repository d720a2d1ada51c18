"""Runs the simulator's own checks in each live node's process, as far as they need one node alone.

As in the simulator, they see the effects of each event before any fault affects them. Violations are written to the
evidence pipe immediately. The number of checked responses is reported whenever it is a power of two, so that a killed
node has reported at least half of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.checks.check import Check, CheckContext, FetchCheck, Inspection, QuorumCheck, Settings, Violation
from chaos.checks.fault_times import FaultTimes
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.sessions.fetch_model import FetchModel
from chaos.checks.suite import check_kinds
from chaos.hooks.trace import PassiveHook
from chaos.live.node_side.node_protocol import BROKEN, LOOKED, Evidence
from reference_broker.core.events import Effect, Event
from reference_broker.ports.node_ports import Now
from reports.manifest import CheckResult
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

MAX_NODES = 10
"""All node IDs are smaller. The quorum's view needs a member for each ID, though a process sees only its own."""
MAX_EXPLANATION = 1000
"""Limit of the characters of an explanation, so that a line of evidence is shorter than PIPE_BUF."""


def _kinds() -> list[type[Check]]:
    return [kind for kind in check_kinds() if kind.needs_one_node]


class ChecksInside(PassiveHook):
    """A hook that must see effects before any fault affects them.

    ``guarantees`` are those of the scenario; only their checks run.
    """

    def __init__(self, incarnation: int, origin_us: int, guarantees: Iterable[str], evidence: Evidence) -> None:
        wanted = frozenset(guarantees)
        self._view = QuorumView(MAX_NODES, 0, FaultTimes())
        context = CheckContext(Settings(), self._view, ReplicaView(FaultTimes()), alone=True)
        self._checks = [kind(context) for kind in _kinds() if kind.guarantee in wanted]
        self._watches_quorum = any(isinstance(check, QuorumCheck) for check in self._checks)
        self._acting = [check for check in self._checks if check.acts_on]
        self._inspecting = [check for check in self._checks if check.inspection is Inspection.AFTER_EVENTS]
        self._of_fetches = [check for check in self._checks if isinstance(check, FetchCheck)]
        self._incarnation = incarnation
        self._origin_us = origin_us
        self._evidence = evidence
        self._model = FetchModel()
        self._node: Node | None = None
        self._reported = 0
        self._looked = 0

    def built(self, node: "Node") -> None:
        self._node = node

    def trace(self, row: TraceRow) -> None:
        """Called with each row of the node's trace, before ``acted`` of the same event."""
        for check in self._checks:
            if row.what in check.rows:
                check.trace(row)

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:
        node = self._node
        if node is not None and self._checks and node.listening:
            self._look(now.mono_us - self._origin_us, node, event, effects)

    def _look(self, at_us: int, node: "Node", event: Event, effects: Sequence[Effect]) -> None:
        for fetch in self._model.acted(node, event, effects):
            self._looked += 1
            if self._looked & (self._looked - 1) == 0:
                self._evidence.report(LOOKED, [self._incarnation, self._looked])
            for each in self._of_fetches:
                each.fetched(at_us, fetch)
        for check in self._acting:
            check.acted(at_us, node, event, effects)
        for check in self._inspecting:
            check.inspect(at_us, self._incarnation, node, event, False)
        if self._watches_quorum:
            self._view.observe(at_us, self._incarnation, node, False)
        self._report_new([violation for check in self._checks for violation in check.violations])

    def _report_new(self, found: Sequence[Violation]) -> None:
        if len(found) == self._reported:
            return
        self._reported = len(found)
        for violation in found:
            self._evidence.report(
                BROKEN, [violation.guarantee, violation.at_us, violation.explanation[:MAX_EXPLANATION]]
            )


@dataclass(slots=True)
class NodeCheckReports:
    """The reports of the nodes' checks, in the runner."""

    _broken: dict[str, tuple[int, str]] = field(default_factory=dict)
    _looked: dict[tuple[int, int], int] = field(default_factory=dict)

    def line(self, node: int, line: dict[str, Any]) -> None:
        """Handle one line of a node's evidence. Lines that do not come from checks are ignored."""
        if BROKEN in line:
            guarantee, at_us, explanation = line[BROKEN]
            first = self._broken.get(guarantee)
            if first is None or at_us < first[0]:
                self._broken[guarantee] = (at_us, f"node-{node}: {explanation}")
        if LOOKED in line:
            incarnation, looked = line[LOOKED]
            self._looked[node, incarnation] = looked

    @property
    def broken(self) -> tuple[str, ...]:
        """The guarantees that nodes have reported as violated."""
        return tuple(self._broken)

    def judged(self, guarantees: Iterable[str]) -> tuple[CheckResult, ...]:
        """Return one entry of the manifest for each guarantee that was checked."""
        looked, wanted = sum(self._looked.values()), frozenset(guarantees)
        names = dict.fromkeys(kind.guarantee for kind in _kinds() if kind.guarantee in wanted)
        return tuple(self._judge(name, looked) for name in names)

    def _judge(self, name: str, looked: int) -> CheckResult:
        if name not in self._broken:
            return CheckResult(guarantee=name, holds=True, evidence=looked)
        at_us, explanation = self._broken[name]
        return CheckResult(guarantee=name, holds=False, evidence=max(1, looked), at_us=at_us, detail=explanation)
