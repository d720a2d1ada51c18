"""The nodes of a simulated run: their machines, links, configuration, hooks and watchers."""

from collections.abc import Callable, Sequence

from chaos.checks.trouble import FOR_EVER_US
from chaos.checks.watching import Watching
from chaos.claims import SharedClaims
from chaos.interceptor import Interceptor
from chaos.presets import presets_for
from chaos.rules import rules_for
from chaos.seeds import number_for, random_for
from chaos.sim.agenda import Agenda
from chaos.sim.disk import SimDisk
from chaos.sim.links import Links
from chaos.sim.machine import Machine, SimulatedNode, Watcher
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import CODED_SHARE, Network
from chaos.sim.observer import Observer
from chaos.sim.powers import MachinePowers
from chaos.sim.target_cluster import target_cluster
from chaos.sim.trace_hash import TraceHash
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Event
from reference_broker.core.hooks import Hooks
from reference_broker.core.node import Node
from reference_broker.ports.disk import Disk
from reports.rows import FaultRow, TraceRow
from scenarios.model import Scenario

CLUSTER_ID = "crucible-simulated-cluster"
THOROUGH_EVERY = 1_000
STARTING_US = 2_000_000
"""So long after its start a node may still be busy with that."""
NOT_YET = 2**62
"""The load's start before it has started: only rules for the boot hit."""


def config_of(scenario: Scenario, over: Sequence[tuple[str, str]] = ()) -> BrokerConfig:
    """Returns the scenario's settings, and with more than one node also who the voters are. ``over`` replaces settings
    of the file."""
    settings, cluster = {**dict(scenario.cluster.config), **dict(over)}, scenario.cluster
    if cluster.total > 1:
        voters = ",".join(f"{number}@node-{number}:9092" for number in range(cluster.nodes))
        settings = {"crucible.cluster.id": CLUSTER_ID, **settings, "controller.quorum.voters": voters}
    return BrokerConfig.parse(settings)


class Cluster:
    """The nodes of a run.

    ``watching`` holds the checks. ``target`` is the second cluster's one node, if there is a mirror. ``keep`` gets
    every row of the trace; it is None if nobody wants them all. ``coded_share`` of the messages go through the codec.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        config: BrokerConfig,
        agenda: Agenda,
        watching: Watching,
        trace_hash: TraceHash | None,
        keep: Callable[[TraceRow], None] | None,
        coded_share: float = CODED_SHARE,
    ) -> None:
        self.machines = [self._machine(number, seed, agenda) for number in range(scenario.cluster.total)]
        self.network = Network(self.machines, Links(agenda, seed), random_for(seed, "codec"), coded_share)
        trouble = watching.view.trouble
        self.nemesis = Nemesis(scenario, seed, agenda, self.network, trouble, self._evidence, self._reconfigure)
        self._scenario = scenario
        self._seed = seed
        self._over: list[dict[str, str]] = [{} for _ in range(scenario.cluster.total)]
        self._configs = [config] * scenario.cluster.total
        self._agenda = agenda
        self._watching = watching
        self._hash = trace_hash
        self._keep = keep
        self._claims = SharedClaims()
        self._interceptors: list[Interceptor] = []
        self._observers: dict[int, Observer] = {}
        self._load_from_us = NOT_YET
        self._disarmed = False
        self._rules = [rules_for(scenario, number, random_for(seed, "rules")) for number in range(len(self.machines))]
        for machine in self.machines:
            machine.network = self.network
        self.target = None
        if scenario.load.mirror is not None:
            self.target = target_cluster(len(self.machines), seed, agenda, self.network)

    @property
    def events(self) -> int:
        return sum(machine.events for machine in self.machines)

    @property
    def ready(self) -> bool:
        return all(machine.ready for machine in self.machines) and (self.target is None or self.target.ready)

    def start(self) -> None:
        """Starts all nodes that do not run."""
        for machine in self.machines:
            machine.start()
        if self.target is not None:
            self.target.start()

    def arm(self, load_from_us: int) -> None:
        """Notes that the load begins. Rules count their times from here."""
        self._load_from_us = load_from_us
        for interceptor in self._interceptors:
            interceptor.load_from(load_from_us)

    def heal(self) -> None:
        """Ends faults, and starts dead nodes again."""
        self._disarmed = True
        for interceptor in self._interceptors:
            interceptor.disarm()
        self.nemesis.heal()
        self.start()

    def compare_all(self) -> None:
        """Does the thorough comparison of every node."""
        for machine in self.machines:
            self._look(machine, None, thorough=True)

    # One node

    def _machine(self, number: int, seed: int, agenda: Agenda) -> Machine:
        return Machine(
            number,
            agenda,
            random_for(seed, f"machine-{number}"),
            SimDisk(random_for(seed, f"disk-{number}")),
            self._boot,
            self._after_event,
            self._report,
            self._gone,
            self._ended,
        )

    def _boot(self, machine: Machine) -> tuple[SimulatedNode, Sequence[Hooks], Watcher]:
        number, incarnation = machine.node_id, machine.incarnation
        presets = presets_for(self._scenario.state)
        hooks: list[Hooks] = [self._hash] if self._hash is not None else []
        disk: Disk = machine.disk
        if self._rules[number]:
            interceptor = self._interceptor(machine)
            hooks.append(interceptor)
            disk = interceptor.watch(machine.disk)
        hooks.extend(presets)
        host, port = self.network.address(number)
        random_seed = number_for(self._seed, f"node-{number}-{incarnation}")
        node = Node(number, self._configs[number], disk, random_seed, host, port)
        for preset in presets:
            preset.built(node)
        observer = self._observers[number] = Observer(node, incarnation, self._agenda, self._watching, self._keep)
        self._watching.view.trouble.back(number, self._agenda.now_us + STARTING_US)
        return node, hooks, observer

    def _reconfigure(self, number: int, over: tuple[tuple[str, str], ...]) -> None:
        """Sets what the node is started with from now on."""
        self._over[number] = {**self._over[number], **dict(over)}
        self._configs[number] = config_of(self._scenario, tuple(self._over[number].items()))

    def _interceptor(self, machine: Machine) -> Interceptor:
        number, incarnation = machine.node_id, machine.incarnation
        powers = MachinePowers(machine, self._agenda, self._restart_after_us)
        interceptor = Interceptor(
            number,
            self._rules[number],
            powers,
            random_for(self._seed, f"interceptor-{number}-{incarnation}"),
            0,
            self._claims,
            lambda: self.nemesis.targets.role(number),
        )
        interceptor.load_from(self._load_from_us)
        if self._disarmed:
            interceptor.disarm()
        self._interceptors.append(interceptor)
        return interceptor

    def _gone(self, machine: Machine) -> None:
        self._watching.view.gone(machine.node_id)
        self._watching.replicas.gone(machine.node_id)
        if machine.silent:
            self._watching.replicas.power_lost(machine.node_id)
        self._watching.view.trouble.node(machine.node_id, FOR_EVER_US)
        self._observers.pop(machine.node_id, None)

    def _ended(self, machine: Machine, story: str) -> None:
        """Lets the checks look at what the node leaves: the event that ended it may have committed something."""
        if isinstance(machine.node, Node):
            self._watching.view.look(self._agenda.now_us, machine.incarnation, machine.node, False)
        self._watching.ended(self._agenda.now_us, machine.node_id, story)

    def _after_event(self, machine: Machine, event: Event | None) -> None:
        node = machine.node
        if node is not None and machine.events % THOROUGH_EVERY:
            self._watching.node(self._agenda.now_us, machine.incarnation, node, event, False)  # type: ignore[arg-type]
        else:
            self._look(machine, event, thorough=True)

    def _look(self, machine: Machine, event: Event | None, thorough: bool) -> None:
        node = machine.node
        if node is None:
            return
        assert isinstance(node, Node)
        now_us = self._agenda.now_us
        self._watching.node(now_us, machine.incarnation, node, event, thorough)
        if thorough:
            digest = self._observers[machine.node_id].digest.digest
            if digest is not None:
                self._watching.recomputed(now_us, machine.node_id, digest)

    # Evidence

    def _report(self, row: FaultRow) -> None:
        self.nemesis.report(row)

    def _evidence(self, row: FaultRow) -> None:
        if self._hash is not None:
            self._hash.fault(row)

    def _restart_after_us(self, rule: str) -> int:
        after_s = self.nemesis.fault(rule).restart_after_s
        return -1 if after_s < 0 else int(after_s * 1_000_000)
