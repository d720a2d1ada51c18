"""The faults of a live run: those at times are begun and ended here; those at states are helped to their end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.faults.registry import LIVE
from chaos.faults.timed import Blow, End
from chaos.live.agenda import Agenda
from chaos.live.checks_inside import Findings
from chaos.live.crew import Crew
from chaos.live.evidence import DISK, FAULT, MUTANT_REACHED
from chaos.live.links import Links
from chaos.live.processes import Child
from chaos.live.targets import Target
from reports.rows import FaultRow
from scenarios.model import Fault, Scenario

ASK_AGAIN_S = 0.05
NOBODY_LIMIT_S = 10.0
"""How long a fault waits for somebody to have the role that it is for."""
RESTARTED = ("node_killed", "node_terminated")
BY_THEMSELVES = ("rolling_bounce", "feature_finalized")
"""Kinds that know when they are through."""


class Strikes:
    """Implements chaos.faults.timed.Place. ``rows``: what fired, so far. ``findings``: of the
    checks inside the nodes. ``now_us``: since the run's start."""

    def __init__(
        self, scenario: Scenario, crew: Crew, links: Links, now_us: Callable[[], int], progress: Callable[[str], None]
    ) -> None:
        self.links = links
        self.rows: list[FaultRow] = []
        self.mutant_reached = False
        self.findings = Findings()
        self._scenario = scenario
        self._crew = crew
        self._now_us = now_us
        self._progress = progress
        self._agenda = Agenda()
        self._faults = {fault.name: fault for fault in scenario.faults}
        self._disk_struck: dict[tuple[int, str], str] = {}
        self._over = False

    # What faults need (chaos.faults.timed.Place).

    def child(self, node: int) -> Child:
        child = self._crew.nodes[node].child
        assert child is not None
        return child

    def restart(self, node: int) -> None:
        self._progress(f"node-{node} is started again")
        self._crew.restart(node)

    @property
    def is_over(self) -> bool:
        return self._over

    def now_us(self) -> int:
        return self._now_us()

    def addresses(self) -> tuple[str, ...]:
        return tuple(node.listen for node in self._crew.nodes)

    def reconfigure(self, node: int, config: dict[str, str]) -> None:
        struck = self._crew.nodes[node]
        struck.changes = {**struck.changes, **config}

    def is_ready(self, node: int) -> bool:
        struck = self._crew.nodes[node]
        return struck.running and struck.is_ready

    def order_disk(self, node: int, order: dict[str, object]) -> None:
        self._disk_struck = {key: what for key, what in self._disk_struck.items() if key[0] != node}
        self.child(node).order(disk=order)

    def disk_struck(self, node: int, kind: str) -> str:
        self._crew.read(node, self.evidence_line)
        return self._disk_struck.get((node, kind), "")

    # The run's course.

    def plan(self, load_start_us: int) -> None:
        for fault in self._scenario.faults:
            if fault.timed:
                for repeat in range(fault.repeat):
                    at_us = load_start_us + int((fault.at_s + repeat * fault.repeat_every_s) * 1e6)
                    self._agenda.add(at_us, lambda fault=fault, hit=repeat + 1: self._due(fault, hit, self._now_us()))  # type: ignore[misc]

    def do_due(self) -> None:
        self._agenda.do_due(self._now_us())

    def end_all(self) -> None:
        """The load is over: nothing begins any more, what is open ends now."""
        self._over = True
        self._agenda.do_all()

    def evidence_line(self, node: int, line: dict[str, Any]) -> None:
        """From a node's process."""
        self.findings.line(node, line)
        if MUTANT_REACHED in line:
            self.mutant_reached = True
        if FAULT in line:
            self._fired(node, FaultRow(*line[FAULT]))
        if DISK in line:
            kind, what = line[DISK]
            self._disk_struck[node, kind] = what

    # Faults at times.

    def _due(self, fault: Fault, hit: int, since_us: int) -> None:
        if self._over:
            return
        target = self._crew.roles.aim(fault, self.links)
        now_us = self._now_us()
        if target is not None:
            self._begin(target, hit)
        elif now_us - since_us < NOBODY_LIMIT_S * 1e6:
            self._agenda.add(now_us + int(ASK_AGAIN_S * 1e6), lambda: self._due(fault, hit, since_us))
        else:
            self._progress(f"fault {fault.name} found nobody to strike")

    def _begin(self, target: Target, hit: int) -> None:
        fault = target.fault
        self._progress(f"fault {fault.name} begins at {target.told}")
        at_us = self._now_us()
        end = LIVE[fault.kind](self, target)
        lasts_s = fault.restart_after_s if fault.kind in RESTARTED else fault.duration_s
        until_us = at_us if fault.kind in BY_THEMSELVES else at_us + int(max(lasts_s, 0.0) * 1e6)
        self._agenda.add(until_us, lambda: self._end(target, hit, at_us, end))

    def _end(self, target: Target, hit: int, at_us: int, end: End) -> None:
        ended, fault = end(), target.fault
        if ended is None:
            self._agenda.add(self._now_us() + int(ASK_AGAIN_S * 1e6), lambda: self._end(target, hit, at_us, end))
            return
        self._progress(f"fault {fault.name} ends: {ended.evidence or 'no sign that it had an effect'}")
        if ended.evidence:
            blows = ended.blows or (Blow(target.told, at_us, self._now_us(), ended.evidence),)
            for number, each in enumerate(blows, hit):
                when = (each.at_us, each.until_us)
                self.rows.append(FaultRow(fault.name, fault.kind, *when, each.target, number, detail=each.evidence))

    # Faults at states.

    def _fired(self, node: int, row: FaultRow) -> None:
        """A hit of the interceptor; some need our help to end."""
        place = len(self.rows)
        self.rows.append(row)
        fault = self._faults.get(row.name)
        if fault is None or fault.kind != row.kind:
            return
        if row.kind == "node_killed":
            self._progress(f"fault {row.name} struck {row.target}")
            self.child(node).expect_end()
            again_us = row.at_us + int(max(fault.restart_after_s, 0.0) * 1e6)
            self._agenda.add(again_us, lambda: self._revive(node, fault, place))
        elif row.kind == "node_paused":
            self._progress(f"fault {row.name} struck {row.target}")
            self._agenda.add(row.at_us + int(fault.duration_s * 1e6), lambda: self._continue(node, place))

    def _revive(self, node: int, fault: Fault, place: int) -> None:
        dead = self.child(node)
        dead.wait(5)
        if fault.restart_after_s >= 0:
            self.restart(node)
        self._until_now(place, f"pid {dead.pid} {dead.how_it_ended()}")

    def _continue(self, node: int, place: int) -> None:
        self.child(node).resume()
        self._until_now(place, "continued")

    def _until_now(self, place: int, what: str) -> None:
        row = self.rows[place]
        self.rows[place] = replace(row, until_us=self._now_us(), detail=f"{row.detail} {what}".strip())
