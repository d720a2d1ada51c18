"""The runner of live scenarios: the phases of one play with real processes."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from bench.fleet.early_signs import SIGNS_OF
from chaos.hooks.presets import PresetError, presets_for
from chaos.live.cluster import LiveCluster
from chaos.live.cluster_command import ClusterPlan, started
from chaos.live.errors import Ending, NodeDied, RunEnd, SetupError, end_by
from chaos.live.external.brokers import ExternalTarget
from chaos.live.external.needs import check_target
from chaos.live.external.target import REFERENCE
from chaos.live.fault_scheduler import LiveFaultScheduler
from chaos.live.fault_selection import is_live, select_live_faults
from chaos.live.fleet import LiveFleet
from chaos.live.links import Links
from chaos.live.node_side.node_protocol import FAULT, LOST_BY_PROXY
from chaos.live.run_folder import RunFolder
from chaos.live.run_manifest import manifest_of
from chaos.live.run_target import Progress, ReferenceTarget, RunPlan, RunTarget
from chaos.live.toxiproxy_server import ToxiproxyServer
from chaos.mutants.mutant import MutantError
from chaos.mutants.registry import by_name
from reports.manifest import Manifest, write_manifest
from scenarios.derived import for_external_target
from scenarios.model import Scenario
from scenarios.revisions import revision_of
from scenarios.vocabulary import REVISIONS

TICK_S = 0.01
SHOWN_EVERY_US = 1_000_000
FLEET_START_LIMIT_S = 90.0
DRAIN_LIMIT_S = 120.0
"""Limit of the final polls and the final read after the load. A fleet that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class RunView:
    """The state of a run at one moment, for display."""

    phase: str
    load_s: float
    """Time since the start of the load; negative before it."""
    whole_load_s: float
    report: Mapping[str, int] = field(default_factory=dict)
    """The fleet's last event ``progress``, if there was one."""
    under_way: tuple[str, ...] = ()
    """Names of the running faults."""
    fired: int = 0
    """Number of times that faults fired so far."""
    next_fault: tuple[str, float] | None = None
    """Name of the next fault at a time, and seconds until then."""
    broken: tuple[str, ...] = ()
    """Guarantees that clients or nodes saw violated; more may be found at the end."""


Show: TypeAlias = Callable[[RunView], None]


def seen_by_clients(report: Mapping[str, int]) -> tuple[str, ...]:
    """Return the guarantees that the fleet's report shows broken."""
    return tuple(name.removeprefix(SIGNS_OF) for name, count in report.items() if name.startswith(SIGNS_OF) and count)


def play_scenario(
    scenario: Scenario,
    out: Path,
    *,
    seed: int,
    target: str = REFERENCE,
    mutant: str = "",
    command: str = "",
    progress: Progress = lambda _: None,
    show: Show = lambda _: None,
    variant: str = "",
) -> RunFolder:
    """Play a scenario that ``check_playable`` accepts, and write the run's folder ``out``. Raise SetupError.

    ``progress`` is called with a line for each step, and ``show`` with the state of the run once a second. ``variant``
    distinguishes this run when runs are compared; it is stored in the manifest, as is the way the run ended
    (``Ending``). A run that could not be set up, or was stopped, leaves no folder.
    """
    scenario = select_live_faults(scenario if target == REFERENCE else for_external_target(scenario), seed)
    folder = RunFolder(out)
    folder.make()
    try:
        run = LiveRun(RunPlan(scenario, folder, seed, target, mutant, progress), show)
    except BaseException:
        folder.discard()
        raise
    end = RunEnd()
    try:
        try:
            run.play_phases()
        except KeyboardInterrupt:
            progress("stopped: clients end first, then nodes, and the folder is removed; this may take half a minute")
            raise
        finally:
            run.close()
    except (SetupError, KeyboardInterrupt):
        folder.discard()
        raise
    except Exception as failure:
        end = end_by(failure, scenario.guarantees)
        progress(f"crash: {end.explanation}" if end.crash else end.explanation)
    run.write_tables()
    torn = folder.set_torn_aside()
    if torn and end.ending is Ending.FINISHED:
        end = RunEnd(Ending.CRASHED, f"the history is not whole: {', '.join(torn)}")
    write_manifest(folder.path, run.manifest(command, variant, end))
    return folder


class LiveRun:
    """The phases of one run, and the loop between them. ``RunTarget`` is the broker under test."""

    def __init__(self, plan: RunPlan, show: Show) -> None:
        """Start Toxiproxy. Raise SetupError."""
        self._plan = plan
        self._show = show
        self._shown_us = 0
        self._phase = "nodes start"
        self._load_start_us = 0
        self._duration_us = 0
        self._brokers: RunTarget = ReferenceTarget(plan) if plan.target == REFERENCE else ExternalTarget(plan)
        self._scenario = self._brokers.scenario
        self._mirror_cluster: LiveCluster | None = None
        self._fleet: LiveFleet | None = None
        with ExitStack() as servers:
            self._toxiproxy = servers.enter_context(ToxiproxyServer(plan.folder.logs / "toxiproxy.log"))
            self._links = Links(self._toxiproxy.client)
            self._scheduler = LiveFaultScheduler(
                self._scenario, self._brokers.cluster, self._links, plan.now_us, plan.progress
            )
            self._servers = servers.pop_all()  # From here on ``close`` ends them.

    def play_phases(self) -> None:
        plan, scheduler, cluster = self._plan, self._scheduler, self._brokers.cluster
        access = self._brokers.start(self._links, scheduler.evidence_line, self._tick_until)
        if self._scenario.load.mirror is not None:
            access = replace(access, target=self._start_mirror_cluster())
        fleet = self._fleet = LiveFleet(
            self._scenario, plan.folder, access, plan.origin_us, plan.seed, plan.client_mutant
        )
        self._load_start_us = self._await(fleet, "load", FLEET_START_LIMIT_S)
        fleet.load_begins()
        self._begin_faults(self._load_start_us)
        self._phase = "load"
        load_end_us = self._load_start_us + int(self._scenario.load.seconds * 1e6)
        plan.progress(f"load for {self._scenario.load.seconds:g} s")
        while plan.now_us() < load_end_us:
            self._tick()
        self._phase = "final polls and final read"
        plan.progress("heal, final polls, final read")
        self._end_faults()
        self._await(fleet, "load_ended", DRAIN_LIMIT_S)
        self._await_tier()
        fleet.final()
        self._await(fleet, "done", DRAIN_LIMIT_S)
        self._duration_us = plan.now_us()
        cluster.end_cleanly()

    def _start_mirror_cluster(self) -> tuple[str, ...]:
        """Start the cluster to which a mirror copies: one node, without proxies and faults."""
        folder = self._plan.folder.mirror_target
        self._mirror_cluster = self._servers.enter_context(started(ClusterPlan(folder)))
        return self._mirror_cluster.addresses

    def _begin_faults(self, load_start_us: int) -> None:
        self._brokers.cluster.load_starts(load_start_us)
        for proxy in self._brokers.frames:
            proxy.load_starts(load_start_us)
        self._scheduler.plan(load_start_us)

    def _end_faults(self) -> None:
        """End all faults, heal the links, and start the nodes that are down."""
        self._brokers.cluster.disarm()
        for proxy in self._brokers.frames:
            proxy.disarm()
        self._scheduler.end_all()
        self._links.heal_all()
        self._brokers.cluster.heal()

    def _await(self, fleet: LiveFleet, event: str, limit_s: float) -> int:
        """Wait until the fleet reports this event. Return the time of the report, in microseconds since the run's
        start."""
        self._tick_until(lambda: event in fleet.events, limit_s, f"the fleet did not come to {event!r}")
        return fleet.events[event]

    def _await_tier(self) -> None:
        """Wait until the closed segments of tiered topics are in the remote tier, or until no more of them arrive
        there."""
        segments = self._brokers.segments
        if segments is not None:
            self._plan.progress("closed segments go to the remote tier")
            self._tick_until(segments.waited_for, float("inf"), "")

    def _tick_until(self, done: Callable[[], bool], limit_s: float, complaint: str) -> None:
        """Continue the run until ``done()``, because a fault may fire while nodes start or clients finish. Raise
        NodeDied with the ``complaint`` after ``limit_s``."""
        start_us = self._plan.now_us()
        while not done():
            self._tick()
            if self._plan.now_us() - start_us > limit_s * 1e6:
                raise NodeDied(f"{complaint} within {limit_s:g} s; see {self._plan.folder.logs}")

    def _tick(self) -> None:
        """Do the due work, read evidence, and raise NodeDied if a process has ended unexpectedly."""
        self._scheduler.do_due()
        self._record_fired()
        self._brokers.cluster.poll()
        if self._mirror_cluster is not None:
            self._mirror_cluster.poll()
        self._brokers.tick()
        for proxy in self._brokers.frames:
            proxy.check()
        if self._fleet is not None:
            self._fleet.check()
        if self._toxiproxy.died() is not None:
            raise NodeDied(f"the Toxiproxy server exited with {self._toxiproxy.died()}")
        if self._plan.now_us() - self._shown_us >= SHOWN_EVERY_US:
            self._shown_us = self._plan.now_us()
            self._show(self._view())
        time.sleep(TICK_S)

    def _record_fired(self) -> None:
        """Record the faults that fired at the frame proxies."""
        for proxy in self._brokers.frames:
            for row in proxy.fired():
                self._scheduler.evidence_line(int(row.target.removeprefix("node-")), {FAULT: list(row.values())})
            for node, lost in proxy.lost():
                self._scheduler.evidence_line(node, {LOST_BY_PROXY: lost})

    def _view(self) -> RunView:
        report, scheduler = {} if self._fleet is None else self._fleet.report, self._scheduler
        return RunView(
            phase=self._phase,
            load_s=(self._plan.now_us() - self._load_start_us) / 1e6 if self._load_start_us else -1.0,
            whole_load_s=self._scenario.load.seconds,
            report=report,
            under_way=tuple(scheduler.under_way),
            fired=len(scheduler.rows),
            next_fault=scheduler.next_fault(),
            broken=tuple(dict.fromkeys((*seen_by_clients(report), *scheduler.check_reports.broken))),
        )

    def close(self) -> None:
        """End every process that this run started."""
        self._duration_us = self._duration_us or self._plan.now_us()
        if self._fleet is not None:
            self._fleet.close()
        for proxy in self._brokers.frames:
            proxy.close()
        self._record_fired()  # A node elsewhere that a rule has ended is left running only if this is known.
        self._brokers.close()
        try:
            self._brokers.cluster.close()
        finally:
            self._servers.close()

    # What the run leaves

    def write_tables(self) -> None:
        folder = self._plan.folder
        folder.write_faults(self._scheduler.rows)
        folder.write_samples(self._brokers.samples)
        folder.collect_trace()

    def manifest(self, command: str, variant: str, end: RunEnd) -> Manifest:
        """Return the description of the run."""
        at_us = self._duration_us
        heal_checks = () if self._fleet is None else self._fleet.heal_checks(at_us)
        checks = (*self._brokers.checks(end, at_us, self._scheduler), *heal_checks)
        return manifest_of(
            self._plan, self._brokers, checks, at_us, command, variant, end.crash, self._scheduler.mutant_reached
        )


def check_playable(scenario: Scenario, target: str = REFERENCE, mutant: str = "") -> None:
    """Raise SetupError if the scenario cannot be played. Call it before anything is started or written."""
    for fault in select_live_faults(scenario, 0).faults:  # Any seed shows it: live alternatives are drawn.
        if not is_live(fault):
            raise SetupError(f"{scenario.name}: {fault.kind} exists only in the simulator; run `crucible sim` instead.")
    if scenario.swarm is not None:
        raise SetupError(f"{scenario.name} draws its faults from each seed; run `crucible sim` instead.")
    try:
        presets_for(scenario.state)
    except PresetError as wrong:
        raise SetupError(f"{scenario.name}: {wrong}") from wrong
    if mutant:
        check_mutant(scenario, target, mutant)
    if target != REFERENCE:
        check_target(scenario, target)


def check_mutant(scenario: Scenario, target: str, mutant: str) -> None:
    """Raise SetupError if the target or the scenario's revision cannot have the mutant."""
    if target != REFERENCE:
        raise SetupError("A mutant changes the reference broker: leave --target out.")
    try:
        revisions = by_name(mutant).revisions
    except MutantError as wrong:
        raise SetupError(str(wrong)) from wrong
    if revision_of(scenario) in REVISIONS and revision_of(scenario) not in revisions:
        raise SetupError(f"{scenario.name}: mutant {mutant} lacks a mechanism that only {revisions[0]} has.")
