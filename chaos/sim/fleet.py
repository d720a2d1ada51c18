"""Clients of the fleet in virtual time: the behaviours of the live fleet, made from a scenario and driven over virtual
connections."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.behaviours.protocol import (
    Address,
    Behaviour,
    Connect,
    Connected,
    ConnectFailed,
    Disconnect,
    Disconnected,
    Finished,
    FleetEvent,
    Record,
    Request,
    ResponseReceived,
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)
from bench.fleet.plans import idle_writer_plan
from bench.fleet.spec import FleetSpec, settings_of
from chaos.seeds import number_for, random_for
from chaos.sim.agenda import Agenda
from chaos.sim.links import Connection
from reference_broker.ports.node_ports import Now
from reports.rows import HistoryRow
from scenarios.model import Scenario

if TYPE_CHECKING:
    from chaos.sim.network import Network


DRAIN_MS = 8_000
FINAL_READ_MS = 8_000
FINAL_READ_OF_CLUSTER_MS = 25_000


def sim_fleet_spec(scenario: Scenario, seed: int, bootstrap: Sequence[Address], target: Sequence[Address]) -> FleetSpec:
    """Return the scenario's load at its simulated size. ``target`` is the cluster that its mirror copies to."""
    return FleetSpec(
        bootstrap=_where(bootstrap),
        load=scenario.load.in_simulator,
        target=_where(target),
        seed=number_for(seed, "fleet"),
        drain_ms=DRAIN_MS,
        final_read_ms=FINAL_READ_MS if scenario.cluster.total == 1 else FINAL_READ_OF_CLUSTER_MS,
    )


def _where(addresses: Sequence[Address]) -> list[str]:
    return [f"{host}:{port}" for host, port in addresses]


def idle_writer(spec: FleetSpec, seed: int) -> KeyedProducer | None:
    """Return a writer that appends once to each idle partition while the load runs; None if that is done before the
    load."""
    plan = idle_writer_plan(spec)
    return None if plan is None else KeyedProducer(plan, settings_of(spec), random_for(seed, plan.process))


Recorded = Callable[[Iterable[HistoryRow]], None]


class SimClient:
    """One logical client, with a connection for each of its behaviour's channels."""

    def __init__(self, behaviour: Behaviour, agenda: Agenda, network: "Network", recorded: Recorded) -> None:
        self.behaviour = behaviour
        self.finished = False
        self._agenda = agenda
        self._network = network
        self._recorded = recorded
        self._channels: dict[int, Channel] = {}

    @property
    def name(self) -> str:
        return self.behaviour.process

    @property
    def now(self) -> Now:
        return Now(self._agenda.now_us, self._agenda.wall_ms)

    def start(self) -> None:
        self.step(Started())

    def stop(self) -> None:
        """Called when the load is over."""
        if not self.finished:
            self.step(Stopping())

    def step(self, event: FleetEvent) -> None:
        if self.finished:
            return
        for action in self.behaviour.step(self.now, event):
            match action:
                case Request():
                    self._channel(action.channel).request(action)
                case Record():
                    self._recorded(action.rows)
                case Wake():
                    self._channel(action.channel).wake(action.at_us)
                case Connect():
                    self._channel(action.channel).connect(action.address, action.timeout_us)
                case Disconnect():
                    self._channel(action.channel).disconnect()
                case Finished():
                    self.finished = True
                    for channel in self._channels.values():
                        channel.disconnect()

    def _channel(self, number: int) -> "Channel":
        channel = self._channels.get(number)
        if channel is None:
            channel = self._channels[number] = Channel(self, number, self._agenda, self._network)
        return channel


class Channel:
    """Implements chaos.sim.links.Caller, with one connection at a time.

    ``_waiting`` is the number of the open operation. An event that was scheduled to end an earlier operation is
    ignored. ``_last_requested`` is the number of the operation that sent the last request.
    """

    def __init__(self, client: SimClient, number: int, agenda: Agenda, network: "Network") -> None:
        self.connection: Connection | None = None
        self._client = client
        self._number = number
        self._agenda = agenda
        self._network = network
        self._waiting = 0
        self._wake = 0
        self._correlation = 0
        self._last_requested = -1

    @property
    def name(self) -> str:
        return self._client.name

    def wake(self, at_us: int) -> None:
        self._wake += 1
        self._agenda.at(at_us, self._woken, self._wake)

    def _woken(self, wake: int) -> None:
        if wake == self._wake:
            self._client.step(Woken(self._number))

    def _ends_after(self, delay_us: int, event: FleetEvent) -> None:
        """End the operation with this event, unless it has ended by then."""
        self._agenda.after(delay_us, self._ends_late, self._waiting, event)

    def _ends_late(self, waiting: int, event: FleetEvent) -> None:
        if waiting == self._waiting:
            self._end(event)

    def _end(self, event: FleetEvent) -> None:
        self._waiting += 1
        if isinstance(event, ConnectFailed):
            self._drop()
        self._client.step(event)

    # Connecting

    def connect(self, address: Address, timeout_us: int) -> None:
        self.disconnect()
        self._waiting += 1
        self.connection = self._network.connect(self, address)
        if self.connection is None:
            self._ends_after(1, ConnectFailed("unreachable", self._number))
        else:
            self._ends_after(timeout_us, ConnectFailed("timeout", self._number))

    def accepted(self, connection: Connection) -> None:
        """Called when the node took the connection."""
        if connection is self.connection:
            self._end(Connected(self._number))

    def refused(self, connection: Connection) -> None:
        if connection is self.connection:
            self._end(ConnectFailed("refused", self._number))

    def disconnect(self) -> None:
        """Disconnects, whatever is in flight."""
        if self.connection is not None:
            self._waiting += 1
            self._drop()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and connection.client_open:
            connection.client_open = False
            self._network.client_closed(connection)

    def lost(self, connection: Connection, reason: str) -> None:
        """Called when the node or the network closed the connection."""
        connection.client_open = False
        if connection is self.connection:
            self.connection = None
            self._end(Disconnected(reason, self._number))

    # Requests

    def request(self, action: Request) -> None:
        self._waiting += 1
        if self.connection is None:
            self._ends_after(1, Disconnected("not connected", self._number))
            return
        self._correlation += 1
        self._last_requested = self._waiting
        self._network.request(self.connection, action, self._correlation)
        self._ends_after(action.timeout_us, TimedOut(self._number))

    def responded(self, connection: Connection, correlation: int, body: object) -> None:
        if connection is self.connection and correlation == self._correlation and self._last_requested == self._waiting:
            self._end(ResponseReceived(body, channel=self._number))
