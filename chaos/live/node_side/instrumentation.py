"""Instrumentation inside the process of a node under test: trace, faults at states, faults of the disk."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.hooks.metadata_digest import ROW, Published, Watch
from chaos.hooks.presets import presets_for
from chaos.hooks.trace import PassiveHook, TraceRecorder
from chaos.interceptor.held_responses import HeldResponses
from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.roles import role_of, topic_of_roles
from chaos.interceptor.rules import FileHitCounter, at_a_link, rules_for
from chaos.interceptor.watched_disk import WatchedDisk, WriteFault
from chaos.live.node_side.checks_inside import MAX_NODES, ChecksInside
from chaos.live.node_side.fetch_costs import FetchCosts, measure_waiting
from chaos.live.node_side.node_protocol import DISK, FAULT, LOST_BY_PROXY, ROLE, Evidence, NodeSpec
from chaos.live.node_side.peer_requests import PeerRequestRecorder, recorded_at
from chaos.live.node_side.quorum_recorder import QuorumRecorder
from chaos.live.recorded_quorum import is_recorded
from chaos.live.run_folder import TraceSpool, costs_beside
from chaos.seeds import random_for
from reference_broker.core.events import Effect, Event, Hooks, Note, Reply
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.node_ports import Now
from reference_broker.serve.driver import DriverFaultActions
from reference_broker.serve.server import Attached
from reports.rows import FaultRow, TraceRow
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.model import Scenario

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class NodeInstrumentation:
    """The instrumentation of one node. ``attach`` is called before the node is built, ``built`` after that, and
    ``handle_command`` while it runs."""

    def __init__(self, spec: NodeSpec, scenario: Scenario, evidence: Evidence) -> None:
        self._spec = spec
        self._scenario = scenario
        self._evidence = evidence
        self._presets = presets_for(scenario.state)
        self._topic = topic_of_roles(scenario)
        self._checks = ChecksInside(spec.incarnation, spec.origin_us, scenario.guarantees, evidence)
        self._spool = TraceSpool(spec.spool)
        self._recorder = TraceRecorder(spec.node_id, spec.incarnation, self._record, spec.origin_us)
        is_wanted = is_recorded(scenario.guarantees)
        self._quorum = QuorumRecorder(self._recorder, spec.incarnation, spec.origin_us, MAX_NODES, is_wanted)
        costs = TraceSpool(costs_beside(spec.spool))
        self._costs = FetchCosts(spec.node_id, lambda row: costs.add(row.values()), spec.now_us, time.thread_time_ns)
        measure_waiting(self._costs)
        self._node: Node | None = None
        self._hooks: list[Hooks] = []
        self._interceptor: Interceptor | None = None
        self._disk_faults: DiskFaults | None = None
        self._losses: HeldResponses | None = None

    def attach(self, actions: DriverFaultActions, disk: Disk) -> Attached:
        spec, cluster = self._spec, self._scenario.cluster
        rules = rules_for(self._scenario, spec.node_id, random_for(spec.seed, "rules"))
        losses = self._losses = HeldResponses(
            lambda reply: actions.reply_later(reply, 0), lambda lost: self._evidence.report(LOST_BY_PROXY, lost)
        )
        self._interceptor = Interceptor(
            spec.node_id,
            [rule for rule in rules if not at_a_link(rule)],
            ReportingFaultActions(actions, self._evidence, losses),
            random_for(spec.seed, f"interceptor-{spec.node_id}-{spec.incarnation}"),
            spec.origin_us,
            FileHitCounter(Path(spec.hit_counts)),
            self.role,
        )
        self._interceptor.load_from(spec.load_from_us)
        self._disk_faults = DiskFaults(actions, self._evidence)
        disk = self._interceptor.watch(disk)
        if any(fault.kind == "disk_full" for fault in self._scenario.faults):
            disk = self._disk_faults.watch(disk)
        watching: tuple[Hooks, ...] = (self._recorder, self._quorum, self._checks, self._interceptor, self._disk_faults)
        if any(fault.kind == "response_lost_by_proxy" for fault in self._scenario.faults):
            watching = (*watching, losses)
        if any(FAULT_KINDS[fault.kind].from_recorded for fault in self._scenario.faults):
            self._hooks.append(PeerRequestRecorder(recorded_at(Path(spec.hit_counts), spec.node_id), spec.origin_us))
        roles = (RoleReporter(self.role, self._evidence),) if cluster.total > 1 else ()
        self._hooks += (self._costs.outer, *watching, *roles, *self._presets, self._costs.inner)
        return Attached(self._hooks, disk, [self._recorder], self._costs)

    def built(self, node: "Node") -> None:
        self._node = node
        self._checks.built(node)
        self._quorum.built(node)
        for preset in self._presets:
            preset.built(node)
            row = preset.evidence(self._spec.node_id, self._spec.now_us())
            self._evidence.report(FAULT, list(row.values()))
        self._hooks.insert(len(self._hooks) - 1, Watch(node, self._published))

    def role(self) -> str:
        """Return the node's current role: leader, follower or observer, and its role in the hot topic if a fault needs
        that."""
        return role_of(self._node, self._spec.is_voter, self._topic)

    def handle_command(self, command: dict[str, object]) -> None:
        """Handle a command of the runner, in a thread of its own. A command sets attributes only, so no lock is
        needed."""
        assert self._interceptor is not None
        assert self._disk_faults is not None
        assert self._losses is not None
        load_from_us, disk = command.get("load_from_us"), command.get("disk")
        if isinstance(load_from_us, int):
            self._interceptor.load_from(load_from_us)
            assert self._node is not None
            self._node.broker.quorum_node.generator.count_from(self._spec.origin_us + load_from_us)
        if command.get("disarm"):
            self._interceptor.disarm()
            self._losses.disarm()
        if "toxic" in command:
            self._losses.toxic(bool(command["toxic"]))
        if isinstance(disk, dict):
            self._disk_faults.configure(**disk)

    def _record(self, row: TraceRow) -> None:
        self._spool.add(row.values())
        self._checks.trace(row)

    def _published(self, image: Published) -> None:
        now = Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000)
        self._recorder.effects(now, (Note(ROW, tuple(image.fields().items())),))


class DiskFaults(PassiveHook):
    """Inject the disk faults that the runner configures. The first effect of each is one line of evidence."""

    def __init__(self, actions: DriverFaultActions, evidence: Evidence) -> None:
        self._actions = actions
        self._evidence = evidence
        self._full = False
        self._full_reported = False
        self._slow_ms = 0
        self._names_only = False
        self._slow_now_ms = 0
        self._slow_from = 0
        self._slow_reported = False

    def configure(self, slow_ms: int | None = None, full: bool | None = None, names_only: bool = False) -> None:
        """Set the faults, in another thread than the node's. ``acted`` injects them in the node's thread. A parameter
        that is None changes nothing."""
        if slow_ms is not None:
            self._slow_reported = False
            self._names_only = names_only
            self._slow_ms = slow_ms
        if full is not None:
            self._full_reported = False
            self._full = full

    def watch(self, disk: Disk) -> Disk:
        """Return the disk to give to the node."""
        return WatchedDisk(disk, self._before_write)

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if self._slow_now_ms != self._slow_ms:
            self._slow_now_ms = self._slow_ms
            self._slow_from = self._actions.syncs_delayed
            self._actions.slow_syncs(self._slow_now_ms, self._names_only)
        if self._slow_ms and not self._slow_reported and self._actions.syncs_delayed > self._slow_from:
            self._slow_reported = True
            what = "syncs of folders" if self._names_only else "syncs"
            self._evidence.report(DISK, ["disk_slowed", f"{what} take {self._slow_ms} ms longer"])

    def _before_write(self, path: str, position: int, size: int) -> WriteFault | None:
        if not self._full:
            return None
        if not self._full_reported:
            self._full_reported = True
            self._evidence.report(DISK, ["disk_full", f"no space for {size} bytes of {path} at {position}"])
        return WriteFault(0, lambda: _refuse(path))


def _refuse(path: str) -> None:
    raise DiskError(f"{path}: no space left on device (injected)")


class RoleReporter(PassiveHook):
    """Reports each change of this node's role to the runner."""

    def __init__(self, role: Callable[[], str], evidence: Evidence) -> None:
        self._role = role
        self._evidence = evidence
        self._reported = ""

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        role = self._role()
        if role != self._reported:
            self._reported = role
            self._evidence.report(ROLE, role)


class ReportingFaultActions:
    """Implements chaos.interceptor.actions.FaultActions: the driver's own, with the report going to the pipe."""

    def __init__(self, actions: DriverFaultActions, evidence: Evidence, losses: HeldResponses) -> None:
        self._evidence = evidence
        self._losses = losses
        self._last_row: FaultRow | None = None
        self.kill = actions.kill
        self.power_off = actions.power_off
        self.pause = actions.pause
        self.lose_host = lambda: actions.pause(0)  # The runner silences the links, and then kills the stopped process.
        self.step_clock = actions.step_clock
        self.discard_connection = actions.discard_connection
        self.deliver_later = actions.deliver_later
        self.reply_later = actions.reply_later
        self.reply_bytes = actions.reply_bytes
        self.reply_cut = actions.reply_cut

    def sync_fails(self, paths: Sequence[str]) -> None:
        """The real disk has not failed, so nothing is lost."""

    def lose_by_proxy(self, reply: Reply) -> None:
        assert self._last_row is not None
        self._losses.hold(self._last_row, reply)

    def report(self, row: FaultRow) -> None:
        self._last_row = row
        self._evidence.report(FAULT, list(row.values()))
