"""The faults of a simulated run that begin at a time: their times and targets, and the evidence of all faults.

A role is resolved to a node when the fault begins. ``timed_faults`` and ``stepwise_faults`` implement the kinds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

from bench.fleet.behaviours.protocol import Behaviour
from chaos.checks.fault_times import FOR_EVER_US, FaultTimes
from chaos.faults.feature_switch import FeatureSwitch
from chaos.faults.node_requests import Forger, NodeRequest, Recorded
from chaos.interceptor.roles import plays, role_of, topic_of_roles
from chaos.interceptor.rules import SharedHitCounter
from chaos.seeds import random_for
from chaos.sim import timed_faults
from chaos.sim.agenda import Agenda
from chaos.sim.fleet import SimClient
from chaos.sim.links import CLIENTS
from chaos.sim.machine import Machine
from chaos.sim.network import Network
from chaos.sim.stepwise_faults import Intruder, rolling_bounce
from chaos.sim.timed_faults import SimFaultContext
from reference_broker.metadata.identifiers import claimed_node
from reference_broker.ports.node_ports import Now
from reports.rows import RESPONSE, FaultRow
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.model import Fault, Link, NodeChoice, Scenario
from scenarios.vocabulary import SAME_NODE, SIM_AT_PERCENT

Cell: TypeAlias = tuple[str, str, str]
"""The kind of a fault, with the role and the state of its target."""
NOBODY_YET_US = 50_000
"""Interval of the retries of a fault while no node has its role."""
DAMAGE_LASTS_US = 2_000_000
"""A damaged length leaves a node waiting for the rest of a frame, until the request of the other node times out."""
REPLAY_TROUBLES_US = 2_000_000
"""A replayed request may depose a leader until the next election, or keep a broker fenced until its next heartbeat."""
FAILS_DISK = ("disk_write_failed", "disk_error")
"""Kinds of faults because of which a node may end itself soon after."""


class SimFaultScheduler:
    """Injects the timed faults, and collects the evidence of these and of the interceptors' faults.

    ``sink`` gets each row of evidence. ``reconfigure`` sets the settings for the next starts of a node. Forged requests
    contain a false ``cluster_id``.
    """

    clients: Callable[[Behaviour], SimClient]
    """Makes the client that plays a behaviour. The world sets it."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        agenda: Agenda,
        network: Network,
        fault_times: FaultTimes,
        sink: Callable[[FaultRow], None],
        reconfigure: Callable[[int, tuple[tuple[str, str], ...]], None],
        hit_counter: SharedHitCounter,
        cluster_id: str = "",
    ) -> None:
        self._hit_counter = hit_counter
        self._reconfigure = reconfigure
        self.faults: list[FaultRow] = []
        self.coverage: dict[Cell, int] = {}
        """Number of faults that fired in each cell."""
        self.targets = Targets(network.machines, scenario.cluster.nodes, topic_of_roles(scenario))
        self._by_name = {fault.name: fault for fault in scenario.faults}
        self._timed = [fault for fault in scenario.faults if fault.timed]
        self._randoms = {fault.name: random_for(seed, f"fault-{fault.name}") for fault in self._timed}
        self._agenda = agenda
        self._network = network
        self._cluster_id = cluster_id
        self._voters = tuple(range(scenario.cluster.nodes))
        if any(FAULT_KINDS[fault.kind].from_recorded for fault in self._timed):
            network.recorded = Recorded()
        self._fault_times = fault_times
        self._sink = sink
        self._heals: list[Callable[[], None]] = []
        self._following: dict[str, list[tuple[int, Fault]]] = {}
        """Timed faults that begin after another one has fired, with the time between, by the other one's name."""
        self._until_us = -1

    def restart_after_us(self, name: str) -> int:
        """Return how long a node stays down after this fault has ended it; -1: for ever."""
        after_s = self._by_name[name].restart_after_s
        return -1 if after_s < 0 else int(after_s * 1_000_000)

    def clipped_us(self, lasts_us: int) -> int:
        """Return ``lasts_us``, or the time to the heal if that is shorter: no fault outlasts the heal."""
        return min(lasts_us, self._until_us - self._agenda.now_us) if self._until_us >= 0 else lasts_us

    def clock_stepped(self, by_ms: int) -> None:
        """Record that a fault has stepped the wall clock of a node."""
        self._fault_times.clock_jumps_us += max(by_ms, 0) * 1000

    def lasts_us(self, row: FaultRow) -> int:
        """Return how long a fault of a rule lasts, from its evidence."""
        if row.kind == "node_paused":
            return self.clipped_us(int(self._by_name[row.name].duration_s * 1_000_000))
        return max(self.restart_after_us(row.name), 0)

    def plan(self, from_us: int, until_us: int) -> None:
        """Plan the faults when the load begins. No fault begins at ``until_us`` or later."""
        self._until_us = until_us
        for fault in self._timed:
            at_us = int(fault.sim_at_s * 1_000_000) * self._randoms[fault.name].randint(*SIM_AT_PERCENT) // 100
            if fault.after:
                self._following.setdefault(fault.after, []).append((at_us, fault))
                continue
            for repeat in range(fault.repeat):
                begin_us = from_us + at_us + repeat * int(fault.sim_repeat_every_s * 1_000_000)
                self._agenda.at(begin_us, self._begin, fault, repeat + 1)

    def heal(self) -> None:
        """End the running faults."""
        self._until_us = -1
        heals, self._heals = self._heals, []
        for heal in heals:
            heal()

    def report(self, row: FaultRow) -> None:
        """Record evidence of an interceptor or a preset, before the fault happens."""
        fault = self._by_name.get(row.name)
        if fault is not None and row.target.startswith("node-"):
            node_id = int(row.target[5:])
            lasts_us = max(fault.delay_ms.high * 1000, row.until_us - row.at_us)
            if row.kind != "node_paused":
                lasts_us = max(lasts_us, int(fault.sim_duration_s * 1_000_000))
            if row.kind == fault.kind:
                self._note_fired(fault, node_id)
                self._fault_times.node(node_id, row.at_us + lasts_us)
                sender = row.client_id.removeprefix("node-")
                if FAULT_KINDS[row.kind].flips_frame_bit and sender.isdigit():
                    self._fault_times.link(int(sender), node_id, row.at_us + DAMAGE_LASTS_US)
                self._cover(fault.kind, node_id)
            if row.kind in FAILS_DISK:
                self._network.machines[node_id].disk_failed(fault.delay_ms.high * 1000)
        self._keep(row)

    def _note_fired(self, fault: Fault, node_id: int) -> None:
        """Record the node at which a fault fired. After the first time, schedule the faults that follow it."""
        self._hit_counter.last_targets[fault.name] = node_id
        for after_us, follower in self._following.pop(fault.name, ()):
            node = node_id if follower.node == SAME_NODE else follower.node
            self._agenda.after(after_us, self._begin, replace(follower, node=node), 1)

    def _keep(self, row: FaultRow) -> None:
        self.faults.append(row)
        self._sink(row)

    def _begin(self, fault: Fault, number: int) -> None:
        now_us = self._agenda.now_us
        if now_us >= self._until_us:
            return
        if fault.alone and not self._all_serve():
            self._agenda.after(NOBODY_YET_US, self._begin, fault, number)
            return
        if fault.kind in IN_STEPS:
            IN_STEPS[fault.kind](self, fault, number)
            return
        aimed = self._aim(fault)
        if aimed is None:
            self._agenda.after(NOBODY_YET_US, self._begin, fault, number)
            return
        context, target = aimed
        kind = FAULT_KINDS[fault.kind]
        lasts_us = int(max(fault.restart_after_s if kind.ends_node else fault.sim_duration_s, 0.0) * 1_000_000)
        until_us = min(now_us + lasts_us, self._until_us)
        role = self.targets.role(context.machine.node_id)
        detail = " ".join(word for word in (fault.direction if context.links else "", role) if word)
        row = FaultRow(fault.name, fault.kind, now_us, until_us, target, number, detail=detail)
        fired = partial(self._fired, row, self._cell(fault.kind, context.machine.node_id))
        if kind.shown_at_end:
            context = replace(context, shown=fired)
        else:
            fired()
        self._note_trouble(fault, context, until_us)
        self._note_fired(fault, context.machine.node_id)
        heal = timed_faults.begin(fault, context, until_us - now_us)
        self._heals.append(heal)
        self._agenda.after(lasts_us, self._heal_one, heal)

    def _all_serve(self) -> bool:
        """Return whether all nodes serve and have had time to start (``FaultTimes.back``)."""
        machines, now_us = self._network.machines, self._agenda.now_us
        return all(machine.ready and not self._fault_times.node_since(machine.node_id, now_us) for machine in machines)

    def _aim(self, fault: Fault) -> tuple[SimFaultContext, str] | None:
        """Return the target of the fault and its name in the evidence, or None if there is no such target now."""
        random, machines, links = self._randoms[fault.name], self._network.machines, self._network.links
        if fault.link is not None:
            pairs = self.targets.links(fault.link, random)
            if pairs is None:
                return None
            directed_links = [links.between(*pair) for pair in pairs]
            context = SimFaultContext(machines[_end_of(pairs)], directed_links, self._network, self._fault_times)
            return context, f"link {', '.join(link.name for link in directed_links)}"
        node_id = self.targets.node(fault.node, random)
        if node_id is None:
            return None
        around = self._around(fault, node_id)
        if around is None:
            return None
        directed_links = [links.between(*pair) for pair in around]
        return SimFaultContext(machines[node_id], directed_links, self._network, self._fault_times), f"node-{node_id}"

    def _around(self, fault: Fault, node_id: int) -> list[tuple[int, int]] | None:
        """Return the links that a fault of a node cuts. Return None if there is no active controller now, or if the
        node is the controller itself."""
        cuts = FAULT_KINDS[fault.kind].cuts
        if cuts == "controller":
            controller = self.targets.node("leader", self._randoms[fault.name])
            return None if controller in (None, node_id) else [(node_id, controller), (controller, node_id)]
        return self.targets.around(node_id, fault.clients) if cuts == "others" else []

    # Faults in several steps

    def _bounce(self, fault: Fault, number: int) -> None:  # noqa: ARG002
        machines = self._network.machines
        self._go_on(rolling_bounce(fault, machines, self._reconfigure, self._bounced, lambda: self._until_us < 0))

    def _go_on(self, steps: Iterator[int]) -> None:
        wait_us = next(steps, None)
        if wait_us is not None:
            self._agenda.after(wait_us, self._go_on, steps)

    def _bounced(self, fault: Fault, machine: Machine, number: int) -> None:
        now_us, down_us = self._agenda.now_us, int(fault.restart_after_s * 1_000_000)
        self._cover(fault.kind, machine.node_id)
        self._fault_times.node(machine.node_id, now_us + down_us)
        role, target = self.targets.role(machine.node_id), f"node-{machine.node_id}"
        self._keep(FaultRow(fault.name, fault.kind, now_us, now_us + down_us, target, number, detail=role))

    def _finalize(self, fault: Fault, number: int) -> None:
        def granted(now: Now, node_id: int) -> None:
            at_us, detail = now.mono_us, f"{fault.feature}={fault.level}"
            self._keep(FaultRow(fault.name, fault.kind, at_us, at_us, f"node-{node_id}", number, detail=detail))

        addresses = [self._network.address(machine.node_id) for machine in self._network.machines]
        client = self.clients(FeatureSwitch(fault.name, addresses, fault.feature, fault.level, granted))
        self._heals.append(client.stop)
        client.start()

    def _intrude(self, fault: Fault, number: int) -> None:
        """Send a node requests in the name of others. Replayed ones are genuine, so they may affect the node that they
        name; forged ones must change nothing."""
        random = self._randoms[fault.name]
        node_id = self.targets.node(fault.node, random)
        requests = [] if node_id is None else self._requests(fault, node_id, random)
        if node_id is None or not requests:
            self._agenda.after(NOBODY_YET_US, self._begin, fault, number)
            return
        now_us, target, has_arrived = self._agenda.now_us, f"node-{node_id}", list[bool]()

        def arrived() -> None:
            has_arrived.append(True)
            self._cover(fault.kind, node_id)
            detail = "; ".join(request.label for request in requests)
            self._keep(FaultRow(fault.name, fault.kind, now_us, self._agenda.now_us, target, number, detail=detail))
            if fault.kind == "requests_replayed":
                for affected in {node_id, *(claimed_node(request.client_id) for request in requests)}:
                    self._fault_times.node(affected or 0, self._agenda.now_us + REPLAY_TROUBLES_US)

        def over(responses: int) -> None:
            if not has_arrived:  # The node did not get the requests.
                self._agenda.after(NOBODY_YET_US, self._begin, fault, number)
                return
            now_us, detail = self._agenda.now_us, f"{responses} of {len(requests)} answered"
            self._keep(FaultRow(fault.name, fault.kind + RESPONSE, now_us, now_us, target, number, detail=detail))

        Intruder(self._network, node_id, requests, arrived, over)

    def _requests(self, fault: Fault, node_id: int, random: Random) -> list[NodeRequest]:
        assert self._network.recorded is not None
        if fault.kind == "requests_replayed":
            return self._network.recorded.replays(node_id, random)
        return Forger(self._network.recorded, self._cluster_id, self._voters, node_id, random).requests()

    def _note_trouble(self, fault: Fault, context: SimFaultContext, until_us: int) -> None:
        for link in context.links:
            self._fault_times.link(link.source, link.target, until_us)
        if not context.links:
            for_ever = FAULT_KINDS[fault.kind].ends_node and fault.restart_after_s < 0
            self._fault_times.node(context.machine.node_id, FOR_EVER_US if for_ever else until_us)

    def _fired(self, row: FaultRow, cell: Cell) -> None:
        self.coverage[cell] = self.coverage.get(cell, 0) + 1
        self._keep(row)

    def _cover(self, kind: str, node_id: int) -> None:
        cell = self._cell(kind, node_id)
        self.coverage[cell] = self.coverage.get(cell, 0) + 1

    def _cell(self, kind: str, node_id: int) -> Cell:
        return kind, self.targets.role(node_id), state_of(self._network.machines[node_id])

    def _heal_one(self, heal: Callable[[], None]) -> None:
        if heal in self._heals:
            self._heals.remove(heal)
            heal()


IN_STEPS: dict[str, Callable[[SimFaultScheduler, Fault, int], None]] = {
    "requests_replayed": SimFaultScheduler._intrude,
    "requests_forged": SimFaultScheduler._intrude,
    "rolling_bounce": SimFaultScheduler._bounce,
    "feature_finalized": SimFaultScheduler._finalize,
}
"""Faults that consist of several steps and end by themselves. Each step leaves its evidence when it happens."""


def _end_of(pairs: Sequence[tuple[int, int]]) -> int:
    """Return the node that represents the links: their common end if there are several, else the dialled node."""
    source, target = pairs[0]
    several = len(pairs) > 1 and all(pair[0] == source for pair in pairs)
    return source if several and source != CLIENTS else target


CLIENT = "client"
ALL = "all"


class Targets:
    """The first ``voters`` machines have a vote. Roles may refer to the first partition of ``topic``, if it is not
    empty."""

    def __init__(self, machines: Sequence[Machine], voters: int, topic: str = "") -> None:
        self._machines = machines
        self._voters = voters
        self._topic = topic

    def role(self, node_id: int) -> str:
        """Return ``leader``, ``follower`` or ``observer``, and behind a space the node's part in the partition."""
        return role_of(self._machines[node_id].node, node_id < self._voters, self._topic)

    def node(self, choice: NodeChoice, random: Random) -> int | None:
        """Return a matching node, or None if there is none now. If several match, a running one is drawn."""
        if isinstance(choice, int):
            return choice
        fitting = [
            machine.node_id
            for machine in self._machines
            if machine.alive and plays(self.role(machine.node_id), choice, -1)
        ]
        return random.choice(fitting) if fitting else None

    def links(self, link: Link, random: Random) -> list[tuple[int, int]] | None:
        """Return (dialling end, dialled end) of all matching links, or None if no node matches one of the ends."""
        target = self._end(link.target, random, ())
        source = self._end(link.source, random, target if len(target) == 1 else ())
        return [(dialling, dialled) for dialling in source for dialled in target if dialling != dialled] or None

    def around(self, node: int, clients: bool) -> list[tuple[int, int]]:
        """Return all links between a node and the others, and with ``clients`` the clients' link to it."""
        others = [machine.node_id for machine in self._machines if machine.node_id != node]
        mine = [(node, other) for other in others] + [(other, node) for other in others]
        return [*mine, (CLIENTS, node)] if clients else mine

    def _end(self, choice: NodeChoice, random: Random, but: Sequence[int]) -> list[int]:
        if choice == CLIENT:
            return [CLIENTS]
        if choice == ALL:
            return [machine.node_id for machine in self._machines if machine.node_id not in but]
        node = self.node(choice, random)
        return [] if node is None else [node]


def state_of(machine: Machine) -> str:
    """Return one word for the activity of the node. If several apply, it is the first of those below, the rarest."""
    node: Any = machine.node
    if node is None:
        return "down"
    if not node.listening:
        return "starting"
    if machine.paused:
        return "paused"
    replica = node.broker.quorum_node
    if replica.quorum.leader_id < 0:
        return "electing"
    if replica.loader.in_transaction:
        return "transaction"
    if replica.quorum.is_leader and not replica.controller.is_active:
        return "activating"
    if replica.quorum.high_watermark < 0 or replica.loader.last_offset + 1 < replica.quorum.high_watermark:
        return "catching-up"
    return "serving" if node.ready else "joining"
