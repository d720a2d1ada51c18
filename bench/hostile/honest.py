"""The honest clients among hostile peers, and the processor time that they and the nodes had.

``Honest`` writes numbered values, records which were acknowledged and how long each took, and reads them all back at
the end. ``Newcomers`` come one after the other: each connects, requests the versions, gets its response and leaves.

A wait counts only without the time in which a thread was ready to run and had no processor, as Linux reports it. That
distinguishes a slow node from a busy machine.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.hostile.lives import TOPIC
from bench.peers.clients import FETCH_VERSION, RetryingClient, connect
from bench.peers.node import PeerError, responds
from reference_broker.records.record import Record, build, read_all
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchResponse, FetchTopic

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Used:
    """Processor time of an event loop."""

    worked_s: float = 0.0  # it ran
    starved_s: float = 0.0  # it could have run, and others had the processors

    def __sub__(self, other: "Used") -> "Used":
        return Used(self.worked_s - other.worked_s, self.starved_s - other.starved_s)


def used_by(pid: int, thread_id: int) -> Used:
    """Since the thread's start. Nothing if it is gone, or if the system does not report it."""
    with suppress(OSError, ValueError):
        worked_ns, starved_ns, _ = Path(f"/proc/{pid}/task/{thread_id}/schedstat").read_text().split()
        return Used(int(worked_ns) / NS_PER_S, int(starved_ns) / NS_PER_S)
    return Used()


def used_by_this_thread() -> Used:
    return used_by(os.getpid(), threading.get_native_id())


def used_by_event_loops(pids: Iterable[int]) -> dict[int, Used]:
    """Return the processor time of event loops by process. A node's event loop runs in the first thread."""
    return {pid: used_by(pid, pid) for pid in pids}


@dataclass(slots=True)
class Since:
    """Processor time of the nodes and of this thread since the object was made."""

    nodes: Callable[[], Mapping[int, Used]]
    _nodes_before: Mapping[int, Used] = field(init=False)
    _own_before: Used = field(init=False)

    def __post_init__(self) -> None:
        self._nodes_before, self._own_before = self.nodes(), used_by_this_thread()

    def used(self) -> Used:
        """The sum, except that only the two nodes count as starved that were it longest: a write waits for its leader,
        and then for all followers at once."""
        after = self.nodes()
        each = [after[pid] - before for pid, before in self._nodes_before.items() if pid in after]
        starved_s = sum(sorted(used.starved_s for used in each)[-2:])
        own = used_by_this_thread() - self._own_before
        return Used(sum(used.worked_s for used in each), starved_s + own.starved_s)


VALUE_BYTES = 1000
WRITE_LIMIT_S = 60.0
TRY_S = 5.0
BETWEEN_S = 0.005
FETCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Wait:
    """One write, from its request to its acknowledgement."""

    began_s: float  # on ``time.monotonic``
    took_s: float
    starved_s: float = 0.0
    """Time for which the nodes' event loops and this client were ready to run while other processes had the processors
    (``processor.Since``)."""
    worked_s: float = 0.0  # processor time that all loops spent meanwhile, on this write and on what they did before it

    @property
    def on_nodes_s(self) -> float:
        """The wait on a machine whose processors are free when a node or the client wants one."""
        return max(self.took_s - self.starved_s, 0.0)


def inside(waits: Iterable[Wait], since_s: float, until_s: float) -> list[Wait]:
    """The waits that began and ended between two times of ``time.monotonic``."""
    return [wait for wait in list(waits) if since_s <= wait.began_s and wait.began_s + wait.took_s <= until_s]


def _unmeasured() -> Mapping[int, Used]:
    return {}


@dataclass(slots=True)
class Honest:
    """A thread that writes to partition 0 of the topic with acks=all until ``stop``."""

    ports: Sequence[int]  # of all nodes
    used: Callable[[], Mapping[int, Used]] = _unmeasured
    """Returns what the event loops of all nodes have used of the processors."""
    acknowledged: list[int] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    failure: str = ""
    _stops: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write_on, name="honest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        if self._thread is not None:
            self._thread.join(WRITE_LIMIT_S + TRY_S)

    def longest_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> float:
        return max((wait.took_s for wait in inside(self.waits, since_s, until_s)), default=0.0)

    def missing(self) -> list[int]:
        """Return the acknowledged numbers that the topic does not hold. Raise PeerError."""
        held = dict.fromkeys(read_back(self.ports))
        return [number for number in self.acknowledged if number not in held]

    def _write_on(self) -> None:
        with RetryingClient(self.ports, TRY_S) as client:
            number = 0
            while not self._stops.is_set():
                since, began_s = Since(self.used), time.monotonic()
                try:
                    client.acknowledged(TOPIC, 0, numbered(number), WRITE_LIMIT_S)
                except PeerError as refusal:
                    self.failure = str(refusal)
                    return
                took_s, used = time.monotonic() - began_s, since.used()
                self.waits.append(Wait(began_s, took_s, used.starved_s, used.worked_s))
                self.acknowledged.append(number)
                number += 1
                time.sleep(BETWEEN_S)


def numbered(number: int, size_bytes: int = VALUE_BYTES) -> bytes:
    """One batch with one value, which begins with the number."""
    return build([Record(offset=0, timestamp_ms=0, value=b"%d " % number + bytes(size_bytes))])


def read_back(ports: Sequence[int]) -> list[int]:
    """The numbers of all values that the leader of the partition serves. Raise PeerError."""
    with RetryingClient(ports) as client:
        led = client.led(TOPIC, 0, WRITE_LIMIT_S)
    numbers: list[int] = []
    offset = 0
    with connect(ports[led.leader]) as connection:
        while True:
            wanted = FetchTopic(TOPIC, NO_TOPIC_ID, [FetchPartition(0, offset, FETCH_BYTES)])
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, topics=[wanted])
            response = connection.call(ApiKey.FETCH, FETCH_VERSION, request)
            assert isinstance(response, FetchResponse)
            partition = response.responses[0].partitions[0]
            if partition.error_code:
                raise PeerError(f"reading back was refused with error {partition.error_code}")
            if not partition.records:
                return numbers
            records = [record for _, record in read_all(partition.records)]
            numbers += [int((record.value or b"-1 ").split(b" ", 1)[0]) for record in records]
            offset = records[-1].offset + 1


NEWCOMER_TRY_S = 10.0
NEWCOMER_BETWEEN_S = 0.05


@dataclass(slots=True)
class Newcomers:
    """Clients that connect one after the other."""

    ports: Sequence[int]
    used: Callable[[], Mapping[int, Used]]  # returns what the event loops of all nodes have used of the processors
    waits: list[Wait] = field(default_factory=list)
    """The time of each, from its connect to its response, except while the node was down."""
    _stops: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._come, name="newcomers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        if self._thread is not None:
            self._thread.join(2 * NEWCOMER_TRY_S)

    def _come(self) -> None:
        number = 0
        while not self._stops.wait(NEWCOMER_BETWEEN_S):
            since, began_s = Since(self.used), time.monotonic()
            if not responds(self.ports[number % len(self.ports)], NEWCOMER_TRY_S):
                continue
            took_s, used = time.monotonic() - began_s, since.used()
            self.waits.append(Wait(began_s, took_s, used.starved_s, used.worked_s))
            number += 1
