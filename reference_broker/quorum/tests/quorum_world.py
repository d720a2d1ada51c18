"""Several quorums in one thread of virtual time. The invariants are checked after every event."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.records import TopicRecord, encode
from reference_broker.ports.node_ports import NodeContext, Now
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.raft_handlers import (
    handle_begin_quorum_epoch,
    handle_end_quorum_epoch,
    handle_fetch,
    handle_vote,
)
from reference_broker.quorum.tests.quorum_disk import LossyDisk
from reference_broker.quorum.tests.quorum_invariants import Invariants
from reference_broker.quorum.tests.quorum_ports import QuorumPorts, SentRequest, opened
from reference_broker.quorum.tests.quorum_snapshots import NamedSnapshots
from reference_broker.quorum.values import (
    DownloadOutcome,
    Failed,
    Installed,
    LeaderChanged,
    NotLeader,
    OffsetAndEpoch,
    Rediscover,
)
from reference_broker.wire.apis import ApiKey

SECOND_US = 1_000_000
WALL_MS = 1_700_000_000_000
MAX_EVENTS = 500_000
"""As Kafka's simulation: a run that needs more makes no progress."""

CONFIG = {
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "500",
    "controller.quorum.request.timeout.ms": "1000",
    "crucible.cluster.id": "cluster",
    "metadata.log.segment.bytes": "1024",
}


class Process(QuorumPorts):
    """One life of one node. Implements raft.ports.Ports and raft.quorum.QuorumListener."""

    def __init__(self, world: "SimulatedQuorum", node_id: int, config: BrokerConfig, disk: LossyDisk) -> None:
        super().__init__()
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.paused = False
        self.backlog: list[Callable[[], object]] = []
        self.timers: dict[int, bool] = {}
        self.snapshots = NamedSnapshots(disk)
        self.log = opened(disk, config, self.now(), self.snapshots)
        node = NodeContext(node_id, disk, self, Random(world.random.randrange(2**60)))
        self.download = TimedDownload(self, self.log)
        self.quorum = KafkaRaftClient(node, config, "cluster", self.log, self, self.download)

    @property
    def alive(self) -> bool:
        return self.world.processes.get(self.node_id) is self

    def deliver(self, event: Callable[[], object]) -> None:
        if not self.alive:
            return
        if self.paused:
            self.backlog.append(event)
        else:
            event()
            self.world.invariants.check(self)

    def after(self, delay_us: int, event: Callable[[], None]) -> None:
        self.world.after(delay_us, lambda: self.deliver(event))

    def serve(self, request: SentRequest, respond: Callable[[object], None]) -> None:
        handlers: dict[ApiKey, Callable[[KafkaRaftClient, Any, Callable[[object], None]], None]] = {
            ApiKey.VOTE: handle_vote,
            ApiKey.BEGIN_QUORUM_EPOCH: handle_begin_quorum_epoch,
            ApiKey.END_QUORUM_EPOCH: handle_end_quorum_epoch,
            ApiKey.FETCH: handle_fetch,
        }
        handlers[ApiKey(request.api_key)](self.quorum, request.body, respond)

    # raft.ports.Ports

    def now(self) -> Now:
        return Now(self.world.time_us, WALL_MS + self.world.time_us // 1000)

    def at_end(self, step: Callable[[], None]) -> None:
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        number = len(self.timers)
        self.timers[number] = True
        self.after(max(deadline_us - self.world.time_us, 0), lambda: fire() if self.timers[number] else None)
        return number

    def cancel_timer(self, timer: int) -> None:
        self.timers[timer] = False

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        sizes = self.disk.begin_sync(paths)

        def finish() -> None:
            if self.alive:
                self.disk.synced(sizes)
            self.deliver(done)

        self.world.after(self.world.random.randrange(100, 4_000), finish)

    def send_request(self, peer: int, api_version: int, request: SentRequest, timeout_ms: int) -> None:
        assert api_version == {ApiKey.VOTE: 2, ApiKey.FETCH: 18}.get(ApiKey(request.api_key), 1)
        self.world.network.send(self, peer, request, timeout_ms * 1000)

    def notify(self, what: str, *values: object) -> None:
        getattr(self.world.invariants, what)(self, *values)


class TimedDownload:
    """Each of three pieces takes a while, then the leader's response decides."""

    def __init__(self, process: Process, log: MetadataLog) -> None:
        self.process = process
        self.log = log
        self.number = 0

    def cancel(self) -> None:
        self.number += 1

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002, ARG002
        return 0

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002
        progress: Callable[[], None],
        outcome: Callable[[DownloadOutcome], None],
    ) -> None:
        self.number += 1
        number = self.number

        def step(left: int) -> None:
            if number != self.number:
                return
            result = self._judge(leader, leader_epoch, id)
            if result is None and left:
                progress()
                self.process.after(5_000, lambda: step(left - 1))
            else:
                outcome(result or self._installed(id))

        self.process.after(5_000, lambda: step(2))

    def _judge(self, leader: int, leader_epoch: int, id: OffsetAndEpoch) -> DownloadOutcome | None:  # noqa: A002
        world = self.process.world
        other = world.processes.get(leader)
        links = world.network.lets(leader, self.process.node_id) and world.network.lets(self.process.node_id, leader)
        if other is None or other.paused or not links:
            return Failed()
        if other.quorum.epoch != leader_epoch or not other.quorum.is_leader:
            return LeaderChanged(other.quorum.leader_id, other.quorum.epoch)
        if id not in other.snapshots.ids:
            return Rediscover()
        other.quorum.note_contact(self.process.node_id)
        return None

    def _installed(self, id: OffsetAndEpoch) -> DownloadOutcome:  # noqa: A002
        self.process.snapshots.add(id)
        self.log.install_snapshot(self.process.now(), id)
        self.process.snapshots.drop_older(id)
        return Installed(id)


LATENCY_US = (300, 3_000)


@dataclass
class Connection:
    """A connection between two lives of nodes. ``queue``: arrived requests; ``busy``: one is being served."""

    source: Process
    target: int
    requests: list[SentRequest] = field(default_factory=list)
    queue: list[SentRequest] = field(default_factory=list)
    busy: bool = False
    broken: bool = False


class Network:
    """``cut``: directed pairs that let nothing through. ``loss``: messages lost of 1000."""

    def __init__(self, world: "SimulatedQuorum") -> None:
        self.world = world
        self.cut: dict[tuple[int, int], bool] = {}
        self.loss = 0
        self.connections: dict[tuple[int, int], Connection] = {}

    def lets(self, source: int, target: int) -> bool:
        return (source, target) not in self.cut

    def heal(self) -> None:
        self.cut.clear()
        self.loss = 0

    def isolate(self, node: int) -> None:
        for other in self.world.ids:
            if other != node:
                self.cut[node, other] = self.cut[other, node] = True

    def send(self, source: Process, target: int, request: SentRequest, timeout_us: int) -> None:
        key = (source.node_id, target)
        connection = self.connections.get(key)
        if connection is None or connection.broken or connection.source is not source:
            connection = self.connections[key] = Connection(source, target)
        connection.requests.append(request)
        one = connection
        self.world.after(timeout_us, lambda: self._break(one) if request.open else None)
        self._carry(source.node_id, target, lambda: self._arrive(one, request))

    def dropped(self, node: int) -> None:
        """Close the connections of a dead process. Its peers notice if the link lets that through."""
        for (source, target), connection in list(self.connections.items()):
            if node in (source, target) and not connection.broken:
                self._carry(target, source, partial(self._break, connection))

    def _carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        random = self.world.random
        if not self.lets(source, target) or random.randrange(1000) < self.loss:
            return
        self.world.after(random.randrange(*LATENCY_US), lambda: arrive() if self.lets(source, target) else None)

    def _arrive(self, connection: Connection, request: SentRequest) -> None:
        if connection.broken:
            return
        target = self.world.processes.get(connection.target)
        if target is None:
            self._carry(connection.target, connection.source.node_id, lambda: self._break(connection))
            return
        connection.queue.append(request)
        self._next(connection, target)

    def _next(self, connection: Connection, target: Process) -> None:
        if connection.busy or not connection.queue or connection.broken:
            return
        connection.busy = True
        request = connection.queue.pop(0)

        def respond(body: object) -> None:
            self.world.responded(target, connection.source.node_id, request, body)
            connection.busy = False
            self._carry(connection.target, connection.source.node_id, lambda: self._reply(connection, request, body))
            self.world.after(0, lambda: self._next(connection, target))

        target.deliver(lambda: target.serve(request, respond))

    def _reply(self, connection: Connection, request: SentRequest, body: object) -> None:
        if request.open and not connection.broken:
            request.open = False
            connection.requests.remove(request)
            connection.source.deliver(lambda: request.replied(body))

    def _break(self, connection: Connection) -> None:
        if connection.broken:
            return
        connection.broken = True
        lost, connection.requests = connection.requests, []
        for request in lost:
            request.open = False

        def fail() -> None:
            for request in lost:
                request.failed()

        connection.source.deliver(fail)


class SimulatedQuorum:
    """``processes``: the live ones, by node ID. ``voters`` nodes from 0 on, then ``observers``."""

    def __init__(self, seed: int, voters: int = 3, observers: int = 0, **settings: str) -> None:
        self.random = Random(seed)
        self.time_us = 0
        self.events = 0
        self.voters = list(range(voters))
        self.ids = list(range(voters + observers))
        dial = ",".join(f"{voter}@host:{9000 + voter}" for voter in self.voters)
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig.parse({**CONFIG, "controller.quorum.voters": dial, **changed})
        self.disks = {each: LossyDisk() for each in self.ids}
        self.processes: dict[int, Process] = {}
        self.invariants = Invariants(self.ids, self.voters, self.processes)
        self.network = Network(self)
        self.appended = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    # Time

    def after(self, delay_us: int, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.time_us + delay_us, self._number, event))

    def step(self) -> None:
        self.time_us, _, event = heapq.heappop(self._heap)
        event()
        self.events += 1
        assert self.events < MAX_EVENTS, "the quorum is busy without end"

    def run(self, duration_us: int) -> None:
        end_us = self.time_us + duration_us
        while self._heap and self._heap[0][0] <= end_us:
            self.step()
        self.time_us = end_us

    def run_until(self, holds: Callable[[], bool], within_us: int = 30 * SECOND_US) -> None:
        end_us = self.time_us + within_us
        while not holds():
            assert self._heap, "nothing will happen any more"
            assert self.time_us < end_us, f"{self.states()} after {within_us} us"
            self.step()

    def states(self) -> list[tuple[int, str, int, int, int, OffsetAndEpoch]]:
        return [
            (
                process.node_id,
                process.quorum.role.value,
                process.quorum.epoch,
                process.quorum.leader_id,
                process.quorum.high_watermark,
                process.quorum.log.end,
            )
            for process in self.processes.values()
        ]

    # Nodes

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.ids:
            process = Process(self, node_id, self.config, self.disks[node_id])
            self.processes[node_id] = process
            self.invariants.started(process)
            process.deliver(process.quorum.start)

    def kill(self, node_id: int, power_loss: bool = False) -> None:
        process = self.processes.pop(node_id)
        self.invariants.ended(process)
        if power_loss:
            self.disks[node_id].power_loss(self.random)
        self.network.dropped(node_id)

    def wipe(self, node_id: int) -> None:
        self.disks[node_id] = LossyDisk()
        self.invariants.wiped(node_id)

    def shut_down(self, node_id: int) -> None:
        process = self.processes[node_id]
        process.deliver(lambda: process.quorum.shut_down(lambda: self.after(0, lambda: self._ended(process))))

    def _ended(self, process: Process) -> None:
        if process.alive:
            self.kill(process.node_id)

    def pause(self, node_id: int) -> None:
        self.processes[node_id].paused = True

    def resume(self, node_id: int) -> None:
        process = self.processes[node_id]
        process.paused = False
        while process.backlog and process.alive and not process.paused:
            process.deliver(process.backlog.pop(0))

    # Work

    def responded(self, process: Process, requester: int, request: SentRequest, body: object) -> None:
        self.invariants.responded(process, requester, request.api_key, request.body, body)

    def keep_appending(self, period_us: int = 20_000) -> None:
        """Append records at every node that believes to lead."""
        for process in list(self.processes.values()):
            if not process.paused and process.quorum.is_leader:
                process.deliver(partial(self._append, process))
        self.after(period_us, lambda: self.keep_appending(period_us))

    def _append(self, process: Process) -> None:
        try:
            for _ in range(self.random.randrange(1, 4)):
                self.appended += 1
                process.quorum.append([encode(TopicRecord(name=f"t{self.appended}", topic_id=bytes(16)))])
        except NotLeader:
            pass

    def keep_snapshotting(self, period_us: int = 500_000) -> None:
        for process in list(self.processes.values()):
            if not process.paused and self.random.randrange(2):
                process.deliver(partial(_snapshot, process))
        self.after(period_us, lambda: self.keep_snapshotting(period_us))

    @property
    def leader(self) -> Process | None:
        """Return the leader of the highest epoch."""
        leaders = [process for process in self.processes.values() if process.quorum.epoch_start_offset >= 0]
        return max(leaders, key=lambda each: each.quorum.epoch, default=None)

    def high_watermark(self, *node_ids: int) -> int:
        """Return the lowest high watermark of them, or -1 if one of them is down or knows none."""
        if not all(node_id in self.processes for node_id in node_ids or self.ids):
            return -1
        return min(self.processes[node_id].quorum.high_watermark for node_id in node_ids or self.ids)

    def converged(self) -> bool:
        leader = self.leader
        return leader is not None and all(
            process.quorum.leader_id == leader.node_id and process.quorum.epoch == leader.quorum.epoch
            for process in self.processes.values()
        )


def _snapshot(process: Process) -> None:
    """Make a snapshot of the committed records, and delete the log before it in whole segments."""
    high_watermark = process.quorum.high_watermark
    log = process.log
    if log.start_offset < high_watermark <= log.end.offset:
        made = OffsetAndEpoch(high_watermark, log.log.epoch_at(high_watermark - 1))
        process.snapshots.add(made)
        log.delete_before(made)
        process.snapshots.drop_older(made)
