"""The nodes of a simulated run: their machines, links, configuration, hooks and watchers.

``MachineFaultActions`` is what a machine does for its interceptor. ``target_cluster`` is the cluster to which a mirror
copies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from chaos.checks.fault_times import FOR_EVER_US
from chaos.checks.suite import CheckSuite
from chaos.hooks.presets import presets_for
from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.rules import SharedHitCounter, rules_for
from chaos.seeds import number_for, random_for
from chaos.sim.agenda import Agenda
from chaos.sim.fault_scheduler import SimFaultScheduler
from chaos.sim.links import Links
from chaos.sim.machine import EventWatcher, Machine, ProcessKilled, nothing
from chaos.sim.network import CODED_SHARE, Network
from chaos.sim.observer import Observer, TraceHash
from chaos.sim.store import SimStore
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Closed, Event, Hooks, Reply
from reference_broker.core.node import Node
from reference_broker.ports.disk import Disk
from reference_broker.ports.store import MemoryStore
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE
from reports.rows import FaultRow, TraceRow
from scenarios.model import Scenario

CLUSTER_ID = "crucible-simulated-cluster"
THOROUGH_EVERY = 1_000
STARTING_US = 2_000_000
"""time for which a node may be busy with its start"""
NOT_YET = 2**62
"""Value of the load's start time before the load starts. Until then only rules with ``boot`` fire."""


def config_of(scenario: Scenario, over: Mapping[str, str], node_id: int = 0) -> BrokerConfig:
    """Return the scenario's settings of a node, and with more than one node also the voters. ``over`` replaces
    settings of the file."""
    settings, cluster = {**scenario.cluster.config_of(node_id), **over}, scenario.cluster
    if cluster.total > 1:
        voters = ",".join(f"{number}@node-{number}:9092" for number in range(cluster.nodes))
        settings = {"crucible.cluster.id": CLUSTER_ID, **settings, "controller.quorum.voters": voters}
    return BrokerConfig.parse(settings)


class EventReached(BaseException):
    """Ends a run that is played only up to an event. The broker must not catch it."""


class SimCluster:
    """The nodes of a run.

    - ``suite``: the checks of the run.
    - ``keep``: called with every row of the trace, if not None. Otherwise only the rows that a check requests are made.
    - ``coded_share``: the share of the messages that go through the codec.
    - ``content``: the objects of the object store.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        config: BrokerConfig,
        agenda: Agenda,
        suite: CheckSuite,
        trace_hash: TraceHash | None,
        keep: Callable[[TraceRow], None] | None,
        coded_share: float = CODED_SHARE,
        content: MemoryStore | None = None,
    ) -> None:
        self.machines = [
            Machine(number, agenda, seed, self._boot, self._after_event, self._node_gone, self._node_failed)
            for number in range(scenario.cluster.total)
        ]
        self.store = SimStore(agenda, random_for(seed, "store"), content)
        for machine in self.machines:
            machine.store = self.store
        self.network = Network(self.machines, Links(agenda, seed), random_for(seed, "codec"), coded_share)
        fault_times, sink = suite.quorum.fault_times, nothing if trace_hash is None else trace_hash.fault
        self._hit_counter = SharedHitCounter()
        self.fault_scheduler = SimFaultScheduler(
            scenario, seed, agenda, self.network, fault_times, sink, self._reconfigure, self._hit_counter, CLUSTER_ID
        )
        self._scenario = scenario
        self._seed = seed
        self._over: list[dict[str, str]] = [{} for _ in range(scenario.cluster.total)]
        self._configs = [config] * scenario.cluster.total
        if scenario.cluster.racks:
            self._configs = [config_of(scenario, {}, number) for number in range(scenario.cluster.total)]
        self._agenda = agenda
        self._suite = suite
        self._hash = trace_hash
        self._keep = keep
        self._interceptors: list[Interceptor] = []
        self._observers: dict[int, Observer] = {}
        self._load_from_us = NOT_YET
        self._disarmed = False
        self._rules = [rules_for(scenario, number, random_for(seed, "rules")) for number in range(len(self.machines))]
        self.stop_after_event = -1
        """number of the event, counted over all nodes, after which the run ends with EventReached; -1: none"""
        self.target: Machine | None = None
        """the only node of the second cluster, if there is a mirror"""
        if scenario.load.mirror is not None:
            self.target = target_cluster(len(self.machines), seed, agenda, self.network)

    @property
    def events(self) -> int:
        return sum(machine.events for machine in self.machines)

    @property
    def ready(self) -> bool:
        return all(machine.ready for machine in self.machines) and (self.target is None or self.target.ready)

    def start(self) -> None:
        """Start all nodes that do not run."""
        for machine in self.machines:
            machine.start()
        if self.target is not None:
            self.target.start()

    def arm(self, load_from_us: int) -> None:
        """Record that the load begins. Rules and intervals of snapshots count their times from here."""
        self._load_from_us = load_from_us
        for interceptor in self._interceptors:
            interceptor.load_from(load_from_us)
        for machine in self.machines:
            if machine.node is not None:
                machine.node.broker.quorum_node.generator.count_from(load_from_us)

    def heal(self) -> None:
        """End faults, and start dead nodes again."""
        self._disarmed = True
        for interceptor in self._interceptors:
            interceptor.disarm()
        self.fault_scheduler.heal()
        self.start()

    def compare_all(self) -> None:
        """Do the thorough comparison of every node."""
        for machine in self.machines:
            self._inspect(machine, None, thorough=True)

    # One node

    def _boot(self, machine: Machine) -> tuple[Node, Sequence[Hooks], EventWatcher]:
        number, incarnation = machine.node_id, machine.incarnation
        presets = presets_for(self._scenario.state)
        hooks: list[Hooks] = [self._hash] if self._hash is not None else []
        disk: Disk = machine.disk
        if self._rules[number]:
            interceptor = self._interceptor(machine)
            decided = interceptor.decided
            machine.decided = (lambda outcome: decided(machine.now, outcome)) if interceptor.sees_decisions else None
            hooks.append(interceptor)
            disk = interceptor.watch(machine.disk)
        hooks.extend(presets)
        host, port = self.network.address(number)
        random_seed = number_for(self._seed, f"node-{number}-{incarnation}")
        node = Node(number, self._configs[number], disk, random_seed, host, port)
        for preset in presets:
            preset.built(node)
        observer = self._observers[number] = Observer(node, incarnation, self._agenda, self._suite, self._keep)
        self._suite.replicas.started(number, machine.damaged)
        self._suite.quorum.fault_times.back(number, self._agenda.now_us + STARTING_US)
        return node, hooks, observer

    def _reconfigure(self, number: int, over: tuple[tuple[str, str], ...]) -> None:
        """Set the settings for the next starts of the node."""
        self._over[number].update(over)
        self._configs[number] = config_of(self._scenario, self._over[number], number)

    def _interceptor(self, machine: Machine) -> Interceptor:
        number, incarnation = machine.node_id, machine.incarnation
        interceptor = Interceptor(
            number,
            self._rules[number],
            MachineFaultActions(machine, self.fault_scheduler),
            random_for(self._seed, f"interceptor-{number}-{incarnation}"),
            0,
            self._hit_counter,
            lambda: self.fault_scheduler.targets.role(number),
        )
        interceptor.load_from(self._load_from_us)
        if self._disarmed:
            interceptor.disarm()
        self._interceptors.append(interceptor)
        return interceptor

    def _node_gone(self, machine: Machine) -> None:
        self._suite.quorum.gone(machine.node_id)
        self._suite.replicas.gone(machine.node_id, machine.disk.exists(CLEAN_SHUTDOWN_FILE))
        if machine.power_loss:
            self._suite.replicas.power_lost(machine.node_id)
        else:
            self._suite.replicas.bytes_lost(machine.node_id, machine.lost_bytes_of)
        self._suite.quorum.fault_times.node(machine.node_id, FOR_EVER_US)
        self._observers.pop(machine.node_id, None)

    def _node_failed(self, machine: Machine, explanation: str) -> None:
        """Run the checks on the node once more, because the event that ended it may have committed something."""
        if machine.node is not None:
            self._suite.quorum.observe(self._agenda.now_us, machine.incarnation, machine.node, False)
        self._suite.quorum.ended(self._agenda.now_us, machine.node_id, explanation)

    def _after_event(self, machine: Machine, event: Event | None) -> None:
        self._inspect(machine, event, thorough=machine.events % THOROUGH_EVERY == 0)
        if self.stop_after_event >= 0 and self.events >= self.stop_after_event:
            raise EventReached

    def _inspect(self, machine: Machine, event: Event | None, thorough: bool) -> None:
        if machine.node is None:
            return
        now_us = self._agenda.now_us
        self._suite.inspect(now_us, machine.incarnation, machine.node, event, thorough)
        if thorough:
            digest = self._observers[machine.node_id].digest.digest
            if digest is not None:
                self._suite.recomputed(now_us, machine.node_id, digest)


class MachineFaultActions:
    """The actions of a machine for its interceptor (chaos.interceptor.actions.FaultActions). Evidence goes to the
    scheduler, which also determines how long a killed node stays down."""

    def __init__(self, machine: Machine, fault_scheduler: SimFaultScheduler) -> None:
        self._machine = machine
        self._agenda = machine.agenda
        self._fault_scheduler = fault_scheduler
        self._last_rule = ""

    def report(self, row: FaultRow) -> None:
        self._last_rule = row.name
        self._fault_scheduler.report(replace(row, until_us=row.at_us + self._fault_scheduler.lasts_us(row)))

    def kill(self) -> None:
        self._die(power_loss=False)

    def power_off(self) -> None:
        self._die(power_loss=True)

    def lose_host(self) -> None:
        self._die(power_loss=False, silent=True)

    def _die(self, power_loss: bool, silent: bool = False) -> NoReturn:
        self._machine.restart_after_us = self._fault_scheduler.restart_after_us(self._last_rule)
        raise ProcessKilled(power_loss, silent)

    def pause(self, for_us: int) -> None:
        self._machine.pause(self._fault_scheduler.clipped_us(for_us))

    def step_clock(self, by_ms: int) -> None:
        self._machine.wall_offset_ms += by_ms
        self._fault_scheduler.clock_stepped(by_ms)

    def discard_connection(self, connection: int) -> None:
        machine = self._machine
        machine.network.discard(connection)
        self._agenda.after(0, machine.deliver, machine.incarnation, Closed(connection))

    def lose_by_proxy(self, reply: Reply) -> None:
        self.discard_connection(reply.connection)

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self._agenda.after(delay_us, self._machine.deliver, self._machine.incarnation, event)

    def sync_fails(self, paths: Sequence[str]) -> None:
        self._machine.disk.fail_sync(paths)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self._agenda.after(delay_us, self._machine.network.reply, reply)

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self._machine.network.reply_bytes(reply, frame)

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        self._machine.network.reply_bytes(reply, start)
        self._machine.network.close(reply.connection)


TARGET_CLUSTER_ID = "crucible-simulated-target"


def target_cluster(number: int, seed: int, agenda: Agenda, network: Network) -> Machine:
    """Build the node. ``number`` follows those of the mirrored cluster's nodes, and determines the node's address."""
    config = BrokerConfig.parse({"crucible.cluster.id": TARGET_CLUSTER_ID})

    def boot(machine: Machine) -> tuple[Node, Sequence[Hooks], EventWatcher]:
        host, port = network.address(number)
        random_seed = number_for(seed, f"node-{number}-{machine.incarnation}")
        return Node(number, config, machine.disk, random_seed, host, port), (), nothing

    machine = Machine(number, agenda, seed, boot, on_failure=_target_failed)
    network.add(machine)
    return machine


def _target_failed(machine: Machine, explanation: str) -> None:
    raise RuntimeError(f"the mirror's target, node {machine.node_id}, ended itself: {explanation}")
