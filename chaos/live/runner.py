"""Plays one scenario with real processes: nodes, Toxiproxy, the fleet, and faults at their times and states."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.live import identity
from chaos.live.casting import cast, is_live
from chaos.live.cluster import ClusterPlan, Member, addresses_of, started
from chaos.live.crew import Crew
from chaos.live.errors import EndedItself, NodeDied, SetupError
from chaos.live.foreign_frames import (
    FAULT,
    ForeignFrames,
    Frames,
    LinkFrames,
    has_frame_faults,
    has_link_faults,
    lacking,
)
from chaos.live.foreign_target import REFERENCE, behind_proxies, look, parse_target
from chaos.live.links import Links
from chaos.live.load.client_mutant import reached
from chaos.live.load.fleet import Fleet, Way
from chaos.live.node_side.evidence import ROLE
from chaos.live.quorum import Dial
from chaos.live.run_folder import RunFolder
from chaos.live.sampler import Sampler
from chaos.live.strikes import Strikes
from chaos.live.toxiproxy_server import ToxiproxyServer
from chaos.live.trace_spool import gave_sessions
from chaos.mutants.mutant import MutantError
from chaos.mutants.registry import by_name
from chaos.presets import PresetError, presets_for
from chaos.promises import promised_on_the_wire, promised_to_clients
from reports.manifest import Check, Expectations, Manifest, write_manifest
from reports.rows import FaultRow
from scenarios.loader import typed
from scenarios.model import Link, Scenario
from scenarios.revisions import revision_of
from scenarios.vocabulary import REVISIONS

TICK_S = 0.01
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
    variant: str = "",
) -> RunFolder:
    """Plays a scenario and leaves the run's folder at ``out``, for reports to judge. Raises SetupError (exit code 2).

    ``variant`` goes into the manifest. It says what was chosen for this run when runs are compared. A node that ends
    itself over its metadata breaks quorum-converges, as in the simulator, and ends the run. Another unexpected death of
    a node or of the fleet, or a failure of the suite itself, raises nothing but stands in the manifest as ``crash``. A
    run that could not be set up, or was stopped, leaves no folder.
    """
    check_playable(scenario, target, mutant)
    scenario = cast(scenario, seed)
    folder = RunFolder(out)
    folder.make()
    run = LiveRun(scenario, folder, seed, target, mutant, progress)
    crash = ended = ""
    try:
        try:
            run.play()
        finally:
            run.close()
    except EndedItself as end:
        ended = str(end)
    except NodeDied as death:
        crash = str(death)
    except (SetupError, KeyboardInterrupt):
        folder.discard()
        raise
    except Exception as failure:
        crash = f"the suite failed: {type(failure).__name__}: {failure}"
    if ended and CONVERGES not in scenario.guarantees:
        crash = ended
    if crash or ended:
        progress(f"crash: {crash}" if crash else ended)
    run.write_tables()
    torn = folder.set_torn_aside()
    if torn and not crash and not ended:
        crash = f"the history is not whole: {', '.join(torn)}"
    write_manifest(folder.path, run.manifest(command, variant, crash, ended))
    return folder


def check_playable(scenario: Scenario, target: str = REFERENCE, mutant: str = "") -> None:
    """Raises SetupError for what cannot be played, before anything is started or written."""
    for fault in cast(scenario, 0).faults:  # Any seed shows it: ``cast`` draws live alternatives if there are any.
        if not is_live(fault):
            raise SetupError(f"{scenario.name}: {fault.kind} exists only in the simulator; run `crucible sim` instead.")
    if scenario.swarm is not None:
        raise SetupError(f"{scenario.name} draws its faults from each seed; run `crucible sim` instead.")
    try:
        presets_for(scenario.state)
    except PresetError as wrong:
        raise SetupError(f"{scenario.name}: {wrong}") from wrong
    if target != REFERENCE:
        _check_target(scenario, target, mutant)
    if mutant:
        try:
            revisions = by_name(mutant).revisions
        except MutantError as wrong:
            raise SetupError(str(wrong)) from wrong
        if revision_of(scenario) in REVISIONS and revision_of(scenario) not in revisions:
            raise SetupError(f"{scenario.name}: mutant {mutant} lacks a mechanism that only {revisions[0]} has.")


def _check_target(scenario: Scenario, target: str, mutant: str) -> None:
    needs = [each for each in scenario.needs if each not in ("proxy", "interceptor")]
    if needs:
        raise SetupError(
            f"--target {target} lacks what {scenario.name} needs: {', '.join(needs)}; use --target {REFERENCE}."
        )
    for fault in scenario.faults:
        if fault.kind == "node_isolated" or (fault.link is not None and not _from_clients(fault.link)):
            raise SetupError(
                f"--target {target} lacks what {scenario.name} needs: fault {fault.name} needs links between "
                f"nodes, or a node's role; use --target {REFERENCE}."
            )
    if mutant:
        raise SetupError("A mutant changes the reference broker: leave --target out.")
    parse_target(target)
    nodes, _ = look(target)
    wrong = lacking(scenario, nodes)
    if wrong:
        raise SetupError(f"--target {target} lacks what {scenario.name} needs: {wrong}; use --target {REFERENCE}.")


def _from_clients(link: Link) -> bool:
    """Returns whether the link is from clients to nodes that can be found without knowing any node's role."""
    return link.source == "client" and (isinstance(link.target, int) or link.target in ("all", "any"))


class LiveRun:
    """One run. ``rows`` is what fired so far. ``mutant`` is empty for none."""

    def __init__(
        self, scenario: Scenario, folder: RunFolder, seed: int, target: str, mutant: str, progress: Progress
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._seed = seed
        self._target = target
        self._mutant = mutant
        self._progress = progress
        self._origin_us = time.monotonic_ns() // 1000
        self._start_wall_us = time.time_ns() // 1000
        self._changes_client = bool(mutant) and by_name(mutant).side == "client"
        of_nodes = "" if self._changes_client else mutant
        self._crew = Crew(scenario, folder, seed, of_nodes, self._origin_us, self._evidence_line)
        self._servers = ExitStack()
        self._toxiproxy: ToxiproxyServer | None = None
        self._target_nodes: list[Member] = []
        self._frames: list[Frames] = []
        self._link_frames: LinkFrames | None = None
        self._strikes: Strikes | None = None
        self._fleet: Fleet | None = None
        self._sampler = Sampler(self._crew.samples, self.now_us)
        self._duration_us = 0

    @property
    def rows(self) -> list[FaultRow]:
        return [] if self._strikes is None else self._strikes.rows

    def play(self) -> None:
        self._toxiproxy = self._servers.enter_context(ToxiproxyServer(self._folder.logs / "toxiproxy.log"))
        links = Links(self._toxiproxy.client)
        strikes = self._strikes = Strikes(self._scenario, self._crew, links, self.now_us, self._progress)
        way = self._start_nodes(links) if self._target == REFERENCE else self._reach_target(links)
        if self._scenario.load.mirror is not None:
            # A mirror copies to a cluster of one node, without proxies. No fault strikes it.
            self._target_nodes = self._servers.enter_context(started(ClusterPlan(self._folder.mirror_target)))
            way = replace(way, target=addresses_of(self._target_nodes))
        mutant = self._mutant if self._changes_client else ""
        fleet = self._fleet = Fleet(self._scenario, self._folder, way, self._origin_us, self._seed, mutant)
        load_start_us = self._await(fleet, "load", SETUP_LIMIT_S)
        fleet.load_begins()
        for node in self._crew.nodes:
            node.load_starts(load_start_us)
        for frames in self._frames:
            frames.load_starts(load_start_us)
        strikes.plan(load_start_us)
        load_end_us = load_start_us + int(self._scenario.load.seconds * 1e6)
        self._progress(f"load for {self._scenario.load.seconds:g} s")
        while self.now_us() < load_end_us:
            self._tick()
        self._progress("heal, final polls, final read")
        for node in self._crew.nodes:
            node.disarm()
        for frames in self._frames:
            frames.disarm()
        strikes.end_all()
        links.heal_all()
        self._crew.heal()
        self._await(fleet, "load_ended", DRAIN_LIMIT_S)
        fleet.final()
        self._await(fleet, "done", DRAIN_LIMIT_S)
        self._duration_us = self.now_us()
        self._crew.end_cleanly()

    def close(self) -> None:
        """Ends every process that this run started."""
        self._duration_us = self._duration_us or self.now_us()
        if self._fleet is not None:
            self._fleet.close()
        self._sampler.end()
        self._crew.close()
        for frames in self._frames:
            frames.close()
            self._take_hits(frames)
        self._servers.close()

    def now_us(self) -> int:
        """Returns the time since the run's start."""
        return time.monotonic_ns() // 1000 - self._origin_us

    def write_tables(self) -> None:
        self._folder.write_faults(self.rows)
        self._folder.write_samples(self._sampler.rows)
        self._folder.collect_trace()

    def manifest(self, command: str, variant: str, crash: str, ended: str) -> Manifest:
        """Returns what the run was. ``ended`` is what a node said that could not go on."""
        scenario = self._scenario
        foreign = self._target != REFERENCE
        asked = "compare" if variant else "run"
        planted = f" --mutant {self._mutant}" if self._mutant else ""
        planted += f" --target {self._target}" if foreign else ""
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
            config={} if foreign else dict(scenario.cluster.config),
            checks=(*(_self_ended(ended, self._duration_us) if ended and not crash else ()), *self._checked()),
            load=identity.load_words(scenario),
            notes=(_FOREIGN,) if foreign else (),
            expectations=Expectations(
                faults=scenario.expected_faults,
                min_fetches=scenario.min_fetches,
                min_acked=scenario.min_acked,
                min_rewinds=scenario.min_rewinds,
                max_schedule_slip_ms=scenario.max_schedule_slip_ms,
                guarantees=self._promised_by_target() if foreign else scenario.guarantees,
            ),
        )

    def _promised_by_target(self) -> tuple[str, ...]:
        """What frames show of sessions is due where the target gives sessions, which no broker must."""
        seen = promised_on_the_wire(self._scenario) if gave_sessions(self._folder.path) else ()
        return (*promised_to_clients(self._scenario), *seen)

    def _reached_mutant(self) -> bool:
        if self._changes_client:
            return reached(self._folder)
        return self._strikes is not None and self._strikes.mutant_reached

    def _checked(self) -> tuple[Check, ...]:
        """Returns what the checks inside the nodes found. A foreign target's nodes have no such checks."""
        if self._strikes is None or self._target != REFERENCE:
            return ()
        return self._strikes.findings.judged(self._scenario.guarantees)

    def _reach_target(self, links: Links) -> Way:
        """Puts a proxy before each of the target's nodes. The run has topics of its own, so it touches nothing else on
        the broker."""
        way = behind_proxies(self._target, links, f"crucible-{self._start_wall_us}-")
        for told, dialled in way.dial.items():
            self._progress(f"{told} is reached through {dialled}")
        if not has_frame_faults(self._scenario) and not promised_on_the_wire(self._scenario):
            return way
        frames = ForeignFrames(self._scenario, self._target, way, self._folder, self._seed, self._origin_us)
        self._frames.append(frames)
        for told, dialled in frames.way.dial.items():
            self._progress(f"before that, frames to {told} pass {dialled}")
        return frames.way

    def _lead_between_nodes(self, dial: Dial) -> Dial:
        """Puts the frame proxy on all links between nodes if a rule strikes there."""
        if not has_link_faults(self._scenario):
            return dial
        frames = self._link_frames = LinkFrames(self._scenario, dial, self._folder.logs, self._seed, self._origin_us)
        self._frames.append(frames)
        return frames.dial

    def _take_hits(self, frames: Frames) -> None:
        assert self._strikes is not None
        for row in frames.hits():
            self._progress(f"fault {row.name} struck {row.target}")
            self._strikes.evidence_line(int(row.target.removeprefix("node-")), {FAULT: list(row.values())})

    def _start_nodes(self, links: Links) -> Way:
        """Starts the nodes behind their links."""
        bootstrap = self._crew.launch(links, self._lead_between_nodes)
        self._tick_until(lambda: self._crew.is_ready, SETUP_LIMIT_S, "not all nodes were ready")
        for node in self._crew.nodes:
            spec = node.spec
            self._progress(f"{node.name} serves at {spec.listen}, clients reach it through {spec.advertised}")
        self._sampler.start()
        return Way(bootstrap)

    def _await(self, fleet: Fleet, event: str, limit_s: float) -> int:
        """Waits until the fleet tells this event. Returns when it did, in microseconds since the run's start."""
        self._tick_until(lambda: event in fleet.events, limit_s, f"the fleet did not come to {event!r}")
        return fleet.events[event]

    def _tick_until(self, done: Callable[[], bool], limit_s: float, complaint: str) -> None:
        """Goes on with the run until ``done()``, because a fault may strike while nodes start or clients finish. Raises
        NodeDied with the ``complaint`` after ``limit_s``."""
        deadline_us = self.now_us() + int(limit_s * 1e6)
        while not done():
            self._tick()
            if self.now_us() > deadline_us:
                raise NodeDied(f"{complaint} within {limit_s:g} s; see {self._folder.logs}")

    def _tick(self) -> None:
        assert self._strikes is not None
        assert self._toxiproxy is not None
        self._strikes.do_due()
        self._crew.look()
        for node in self._target_nodes:
            if node.child is not None:
                node.child.check()
        for frames in self._frames:
            frames.check()
            self._take_hits(frames)
        if self._fleet is not None:
            self._fleet.check()
        if self._toxiproxy.died() is not None:
            raise NodeDied(f"the Toxiproxy server exited with {self._toxiproxy.died()}")
        time.sleep(TICK_S)

    def _evidence_line(self, node: int, line: dict[str, Any]) -> None:
        assert self._strikes is not None
        if ROLE in line and self._link_frames is not None:
            self._link_frames.role(node, line[ROLE])
        self._strikes.evidence_line(node, line)


_FOREIGN = (
    "The broker is not ours: nothing is known of what happened inside it. Its fetch sessions are judged by the frames "
    "that passed the proxy before it, as far as these tell."
)


def _self_ended(story: str, at_us: int) -> tuple[Check, ...]:
    return (Check(guarantee=CONVERGES, holds=False, evidence=1, at_us=at_us, detail=story),)
