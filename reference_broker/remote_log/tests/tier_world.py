"""Nodes with a remote tier: logs on disks in memory, a shared store and shared metadata, and time set by the test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.producer_state import decode_snapshot
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.identifiers import random_uuid
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import FailureKind, MemoryStore, StoreFailure, StoreOperation
from reference_broker.remote_log.manager import RemoteLogManager
from reference_broker.remote_log.metadata.events import RemoteLogEvent, RemoteLogSegmentMetadata, decode, encode
from reference_broker.remote_log.metadata.remote_log_metadata_cache import Applied, RemoteLogMetadataCache
from reference_broker.remote_log.metadata.topic import numbered
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.remote_log.tests.memory_metadata import MemoryMetadata
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.timed_ports import TimedPorts
from reference_broker.wire.errors import Error, ErrorCode

TOPIC_ID = random_uuid(Random(1))
STORE_US = 1000
"""Duration of a call of the store, unless a test sets another one."""
UNAVAILABLE = StoreFailure(FailureKind.UNAVAILABLE, "made to fail")


@dataclass
class Tier(TimedPorts):
    """The shared state. ``acts`` has each write to the metadata and each change of the store, in order."""

    store_memory: MemoryStore = field(default_factory=MemoryStore)
    acts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports: Any = self
        self.metadata = MemoryMetadata(ports)

    def listed(self, partition: Partition) -> list[RemoteLogSegmentMetadata]:
        return list(self.known(partition).listed())

    def known(self, partition: Partition) -> RemoteLogMetadataCache:
        return self.metadata.partitions[partition.topic_id, partition.index]


class NodePorts:
    """One node's ports. ``before`` is called with the name of each act before it happens; a failure that it returns
    fails the
    act. ``after`` is called when the store has done it; its result replaces that of the store. After ``die`` no event
    reaches the node any more."""

    def __init__(self, tier: Tier, disk: MemoryDisk) -> None:
        self._tier = tier
        self._disk = disk
        self.is_dead = False
        self.before: Callable[[str], StoreFailure | None] = lambda _: None
        self.after: Callable[[str], StoreFailure | None] = lambda _: None
        self.delay_us: Callable[[StoreOperation], int] = lambda _: STORE_US
        self.asleep: list[Callable[[], None]] | None = None
        """While it is a list, the node's events wait there."""
        self.under_way: list[StoreOperation] = []
        self.most_under_way = 0
        self.now = tier.now
        self.note = tier.note
        self.at_end = tier.at_end
        self.cancel_timer = tier.cancel_timer

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        return self._tier.set_timer(deadline_us, lambda: self.deliver(fire))

    def sync(self, _: tuple[str, ...], done: Callable[[], None]) -> None:
        done()

    def deliver(self, callback: Callable[[], None]) -> None:
        if self.is_dead:
            return
        if self.asleep is None:
            callback()
        else:
            self.asleep.append(callback)

    def wake(self) -> None:
        waiting, self.asleep = self.asleep or [], None
        for what in waiting:
            what()

    def die(self) -> None:
        self.is_dead = True

    def store(
        self, operation: StoreOperation, done: Callable[[Any], None], failed: Callable[[StoreFailure], None]
    ) -> None:
        kind = type(operation).__name__
        name = f"{kind} {operation[0]}"
        self.under_way.append(operation)
        self.most_under_way = max(self.most_under_way, len(self.under_way))

        def complete() -> None:
            self.under_way.remove(operation)
            found = self.before(name)
            if found is None and not self.is_dead:
                if kind not in ("Get", "ListObjects"):
                    self._tier.acts.append(name)
                result = self._tier.store_memory.carry_out(operation, self._disk)
                found = result if isinstance(result, StoreFailure) else self.after(name)
            if isinstance(found, StoreFailure):
                self.deliver(lambda: failed(found))
            else:
                self.deliver(lambda: done(result))

        self._tier.set_timer(self._tier.mono_us + self.delay_us(operation), complete)


class NodeMetadata(MemoryMetadata):
    """A node's view of the tier's metadata, and its writes."""

    def __init__(self, tier: Tier, ports: NodePorts) -> None:
        given: Any = ports
        super().__init__(given)
        self._tier = tier
        self._node = ports
        self.partitions = tier.metadata.partitions

    def write(self, event: RemoteLogEvent, done: Applied) -> None:
        key, name = (event.topic_id, event.partition), f"Write {event.state.name}"
        written = decode(encode(numbered(event, self.of(*key))))

        def take() -> None:
            error: Error = ErrorCode.request_timed_out
            if self._node.before(name) is None and not self._node.is_dead:
                self._tier.acts.append(name)
                applied = self.partitions[key].apply(written)
                error = applied if self._node.after(name) is None else error
            self._node.deliver(lambda: done(error))

        self._tier.set_timer(self._tier.mono_us + STORE_US, take)


class TierNode:
    """A node with a manager. ``settings`` are the broker's. Nothing is deleted remotely unless it ``expires``."""

    def __init__(
        self, tier: Tier, node_id: int = 1, disk: MemoryDisk | None = None, *, expires: bool = False, **settings: str
    ) -> None:
        self.tier = tier
        self.disk = MemoryDisk() if disk is None else disk
        self.ports = NodePorts(tier, self.disk)
        self.metadata = NodeMetadata(tier, self.ports)
        self.metrics = Metrics()
        pairs = {"remote_log_manager_task_interval_ms": "1000", **settings}
        config = BrokerConfig.parse({key.replace("_", "."): value for key, value in pairs.items()})
        ports: Any = self.ports
        random = Random(node_id + len(tier.acts))
        self.manager = RemoteLogManager(ports, node_id, config, self.metadata, self.metrics, random)
        if not expires:
            self.manager.expiring.slots.free = 0
        self.manager.start()

    def lead(self, log: UnifiedLog, index: int = 0, leader_epoch: int = 5) -> Partition:
        """Lead the partition with this log."""
        log.topic_id = TOPIC_ID
        log.assign_leader_epoch(leader_epoch)
        partition = Partition("events", TOPIC_ID, index, leader_epoch, log)
        self.manager.leads(partition)
        return partition

    def resign(self, partition: Partition) -> None:
        partition.is_removed = True
        self.manager.stops_leading(partition)

    def value(self, name: str) -> int:
        """Return a metric of BrokerTopicMetrics."""
        return next(row.metric.value for row in self.metrics.rows() if row.name == name)  # type: ignore[union-attr]


def objects_of(tier: Tier, segment: RemoteLogSegmentMetadata) -> dict[ObjectKind, bytes]:
    """Return the objects of a segment that are in the store."""
    objects = tier.store_memory.objects
    return {kind: objects[key_of(segment, kind)] for kind in ObjectKind if key_of(segment, kind) in objects}


def check_whole(tier: Tier, partition: Partition) -> None:
    """Assert that all closed segments of the log are listed, without a gap, and each listed segment's objects are
    whole: its
    bytes are the log's, and nothing is missing."""
    log, offset = partition.log, 0
    for segment in tier.listed(partition):
        assert segment.start_offset <= offset, f"nothing is listed from {offset} to {segment.start_offset}"
        offset = max(offset, segment.next_offset)
        objects = objects_of(tier, segment)
        wanted = set(ObjectKind) - (set() if segment.has_transaction_index else {ObjectKind.TRANSACTION_INDEX})
        assert set(objects) == wanted
        assert objects[ObjectKind.LOG] == log.read(segment.start_offset, segment.size_bytes, segment.next_offset)
        assert len(objects[ObjectKind.LOG]) == segment.size_bytes
        tuple(decode_snapshot(objects[ObjectKind.PRODUCER_SNAPSHOT]))
    assert offset == log.bases[-1]
