"""The common ground of the behaviours: a script that reads like a blocking client and runs as a state machine.

A script is a generator that yields whenever it waits; ``step`` feeds it the event that it waits for. Nothing here
reads a clock or draws a random number that was not given.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias, TypeVar

from bench.fleet.behaviours.protocol import (
    Address,
    Answered,
    ClientSettings,
    Connect,
    Connected,
    ConnectFailed,
    Disconnect,
    Disconnected,
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Now,
    Record,
    Request,
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)
from bench.fleet.rows import OperationRow

T = TypeVar("T")
Steps: TypeAlias = Generator[None, FleetEvent, T]

_AWAITED: Final[dict[str, tuple[type, ...]]] = {
    "connect": (Connected, ConnectFailed),
    "call": (Answered, TimedOut, Disconnected),
    "sleep": (Woken,),
    "": (),
}


@dataclass(slots=True)
class Operation:
    """An operation whose end is not known yet. ``invoke_us`` -1: not sent yet."""

    index: int
    f: str
    intended_us: int
    invoke_us: int
    node: int = -1
    session_id: int = 0
    session_epoch: int = -1
    partitions_sent: int = 0


class Script(ABC):
    """One logical client: see ``protocol`` for what it owes its driver."""

    def __init__(self, process: str, settings: ClientSettings, random: Random) -> None:
        self.process = process
        self.settings = settings
        self.random = random
        self.now = Now(0, 0)
        self.stopping_at_us: int | None = None
        self.connected_to: Address | None = None
        self._waits = ""
        self._wake_at_us = 0
        self._out: list[FleetAction] = []
        self._open: dict[int, Operation] = {}
        self._operations = 0
        self._failures = 0
        self._steps: Steps[None] | None = None
        self._finished = False

    @abstractmethod
    def run(self) -> Steps[None]:
        """The script; its end is the behaviour's end."""

    def still_open(self) -> list[HistoryRow]:
        """At the end, also the hard one: rows of what has lasted until now (assignments)."""
        return []

    # -- what a driver calls ------------------------------------------------------------------------------------

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        self.now = now
        if isinstance(event, Started):
            assert self._steps is None, f"{self.process} was started twice"
            self._steps = self.run()
            return self._resume(None)
        if self._finished:
            return []
        if isinstance(event, Stopping):
            self.stopping_at_us = now.mono_us
            if self._waits != "sleep":
                return []
            event = Woken()
        elif isinstance(event, Woken) and now.mono_us < self._wake_at_us:
            return []
        elif isinstance(event, Disconnected):
            self.connected_to = None
        if not isinstance(event, _AWAITED[self._waits]):
            return []
        return self._resume(event)

    def close(self, now: Now) -> list[HistoryRow]:
        self.now = now
        self._finished = True
        rows: list[HistoryRow] = [self._row(each, "info", "unfinished") for each in self._open.values()]
        self._open.clear()
        return rows + self.still_open()

    def _resume(self, event: FleetEvent | None) -> list[FleetAction]:
        assert self._steps is not None, f"{self.process} was not started"
        self._waits = ""
        try:
            if event is None:
                next(self._steps)
            else:
                self._steps.send(event)
        except StopIteration:
            self._finished = True
            self.record(*self.still_open())
            self._out.append(Finished())
        out, self._out = self._out, []
        return out

    # -- what scripts are made of -------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.stopping_at_us is not None

    @property
    def out_of_time(self) -> bool:
        """The time allowed after Stopping is over."""
        return self.stopping_at_us is not None and self.now.mono_us - self.stopping_at_us >= self.settings.drain_us

    def sleep_until(self, at_us: int) -> Steps[None]:
        """Ends earlier when Stopping comes."""
        self._wake_at_us = at_us
        self._waits = "sleep"
        self._out.append(Wake(at_us))
        yield

    def back_off(self) -> Steps[None]:
        """Wait after a failure, longer each time until ``succeeded`` is called."""
        base = min(self.settings.backoff_us << min(self._failures, 20), self.settings.max_backoff_us)
        self._failures += 1
        yield from self.sleep_until(self.now.mono_us + base + self.random.randrange(base // 5 + 1))

    def succeeded(self) -> None:
        self._failures = 0

    def connect(self, address: Address, node: int = -1) -> Steps[bool]:
        """Ends with the connection to ``address`` standing (True) or none at all."""
        self.disconnect()
        operation = self.begin("connect", self.now.mono_us)
        operation.node = node
        self._waits = "connect"
        self._out.append(Connect(self.settings.dial.get(address, address), self.settings.connect_timeout_us))
        event = yield
        if isinstance(event, ConnectFailed):
            self.end(operation, "fail", event.reason)
            return False
        self.connected_to = address
        self.end(operation, "ok")
        return True

    def disconnect(self) -> None:
        if self.connected_to is not None:
            self.connected_to = None
            self._out.append(Disconnect())

    def call(self, api_key: int, api_version: int, body: object, waits_us: int = 0) -> Steps[Answered | str]:
        """One request; the answer, or why there is none (then there is no connection any more either).

        ``waits_us``: how long the broker was told that it may wait.
        """
        self._waits = "call"
        timeout_us = waits_us + self.settings.request_timeout_us
        self._out.append(Request(api_key, api_version, self.process, body, timeout_us))
        event = yield
        if isinstance(event, Answered):
            return event
        if isinstance(event, TimedOut):
            self.disconnect()
            return "timeout"
        self.connected_to = None
        return "disconnected"

    # -- history ------------------------------------------------------------------------------------------------

    def begin(self, f: str, intended_us: int, *, sent: bool = True) -> Operation:
        operation = Operation(self._operations, f, intended_us, self.now.mono_us if sent else -1)
        self._operations += 1
        self._open[operation.index] = operation
        return operation

    def end(
        self,
        operation: Operation,
        kind: str,
        error: str | None = None,
        answer: Answered | None = None,
        answered_session_id: int = -1,
        partitions_answered: int = -1,
        rows: tuple[HistoryRow, ...] = (),
    ) -> None:
        """``kind``: ok, fail or info. ``rows``: those that belong to it."""
        del self._open[operation.index]
        row = self._row(operation, kind, error, answer, answered_session_id, partitions_answered)
        self._out.append(Record((row, *rows)))

    def record(self, *rows: HistoryRow) -> None:
        if rows:
            self._out.append(Record(rows))

    def _row(
        self,
        operation: Operation,
        kind: str,
        error: str | None = None,
        answer: Answered | None = None,
        answered_session_id: int = -1,
        partitions_answered: int = -1,
    ) -> OperationRow:
        ended_us = self.now.mono_us
        return OperationRow(
            self.process,
            operation.index,
            operation.f,
            kind,
            operation.intended_us,
            operation.invoke_us if operation.invoke_us >= 0 else ended_us,
            ended_us,
            operation.node,
            error,
            operation.session_id,
            operation.session_epoch,
            answered_session_id,
            operation.partitions_sent,
            partitions_answered,
            answer.request_bytes if answer is not None else 0,
            answer.response_bytes if answer is not None else 0,
        )
