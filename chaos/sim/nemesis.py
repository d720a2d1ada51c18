"""Does the faults of a scenario that begin at a time, and keeps the evidence of all faults."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from bench.fleet.behaviours.protocol import Behaviour
from chaos.checks.trouble import FOR_EVER_US, Trouble
from chaos.node_requests import Forger, NodeRequest, Recorded
from chaos.roles import topic_of_roles
from chaos.seeds import random_for
from chaos.sim import link_faults
from chaos.sim.agenda import Agenda
from chaos.sim.client import Client
from chaos.sim.coverage import Point, state_of
from chaos.sim.feature_switch import FeatureSwitch
from chaos.sim.intruder import Intruder
from chaos.sim.links import CLIENTS
from chaos.sim.machine import Machine
from chaos.sim.network import Network
from chaos.sim.rolling import rolling_bounce
from chaos.sim.targets import Targets
from reference_broker.metadata.node_names import claimed_node
from reference_broker.ports.now import Now
from reports.rows import FaultRow
from reports.strikes import ANSWERED
from scenarios.model import Fault, Scenario
from scenarios.vocabulary import DAMAGES, NODE_REQUESTS, SIM_AT_PERCENT

NOBODY_YET_US = 50_000
"""If no node has the role now, the fault looks for one again after this time."""
DAMAGE_LASTS_US = 2_000_000
"""A damaged length leaves a node waiting for the rest of a frame, until the request of the other node times out."""
REPLAY_TROUBLES_US = 2_000_000
"""For this long a replayed request may keep a leader from its office, or a broker from being unfenced: until the next
election, and the next heartbeat."""
ENDS_NODES = ("node_killed", "node_powered_off", "node_terminated", "disk_bit_flipped", "files_missing")
SHOWN_AT_END = ("disk_bit_flipped", "files_missing")
"""These have struck only if there was something to damage or delete, which shows when the node has stopped."""
FAILS_DISK = ("disk_write_failed", "disk_error")
"""Soon after a fault of these kinds a node may end itself."""


class Nemesis:
    """Does the timed faults.

    ``sink`` gets each row of evidence. ``coverage`` counts strikes by (kind, role, state) of what was struck.
    ``reconfigure`` sets the settings with which a node is started from now on. ``clients`` makes the client that plays
    a behaviour; the world sets it. Forged requests lie about ``cluster_id``.
    """

    clients: Callable[[Behaviour], Client]

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        agenda: Agenda,
        network: Network,
        trouble: Trouble,
        sink: Callable[[FaultRow], None],
        reconfigure: Callable[[int, tuple[tuple[str, str], ...]], None],
        cluster_id: str = "",
    ) -> None:
        self._reconfigure = reconfigure
        self.faults: list[FaultRow] = []
        self.coverage: dict[Point, int] = {}
        self.targets = Targets(network.machines, scenario.cluster.nodes, topic_of_roles(scenario))
        self._by_name = {fault.name: fault for fault in scenario.faults}
        self._timed = [fault for fault in scenario.faults if fault.timed]
        self._randoms = {fault.name: random_for(seed, f"fault-{fault.name}") for fault in self._timed}
        self._agenda = agenda
        self._network = network
        self._cluster_id = cluster_id
        self._voters = tuple(range(scenario.cluster.nodes))
        if any(fault.kind in NODE_REQUESTS for fault in self._timed):
            network.recorded = Recorded()
        self._trouble = trouble
        self._sink = sink
        self._heals: list[Callable[[], None]] = []
        self._until_us = -1

    def restart_after_us(self, name: str) -> int:
        """Returns how long a node stays away after this fault has ended it, -1 for ever."""
        after_s = self._by_name[name].restart_after_s
        return -1 if after_s < 0 else int(after_s * 1_000_000)

    def clipped_us(self, lasts_us: int) -> int:
        """Returns how long a fault that begins now really lasts, if it is to last so long: no fault outlasts the
        heal."""
        return min(lasts_us, self._until_us - self._agenda.now_us) if self._until_us >= 0 else lasts_us

    def lasts_us(self, row: FaultRow) -> int:
        """Returns how long the strike of a rule lasts, as its evidence says."""
        if row.kind == "node_paused":
            return self.clipped_us(int(self._by_name[row.name].duration_s * 1_000_000))
        return max(self.restart_after_us(row.name), 0)

    def plan(self, from_us: int, until_us: int) -> None:
        """Plans the faults when the load begins. No fault begins at ``until_us`` or later."""
        self._until_us = until_us
        for fault in self._timed:
            at_us = int(fault.sim_at_s * 1_000_000) * self._randoms[fault.name].randint(*SIM_AT_PERCENT) // 100
            for hit in range(fault.repeat):
                begin_us = from_us + at_us + hit * int(fault.sim_repeat_every_s * 1_000_000)
                self._agenda.at(begin_us, self._begin, fault, hit + 1)

    def heal(self) -> None:
        """Ends the faults that still last."""
        self._until_us = -1
        heals, self._heals = self._heals, []
        for heal in heals:
            heal()

    def report(self, row: FaultRow) -> None:
        """Takes evidence from an interceptor or a preset, before the fault happens."""
        fault = self._by_name.get(row.name)
        if fault is not None and row.target.startswith("node-"):
            node_id = int(row.target[5:])
            lasts_us = max(fault.delay_ms.high * 1000, row.until_us - row.at_us)
            if row.kind != "node_paused":
                lasts_us = max(lasts_us, int(fault.sim_duration_s * 1_000_000))
            if row.kind == fault.kind:
                self._trouble.node(node_id, row.at_us + lasts_us)
                sender = row.client_id.removeprefix("node-")
                if row.kind in DAMAGES and sender.isdigit():
                    self._trouble.link(int(sender), node_id, row.at_us + DAMAGE_LASTS_US)
                self._cover(fault.kind, node_id)
            if row.kind in FAILS_DISK:
                self._network.machines[node_id].disk_failed(fault.delay_ms.high * 1000)
        self._keep(row)

    def _keep(self, row: FaultRow) -> None:
        self.faults.append(row)
        self._sink(row)

    def _begin(self, fault: Fault, hit: int) -> None:
        now_us = self._agenda.now_us
        if now_us >= self._until_us:
            return
        if fault.alone and not self._all_serve():
            self._agenda.after(NOBODY_YET_US, self._begin, fault, hit)
            return
        if fault.kind in _BY_ITSELF:
            _BY_ITSELF[fault.kind](self, fault, hit)
            return
        found = self._struck(fault)
        if found is None:
            self._agenda.after(NOBODY_YET_US, self._begin, fault, hit)
            return
        struck, target = found
        ends = fault.kind in ENDS_NODES
        lasts_us = int(max(fault.restart_after_s if ends else fault.sim_duration_s, 0.0) * 1_000_000)
        until_us = min(now_us + lasts_us, self._until_us)
        role = self.targets.role(struck.machine.node_id)
        detail = " ".join(each for each in (fault.direction if struck.links else "", role) if each)
        row = FaultRow(fault.name, fault.kind, now_us, until_us, target, hit, detail=detail)
        strikes = partial(self._strikes, row, self._point(fault.kind, struck.machine.node_id))
        if fault.kind in SHOWN_AT_END:
            struck = replace(struck, shown=strikes)
        else:
            strikes()
        self._troubles(fault, struck, until_us)
        heal = link_faults.begin(fault, struck, until_us - now_us)
        self._heals.append(heal)
        self._agenda.after(lasts_us, self._heal_one, heal)

    def _all_serve(self) -> bool:
        """Returns whether all nodes serve and have had time to start (``Trouble.back``)."""
        machines, now_us = self._network.machines, self._agenda.now_us
        return all(each.ready and not self._trouble.node_since(each.node_id, now_us) for each in machines)

    def _struck(self, fault: Fault) -> tuple[link_faults.Place, str] | None:
        """Returns what the fault strikes and what the evidence calls it, or None if that is not there now."""
        random, machines, links = self._randoms[fault.name], self._network.machines, self._network.links
        if fault.link is not None:
            pairs = self.targets.links(fault.link, random)
            if pairs is None:
                return None
            found = [links.between(*pair) for pair in pairs]
            place = link_faults.Place(machines[_end_of(pairs)], found, self._network, self._trouble)
            return place, f"link {', '.join(link.name for link in found)}"
        node_id = self.targets.node(fault.node, random)
        if node_id is None:
            return None
        around = self._around(fault, node_id)
        if around is None:
            return None
        found = [links.between(*pair) for pair in around]
        return link_faults.Place(machines[node_id], found, self._network, self._trouble), f"node-{node_id}"

    def _around(self, fault: Fault, node_id: int) -> list[tuple[int, int]] | None:
        """Returns the links that a fault of a node cuts. Returns None if there is no active controller now, or if the
        node is the controller itself."""
        if fault.kind == "node_cut_from_controller":
            controller = self.targets.node("leader", self._randoms[fault.name])
            return None if controller in (None, node_id) else [(node_id, controller), (controller, node_id)]
        return self.targets.around(node_id, fault.clients) if fault.kind == "node_isolated" else []

    # Faults that go on in several steps

    def _bounce(self, fault: Fault, hit: int) -> None:  # noqa: ARG002
        machines = self._network.machines
        self._go_on(rolling_bounce(fault, machines, self._reconfigure, self._bounced, lambda: self._until_us < 0))

    def _go_on(self, steps: Iterator[int]) -> None:
        wait_us = next(steps, None)
        if wait_us is not None:
            self._agenda.after(wait_us, self._go_on, steps)

    def _bounced(self, fault: Fault, machine: Machine, number: int) -> None:
        now_us, down_us = self._agenda.now_us, int(fault.restart_after_s * 1_000_000)
        self._cover(fault.kind, machine.node_id)
        self._trouble.node(machine.node_id, now_us + down_us)
        role, target = self.targets.role(machine.node_id), f"node-{machine.node_id}"
        self._keep(FaultRow(fault.name, fault.kind, now_us, now_us + down_us, target, number, detail=role))

    def _finalize(self, fault: Fault, hit: int) -> None:
        def granted(now: Now, node_id: int) -> None:
            at_us, told = now.mono_us, f"{fault.feature}={fault.level}"
            self._keep(FaultRow(fault.name, fault.kind, at_us, at_us, f"node-{node_id}", hit, detail=told))

        addresses = [self._network.address(machine.node_id) for machine in self._network.machines]
        client = self.clients(FeatureSwitch(fault.name, addresses, fault.feature, fault.level, granted))
        self._heals.append(client.stop)
        client.start()

    def _intrude(self, fault: Fault, hit: int) -> None:
        """Sends a node requests in the name of others. Replayed ones are true, so they may trouble whom they name;
        forged ones must move nothing."""
        random = self._randoms[fault.name]
        node_id = self.targets.node(fault.node, random)
        requests = [] if node_id is None else self._requests(fault, node_id, random)
        if node_id is None or not requests:
            self._agenda.after(NOBODY_YET_US, self._begin, fault, hit)
            return
        now_us, target, has_arrived = self._agenda.now_us, f"node-{node_id}", list[bool]()

        def arrived() -> None:
            has_arrived.append(True)
            self._cover(fault.kind, node_id)
            told = "; ".join(each.told for each in requests)
            self._keep(FaultRow(fault.name, fault.kind, now_us, self._agenda.now_us, target, hit, detail=told))
            if fault.kind == "requests_replayed":
                for each in {node_id, *(claimed_node(asked.client_id) for asked in requests)}:
                    self._trouble.node(each or 0, self._agenda.now_us + REPLAY_TROUBLES_US)

        def over(answers: int) -> None:
            if not has_arrived:  # The node did not get the requests.
                self._agenda.after(NOBODY_YET_US, self._begin, fault, hit)
                return
            now_us, told = self._agenda.now_us, f"{answers} of {len(requests)} answered"
            self._keep(FaultRow(fault.name, fault.kind + ANSWERED, now_us, now_us, target, hit, detail=told))

        Intruder(self._network, node_id, requests, arrived, over)

    def _requests(self, fault: Fault, node_id: int, random: Random) -> list[NodeRequest]:
        assert self._network.recorded is not None
        if fault.kind == "requests_replayed":
            return self._network.recorded.replays(node_id, random)
        return Forger(self._network.recorded, self._cluster_id, self._voters, node_id, random).requests()

    def _troubles(self, fault: Fault, struck: link_faults.Place, until_us: int) -> None:
        for link in struck.links:
            self._trouble.link(link.source, link.target, until_us)
        if not struck.links:
            for_ever = fault.kind in ENDS_NODES and fault.restart_after_s < 0
            self._trouble.node(struck.machine.node_id, FOR_EVER_US if for_ever else until_us)

    def _strikes(self, row: FaultRow, point: Point) -> None:
        self.coverage[point] = self.coverage.get(point, 0) + 1
        self._keep(row)

    def _cover(self, kind: str, node_id: int) -> None:
        point = self._point(kind, node_id)
        self.coverage[point] = self.coverage.get(point, 0) + 1

    def _point(self, kind: str, node_id: int) -> Point:
        return kind, self.targets.role(node_id), state_of(self._network.machines[node_id])

    def _heal_one(self, heal: Callable[[], None]) -> None:
        if heal in self._heals:
            self._heals.remove(heal)
            heal()


_BY_ITSELF: dict[str, Callable[[Nemesis, Fault, int], None]] = {
    "requests_replayed": Nemesis._intrude,
    "requests_forged": Nemesis._intrude,
    "rolling_bounce": Nemesis._bounce,
    "feature_finalized": Nemesis._finalize,
}
"""Faults that go on in several steps and end by themselves. Each step leaves its evidence when it happens."""


def _end_of(pairs: Sequence[tuple[int, int]]) -> int:
    """Returns the node that stands for struck links: their common end if there are several, else the dialled node."""
    source, target = pairs[0]
    several = len(pairs) > 1 and all(pair[0] == source for pair in pairs)
    return source if several and source != CLIENTS else target
