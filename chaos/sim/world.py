"""A whole run in one process and in virtual time: nodes, clients, links, disks and clocks from one seed."""

from collections.abc import Callable, Iterable, Sequence

from bench.fleet.behaviours.protocol import Behaviour
from bench.fleet.rows import HistoryRow
from chaos.checks.all_checks import all_checks
from chaos.checks.check import History
from chaos.evidence import FaultRow
from chaos.interceptor import Interceptor
from chaos.presets import presets_for
from chaos.rules import rules_for
from chaos.seeds import number_for, random_for
from chaos.sim import link_faults
from chaos.sim.agenda import Agenda
from chaos.sim.client import Client
from chaos.sim.disk import SimDisk
from chaos.sim.fleet import fleet_of, idle_writer
from chaos.sim.links import Link
from chaos.sim.machine import START_WALL_MS, Machine, MachinePowers, SimulatedNode
from chaos.sim.network import Network
from chaos.sim.trace_hash import TraceHash
from chaos.trace import TraceRecorder, TraceRow
from reference_broker.core.events import Event
from reference_broker.core.hooks import Hooks
from reference_broker.core.node import Node
from reference_broker.log.disk import Disk
from reference_broker.model.config import BrokerConfig
from scenarios.model import Fault, Scenario

BOOT_US = 5_000_000
PREPARE_US = 20_000_000
DRAIN_US = 30_000_000
THOROUGH_EVERY = 1_000
BEFORE_LOAD = ("boot", "prepare", "seed")
NOT_YET = 2**62
"""The load's start before it has started: no rule hits."""
AT_SPREAD = (80, 120)
"""Percent: where around its time a timed fault begins, drawn from the seed."""


class RunStuckError(Exception):
    """A phase of the run did not end in its (virtual) time; the message says which."""


class World:
    """Plays once. ``hashed``: also hash all that happens (slower); ``keep_trace``: keep the trace rows."""

    def __init__(self, scenario: Scenario, seed: int, *, hashed: bool = False, keep_trace: bool = False) -> None:
        self.scenario = scenario
        self.seed = seed
        self.history = History(writes_promised=_promises_writes(scenario))
        self.faults: list[FaultRow] = []
        self.trace: list[TraceRow] = []
        self.hash = TraceHash() if hashed else None
        self.stage = "boot"
        self.load_from_us = 0
        self.load_until_us = 0
        self.agenda = Agenda()
        self._keep_trace = keep_trace
        self._config = BrokerConfig.parse(dict(scenario.cluster.config))
        state = dict(scenario.state)
        slots = self._config.max_incremental_fetch_session_cache_slots
        self.checks = all_checks(slots, state.get("fetch_session_epoch", 1))
        self._faults_by_name = {fault.name: fault for fault in scenario.faults}
        self._interceptors: list[Interceptor] = []
        self._heals: list[Callable[[], None]] = []
        self._machines = [self._machine(number) for number in range(scenario.cluster.nodes)]
        links = [Link(self.agenda, random_for(seed, f"link-{number}")) for number in range(len(self._machines))]
        self.network = Network(self._machines, links, random_for(seed, "codec"))
        self._rules = [rules_for(scenario, number, random_for(seed, "rules")) for number in range(len(self._machines))]
        for machine in self._machines:
            machine.network = self.network

    # The run

    def play(self) -> None:
        """All phases. Raises RunStuckError, or whatever a bug of ours raises."""
        bootstrap = [self.network.address(number) for number in range(len(self._machines))]
        fleet = fleet_of(self.scenario, self.seed, bootstrap)
        appender = idle_writer(self.scenario, self.seed, bootstrap)
        for machine in self._machines:
            machine.start()
        self._until(BOOT_US, lambda: all(machine.accepts for machine in self._machines))
        self._set_states()
        self._phase("prepare", [fleet.preparer], PREPARE_US)
        if fleet.preparer.failure is not None:
            raise RunStuckError(fleet.preparer.failure)
        if appender is None and fleet.seeder is not None:
            self._phase("seed", [fleet.seeder], PREPARE_US)
        fetchers = [self._client(each) for each in fleet.fetchers]
        writers: list[Behaviour] = [*fleet.producers, *([appender] if appender is not None else [])]
        self._load([self._client(each) for each in writers], fetchers)
        self._phase("final read", [fleet.final_reader], DRAIN_US)
        if fleet.final_reader.unread:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in list(fleet.final_reader.unread)[:5])
            raise RunStuckError(f"the final read did not reach the end of {names}")
        self.stage = "end"
        for machine in self._machines:
            self._inspect(machine, None, thorough=True)
        for check in self.checks:
            check.end(self.history)

    @property
    def events(self) -> int:
        return sum(machine.events for machine in self._machines)

    def _load(self, producers: Sequence[Client], fetchers: Sequence[Client]) -> None:
        self.stage = "load"
        self.load_from_us = self.agenda.now_us
        self.load_until_us = self.load_from_us + int(self.scenario.load.sim_seconds * 1_000_000)
        for interceptor in self._interceptors:
            interceptor.load_from(self.load_from_us)
        self._plan_faults()
        for client in (*fetchers, *producers):
            client.start()
        while self.agenda.step(self.load_until_us):
            pass
        self.stage = "drain"
        self._heal()
        for client in producers:
            client.stop()
        self._until(DRAIN_US, lambda: all(client.finished for client in producers))
        for client in fetchers:
            client.stop()
        self._until(DRAIN_US, lambda: all(client.finished for client in fetchers))

    def _phase(self, stage: str, behaviours: Sequence[Behaviour], limit_us: int) -> None:
        self.stage = stage
        clients = [self._client(each) for each in behaviours]
        for client in clients:
            client.start()
        self._until(limit_us, lambda: all(client.finished for client in clients))

    def _until(self, limit_us: int, done: Callable[[], bool]) -> None:
        end_us = self.agenda.now_us + limit_us
        while not done():
            if not self.agenda.step(end_us):
                raise RunStuckError(f"{self.stage}: not done after {limit_us / 1e6:g} virtual seconds")

    def _client(self, behaviour: Behaviour) -> Client:
        return Client(behaviour, self.agenda, self.network, START_WALL_MS, self._record)

    def _record(self, client: Client, rows: Iterable[HistoryRow]) -> None:  # noqa: ARG002
        kept = tuple(rows)
        self.history.add(kept)
        if self.hash is not None:
            self.hash.history(kept)

    # Nodes

    def _machine(self, number: int) -> Machine:
        disk = SimDisk(random_for(self.seed, f"disk-{number}"))
        random = random_for(self.seed, f"machine-{number}")
        return Machine(number, self.agenda, random, disk, self._boot, self._inspect, self._report)

    def _boot(self, machine: Machine) -> tuple[SimulatedNode, Sequence[Hooks]]:
        number, incarnation = machine.node_id, machine.incarnation
        recorder = TraceRecorder(number, incarnation, self._traced)
        presets = presets_for(self.scenario.state)
        hooks: list[Hooks] = [recorder]
        disk: Disk = machine.disk
        if self.hash is not None:
            hooks.append(self.hash)
        if self._rules[number]:
            interceptor = self._interceptor(machine)
            hooks.append(interceptor)
            disk = interceptor.watch(machine.disk)
        hooks.extend(presets)
        seed = number_for(self.seed, f"node-{number}-{incarnation}")
        host, port = self.network.address(number)
        node = Node(number, self._config, disk, seed, host, port)
        for preset in presets:
            preset.built(node)
        return node, hooks

    def _interceptor(self, machine: Machine) -> Interceptor:
        number, incarnation = machine.node_id, machine.incarnation
        random = random_for(self.seed, f"interceptor-{number}-{incarnation}")
        powers = MachinePowers(machine, self.agenda, self._restart_after_us)
        interceptor = Interceptor(number, self._rules[number], powers, random, 0, self._hits())
        interceptor.load_from(NOT_YET if self.stage in BEFORE_LOAD else self.load_from_us)
        if self.stage in ("drain", "final read"):
            interceptor.disarm()
        self._interceptors.append(interceptor)
        return interceptor

    def _hits(self) -> dict[str, int]:
        """By rule, how often it has struck."""
        hits: dict[str, int] = {}
        for row in self.faults:
            fault = self._faults_by_name.get(row.name)
            if fault is not None and fault.kind == row.kind:
                hits[row.name] = hits.get(row.name, 0) + 1
        return hits

    def _traced(self, row: TraceRow) -> None:
        if self._keep_trace:
            self.trace.append(row)
        for check in self.checks:
            check.trace(row)

    def _inspect(self, machine: Machine, event: Event | None, thorough: bool = False) -> None:
        node = machine.node
        if isinstance(node, Node):
            thorough = thorough or machine.events % THOROUGH_EVERY == 0
            for check in self.checks:
                check.node(self.agenda.now_us, machine.incarnation, node, event, thorough)

    # Faults

    def _report(self, row: FaultRow) -> None:
        self.faults.append(row)
        if self.hash is not None:
            self.hash.fault(row)

    def _restart_after_us(self, rule: str) -> int:
        after_s = self._faults_by_name[rule].restart_after_s
        return -1 if after_s < 0 else int(after_s * 1_000_000)

    def _set_states(self) -> None:
        for preset in presets_for(self.scenario.state):
            for machine in self._machines:
                self._report(preset.evidence(machine.node_id, self.agenda.now_us))

    def _plan_faults(self) -> None:
        random = random_for(self.seed, "timed-faults")
        for fault in self.scenario.faults:
            if fault.timed:
                at_us = int(fault.sim_at_s * 1_000_000) * random.randint(*AT_SPREAD) // 100
                for hit in range(fault.repeat):
                    begin_us = self.load_from_us + at_us + hit * int(fault.sim_repeat_every_s * 1_000_000)
                    self.agenda.at(begin_us, self._begin, fault, hit + 1)

    def _begin(self, fault: Fault, hit: int) -> None:
        if self.stage != "load":
            return
        now_us = self.agenda.now_us
        kills = fault.kind in ("node_killed", "node_powered_off", "node_terminated")
        lasts_us = int(max(fault.restart_after_s if kills else fault.sim_duration_s, 0.0) * 1_000_000)
        until_us = min(now_us + lasts_us, self.load_until_us)
        target = f"node-{fault.node}" if fault.kind.startswith("node") else f"link client-node-{fault.node}"
        self._report(FaultRow(fault.name, fault.kind, now_us, until_us, target, hit, detail=fault.direction))
        place = link_faults.Place(self._machines[fault.node], self.network.links[fault.node], self.network)
        heal = link_faults.begin(fault, place)
        self._heals.append(heal)
        self.agenda.after(lasts_us, self._heal_one, heal)

    def _heal_one(self, heal: Callable[[], None]) -> None:
        if heal in self._heals:
            self._heals.remove(heal)
            heal()

    def _heal(self) -> None:
        """The load is over: faults end, dead nodes come back."""
        for interceptor in self._interceptors:
            interceptor.disarm()
        heals, self._heals = self._heals, []
        for heal in heals:
            heal()
        for machine in self._machines:
            machine.start()


def _promises_writes(scenario: Scenario) -> bool:
    """Acknowledged writes survive a kill; a power loss only if each is flushed before its answer."""
    loses_power = any(fault.kind == "node_powered_off" for fault in scenario.faults)
    return not loses_power or dict(scenario.cluster.config).get("log.flush.interval.messages") == "1"
