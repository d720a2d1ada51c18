"""Plays one scenario with real processes: nodes, Toxiproxy, the fleet, and faults at their times and states."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from bench.fleet.behaviours.protocol import Versions
from bench.fleet.early_signs import SIGNS_OF
from chaos.checks.guarantee_selection import promised_on_the_wire, promised_outside
from chaos.hooks.presets import PresetError, presets_for
from chaos.live import identity
from chaos.live.client_mutant import reached
from chaos.live.closed_segments import OWN_LIMIT_S, ClosedSegments, segments_of
from chaos.live.cluster import Cluster
from chaos.live.errors import EndedItself, NodeDied, NotBack, SetupError, TargetDied
from chaos.live.external.cluster import ExternalCluster
from chaos.live.external.needs import check_target
from chaos.live.external.run import ExternalRun
from chaos.live.external.target import REFERENCE
from chaos.live.fault_scheduler import FaultScheduler
from chaos.live.fault_selection import is_live, select_live_faults
from chaos.live.fleet import ANSWERS, Fleet, Way
from chaos.live.frame_proxies import FAULT, Frames, LinkFrames, has_link_rules
from chaos.live.links import Links
from chaos.live.local_cluster import ClusterPlan, Member, addresses_of, started
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
    """Returns the guarantees that the fleet's report shows broken."""
    return tuple(name.removeprefix(SIGNS_OF) for name, count in report.items() if name.startswith(SIGNS_OF) and count)


TICK_S = 0.01
SHOWN_EVERY_US = 1_000_000
CONVERGES = "quorum-converges"
SETUP_LIMIT_S = 90.0
DRAIN_LIMIT_S = 120.0
"""Limits what comes after the load: final polls, and the final read. A fleet that takes longer has hung."""
Progress = Callable[[str], None]


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

    ``progress`` gets a line for what happens, and ``show`` once a second how the run stands. ``variant`` goes into the
    manifest. It says what was chosen for this run when runs are compared. A node that ends
    itself over its metadata breaks quorum-converges, as in the simulator, and ends the run. Another unexpected death of
    a node or of the fleet, or a failure of the suite itself, raises nothing but stands in the manifest as ``crash``. A
    run that could not be set up, or was stopped, leaves no folder.
    """
    scenario = select_live_faults(scenario if target == REFERENCE else from_outside(scenario), seed)
    folder = RunFolder(out)
    folder.make()
    run = LiveRun(scenario, folder, seed, target, mutant, progress, show)
    crash = ended = ""
    breaks = CONVERGES
    try:
        try:
            run.play()
        except KeyboardInterrupt:
            progress("stopped: clients end first, then nodes, and the folder is removed; this may take half a minute")
            raise
        finally:
            run.close()
    except (EndedItself, TargetDied) as end:
        ended = str(end)
    except NotBack as late:
        ended, breaks = str(late), ANSWERS
    except NodeDied as death:
        crash = str(death)
    except (SetupError, KeyboardInterrupt):
        folder.discard()
        raise
    except Exception as failure:
        crash = f"the suite failed: {type(failure).__name__}: {failure}"
    if ended and target == REFERENCE and breaks == CONVERGES and CONVERGES not in scenario.guarantees:
        crash = ended
    if crash or ended:
        progress(f"crash: {crash}" if crash else ended)
    run.write_tables()
    torn = folder.set_torn_aside()
    if torn and not crash and not ended:
        crash = f"the history is not whole: {', '.join(torn)}"
    write_manifest(folder.path, run.manifest(command, variant, crash, ended, breaks))
    return folder


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
        of_nodes = "" if self._changes_client else mutant
        self._external: ExternalRun | None = None
        self._own_segments: ClosedSegments | None = None
        self._cluster: Cluster | ExternalCluster
        if target == REFERENCE:
            self._cluster = Cluster(scenario, folder, seed, of_nodes, self._origin_us, self._evidence_line)
        else:
            self._external = ExternalRun(scenario, target, folder, seed, self._origin_us, progress)
            scenario, self._cluster = self._external.scenario, self._external.cluster
        self._scenario = scenario
        self._servers = ExitStack()
        self._toxiproxy: ToxiproxyServer | None = None
        self._target_nodes: list[Member] = []
        self._link_frames: LinkFrames | None = None
        self._fault_scheduler: FaultScheduler | None = None
        self._fleet: Fleet | None = None
        self._sampler = Sampler(self._cluster.samples, self.now_us)
        self._duration_us = 0

    @property
    def rows(self) -> list[FaultRow]:
        return [] if self._fault_scheduler is None else self._fault_scheduler.rows

    def play(self) -> None:
        self._toxiproxy = self._servers.enter_context(ToxiproxyServer(self._folder.logs / "toxiproxy.log"))
        links = Links(self._toxiproxy.client)
        scheduler = self._fault_scheduler = FaultScheduler(
            self._scenario, self._cluster, links, self.now_us, self._progress
        )
        way = self._start_nodes(links)
        if self._scenario.load.mirror is not None:
            # A mirror copies to a cluster of one node, without proxies. No fault hits it.
            self._target_nodes = self._servers.enter_context(started(ClusterPlan(self._folder.mirror_target)))
            way = replace(way, target=addresses_of(self._target_nodes))
        mutant = self._mutant if self._changes_client else ""
        fleet = self._fleet = Fleet(self._scenario, self._folder, way, self._origin_us, self._seed, mutant)
        load_start_us = self._await(fleet, "load", SETUP_LIMIT_S)
        fleet.load_begins()
        for node in self._cluster.nodes:
            node.load_starts(load_start_us)
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
        for node in self._cluster.nodes:
            node.disarm()
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

    def close(self) -> None:
        """Ends every process that this run started."""
        self._duration_us = self._duration_us or self.now_us()
        if self._fleet is not None:
            self._fleet.close()
        self._sampler.end()
        for frames in self._frames:
            frames.close()
        self._take_hits()  # Nodes elsewhere must learn that a rule has struck them: then they are left running.
        try:
            self._cluster.close()
        finally:
            self._servers.close()

    def now_us(self) -> int:
        """Returns the time since the run's start."""
        return time.monotonic_ns() // 1000 - self._origin_us

    def write_tables(self) -> None:
        self._folder.write_faults(self.rows)
        self._folder.write_samples(self._sampler.rows)
        self._folder.collect_trace()

    def manifest(self, command: str, variant: str, crash: str, ended: str, breaks: str) -> Manifest:
        """Returns what the run was. ``ended`` is the story of a node that could not go on, and ``breaks`` the guarantee
        that this breaks if the node is ours."""
        scenario = self._scenario
        outside = self._external
        asked = "compare" if variant else "run"
        planted = f" --mutant {self._mutant}" if self._mutant else ""
        planted += f" --target {self._target}" if outside else ""
        planted += "" if variant else typed_options(scenario)
        return Manifest(
            **identity.of_live_run(scenario, self._folder.path, self._seed, self._start_wall_us),
            title=scenario.title,
            repeat_command=f"./crucible {asked} {typed(scenario)} --seed {self._seed}{planted}",
            target=self._target,
            variant=variant,
            mutant=self._mutant,
            mutant_calls=int(self._reached_mutant()) if self._mutant else -1,
            command=command or " ".join(sys.argv),
            duration_us=self._duration_us,
            clauses=scenario.clauses,
            crash=crash,
            config=outside.config if outside else dict(scenario.cluster.config),
            checks=self._checked(ended if not crash else "", breaks),
            load=identity.load_words(scenario),
            notes=outside.notes() if outside else (),
            expectations=Expectations(
                faults=scenario.expected_faults,
                min_fetches=scenario.min_fetches,
                min_acked=scenario.min_acked,
                min_rewinds=scenario.min_rewinds,
                max_schedule_slip_ms=scenario.max_schedule_slip_ms,
                guarantees=self._promised_by_target(outside) if outside else scenario.guarantees,
            ),
        )

    def _promised_by_target(self, outside: ExternalRun) -> tuple[str, ...]:
        """What frames show of sessions is due where the target gives sessions, which no broker must."""
        seen = promised_on_the_wire(self._scenario) if gave_sessions(self._folder.path) else ()
        return (*promised_outside(self._scenario), *seen, *outside.guarantees)

    def _reached_mutant(self) -> bool:
        if self._changes_client:
            return reached(self._folder)
        return self._fault_scheduler is not None and self._fault_scheduler.mutant_reached

    def _checked(self, ended: str, breaks: str) -> tuple[Check, ...]:
        """Returns what the checks inside the nodes found, or what is known of nodes that are not ours. ``ended`` says
        how a node ended itself."""
        at_us = self._duration_us
        answers = () if self._fleet is None else self._fleet.answers(at_us)
        if self._external is not None:
            return (*self._external.checks(ended, at_us), *answers)
        if self._fault_scheduler is None:
            return ()
        inside = self._fault_scheduler.findings.judged(self._scenario.guarantees)
        of_tier = () if self._own_segments is None else (self._own_segments.judged(at_us),)
        of_node = (Check(guarantee=breaks, holds=False, evidence=1, at_us=at_us, detail=ended),) if ended else ()
        return (*of_node, *answers, *inside, *of_tier, *self._fault_scheduler.damage.judged(at_us))

    def _start_nodes(self, links: Links) -> Way:
        """Starts the nodes behind their links, or goes to those of a target. Returns how clients reach them."""
        if self._external is not None:
            return self._external.reach(links, f"crucible-{self._start_wall_us}-", self._tick_until)
        assert isinstance(self._cluster, Cluster)
        bootstrap = self._cluster.launch(links, self._lead_between_nodes)
        self._tick_until(lambda: self._cluster.is_ready, SETUP_LIMIT_S, "not all nodes were ready")
        for node in self._cluster.nodes:
            spec = node.spec
            self._progress(f"{node.name} serves at {spec.listen}, clients reach it through {spec.advertised}")
        self._own_segments = segments_of(self._scenario, self._cluster.nodes, "", Versions().metadata, OWN_LIMIT_S)
        self._sampler.start()
        return Way(bootstrap)

    def _await_tier(self) -> None:
        """Waits until the closed segments of tiered topics are in the remote tier, while more of them get there."""
        segments = self._own_segments if self._external is None else self._external.segments
        if segments is not None:
            self._progress("closed segments go to the remote tier")
            self._tick_until(segments.waited_for, float("inf"), "")

    @property
    def _frames(self) -> Sequence[Frames]:
        """The frame proxies of this run."""
        between = () if self._link_frames is None else (self._link_frames,)
        return (*between, *(() if self._external is None else self._external.frames))

    def _lead_between_nodes(self, dial: Dial) -> Dial:
        """Puts the frame proxy on all links between nodes if a rule hits there."""
        if not has_link_rules(self._scenario):
            return dial
        logs = self._folder.logs
        self._link_frames, led = LinkFrames.before(dial, self._scenario, logs, self._seed, self._origin_us)
        return led

    def _take_hits(self) -> None:
        """Takes what the frame proxies have struck."""
        for frames in self._frames:
            for row in frames.hits():
                assert self._fault_scheduler is not None
                self._fault_scheduler.evidence_line(int(row.target.removeprefix("node-")), {FAULT: list(row.values())})
            for node, lost in frames.lost():
                assert self._fault_scheduler is not None
                self._fault_scheduler.evidence_line(node, {LOST_BY_PROXY: lost})

    def _await(self, fleet: Fleet, event: str, limit_s: float) -> int:
        """Waits until the fleet tells this event. Returns when it did, in microseconds since the run's start."""
        self._tick_until(lambda: event in fleet.events, limit_s, f"the fleet did not come to {event!r}")
        return fleet.events[event]

    def _tick_until(self, done: Callable[[], bool], limit_s: float, complaint: str) -> None:
        """Goes on with the run until ``done()``, because a fault may strike while nodes start or clients finish. Raises
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
        for node in self._target_nodes:
            if node.child is not None:
                node.child.check()
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

    def _evidence_line(self, node: int, line: dict[str, Any]) -> None:
        assert self._fault_scheduler is not None
        if ROLE in line and self._link_frames is not None:
            self._link_frames.role(node, line[ROLE])
        self._fault_scheduler.evidence_line(node, line)
