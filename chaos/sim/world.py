"""A whole run in one process and in virtual time: nodes, clients, links, disks and clocks from one seed."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

from bench.fleet.behaviours import protocol
from bench.fleet.behaviours.final_reads import FinalReader
from bench.fleet.behaviours.protocol import Behaviour
from bench.fleet.fleet import Fleet, make_fleet
from chaos.checks.check import Check, CheckContext, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.groups.assignments import AllAssigned
from chaos.checks.history import History, TopicPartition
from chaos.checks.quorum.liveness import QuorumConverges
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.reads_and_writes.reads import ResponsesAfterHeal
from chaos.checks.replication.committed_records import ReplicasConverge
from chaos.checks.replication.replica_view import ReplicaView, TouchedLogs
from chaos.checks.suite import CheckSuite, all_checks
from chaos.checks.tier.segment_objects import ClosedSegmentsStored
from chaos.hooks.presets import presets_for
from chaos.sim.agenda import Agenda
from chaos.sim.cluster import SimCluster, config_of
from chaos.sim.fleet import SimClient, idle_writer, sim_fleet_spec
from chaos.sim.network import CODED_SHARE
from chaos.sim.observer import TraceHash
from chaos.sim.speedups import shared_coding
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports import slicing
from reference_broker.ports.store import MemoryStore
from reports.rows import FaultRow, HistoryRow, TraceRow
from scenarios.derived import drawn
from scenarios.load import MIRROR_GROUP, Groups, Load, Workers
from scenarios.model import Fault, Scenario

BOOT_US = 30_000_000
"""Limit for all nodes to become ready."""
PREPARE_US = 30_000_000
"""Limit for the topics to be created, and the same limit again for them to be seeded."""
DRAIN_US = 60_000_000
"""Limit for clients to finish once they are stopped, and for each last read."""
MAX_LOCAL_READS = 4
"""Largest number of times that local logs are read, because their start moves meanwhile."""
CONVERGE_US = 60_000_000
"""Limit for the nodes to agree after the heal. Beyond it quorum-converges is violated."""
STUCK_WITHOUT_FAULT_US = 20_000_000
"""Limit for a phase to end after the last fault. Beyond it responses-after-heal is violated. Within it a leader and
coordinators are elected and load, and clients retry."""
SETTLED_FETCH_TIMEOUTS = 3
"""Number of fetch timeouts without a fault of the voters after which their leader must stay. A voter seeks a new leader
after one fetch timeout, and elections and backoff take time too."""
ELECTION_MS = 15_000
"""Limit for a coordinator to be elected and to load, and for all clients to find it."""
MIRROR_REBALANCE_MS = 10_000
"""Rebalance timeout of the mirror's group."""
REGISTRATION_US = 3_000_000
"""Limit for a broker to register again after its session has expired."""
CALLBACKS_BETWEEN_TESTS = 8
"""Number of callbacks between two checks for the end of a phase."""


BUDGET = "_PER_SLICE"
"""Suffix of the names of the broker's budgets (``reference_broker.ports.slicing``)."""

C = TypeVar("C", bound=Check)


class RunStuckError(Exception):
    """A phase of the run did not end in its (virtual) time. The message says which."""


class SimWorld:
    """One run: ``play`` takes it through all phases, and afterwards the checks have its violations.

    - ``scenario``: a swarm must have become explicit faults before (chaos/sim/swarm.py). The run draws the choices of
      the seed from it.
    - ``hashed``: also hash all that happens, which is slower.
    - ``keep_trace``: keep the trace rows.
    - ``coded_share``: the share of the messages that go through the codec (1.0 means all, which is slower too).
    - ``also``: checks that only this run has, such as one that counts.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        hashed: bool = False,
        keep_trace: bool = False,
        coded_share: float = CODED_SHARE,
        also: Sequence[type[Check]] = (),
    ) -> None:
        self.scenario = scenario = drawn(scenario, seed)
        self.seed = seed
        config = config_of(scenario, {})
        self.history = History(
            writes_guaranteed=_guarantees_writes(scenario),
            unguaranteed=_unguaranteed(scenario),
            clock_tick_us=scenario.cluster.sim_clock_tick_ms * 1000,
            producer_expiration_us=config.producer_id_expiration_ms * 1000,
        )
        self.trace: list[TraceRow] = []
        self.hash = TraceHash() if hashed else None
        self.stage = "boot"
        self.load_from_us = 0
        self.load_until_us = 0
        self.agenda = Agenda(scenario.cluster.sim_clock_tick_ms)
        view = QuorumView(scenario.cluster.nodes, scenario.cluster.observers, FaultTimes())
        self._touched = TouchedLogs()
        hot = scenario.load.hot
        replicas = ReplicaView(
            view.fault_times, config.min_insync_replicas, _is_flushed(scenario), hot.replicas > 1, self._touched
        )
        content = MemoryStore()
        context = CheckContext(_settings(scenario, config), view, replicas, tier=content.objects)
        self.checks = [*all_checks(context), *(kind(context) for kind in also)]
        self._settle_us = _settle_us(scenario.load)
        self._suite = CheckSuite(self.checks, context)
        keep = self.trace.append if keep_trace else None
        self.cluster = SimCluster(
            scenario, seed, config, self.agenda, self._suite, self.hash, keep, coded_share, content
        )
        self.network = self.cluster.network
        self.cluster.fault_scheduler.clients = self._client
        self._converges = _only(QuorumConverges, self.checks)
        self._after_heal = _only(ResponsesAfterHeal, self.checks)
        self._assigned = _only(AllAssigned, self.checks)
        self._replicated = _only(ReplicasConverge, self.checks)
        self._stored = _only(ClosedSegmentsStored, self.checks)

    # The run

    def play(self) -> None:
        """Play all phases. Raise RunStuckError, or any exception that a bug of ours raises."""
        with shared_coding(), self._touched.noted(), short_slices(self.scenario.cluster.sim_slice_items):
            self._play_phases()

    def _play_phases(self) -> None:
        bootstrap = [self.network.address(machine.node_id) for machine in self.cluster.machines]
        second = [self.network.address(machine.node_id) for machine in (self.cluster.target,) if machine is not None]
        spec = sim_fleet_spec(self.scenario, self.seed, bootstrap, second)
        fleet, appender = make_fleet(spec), idle_writer(spec, self.seed)
        self.cluster.start()
        self._require_within(BOOT_US, lambda: self.cluster.ready)
        self._set_states()
        preparers = [preparer for preparer in (fleet.preparer, fleet.target_preparer) if preparer is not None]
        self._phase("prepare", preparers, PREPARE_US)
        failure = next((preparer.failure for preparer in preparers if preparer.failure is not None), None)
        if failure is not None:
            raise self._stuck(failure)
        if appender is None and fleet.seeder is not None:
            self._phase("seed", [fleet.seeder], PREPARE_US)
        workers, readers = (
            [self._client(behaviour) for behaviour in stage] for stage in (fleet.workers, fleet.readers)
        )
        writers: list[Behaviour] = [*fleet.writers, *([appender] if appender is not None else [])]
        self._load([self._client(behaviour) for behaviour in writers], workers, readers)
        self._await_quorum()
        self._read_to_the_end(fleet)
        self._await_quorum()  # Once more, because the controller's upkeep may have written a record meanwhile.
        self.stage = "end"
        self.cluster.compare_all()
        self.history.clock_steps_us = _clock_steps_us(self.scenario, self.faults)
        self.history.end_us = self.agenda.now_us
        self._suite.end(self.history)

    @property
    def events(self) -> int:
        return self.cluster.events

    @property
    def faults(self) -> list[FaultRow]:
        return self.cluster.fault_scheduler.faults

    def _load(self, writers: Sequence[SimClient], workers: Sequence[SimClient], readers: Sequence[SimClient]) -> None:
        self.stage = "load"
        self.load_from_us = self.agenda.now_us
        self.load_until_us = self.load_from_us + int(self.scenario.load.in_simulator.seconds * 1_000_000)
        self.cluster.arm(self.load_from_us)
        self.cluster.fault_scheduler.plan(self.load_from_us, self.load_until_us)
        for client in (*workers, *readers, *writers):
            client.start()
        self.agenda.run_until(self.load_until_us)
        self.stage = "drain"
        self.cluster.heal()
        healed_us = self.agenda.now_us
        self._stop(writers)
        self._await_replicas()  # Readers see only what is replicated.
        self._await_tier_copies()
        self._await_group_assignments(healed_us)
        if workers:
            self._stop(workers)
            self._await_replicas()  # Readers read what workers wrote, too.
        self._stop(readers)

    def _stop(self, clients: Sequence[SimClient]) -> None:
        for client in clients:
            client.stop()
        self._require_within(DRAIN_US, lambda: all(client.finished for client in clients))

    def _await_replicas(self) -> None:
        """Wait until the replicas of each partition are equal, or record that they are overdue."""
        if not self._advance_until(self.agenda.now_us + CONVERGE_US, self._replicated.reached):
            self._replicated.overdue(self.agenda.now_us, CONVERGE_US)

    def _await_tier_copies(self) -> None:
        """Wait until the object store has all closed segments, or record that they are overdue."""
        if not self._advance_until(self.agenda.now_us + CONVERGE_US, self._stored.reached):
            self._stored.overdue(self.agenda.now_us, CONVERGE_US)

    def _await_group_assignments(self, healed_us: int) -> None:
        """Keep members until each partition has an owner, for as long as the timeouts of their groups allow."""
        end_us = max(healed_us + self._settle_us, self.agenda.now_us)
        if not self._advance_until(end_us, self._assigned.reached):
            self._assigned.overdue(self.agenda.now_us, end_us - healed_us)

    def _await_quorum(self) -> None:
        self.stage = "converge"
        self._converges.expected = True
        end_us = self.agenda.now_us + CONVERGE_US
        while not (self.cluster.ready and self._converges.reached()) and self.agenda.step(end_us):
            pass

    def _read_to_the_end(self, fleet: Fleet) -> None:
        for reader in fleet.last_readers:
            self._phase(reader.process, [reader], DRAIN_US)
            if isinstance(reader, FinalReader) and reader is not fleet.target_reader:
                self._read_local_logs(reader)
            self._after_heal.record_missing(self.agenda.now_us, reader.missed)
        if fleet.final_describer is not None:
            self._phase("final describe", [fleet.final_describer], DRAIN_US)
            self._after_heal.record_missing(self.agenda.now_us, fleet.final_describer.missed)

    def _read_local_logs(self, reader: FinalReader) -> None:
        """Read a partition whose remote segments are unreadable (E-7) from the start of its local log. That start
        moves when retention deletes local segments meanwhile, so the read is repeated then."""
        before: dict[protocol.TopicPartition, int] = {}
        for number in range(MAX_LOCAL_READS):
            unreadable = [(protocol.TopicPartition(*where), start) for where, start in self._after_heal.unreadable()]
            starts = {where: start for where, start in unreadable if where in reader.unread}
            if not starts or starts == before:
                return
            before = starts
            local = reader.from_offsets(f"{reader.process}-local-{number}", starts)
            self._phase(local.process, [local], DRAIN_US)
            reader.unread = {
                partition: None for partition in reader.unread if partition not in starts or partition in local.unread
            }

    def _phase(self, stage: str, behaviours: Sequence[Behaviour], limit_us: int) -> None:
        self.stage = stage
        clients = [self._client(behaviour) for behaviour in behaviours]
        for client in clients:
            client.start()
        self._require_within(limit_us, lambda: all(client.finished for client in clients))

    def _require_within(self, limit_us: int, done: Callable[[], bool]) -> None:
        if not self._advance_until(self.agenda.now_us + limit_us, done):
            raise self._stuck(f"{self.stage}: not done after {limit_us / 1e6:g} virtual seconds")

    def _stuck(self, explanation: str) -> RunStuckError:
        """Return the error that ends the run. A cluster that no fault affects any more should have responded, so the
        error is a violation then, not a lack of evidence."""
        now_us, fault_times = self.agenda.now_us, self._suite.quorum.fault_times
        if now_us - fault_times.last_us() > STUCK_WITHOUT_FAULT_US:
            missing = f"{explanation}, and no fault has affected a node or a link between nodes lately"
            self._after_heal.record_missing(now_us, missing)
        return RunStuckError(explanation)

    def _advance_until(self, end_us: int, done: Callable[[], bool]) -> bool:
        """Advance until ``done()`` or the time limit. Return whether it is done."""
        while not done():
            for _ in range(CALLBACKS_BETWEEN_TESTS):
                if not self.agenda.step(end_us):
                    return done()
        return True

    def _client(self, behaviour: Behaviour) -> SimClient:
        return SimClient(behaviour, self.agenda, self.network, self._record)

    def _record(self, rows: Iterable[HistoryRow]) -> None:
        added = tuple(rows)
        self.history.add(added)
        self._assigned.recorded(added)
        if self.hash is not None:
            self.hash.history(added)

    def _set_states(self) -> None:
        for preset in presets_for(self.scenario.state):
            for machine in self.cluster.machines:
                self.cluster.fault_scheduler.report(preset.evidence(machine.node_id, self.agenda.now_us))


@contextmanager
def short_slices(items: int) -> Iterator[None]:
    """Inside the block let each slice of the broker's long work end after ``items`` items, or 64 bytes for each item. 0
    leaves the broker's own budgets."""
    budgets = _budgets() if items else []
    for module, name, _ in budgets:
        setattr(module, name, 64 * items if name.endswith(f"_BYTES{BUDGET}") else items)
    try:
        yield
    finally:
        for module, name, value in budgets:
            setattr(module, name, value)
        # A handler that was imported inside the block has the short budgets, and later runs would keep them.
        known = {module.__name__ for module, _, _ in budgets}
        for module, name, _ in _budgets() if items else ():
            if module.__name__ not in known and hasattr(slicing, name):
                setattr(module, name, getattr(slicing, name))


def _budgets() -> list[tuple[ModuleType, str, int]]:
    """Return all budgets of the broker's modules that are imported now: module, name and value."""
    modules = [module for name, module in sys.modules.items() if name.startswith("reference_broker.")]
    return [
        (module, *constant) for module in modules for constant in vars(module).items() if constant[0].endswith(BUDGET)
    ]


def _only(kind: type[C], checks: Sequence[Check]) -> C:
    (check,) = (check for check in checks if isinstance(check, kind))
    return check


SLICES_US = 400_000
"""Duration of a few hundred short slices."""


def _settings(scenario: Scenario, config: BrokerConfig) -> Settings:
    return Settings(
        first_session_epoch=dict(scenario.state).get("fetch_session_epoch", 1),
        settled_us=SETTLED_FETCH_TIMEOUTS * config.controller_quorum_fetch_timeout_ms * 1000,
        session_us=config.broker_session_timeout_ms * 1000 + REGISTRATION_US,
        in_sync_us=config.replica_lag_time_max_ms * 1000 + config.broker_session_timeout_ms * 1000 + REGISTRATION_US,
        slices_us=SLICES_US if scenario.cluster.sim_slice_items else 0,
        tombstone_horizon=config.crucible_tombstone_horizon_enable,
        subscribed=_subscribed(scenario.load),
    )


def _subscribed(load: Load) -> dict[str, list[TopicPartition]]:
    """Return the partitions that members share, by group."""
    partitions = {topic.name: topic.partitions for topic in load.topics}
    topics = {group.name: group.topics for group in load.groups if group.protocol != "assigned"}
    if load.mirror is not None:
        topics[MIRROR_GROUP] = (load.mirror.topic,)
    topics |= {workers.name: (workers.source,) for workers in load.workers}
    return {
        group: [(name, index) for name in names for index in range(partitions[name])] for group, names in topics.items()
    }


def _settle_us(load: Load) -> int:
    """Return the time from the heal until each partition must have its owner.

    In that time a coordinator is elected and loads, sessions of members that are gone expire, and the remaining members
    take part in two rebalances.
    """
    members: tuple[Groups | Workers, ...] = (*load.groups, *load.workers)
    slowest = max((member.session_timeout_ms + 2 * member.rebalance_timeout_ms for member in members), default=0)
    mirrors = 0 if load.mirror is None else load.mirror.session_timeout_ms + 2 * MIRROR_REBALANCE_MS
    return (ELECTION_MS + max(slowest, mirrors)) * 1000


def _guarantees_writes(scenario: Scenario) -> bool:
    """Return whether acknowledged writes must survive.

    They survive a kill. They survive a power loss or a failed sync only if each is flushed before its response, or if
    other replicas hold them (ReplicaView says where they do not).
    """
    loses_bytes = any(_loses_unsynced(fault) for fault in scenario.faults)
    return not loses_bytes or _is_flushed(scenario) or scenario.load.hot.replicas > 1


def _loses_unsynced(fault: Fault) -> bool:
    fails_sync = fault.kind == "disk_error" and fault.on == "disk" and fault.match.operation in (None, "sync")
    return fails_sync or fault.kind == "node_powered_off"


def _clock_steps_us(scenario: Scenario, faults: Sequence[FaultRow]) -> int:
    steps_us = {fault.name: abs(fault.step_ms) * 1000 for fault in scenario.faults if fault.kind == "clock_stepped"}
    return sum(steps_us.get(row.name, 0) for row in faults)


def _is_flushed(scenario: Scenario) -> bool:
    return dict(scenario.cluster.config).get("log.flush.interval.messages") == "1"


def _unguaranteed(scenario: Scenario) -> tuple[str, ...]:
    """Return the producers that wait for only one of several replicas. Producers are numbered through all groups."""
    acks_of_producers = [group.acks for group in scenario.load.in_simulator.producers for _ in range(group.count)]
    several = scenario.load.hot.replicas > 1
    return tuple(f"producer-{number}" for number, acks in enumerate(acks_of_producers) if several and acks == 1)
