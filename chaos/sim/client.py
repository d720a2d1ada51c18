"""Drives one fleet behaviour over virtual connections; the simulator's counterpart of a Locust user."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bench.fleet.behaviours.protocol import (
    Address,
    Answered,
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
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)
from chaos.sim.agenda import Agenda
from chaos.sim.links import Connection
from reference_broker.ports.now import Now
from reports.rows import HistoryRow

if TYPE_CHECKING:
    from chaos.sim.network import Network

Recorded = Callable[["Client", Iterable[HistoryRow]], None]


class Client:
    """One logical client, with a connection for each of its behaviour's lanes."""

    def __init__(
        self, behaviour: Behaviour, agenda: Agenda, network: "Network", start_wall_ms: int, recorded: Recorded
    ) -> None:
        self.behaviour = behaviour
        self.finished = False
        self._agenda = agenda
        self._network = network
        self._start_wall_ms = start_wall_ms
        self._recorded = recorded
        self._lanes: dict[int, Lane] = {}

    @property
    def name(self) -> str:
        return self.behaviour.process

    @property
    def now(self) -> Now:
        return Now(self._agenda.now_us, self._start_wall_ms + self._agenda.now_us // 1000)

    def start(self) -> None:
        self.step(Started())

    def stop(self) -> None:
        """Called when the load is over."""
        if not self.finished:
            self.step(Stopping())

    def close(self) -> None:
        """Ends hard: operations that are open become unknown."""
        if not self.finished:
            self.finished = True
            self._recorded(self, self.behaviour.close(self.now))

    def step(self, event: FleetEvent) -> None:
        if self.finished:
            return
        for action in self.behaviour.step(self.now, event):
            match action:
                case Request():
                    self._lane(action.lane).request(action)
                case Record():
                    self._recorded(self, action.rows)
                case Wake():
                    self._lane(action.lane).wake(action.at_us)
                case Connect():
                    self._lane(action.lane).connect(action.address, action.timeout_us)
                case Disconnect():
                    self._lane(action.lane).disconnect()
                case Finished():
                    self.finished = True
                    for lane in self._lanes.values():
                        lane.disconnect()

    def _lane(self, number: int) -> "Lane":
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(self, number, self._agenda, self._network)
        return lane


class Lane:
    """Implements chaos.sim.links.Caller, with one connection at a time.

    ``waiting`` is the number of the operation that it waits for. An end with another number comes too late.
    """

    def __init__(self, client: Client, number: int, agenda: Agenda, network: "Network") -> None:
        self.connection: Connection | None = None
        self._client = client
        self._number = number
        self._agenda = agenda
        self._network = network
        self._waiting = 0
        self._wake = 0
        self._correlation = 0
        self._expected = -1

    @property
    def name(self) -> str:
        return self._client.name

    def wake(self, at_us: int) -> None:
        self._wake += 1
        self._agenda.at(at_us, self._woken, self._wake)

    def _woken(self, wake: int) -> None:
        if wake == self._wake:
            self._client.step(Woken(self._number))

    # Connecting

    def connect(self, address: Address, timeout_us: int) -> None:
        self.disconnect()
        self._waiting += 1
        self.connection = self._network.connect(self, address)
        if self.connection is None:
            self._agenda.after(1, self._connect_failed, self._waiting, "unreachable")
        else:
            self._agenda.after(timeout_us, self._connect_failed, self._waiting, "timeout")

    def _connect_failed(self, waiting: int, reason: str) -> None:
        if waiting == self._waiting:
            self._waiting += 1
            self._drop()
            self._client.step(ConnectFailed(reason, self._number))

    def accepted(self, connection: Connection) -> None:
        """Called when the node took the connection."""
        if connection is self.connection:
            self._waiting += 1
            self._client.step(Connected(self._number))

    def refused(self, connection: Connection) -> None:
        if connection is self.connection:
            self._connect_failed(self._waiting, "refused")

    def disconnect(self) -> None:
        """Disconnects, whatever is in flight."""
        connection = self.connection
        if connection is not None:
            self._waiting += 1
            self._drop()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        self._expected = -1
        if connection is not None and connection.client_open:
            connection.client_open = False
            self._network.client_closed(connection)

    def lost(self, connection: Connection, reason: str) -> None:
        """Called when the node or the network closed the connection."""
        connection.client_open = False
        if connection is self.connection:
            self.connection = None
            self._expected = -1
            self._waiting += 1
            self._client.step(Disconnected(reason, self._number))

    # Requests

    def request(self, action: Request) -> None:
        connection = self.connection
        self._waiting += 1
        if connection is None:
            self._agenda.after(1, self._no_connection, self._waiting)
            return
        self._correlation += 1
        self._expected = self._correlation
        self._network.request(connection, action, self._correlation)
        self._agenda.after(action.timeout_us, self._timed_out, self._waiting)

    def _no_connection(self, waiting: int) -> None:
        if waiting == self._waiting:
            self._waiting += 1
            self._client.step(Disconnected("not connected", self._number))

    def answered(self, connection: Connection, correlation: int, body: object) -> None:
        if connection is self.connection and correlation == self._expected:
            self._expected = -1
            self._waiting += 1
            self._client.step(Answered(body, lane=self._number))

    def _timed_out(self, waiting: int) -> None:
        if waiting == self._waiting:
            self._expected = -1
            self._waiting += 1
            self._client.step(TimedOut(self._number))
