"""Several quorums in one thread of virtual time. After every event everything that must hold is looked at."""

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.records import TopicRecord, encode
from reference_broker.ports.node_ports import Now, Surroundings
from reference_broker.quorum.quorum import Quorum
from reference_broker.quorum.requests import (
    handle_begin_quorum_epoch,
    handle_end_quorum_epoch,
    handle_fetch,
    handle_vote,
)
from reference_broker.quorum.tests.quorum_disk import LossyDisk
from reference_broker.quorum.tests.quorum_invariants import Invariants
from reference_broker.quorum.tests.quorum_network import Network, SentRequest
from reference_broker.quorum.tests.quorum_snapshots import NamedSnapshots, TimedDownload
from reference_broker.quorum.tests.quorum_surroundings import AroundQuorum, opened
from reference_broker.quorum.values import NotLeader, OffsetAndEpoch
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


class Process(AroundQuorum):
    """One life of one node. Implements raft.ports.Ports and raft.quorum.QuorumListener."""

    def __init__(self, world: "World", node_id: int, config: BrokerConfig, disk: LossyDisk) -> None:
        super().__init__()
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.paused = False
        self.backlog: list[Callable[[], object]] = []
        self.timers: dict[int, bool] = {}
        self.snapshots = NamedSnapshots(disk)
        self.log = opened(disk, config, self.now(), self.snapshots)
        around = Surroundings(node_id, disk, self, Random(world.random.randrange(2**60)))
        self.download = TimedDownload(self, self.log)
        self.quorum = Quorum(around, config, "cluster", self.log, self, self.download)

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

    def serve(self, request: SentRequest, answer: Callable[[object], None]) -> None:
        handlers: dict[ApiKey, Callable[[Quorum, Any, Callable[[object], None]], None]] = {
            ApiKey.VOTE: handle_vote,
            ApiKey.BEGIN_QUORUM_EPOCH: handle_begin_quorum_epoch,
            ApiKey.END_QUORUM_EPOCH: handle_end_quorum_epoch,
            ApiKey.FETCH: handle_fetch,
        }
        handlers[ApiKey(request.api_key)](self.quorum, request.body, answer)

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


class World:
    """``processes``: those that live, by node ID. ``voters`` nodes from 0 on, then ``observers``."""

    def __init__(self, seed: int, voters: int = 3, observers: int = 0, **settings: str) -> None:
        self.random = Random(seed)
        self.time_us = 0
        self.events = 0
        self.voters = list(range(voters))
        self.ids = list(range(voters + observers))
        dial = ",".join(f"{each}@host:{9000 + each}" for each in self.voters)
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig.parse({**CONFIG, "controller.quorum.voters": dial, **changed})
        self.disks = {each: LossyDisk() for each in self.ids}
        self.processes: dict[int, Process] = {}
        self.invariants = Invariants(self)
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
                each.node_id,
                each.quorum.role.value,
                each.quorum.epoch,
                each.quorum.leader_id,
                each.quorum.high_watermark,
                each.quorum.log.end,
            )
            for each in self.processes.values()
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

    def answered(self, process: Process, asker: int, request: SentRequest, body: object) -> None:
        self.invariants.answered(process, asker, request.api_key, request.body, body)

    def keep_appending(self, period_us: int = 20_000) -> None:
        """Every node that believes to lead gets records."""
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
        """The one of the highest epoch."""
        leaders = [each for each in self.processes.values() if each.quorum.epoch_start_offset >= 0]
        return max(leaders, key=lambda each: each.quorum.epoch, default=None)

    def high_watermark(self, *node_ids: int) -> int:
        """The least of them; -1 if one of them is down or knows none."""
        if not all(each in self.processes for each in node_ids or self.ids):
            return -1
        return min(self.processes[each].quorum.high_watermark for each in node_ids or self.ids)

    def converged(self) -> bool:
        leader = self.leader
        return leader is not None and all(
            each.quorum.leader_id == leader.node_id and each.quorum.epoch == leader.quorum.epoch
            for each in self.processes.values()
        )


def _snapshot(process: Process) -> None:
    """Of all that is committed; the log before it goes, where whole segments end."""
    high_watermark = process.quorum.high_watermark
    log = process.log
    if log.start_offset < high_watermark <= log.end.offset:
        made = OffsetAndEpoch(high_watermark, log.log.epoch_at(high_watermark - 1))
        process.snapshots.add(made)
        log.delete_before(made)
        process.snapshots.drop_older(made)
