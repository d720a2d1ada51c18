"""One scenario played with real processes: nodes, Toxiproxy, the fleet, and faults at times and states."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.fleet.behaviours.protocol import Versions
from bench.fleet.early_signs import SIGNS_OF
from chaos.checks.guarantee_selection import promised_of_external, promised_on_the_wire
from chaos.hooks.presets import PresetError, presets_for
from chaos.live import identity
from chaos.live.client_mutant import reached
from chaos.live.closed_segments import OWN_LIMIT_S, ClosedSegments, segments_of
from chaos.live.cluster import Cluster
from chaos.live.errors import EndedItself, NodeDied, NotBack, SetupError, TargetDied
from chaos.live.external.needs import check_target
from chaos.live.external.run import STAYS_UP, ExternalRun
from chaos.live.external.target import REFERENCE
from chaos.live.fault_scheduler import FaultScheduler
from chaos.live.fault_selection import is_live, select_live_faults
from chaos.live.fleet import ANSWERS, Fleet, Way
from chaos.live.frame_proxies import FAULT, Frames, LinkFrames, has_link_rules
from chaos.live.launchers import nodes_under_test, samples_of
from chaos.live.links import Links
from chaos.live.local_cluster import ClusterPlan, started
from chaos.live.node_side.evidence import LOST_BY_PROXY, ROLE
from chaos.live.quorum import Dial
from chaos.live.run_folder import RunFolder, gave_sessions
from chaos.live.sampler import Sampler
from chaos.live.toxiproxy_server import ToxiproxyServer
from chaos.mutants.mutant import MutantError
from chaos.mutants.registry import by_name
from reports.manifest import Check, Expectations, Manifest, write_manifest
from reports.rows import FaultRow
from scenarios.loader import typed, typed_options
from scenarios.model import Scenario
from scenarios.outside import from_outside
from scenarios.revisions import revision_of
from scenarios.vocabulary import REVISIONS


@dataclass(frozen=True, slots=True)
class RunView:
    """A moment of a run.

    - ``phase`` says what is done now, and ``load_s`` since when the load runs; it is negative before the load.
    - ``report`` is the fleet's last one (``bench/fleet/README.md``, the event ``progress``), empty before the first.
    - ``under_way`` holds the faults that have begun and not ended, and ``hits`` counts all hits so far.
    - ``next_fault`` is the name of the next fault at a time and the seconds until then, if there is one.
    - ``broken`` holds guarantees that clients or nodes have seen broken. More may be found at the end.
    """

    phase: str
    load_s: float
    whole_load_s: float
    report: Mapping[str, int] = field(default_factory=dict)
    under_way: tuple[str, ...] = ()
    hits: int = 0
    next_fault: tuple[str, float] | None = None
    broken: tuple[str, ...] = ()


Show: TypeAlias = Callable[[RunView], None]


def seen_by_clients(report: Mapping[str, int]) -> tuple[str, ...]:
    """Return the guarantees that the fleet's report shows broken."""
    return tuple(name.removeprefix(SIGNS_OF) for name, count in report.items() if name.startswith(SIGNS_OF) and count)


TICK_S = 0.01
SHOWN_EVERY_US = 1_000_000
CONVERGES = "quorum-converges"
SETUP_LIMIT_S = 90.0
DRAIN_LIMIT_S = 120.0
"""Limits what comes after the load: final polls, and the final read. A fleet that takes longer has hung."""
Progress = Callable[[str], None]


class Ending(Enum):
    """How a run ended."""

    FINISHED = auto()
    NODE_ENDED_ITSELF = auto()  # over its metadata
    NODE_NOT_BACK = auto()  # did not serve again after a fault
    TARGET_DIED = auto()
    CRASHED = auto()  # another unexpected end of a process, or a failure of the suite itself


BROKEN_BY: Final = {
    Ending.NODE_ENDED_ITSELF: CONVERGES,
    Ending.NODE_NOT_BACK: ANSWERS,
    Ending.TARGET_DIED: STAYS_UP,
}
"""The guarantee that an ending breaks. A crash breaks none: nothing is known then."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    ending: Ending = Ending.FINISHED
    story: str = ""

    @property
    def crash(self) -> str:
        return self.story if self.ending is Ending.CRASHED else ""


def play(
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
    """Play a scenario that ``check_playable`` accepts, and write the run's folder ``out``. Raises SetupError.

    ``progress`` gets a line for what happens, and ``show`` the state of the run once a second. ``variant`` is what was
    chosen for this run when runs are compared; it goes into the manifest, and so does how the run ended (``Ending``). A
    run that could not be set up, or was stopped, leaves no folder.
    """
    scenario = select_live_faults(scenario if target == REFERENCE else from_outside(scenario), seed)
    folder = RunFolder(out)
    folder.make()
    run = LiveRun(scenario, folder, seed, target, mutant, progress, show)
    end = RunEnd()
    try:
        try:
            run.play()
        except KeyboardInterrupt:
            progress("stopped: clients end first, then nodes, and the folder is removed; this may take half a minute")
            raise
        finally:
            run.close()
    except (SetupError, KeyboardInterrupt):
        folder.discard()
        raise
    except Exception as failure:
        end = _end_by(failure, scenario)
        progress(f"crash: {end.story}" if end.crash else end.story)
    run.write_tables()
    torn = folder.set_torn_aside()
    if torn and end.ending is Ending.FINISHED:
        end = RunEnd(Ending.CRASHED, f"the history is not whole: {', '.join(torn)}")
    write_manifest(folder.path, run.manifest(command, variant, end))
    return folder


def _end_by(failure: Exception, scenario: Scenario) -> RunEnd:
    match failure:
        case EndedItself() if CONVERGES in scenario.guarantees:
            return RunEnd(Ending.NODE_ENDED_ITSELF, str(failure))
        case TargetDied():
            return RunEnd(Ending.TARGET_DIED, str(failure))
        case NotBack():
            return RunEnd(Ending.NODE_NOT_BACK, str(failure))
        case NodeDied():
            return RunEnd(Ending.CRASHED, str(failure))
    return RunEnd(Ending.CRASHED, f"the suite failed: {type(failure).__name__}: {failure}")


class LiveRun:
    """One run. ``rows`` is what fired so far. ``mutant`` is empty for none."""

    def __init__(
        self,
        scenario: Scenario,
        folder: RunFolder,
        seed: int,
        target: str,
        mutant: str,
        progress: Progress,
        show: Show = lambda _: None,
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._target = target
        self._mutant = mutant
        self._progress = progress
        self._show = show
        self._shown_us = 0
        self._phase = "nodes start"
        self._load_start_us = 0
        self._origin_us = time.monotonic_ns() // 1000
        self._start_wall_us = time.time_ns() // 1000
        self._changes_client = bool(mutant) and by_name(mutant).side == "client"
        self._external: ExternalRun | None = None
        self._own_segments: ClosedSegments | None = None
        if target == REFERENCE:
            size = scenario.cluster
            self._cluster = Cluster(size.nodes, size.total, seed, ours=True, on_line=self._evidence_line)
        else:
            self._external = ExternalRun(scenario, target, folder, seed, self._origin_us, progress)
            scenario, self._cluster = self._external.scenario, self._external.cluster
        self._scenario = scenario
        self._servers = ExitStack()
        self._toxiproxy: ToxiproxyServer | None = None
        self._mirror_cluster: Cluster | None = None
        self._link_frames: LinkFrames | None = None
        self._fault_scheduler: FaultScheduler | None = None
        self._fleet: Fleet | None = None
        self._sampler = Sampler(lambda: samples_of(self._cluster.nodes), self.now_us)
        self._duration_us = 0

    def play(self) -> None:
        self._toxiproxy = self._servers.enter_context(ToxiproxyServer(self._folder.logs / "toxiproxy.log"))
        links = Links(self._toxiproxy.client)
        scheduler = self._fault_scheduler = FaultScheduler(
            self._scenario, self._cluster, links, self.now_us, self._progress
        )
        way = self._start_nodes(links)
        if self._scenario.load.mirror is not None:
            # A mirror copies to a cluster of one node, without proxies. No fault hits it.
            self._mirror_cluster = self._servers.enter_context(started(ClusterPlan(self._folder.mirror_target)))
            way = replace(way, target=self._mirror_cluster.addresses)
        mutant = self._mutant if self._changes_client else ""
        fleet = self._fleet = Fleet(self._scenario, self._folder, way, self._origin_us, self._seed, mutant)
        load_start_us = self._await(fleet, "load", SETUP_LIMIT_S)
        fleet.load_begins()
        self._cluster.load_starts(load_start_us)
        for frames in self._frames:
            frames.load_starts(load_start_us)
        scheduler.plan(load_start_us)
        self._phase, self._load_start_us = "load", load_start_us
        load_end_us = load_start_us + int(self._scenario.load.seconds * 1e6)
        self._progress(f"load for {self._scenario.load.seconds:g} s")
        while self.now_us() < load_end_us:
            self._tick()
        self._phase = "final polls and final read"
        self._progress("heal, final polls, final read")
        self._cluster.disarm()
        for frames in self._frames:
            frames.disarm()
        scheduler.end_all()
        links.heal_all()
        self._cluster.heal()
        self._await(fleet, "load_ended", DRAIN_LIMIT_S)
        self._await_tier()
        fleet.final()
        self._await(fleet, "done", DRAIN_LIMIT_S)
        self._duration_us = self.now_us()
        self._cluster.end_cleanly()

    def _start_nodes(self, links: Links) -> Way:
        """Start the nodes behind their links, or those of a target. Return how clients reach them."""
        if self._external is not None:
            return self._external.reach(links, f"crucible-{self._start_wall_us}-", self._tick_until)
        lead, mutant = self._lead_between_nodes, "" if self._changes_client else self._mutant
        nodes = nodes_under_test(self._scenario, self._folder, links, lead, self._seed, mutant, self._origin_us)
        self._cluster.launch(nodes)
        self._tick_until(lambda: self._cluster.is_ready, SETUP_LIMIT_S, "not all nodes were ready")
        for node in nodes:
            self._progress(f"{node.name} serves at {node.listen}, clients reach it through {node.advertised}")
        self._own_segments = segments_of(self._scenario, self._cluster.nodes, "", Versions().metadata, OWN_LIMIT_S)
        self._sampler.start()
        return Way(self._cluster.addresses)

    def _lead_between_nodes(self, dial: Dial) -> Dial:
        """Put the frame proxy on all links between nodes if a rule hits there."""
        if not has_link_rules(self._scenario):
            return dial
        logs = self._folder.logs
        self._link_frames, led = LinkFrames.before(dial, self._scenario, logs, self._seed, self._origin_us)
        return led

    def _await(self, fleet: Fleet, event: str, limit_s: float) -> int:
        """Wait until the fleet reports this event. Return when it did, in microseconds since the run's start."""
        self._tick_until(lambda: event in fleet.events, limit_s, f"the fleet did not come to {event!r}")
        return fleet.events[event]

    def _tick_until(self, done: Callable[[], bool], limit_s: float, complaint: str) -> None:
        """Go on with the run until ``done()``, because a fault may hit while nodes start or clients finish. Raises
        NodeDied with the ``complaint`` after ``limit_s``."""
        start_us = self.now_us()
        while not done():
            self._tick()
            if self.now_us() - start_us > limit_s * 1e6:
                raise NodeDied(f"{complaint} within {limit_s:g} s; see {self._folder.logs}")

    def _tick(self) -> None:
        assert self._fault_scheduler is not None
        assert self._toxiproxy is not None
        self._fault_scheduler.do_due()
        self._take_hits()
        self._cluster.look()
        if self._mirror_cluster is not None:
            self._mirror_cluster.look()
        if self._external is not None:
            self._external.tick()
        for frames in self._frames:
            frames.check()
        if self._fleet is not None:
            self._fleet.check()
        if self._toxiproxy.died() is not None:
            raise NodeDied(f"the Toxiproxy server exited with {self._toxiproxy.died()}")
        if self.now_us() - self._shown_us >= SHOWN_EVERY_US:
            self._shown_us = self.now_us()
            self._show(self._view(self._fault_scheduler))
        time.sleep(TICK_S)

    def _take_hits(self) -> None:
        """Record the hits of the frame proxies."""
        for frames in self._frames:
            for row in frames.hits():
                assert self._fault_scheduler is not None
                self._fault_scheduler.evidence_line(int(row.target.removeprefix("node-")), {FAULT: list(row.values())})
            for node, lost in frames.lost():
                assert self._fault_scheduler is not None
                self._fault_scheduler.evidence_line(node, {LOST_BY_PROXY: lost})

    def _evidence_line(self, node: int, line: dict[str, Any]) -> None:
        assert self._fault_scheduler is not None
        if ROLE in line and self._link_frames is not None:
            self._link_frames.role(node, line[ROLE])
        self._fault_scheduler.evidence_line(node, line)

    def _view(self, scheduler: FaultScheduler) -> RunView:
        report = {} if self._fleet is None else self._fleet.report
        return RunView(
            phase=self._phase,
            load_s=(self.now_us() - self._load_start_us) / 1e6 if self._load_start_us else -1.0,
            whole_load_s=self._scenario.load.seconds,
            report=report,
            under_way=tuple(scheduler.under_way),
            hits=len(scheduler.rows),
            next_fault=scheduler.next_fault(),
            broken=tuple(dict.fromkeys((*seen_by_clients(report), *scheduler.findings.broken))),
        )

    def _await_tier(self) -> None:
        """Wait until the closed segments of tiered topics are in the remote tier, while more of them get there."""
        segments = self._own_segments if self._external is None else self._external.segments
        if segments is not None:
            self._progress("closed segments go to the remote tier")
            self._tick_until(segments.waited_for, float("inf"), "")

    def close(self) -> None:
        """End every process that this run started."""
        self._duration_us = self._duration_us or self.now_us()
        if self._fleet is not None:
            self._fleet.close()
        self._sampler.end()
        for frames in self._frames:
            frames.close()
        self._take_hits()  # A node elsewhere that a rule has ended is left running only if this is known.
        if self._external is not None:
            self._external.close()
        try:
            self._cluster.close()
        finally:
            self._servers.close()

    def now_us(self) -> int:
        """Return the time since the run's start."""
        return time.monotonic_ns() // 1000 - self._origin_us

    @property
    def rows(self) -> list[FaultRow]:
        return [] if self._fault_scheduler is None else self._fault_scheduler.rows

    @property
    def _frames(self) -> Sequence[Frames]:
        """The frame proxies of this run."""
        between = () if self._link_frames is None else (self._link_frames,)
        return (*between, *(() if self._external is None else self._external.frames))

    def write_tables(self) -> None:
        self._folder.write_faults(self.rows)
        self._folder.write_samples(self._sampler.rows)
        self._folder.collect_trace()

    def manifest(self, command: str, variant: str, end: RunEnd) -> Manifest:
        """Return the description of the run."""
        scenario = self._scenario
        external = self._external
        options = f" --mutant {self._mutant}" if self._mutant else ""
        options += f" --target {self._target}" if external else ""
        options += "" if variant else typed_options(scenario)
        verb = "compare" if variant else "run"
        return Manifest(
            **identity.of_live_run(scenario, self._folder.path, self._seed, self._start_wall_us),
            title=scenario.title,
            repeat_command=f"./crucible {verb} {typed(scenario)} --seed {self._seed}{options}",
            target=self._target,
            variant=variant,
            mutant=self._mutant,
            mutant_calls=int(self._reached_mutant()) if self._mutant else -1,
            command=command or " ".join(sys.argv),
            duration_us=self._duration_us,
            clauses=scenario.clauses,
            crash=end.crash,
            config=external.config if external else dict(scenario.cluster.config),
            checks=self._checked(end),
            load=identity.load_words(scenario),
            notes=external.notes() if external else (),
            expectations=Expectations(
                faults=scenario.expected_faults,
                min_fetches=scenario.min_fetches,
                min_acked=scenario.min_acked,
                min_rewinds=scenario.min_rewinds,
                max_schedule_slip_ms=scenario.max_schedule_slip_ms,
                guarantees=self._promised_by_target(external) if external else scenario.guarantees,
            ),
        )

    def _checked(self, end: RunEnd) -> tuple[Check, ...]:
        """Return the results of the checks inside our nodes, or what is known of a target, and the guarantee that the
        end of the run breaks."""
        at_us, broken = self._duration_us, BROKEN_BY.get(end.ending)
        heal_checks = () if self._fleet is None else self._fleet.heal_checks(at_us)
        if self._external is not None:
            return (*self._external.checks("" if end.crash else end.story, at_us), *heal_checks)
        if self._fault_scheduler is None:
            return ()
        inside = self._fault_scheduler.findings.judged(self._scenario.guarantees)
        of_tier = () if self._own_segments is None else (self._own_segments.judged(at_us),)
        of_node = (Check(guarantee=broken, holds=False, evidence=1, at_us=at_us, detail=end.story),) if broken else ()
        return (*of_node, *heal_checks, *inside, *of_tier, *self._fault_scheduler.damage.judged(at_us))

    def _promised_by_target(self, external: ExternalRun) -> tuple[str, ...]:
        """Guarantees of fetch sessions are due only if the target gives sessions, which no broker must."""
        seen = promised_on_the_wire(self._scenario) if gave_sessions(self._folder.path) else ()
        return (*promised_of_external(self._scenario), *seen, *external.guarantees)

    def _reached_mutant(self) -> bool:
        if self._changes_client:
            return reached(self._folder)
        return self._fault_scheduler is not None and self._fault_scheduler.mutant_reached


def check_playable(scenario: Scenario, target: str = REFERENCE, mutant: str = "") -> None:
    """Raise SetupError for what cannot be played. Call it before anything is started or written."""
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
