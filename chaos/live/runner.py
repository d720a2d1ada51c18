"""Plays one scenario with real processes: nodes, Toxiproxy, the fleet, and faults at their times and states."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos.evidence import FaultRow
from chaos.faults.registry import LIVE
from chaos.faults.timed import End
from chaos.live import identity
from chaos.live.agenda import Agenda
from chaos.live.errors import NodeDied, SetupError
from chaos.live.fleet import Fleet, Way
from chaos.live.links import Links
from chaos.live.node_process import FAULT, MUTANT_REACHED
from chaos.live.nodes import LiveNode, NodePlan
from chaos.live.processes import Child
from chaos.live.run_folder import RunFolder
from chaos.live.sampler import Sampler
from chaos.live.target import REFERENCE, behind_proxies, look, parse_target
from chaos.live.toxiproxy_server import ToxiproxyServer
from chaos.mutants.mutant import MutantError
from chaos.mutants.registry import by_name
from chaos.presets import PresetError, presets_for
from reports.manifest import Expectations, Manifest, write_manifest
from scenarios.loader import typed
from scenarios.model import FROM_WITHIN, Fault, Scenario

TICK_S = 0.01
SETUP_LIMIT_S = 90.0
DRAIN_LIMIT_S = 120.0
"""After the load: heal, final polls and the final read; a fleet that takes longer has hung."""
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
) -> RunFolder:
    """Plays it and leaves the run's folder at ``out``, to be judged by reports. Raises SetupError (exit code 2).

    An unexpected death of a node or of the fleet, or a failure of the suite itself, is no exception: it stands in the
    manifest as ``crash``. A run that could not be set up, or was stopped, leaves no folder.
    """
    check_playable(scenario, target, mutant)
    folder = RunFolder(out)
    folder.make()
    run = LiveRun(scenario, folder, seed, target, mutant, progress)
    crash = ""
    try:
        try:
            run.play()
        finally:
            run.close()
    except NodeDied as death:
        crash = str(death)
    except (SetupError, KeyboardInterrupt):
        folder.discard()
        raise
    except Exception as failure:
        crash = f"the suite failed: {type(failure).__name__}: {failure}"
    if crash:
        progress(f"crash: {crash}")
    folder.write_faults(run.rows)
    folder.write_samples(run.samples())
    folder.collect_trace()
    torn = folder.set_torn_aside()
    if torn and not crash:
        crash = f"the history is not whole: {', '.join(torn)}"
    write_manifest(folder.path, run.manifest(command, crash))
    return folder


def check_playable(scenario: Scenario, target: str = REFERENCE, mutant: str = "") -> None:
    """Raises SetupError for what cannot be played, before anything is started or written."""
    for fault in scenario.faults:
        if fault.kind == "node_powered_off" or (fault.timed and fault.kind not in LIVE):
            raise SetupError(f"{scenario.name}: {fault.kind} exists only in the simulator; run `crucible sim` instead.")
    if scenario.cluster.nodes > 1:
        raise SetupError(f"{scenario.name} needs {scenario.cluster.nodes} nodes; live clusters have one node so far.")
    try:
        presets_for(scenario.state)
    except PresetError as wrong:
        raise SetupError(f"{scenario.name}: {wrong}") from wrong
    if target != REFERENCE:
        _check_target(scenario, target, mutant)
    if mutant:
        try:
            if by_name(mutant).side == "client":
                raise SetupError(f"{mutant} changes the reference client: run `crucible sim` instead.")
        except MutantError as wrong:
            raise SetupError(str(wrong)) from wrong


def _check_target(scenario: Scenario, target: str, mutant: str) -> None:
    lacking = [each for each in scenario.needs if each != "proxy"]
    if lacking:
        raise SetupError(
            f"--target {target} lacks what {scenario.name} needs: {', '.join(lacking)}; use --target {REFERENCE}."
        )
    if mutant:
        raise SetupError("A mutant changes the reference broker: leave --target away.")
    parse_target(target)
    look(target)


class LiveRun:
    """One run. ``rows``: what fired, so far."""

    def __init__(
        self, scenario: Scenario, folder: RunFolder, seed: int, target: str, mutant: str, progress: Progress
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._seed = seed
        self._target = target
        self._mutant = by_name(mutant) if mutant else None
        self._progress = progress
        self._origin_us = time.monotonic_ns() // 1000
        self._start_wall_us = time.time_ns() // 1000
        self._agenda = Agenda()
        self._faults = {fault.name: fault for fault in scenario.faults}
        self._toxiproxy: ToxiproxyServer | None = None
        self._links: Links | None = None
        self._nodes: list[LiveNode] = []
        self._fleet: Fleet | None = None
        self._sampler: Sampler | None = None
        self._mutant_reached = False
        self._duration_us = 0
        self._load_over = False
        self.rows: list[FaultRow] = []

    # What faults need (chaos.faults.timed.Place).

    @property
    def links(self) -> Links:
        assert self._links is not None, "a link fault in a run without links; _check should have refused it"
        return self._links

    def child(self, node: int) -> Child:
        child = self._nodes[node].child
        assert child is not None
        return child

    def restart(self, node: int) -> None:
        self._progress(f"node-{node} is started again")
        self._nodes[node].start()

    # The run.

    def play(self) -> None:
        self._start_links()
        way = self._start_nodes() if self._target == REFERENCE else self._reach_target()
        fleet = self._fleet = Fleet(self._scenario, self._folder, way, self._origin_us, self._seed)
        load_start_us = self._await(fleet, "load", SETUP_LIMIT_S)
        fleet.load_begins()
        for node in self._nodes:
            node.load_starts(load_start_us)
        self._plan_faults(load_start_us)
        load_end_us = load_start_us + int(self._scenario.load.seconds * 1e6)
        self._progress(f"load for {self._scenario.load.seconds:g} s")
        while self.now_us() < load_end_us:
            self._tick()
        self._progress("heal, final polls, final read")
        self._load_over = True
        for node in self._nodes:
            node.disarm()
        self._agenda.do_all()
        self._heal()
        self._await(fleet, "load_ended", DRAIN_LIMIT_S)
        fleet.final()
        self._await(fleet, "done", DRAIN_LIMIT_S)
        self._duration_us = self.now_us()
        for node in self._nodes:
            node.end_cleanly()

    def close(self) -> None:
        """Ends every process that this run started."""
        self._duration_us = self._duration_us or self.now_us()
        if self._fleet is not None:
            self._fleet.close()
        if self._sampler is not None:
            self._sampler.end()
        for node in self._nodes:
            node.close(self._evidence_line)
        if self._toxiproxy is not None:
            self._toxiproxy.stop()

    def now_us(self) -> int:
        """Since the run's start."""
        return time.monotonic_ns() // 1000 - self._origin_us

    def samples(self) -> Iterator[Any]:
        yield from self._sampler.rows if self._sampler is not None else ()

    def manifest(self, command: str, crash: str) -> Manifest:
        scenario, (commit, dirty) = self._scenario, identity.commit()
        foreign = self._target != REFERENCE
        planted = f" --mutant {self._mutant.name}" if self._mutant else ""
        planted += f" --target {self._target}" if foreign else ""
        reached = -1 if self._mutant is None else int(self._mutant_reached)
        return Manifest(
            scenario=scenario.name, seed=self._seed, world="live", number=scenario.number or 0, title=scenario.title,
            repeat_command=f"./crucible run {typed(scenario)} --seed {self._seed}{planted}",
            run_id=self._folder.path.name, target=self._target,
            mutant=self._mutant.name if self._mutant else "", mutant_calls=reached,
            command=command or " ".join(sys.argv), commit=commit, dirty=dirty, start_wall_us=self._start_wall_us,
            duration_us=self._duration_us, clauses=scenario.clauses, crash=crash, versions=identity.versions(),
            machine=identity.machine(), config={} if foreign else dict(scenario.cluster.config),
            load=_load_words(scenario), notes=(_FOREIGN,) if foreign else (),
            expectations=Expectations(
                faults=scenario.expected_faults,
                min_fetches=scenario.min_fetches, min_acked=scenario.min_acked,
                max_schedule_slip_ms=scenario.max_schedule_slip_ms,
                guarantees=_judgeable(scenario) if foreign else scenario.guarantees,
            ),
        )  # fmt: skip

    def _start_links(self) -> None:
        self._toxiproxy = ToxiproxyServer(self._folder.logs / "toxiproxy.log")
        self._links = Links(self._toxiproxy.client)

    def _reach_target(self) -> Way:
        """A proxy before each of its nodes, and topics of this run alone: what is on the broker stays out of it."""
        found = behind_proxies(self._target, self.links)
        for told, dialled in found.dial.items():
            self._progress(f"{told} is reached through {dialled}")
        return Way(found.nodes, f"crucible-{self._start_wall_us}-", found.versions, found.dial)

    def _start_nodes(self) -> Way:
        """Starts the node behind its client link."""
        plan = NodePlan(
            node_id=0,
            folder=self._folder.data / "node-0",
            logs=self._folder.logs,
            spools=self._folder.spools,
            config=dict(self._scenario.cluster.config),
            scenario=self._scenario.path,
            seed=self._seed,
            mutant=self._mutant.name if self._mutant is not None else "",
            origin_us=self._origin_us,
        )
        node = LiveNode(plan)
        self._nodes.append(node)
        node.advertised = self.links.add("client", 0, node.listen).listen
        node.start()
        self._progress(f"node-0 serves at {node.listen}, clients reach it through {node.advertised}")
        self._sampler = Sampler(self._running_nodes, self.now_us)
        self._sampler.start()
        return Way((node.advertised,))

    def _running_nodes(self) -> list[tuple[int, str, int]]:
        return [(node.plan.node_id, node.metrics, node.child.pid) for node in self._nodes if node.child is not None]

    def _await(self, fleet: Fleet, event: str, limit_s: float) -> int:
        """Until the fleet says that this happened; when it did, microseconds since the run's start."""
        deadline_us = self.now_us() + int(limit_s * 1e6)
        while (at_us := fleet.happened(event)) is None:
            self._tick()
            if self.now_us() > deadline_us:
                raise NodeDied(f"the fleet did not come to {event!r} within {limit_s:g} s; see {self._folder.logs}")
        return at_us

    def _tick(self) -> None:
        self._agenda.do_due(self.now_us())
        for node in self._nodes:
            for line in node.evidence():
                self._evidence_line(line)
            if node.child is not None and node.child.exit_status is not None:
                # The pipe may hold the announcement of this very death: look again before calling it unexpected.
                for line in node.evidence():
                    self._evidence_line(line)
                node.child.check()
        if self._fleet is not None:
            self._fleet.check()
        if self._toxiproxy is not None and self._toxiproxy.died() is not None:
            raise NodeDied(f"the Toxiproxy server exited with {self._toxiproxy.died()}")
        time.sleep(TICK_S)

    # Faults at times.

    def _plan_faults(self, load_start_us: int) -> None:
        for fault in self._scenario.faults:
            if fault.timed:
                for repeat in range(fault.repeat):
                    at_us = load_start_us + int((fault.at_s + repeat * fault.repeat_every_s) * 1e6)
                    self._agenda.add(at_us, lambda fault=fault, hit=repeat + 1: self._begin(fault, hit))  # type: ignore[misc]

    def _begin(self, fault: Fault, hit: int) -> None:
        if self._load_over:
            return
        self._progress(f"fault {fault.name} begins")
        at_us = self.now_us()
        end = LIVE[fault.kind](self, fault)
        lasts_s = fault.restart_after_s if fault.kind in ("node_killed", "node_terminated") else fault.duration_s
        self._agenda.add(at_us + int(max(lasts_s, 0.0) * 1e6), lambda: self._end(fault, hit, at_us, end))

    def _end(self, fault: Fault, hit: int, at_us: int, end: End) -> None:
        ended = end()
        self._progress(f"fault {fault.name} ends: {ended.evidence or 'no sign that it had an effect'}")
        if ended.evidence:
            target = f"node-{fault.node}" if fault.kind.startswith("node") else f"link client-node-{fault.node}"
            row = FaultRow(fault.name, fault.kind, at_us, self.now_us(), target, hit, detail=ended.evidence)
            self.rows.append(row)

    # Faults at states.

    def _evidence_line(self, line: dict[str, Any]) -> None:
        if MUTANT_REACHED in line:
            self._mutant_reached = True
        if FAULT in line:
            self._fired(FaultRow(*line[FAULT]))

    def _fired(self, row: FaultRow) -> None:
        """A hit of the interceptor; some need our help to end."""
        place = len(self.rows)
        self.rows.append(row)
        fault = self._faults.get(row.name)
        node = self._nodes[int(row.target.rpartition("-")[2])]
        if fault is None or fault.kind != row.kind:
            return
        node.hits[row.name] = row.hit
        if row.kind == "node_killed":
            self._progress(f"fault {row.name} struck {row.target}")
            self.child(fault.node).expect_end()
            self._agenda.add(row.at_us + int(max(fault.restart_after_s, 0.0) * 1e6), lambda: self._revive(fault, place))
        elif row.kind == "node_paused":
            self._agenda.add(row.at_us + int(fault.duration_s * 1e6), lambda: self._continue(fault, place))

    def _revive(self, fault: Fault, place: int) -> None:
        dead = self.child(fault.node)
        dead.wait(5)
        if fault.restart_after_s >= 0:
            self.restart(fault.node)
        self._until_now(place, f"pid {dead.pid} {dead.how_it_ended()}")

    def _continue(self, fault: Fault, place: int) -> None:
        self.child(fault.node).resume()
        self._until_now(place, "continued")

    def _until_now(self, place: int, what: str) -> None:
        row = self.rows[place]
        values = list(row.values())
        values[3] = self.now_us()
        values[-1] = f"{row.detail} {what}".strip()
        self.rows[place] = FaultRow(*values)  # type: ignore[arg-type]

    def _heal(self) -> None:
        if self._links is not None:
            self._links.heal_all()
        for node in self._nodes:
            if node.child is not None and not node.running:
                self.restart(node.plan.node_id)


_FOREIGN = (
    "The broker is not ours: nothing is known of what happened inside it, so guarantees of the fetch sessions that are "
    "judged from a node's own trace are left out."
)


def _judgeable(scenario: Scenario) -> tuple[str, ...]:
    """From the clients' side alone. Where the scenario names none, all that there is evidence for are judged anyway."""
    return tuple(each for each in scenario.guarantees if each not in FROM_WITHIN)


def _load_words(scenario: Scenario) -> dict[str, str]:
    words = {
        each.name: f"{each.count} {each.behaviour} fetchers of {each.partitions} partitions of {each.topic}"
        for each in scenario.load.fetchers
    }
    for each in scenario.load.producers:
        words[each.name] = f"{each.count} producers to {each.topic}, {each.rate_per_s:g} records/s each"
    return words
