"""Scripts: behaviours that read like blocking clients and run as state machines.

A script is a generator that yields whenever it waits. ``step`` sends it the event that it waits for. A script may start
further generators with ``start_task``. They share its state and take turns with it, and each works on one channel at a
time. A channel has at most one connection (``protocol``).
Scripts read no clock, and they draw random numbers only from the generator that they were given.

``OpenLoop`` is the schedule of scripts that send at fixed times, such as producers and admins.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from bench.fleet.behaviours.journal import Journal, Operation
from bench.fleet.behaviours.protocol import (
    Address,
    Chance,
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
    Leaving,
    Now,
    Request,
    ResponseReceived,
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)

__all__ = ["Operation", "Script", "Steps"]

T = TypeVar("T")
Steps: TypeAlias = Generator[None, FleetEvent, T]

_AWAITED: Final[dict[str, tuple[type, ...]]] = {
    "connect": (Connected, ConnectFailed),
    "call": (ResponseReceived, TimedOut, Disconnected),
    "sleep": (Woken,),
    "": (),
}


@dataclass(slots=True)
class ScriptTask:
    """One generator of a script, with what it waits for."""

    steps: Steps[None]
    channel: int = 0
    waits: str = ""  # a key of _AWAITED; empty while it runs
    wake_at_us: int = 0  # when the sleep ends
    failures: int = 0  # in a row; sets the next backoff


class Script(ABC):
    """One logical client. ``protocol`` says which rules it keeps towards its driver."""

    def __init__(self, process: str, settings: ClientSettings, random: Chance) -> None:
        self.settings = settings
        self.random = random
        self.journal = Journal(process)
        self.stopping_at_us: int | None = None
        self.leaving = False
        self._connected: dict[int, Address] = {}
        self._tasks: list[ScriptTask] = []
        self._running_task: ScriptTask | None = None
        self._finished = False

    @abstractmethod
    def run(self) -> Steps[None]:
        """Do what the client does. The behaviour ends when all of its tasks have ended."""

    def still_open(self) -> list[HistoryRow]:
        """Return the rows of what has lasted until now, such as assignments, at any kind of end."""
        return []

    # -- what a driver calls ------------------------------------------------------------------------------------

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        self.now = now
        if isinstance(event, Started):
            assert self._running_task is None, f"{self.process} was started twice"
            self._begin(ScriptTask(self.run()))
        elif not self._finished:
            self._give(event)
        return self.journal.take_actions()

    def _give(self, event: FleetEvent) -> None:
        if isinstance(event, Stopping | Leaving):
            self.leaving = isinstance(event, Leaving)
            self.stopping_at_us = self.now.mono_us
            for task in [task for task in self._tasks if task.waits == "sleep"]:
                self._resume(task, Woken(task.channel))
            return
        channel = event.channel if not isinstance(event, Started) else 0
        if isinstance(event, Disconnected):
            self._connected.pop(channel, None)
        for task in self._tasks:
            if task.channel == channel and isinstance(event, _AWAITED[task.waits]):
                if not isinstance(event, Woken) or self.now.mono_us >= task.wake_at_us:
                    self._resume(task, event)
                return

    def close(self, now: Now) -> list[HistoryRow]:
        self.now = now
        self._finished = True
        return self.journal.end_all("unfinished") + self.still_open()

    def _begin(self, task: ScriptTask) -> None:
        self._tasks.append(task)
        self._resume(task, None)

    def _resume(self, task: ScriptTask, event: FleetEvent | None) -> None:
        before, self._running_task = self._running_task, task
        task.waits = ""
        try:
            if event is None:
                next(task.steps)
            else:
                task.steps.send(event)
        except StopIteration:
            self._tasks.remove(task)
            if not self._tasks:
                self._finished = True
                self.journal.record(*self.still_open())
                self.journal.actions.append(Finished())
        self._running_task = before or task

    # -- what scripts are made of -------------------------------------------------------------------------------

    @property
    def process(self) -> str:
        return self.journal.process

    @property
    def now(self) -> Now:
        return self.journal.now

    @now.setter
    def now(self, now: Now) -> None:
        self.journal.now = now

    @property
    def stopping(self) -> bool:
        return self.stopping_at_us is not None

    @property
    def running_task(self) -> ScriptTask:
        """The task that runs."""
        assert self._running_task is not None, f"{self.process} was not started"
        return self._running_task

    @property
    def connected_to(self) -> Address | None:
        """The address to which the running task's channel is connected."""
        return self._connected.get(self.running_task.channel)

    def connected_on(self, channel: int) -> Address | None:
        return self._connected.get(channel)

    def start_task(self, steps: Steps[None], channel: int) -> None:
        """Start another task on a channel on which no other task works."""
        self._begin(ScriptTask(steps, channel))

    @property
    def out_of_time(self) -> bool:
        """Whether the time that is allowed after Stopping is over."""
        return self.stopping_at_us is not None and self.now.mono_us - self.stopping_at_us >= self.settings.drain_us

    def sleep_until(self, at_us: int) -> Steps[None]:
        """Wait until that time, or until Stopping comes."""
        self.running_task.wake_at_us = at_us
        self.running_task.waits = "sleep"
        self.journal.actions.append(Wake(at_us, self.running_task.channel))
        yield

    def first_due_us(self, interval_us: int) -> int:
        """The time of a schedule's first step, drawn from its first interval, so that clients do not act in step."""
        return self.now.mono_us + (self.random.randrange(interval_us) if interval_us else 0)

    def wake_task(self, channel: int) -> None:
        """Wake the task on that channel now, if it sleeps."""
        for task in self._tasks:
            if task.channel == channel and task.waits == "sleep" and task.wake_at_us > self.now.mono_us:
                task.wake_at_us = self.now.mono_us
                self.journal.actions.append(Wake(self.now.mono_us, channel))

    def back_off(self) -> Steps[None]:
        """Wait after a failure, longer each time until ``succeeded`` is called."""
        failures, self.running_task.failures = self.running_task.failures, self.running_task.failures + 1
        yield from self.sleep_until(self.now.mono_us + self.wait_us(failures))

    def wait_us(self, failures: int) -> int:
        """Draw how long to wait after one more failure than these."""
        base = min(self.settings.backoff_us << min(failures, 20), self.settings.max_backoff_us)
        return base + self.random.randrange(base // 5 + 1)

    def succeeded(self) -> None:
        self.running_task.failures = 0

    def connect(self, address: Address, node: int = -1) -> Steps[bool]:
        """Connect the channel to ``address``, and return whether that worked. If not, the channel has no connection."""
        self.disconnect()
        channel = self.running_task.channel
        operation = self.journal.begin("connect")
        operation.node = node
        self.running_task.waits = "connect"
        dialled = self.settings.dial.get(address, address)
        self.journal.actions.append(Connect(dialled, self.settings.connect_timeout_us, channel))
        event = yield
        if isinstance(event, ConnectFailed):
            self.journal.end(operation, "fail", event.reason)
            return False
        self._connected[channel] = address
        self.journal.end(operation, "ok")
        return True

    def disconnect(self) -> None:
        if self._connected.pop(self.running_task.channel, None) is not None:
            self.journal.actions.append(Disconnect(self.running_task.channel))

    def call(self, api_key: int, api_version: int, body: object, waits_us: int = 0) -> Steps[ResponseReceived | str]:
        """Send one request and return the response, or the reason why none came. Then the connection is closed too.

        ``waits_us`` is how long the request allows the broker to wait. If the broker does not have the API
        (``api_version`` -1), nothing is sent.
        """
        if api_version < 0:
            return "unsupported"
        self.running_task.waits = "call"
        timeout_us = waits_us + self.settings.request_timeout_us
        self.journal.actions.append(
            Request(int(api_key), api_version, self.process, body, timeout_us, self.running_task.channel)
        )
        event = yield
        if isinstance(event, ResponseReceived):
            return event
        if isinstance(event, TimedOut):
            self.disconnect()
            return "timeout"
        return "disconnected"


MAX_UNSENT_RECORDED: Final = 100_000
"""At most this many of the slots that were overdue and never sent are recorded."""


@dataclass(slots=True)
class OpenLoop:
    """Slots that are due at intervals, whether or not earlier ones have ended."""

    script: Script
    interval_us: int  # 0: every slot is due at once
    f: str  # the operation's name in the history for a slot that was never sent
    max_slots: int = 0  # 0: only Stopping ends the loop
    slots: int = 0  # number of slots so far

    def run(self, play: Callable[[int], Steps[None]]) -> Steps[None]:
        """Play each slot when it is due, one after the other. ``play`` gets the time at which its slot was due."""
        script = self.script
        start_us = script.first_due_us(self.interval_us)
        while not script.stopping and (self.max_slots == 0 or self.slots < self.max_slots):
            due_us = start_us + self.slots * self.interval_us
            if script.now.mono_us < due_us:
                yield from script.sleep_until(due_us)
                continue
            self.slots += 1
            yield from play(due_us)
        if script.stopping_at_us is not None and self.interval_us:
            self._record_unsent(start_us, script.stopping_at_us)

    def _record_unsent(self, start_us: int, end_us: int) -> None:
        """Record slots as failed that were overdue by an interval at the end of the load and were never sent."""
        unsent = range(start_us + self.slots * self.interval_us, end_us - self.interval_us, self.interval_us)
        for due_us in unsent[:MAX_UNSENT_RECORDED]:
            self.script.journal.end(self.script.journal.begin(self.f, due_us, sent=False), "fail", "not_sent")
