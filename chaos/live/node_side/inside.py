"""What runs inside the process of a node under test, around its core: trace, faults at states, faults of the disk."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.interceptor import Interceptor
from chaos.live.node_side.checks_inside import ChecksInside
from chaos.live.node_side.evidence import FAULT, ROLE, Evidence
from chaos.live.node_side.faulty_disk import DiskFaults
from chaos.live.node_side.fetch_costs import FetchCosts, measure_waiting
from chaos.live.node_side.requests_kept import RequestsKept, kept_at
from chaos.live.trace_spool import TraceSpool, costs_beside
from chaos.metadata_digest import ROW, Published, Watch
from chaos.presets import presets_for
from chaos.roles import role_of, topic_of_roles
from chaos.rules import FileHitCounter, at_a_link, rules_for
from chaos.seeds import random_for
from chaos.trace import PassiveHook, TraceRecorder
from reference_broker.core.events import Effect, Event, Hooks, Note
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now
from reference_broker.serve.driver import DriverPowers
from reference_broker.serve.server import Attached
from reports.rows import FaultRow, TraceRow
from scenarios.model import Scenario
from scenarios.vocabulary import NODE_REQUESTS

if TYPE_CHECKING:
    from chaos.live.node_side.node_process import NodeSpec
    from reference_broker.core.node import Node


class Inside:
    """What runs inside one node. ``attach`` is called before the node is built, ``built`` after that, and ``order``
    while it runs."""

    def __init__(self, spec: "NodeSpec", scenario: Scenario, evidence: Evidence) -> None:
        self._spec = spec
        self._scenario = scenario
        self._evidence = evidence
        self._presets = presets_for(scenario.state)
        self._topic = topic_of_roles(scenario)
        self._checks = ChecksInside(spec.incarnation, spec.origin_us, scenario.guarantees, evidence)
        self._spool = TraceSpool(spec.spool)
        self._recorder = TraceRecorder(spec.node_id, spec.incarnation, self._record, spec.origin_us)
        costs = TraceSpool(costs_beside(spec.spool))
        self._costs = FetchCosts(spec.node_id, lambda row: costs.add(row.values()), spec.now_us, time.thread_time_ns)
        measure_waiting(self._costs)
        self._node: Node | None = None
        self._hooks: list[Hooks] = []
        self._interceptor: Interceptor | None = None
        self._disk_faults: DiskFaults | None = None

    def attach(self, powers: DriverPowers, disk: Disk) -> Attached:
        spec, cluster = self._spec, self._scenario.cluster
        rules = rules_for(self._scenario, spec.node_id, random_for(spec.seed, "rules"))
        self._interceptor = Interceptor(
            spec.node_id,
            [rule for rule in rules if not at_a_link(rule)],
            ReportingFaultActions(powers, self._evidence),
            random_for(spec.seed, f"interceptor-{spec.node_id}-{spec.incarnation}"),
            spec.origin_us,
            FileHitCounter(Path(spec.claims)),
            self.role,
        )
        self._interceptor.load_from(spec.load_from_us)
        self._disk_faults = DiskFaults(powers, self._evidence)
        disk = self._interceptor.watch(disk)
        if any(fault.kind == "disk_full" for fault in self._scenario.faults):
            disk = self._disk_faults.watch(disk)
        watching = (self._recorder, self._checks, self._interceptor, self._disk_faults)
        if any(fault.kind in NODE_REQUESTS for fault in self._scenario.faults):
            self._hooks.append(RequestsKept(kept_at(Path(spec.claims), spec.node_id), spec.origin_us))
        roles = (RoleTeller(self.role, self._evidence),) if cluster.total > 1 else ()
        self._hooks += (self._costs.outer, *watching, *roles, *self._presets, self._costs.inner)
        return Attached(self._hooks, disk, [self._recorder], self._costs)

    def built(self, node: "Node") -> None:
        self._node = node
        self._checks.built(node)
        for preset in self._presets:
            preset.built(node)
            row = preset.evidence(self._spec.node_id, self._spec.now_us())
            self._evidence.tell(FAULT, list(row.values()))
        self._hooks.insert(len(self._hooks) - 1, Watch(node, self._published))

    def role(self) -> str:
        """Returns what the node is now: leader, follower or observer, and its part in the hot topic if a fault asks for
        it."""
        return role_of(self._node, self._spec.is_voter, self._topic)

    def order(self, order: dict[str, object]) -> None:
        """Takes an order of the runner, in a thread of its own. Each order sets attributes only, so no lock is
        needed."""
        assert self._interceptor is not None
        assert self._disk_faults is not None
        load_from_us, disk = order.get("load_from_us"), order.get("disk")
        if isinstance(load_from_us, int):
            self._interceptor.load_from(load_from_us)
            assert self._node is not None
            self._node.broker.replica.generator.count_from(self._spec.origin_us + load_from_us)
        if order.get("disarm"):
            self._interceptor.disarm()
        if isinstance(disk, dict):
            self._disk_faults.order(**disk)

    def _record(self, row: TraceRow) -> None:
        self._spool.add(row.values())
        self._checks.trace(row)

    def _published(self, image: Published) -> None:
        now = Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000)
        self._recorder.effects(now, (Note(ROW, tuple(image.fields().items())),))


class RoleTeller(PassiveHook):
    """Tells the runner of each change of this node's role."""

    def __init__(self, role: Callable[[], str], evidence: Evidence) -> None:
        self._role = role
        self._evidence = evidence
        self._told = ""

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        role = self._role()
        if role != self._told:
            self._told = role
            self._evidence.tell(ROLE, role)


class ReportingFaultActions:
    """Implements chaos.fault_actions.FaultActions: the driver's own, with the report going to the pipe."""

    def __init__(self, powers: DriverPowers, evidence: Evidence) -> None:
        self._evidence = evidence
        self.kill = powers.kill
        self.power_off = powers.power_off
        self.pause = powers.pause
        self.step_clock = powers.step_clock
        self.discard_connection = powers.discard_connection
        self.deliver_later = powers.deliver_later
        self.reply_later = powers.reply_later
        self.reply_bytes = powers.reply_bytes
        self.reply_cut = powers.reply_cut

    def sync_fails(self, paths: Sequence[str]) -> None:
        """The real disk has not failed, so nothing is lost."""

    def report(self, row: FaultRow) -> None:
        self._evidence.tell(FAULT, list(row.values()))
