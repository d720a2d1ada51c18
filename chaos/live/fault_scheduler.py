"""Begins and ends a live run's faults, with evidence.

It injects the faults at a time. After a fault at a state it restarts a killed node, or resumes a paused one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from bench.fleet.spec import IDLE_TOPIC
from chaos.faults.disk_damage import DamageCheck
from chaos.interceptor import roles
from chaos.live.cluster import LiveCluster
from chaos.live.faults import disk_faults, host_lost, link_faults, node_faults, request_faults
from chaos.live.faults.fault_context import Begin, End, FiredFault, Firing, LiveFaultContext
from chaos.live.faults.proxied_losses import KIND as LOST_BY_PROXY_KIND
from chaos.live.faults.proxied_losses import ProxiedLosses
from chaos.live.links import Links
from chaos.live.node_side.checks_inside import NodeCheckReports
from chaos.live.node_side.node_protocol import DISK, FAULT, LOST_BY_PROXY, MUTANT_REACHED
from chaos.live.processes import NodeProcess, ShellProcess
from chaos.live.targets import FaultTarget
from reports.rows import FaultRow
from scenarios.fault_kinds import FAULT_KINDS, KINDS_OF_PROCESSES
from scenarios.model import Fault, Scenario

BEGIN: Final[dict[str, Begin]] = {
    **node_faults.BEGIN,
    **host_lost.BEGIN,
    **link_faults.BEGIN,
    **disk_faults.BEGIN,
    **request_faults.BEGIN,
}
"""Functions that begin a fault at a time, by kind."""
RETRY_S = 0.05
"""Interval of the retries of a fault that cannot begin or end yet."""
NO_TARGET_LIMIT_S = 10.0
"""Limit of the wait until a node has the role that the fault targets. After it the fault is dropped."""
ERROR_LIMIT_S = 5.0
"""Time after an error of its disk in which a node may end itself because of it."""


class LiveFaultScheduler:
    """Plans the times of the faults, begins and ends them, and records which fired.

    The states of a fault, and what leads to the next one:

    | state | until | next |
    | --- | --- | --- |
    | planned (``plan``) | its time | due |
    | due (``_begin_when_aimed``) | a node has its role | under way; dropped after NO_TARGET_LIMIT_S |
    | under way (``StartedFault``) | its ``End`` returns an ``Ended`` (``_end``) | recorded if there is evidence |
    | reported: host_lost | at once (``_lose_host``) | under way |
    | reported: response_lost_by_proxy | the sender reports it closed (``ProxiedLosses``) | recorded |
    | reported: all others (``_handle_report``) | at once | recorded |
    | recorded (``FiredFault``): node killed or paused | its time is over (``_return_node``) | recorded, with its end |

    After a disk_error a node is watched: if it ends itself, it is restarted (``_watch_node``). When the load ends,
    ``end_all`` ends what is under way, brings nodes back, and drops what is planned or due.

    ``context`` is passed to the functions of ``chaos.live.faults``. ``now_us`` returns the time since the run's start.
    """

    def __init__(
        self,
        scenario: Scenario,
        cluster: LiveCluster,
        links: Links,
        now_us: Callable[[], int],
        progress: Callable[[str], None],
    ) -> None:
        self.damage = DamageCheck((IDLE_TOPIC, *(topic.name for topic in scenario.load.topics)))
        self.context = LiveFaultContext(cluster, self.damage, now_us, progress)
        self.under_way: list[str] = []  # names of the faults at a time that have started and not ended
        self.check_reports = NodeCheckReports()  # what the checks inside the nodes reported
        self.mutant_reached = False
        self.over_us = 0  # when the last fault had ended, since the run's start
        self._now_us = now_us
        self._scenario = scenario
        self._cluster = cluster
        self._links = links
        self._losses = ProxiedLosses(links, self.context.send_command, now_us)
        self._progress = progress
        self._due_actions = DueActions()
        self._faults = {fault.name: fault for fault in scenario.faults}
        self._may_end_until_us: dict[NodeProcess, int] = {}
        self._planned: list[tuple[int, str]] = []

    @property
    def rows(self) -> list[FaultRow]:
        """The evidence of the faults that fired so far."""
        return self.context.rows

    def plan(self, load_start_us: int) -> None:
        for fault in self._scenario.faults:
            for repeat in range(fault.repeat if fault.timed else 0):
                at_us = load_start_us + int((fault.at_s + repeat * fault.repeat_every_s) * 1e6)
                self._due_actions.add(at_us, partial(self._begin_when_aimed, fault, repeat + 1, at_us))
                self._planned.append((at_us, fault.name))

    def do_due(self) -> None:
        self._losses.do_due()
        self._due_actions.do_due(self._now_us())

    def next_fault(self) -> tuple[str, float] | None:
        """Return the name of the next fault at a time, and the seconds until then; None if all have started."""
        now_us = self._now_us()
        at_us, name = min((each for each in self._planned if each[0] > now_us), default=(0, ""))
        return (name, (at_us - now_us) / 1e6) if name else None

    def end_all(self) -> None:
        """End the running faults, because the load is over. No further fault starts."""
        self.context.is_over = True
        self._due_actions.do_all()
        self._losses.end_all()
        self.over_us = self._now_us()

    def evidence_line(self, node: int, line: dict[str, Any]) -> None:
        """Record one line of a node's evidence."""
        self.check_reports.line(node, line)
        if MUTANT_REACHED in line:
            self.mutant_reached = True
        if FAULT in line:
            self._handle_report(node, FaultRow(*line[FAULT]))
        if LOST_BY_PROXY in line:
            for row in self._losses.lost(node, line[LOST_BY_PROXY]):
                self.context.record(row)
        if DISK in line:
            kind, what = line[DISK]
            self.context.note_disk_evidence(node, kind, what)

    # Faults at times

    def _begin_when_aimed(self, fault: Fault, number: int, since_us: int) -> None:
        """Begin a fault whose time has come. ``number`` counts its repetitions from 1."""
        if self.context.is_over:
            return
        waits = fault.alone and not self.context.all_ready()
        target = None if waits else self._cluster.roles.aim(fault, self._links)
        if target is not None:
            self._begin(target, number)
        elif self._now_us() - since_us < NO_TARGET_LIMIT_S * 1e6:
            self._retry_soon(partial(self._begin_when_aimed, fault, number, since_us))
        else:
            self._progress(f"fault {fault.name} found no node to hit")

    def _begin(self, target: FaultTarget, number: int) -> None:
        fault, kind, at_us = target.fault, FAULT_KINDS[target.fault.kind], self._now_us()
        lasts_s = fault.restart_after_s if kind.ends_node else fault.duration_s
        until_us = at_us if kind.in_steps else at_us + int(max(lasts_s, 0.0) * 1e6)
        self._begin_until(until_us, target, number, at_us)

    def _begin_until(
        self, until_us: int, target: FaultTarget, number: int, at_us: int, reported: FaultRow | None = None
    ) -> None:
        name = target.fault.name
        self._progress(f"fault {name} begins at {target.label}")
        self.under_way.append(name)
        started = StartedFault(target, number, at_us, BEGIN[target.fault.kind](self.context, target), reported)
        self._due_actions.add(until_us, partial(self._end, started))

    def _end(self, started: "StartedFault") -> None:
        ended, fault = started.end(), started.target.fault
        if ended is None:
            self._retry_soon(partial(self._end, started))
            return
        self.under_way.remove(fault.name)
        doubt = f"no sign that it had an effect{ended.doubt and f' ({ended.doubt})'}"
        self._progress(f"fault {fault.name} ends: {ended.evidence or doubt}")
        if ended.evidence and started.reported is not None:
            self.context.record(started.reported).complete(self._now_us(), ended.evidence)
        elif ended.evidence:
            whole = Firing(started.target.label, started.at_us, self._now_us(), ended.evidence)
            for number, each in enumerate(ended.firings or (whole,), started.number):
                when = (each.at_us, each.until_us)
                role = roles.described(started.target.role, self._scenario.load.hot.name)
                detail = f"{role}: {each.evidence}" if role else each.evidence
                self.context.record(FaultRow(fault.name, fault.kind, *when, each.target, number, detail=detail))

    def _retry_soon(self, action: Callable[[], None]) -> None:
        self._due_actions.add(self._now_us() + int(RETRY_S * 1e6), action)

    # Faults at states

    def _handle_report(self, node: int, row: FaultRow) -> None:
        """Handle the evidence of an interceptor that a fault at a state fired at this node."""
        fault = self._faults.get(row.name)
        if fault is not None and fault.kind == row.kind == "host_lost":
            self._lose_host(node, fault, row)
        elif row.kind == LOST_BY_PROXY_KIND:
            if not self.context.is_over:
                self._losses.held(node, row)
        else:
            fired = self.context.record(row)
            if fault is not None and row.kind == "disk_error":
                self._watch_node(node, fault)
            elif fault is not None and fault.kind == row.kind and row.kind in KINDS_OF_PROCESSES:
                self._plan_return(node, fault, fired)

    def _lose_host(self, node: int, fault: Fault, row: FaultRow) -> None:
        """Silence and kill a node that has stopped itself at a state, as if its host vanished."""
        if self.context.is_over:
            self.context.child(node).resume()
            return
        target = self._cluster.roles.aim(replace(fault, node=node), self._links)
        assert target is not None, "a fault of a numbered node always has a target"
        until_us = row.at_us + int(fault.restart_after_s * 1e6)
        self._begin_until(until_us, target, row.hit, row.at_us, row)

    def _plan_return(self, node: int, fault: Fault, fired: FiredFault) -> None:
        """Plan the return of a node that was killed or paused at a state."""
        row = fired.row
        self._progress(f"fault {row.name} hit {row.target}")
        child = self.context.child(node)
        child.expected_end |= row.kind == "node_killed"
        if isinstance(child, ShellProcess):
            child.note_done_by_proxy(row.kind)
        lasts_s = max(fault.restart_after_s, 0.0) if row.kind == "node_killed" else fault.duration_s
        self._due_actions.add(row.at_us + int(lasts_s * 1e6), partial(self._return_node, node, fault, fired))

    def _return_node(self, node: int, fault: Fault, fired: FiredFault) -> None:
        """Continue a paused node, or restart a killed one, and complete the evidence."""
        child = self.context.child(node)
        if fault.kind == "node_paused":
            child.resume()
            what = "continued"
        else:
            child.wait(5)
            what = f"{child.label} {child.how_it_ended()}"
            if fault.restart_after_s >= 0:
                self.context.restart(node)
        fired.complete(self._now_us(), what)

    def _watch_node(self, node: int, fault: Fault) -> None:
        """Allow a node to end itself because of an error of its disk, and restart it then."""
        child = self.context.child(node)
        child.expected_end = True
        is_watched = self._now_us() < self._may_end_until_us.get(child, 0)
        self._may_end_until_us[child] = self._now_us() + int(ERROR_LIMIT_S * 1e6)
        if is_watched:
            return
        again_us = self._now_us() + int(max(fault.restart_after_s, 0.0) * 1e6)
        self._due_actions.add(again_us, partial(self._restart_if_ended, node, child, fault))

    def _restart_if_ended(self, node: int, child: NodeProcess, fault: Fault) -> None:
        if child.exit_status is not None:
            if fault.restart_after_s >= 0:
                self.context.restart(node)
        elif self._now_us() < self._may_end_until_us[child] and not self.context.is_over:
            self._retry_soon(partial(self._restart_if_ended, node, child, fault))
        else:
            child.expected_end = False


@dataclass(frozen=True, slots=True)
class StartedFault:
    """A fault that is under way."""

    target: FaultTarget
    number: int
    """Counts how often the fault fired, from 1."""
    at_us: int
    """When it began, since the run's start."""
    end: End
    reported: FaultRow | None = None
    """Evidence of the node, if the fault began at a state."""


class DueActions:
    """Actions by time (microseconds since the run's start). Actions with equal times keep the order of adding."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._added = 0

    def add(self, at_us: int, action: Callable[[], None]) -> None:
        self._added += 1
        heappush(self._entries, (at_us, self._added, action))

    def do_due(self, now_us: int) -> None:
        while self._entries and self._entries[0][0] <= now_us:
            heappop(self._entries)[2]()

    def do_all(self) -> None:
        """Run all actions that are still planned at the end of the load (heals, restarts) immediately, in the order of
        their times."""
        while self._entries:
            heappop(self._entries)[2]()

    def __len__(self) -> int:
        return len(self._entries)
