"""Removes what deleted topics left in the tier, with the states of KIP-405's RemotePartitionDeleteState.

The leader of a partition of ``__remote_log_metadata`` does it for the partitions whose events it has, whichever nodes
have died. It reads the log that it leads. Each copy has the offset up to which its writer knew the cluster's metadata.
Where a leader knows at least as much, and does not know the topic, the topic is deleted. Deliberately unlike Kafka,
where the last leader of a deleted partition removes its segments, and they stay if it dies.

An object may still be on its way to the store then. So the store is searched for late ones for a day.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.coordination.scheduling import Slots
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import StorePorts, later
from reference_broker.ports.slicing import REMOTE_RECORDS_PER_SLICE, Sliced, run_slices
from reference_broker.ports.store import Delete, ListObjects, StoredObject, StoreFailure
from reference_broker.records.batch import InvalidRecords, checked, iterate
from reference_broker.records.record import MAX_PLAIN_BYTES, Record, read_records
from reference_broker.remote_log.metadata.events import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    decode,
)
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadata
from reference_broker.remote_log.objects import folder_of
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.wire.errors import Error, ErrorCode, error_name

Key = tuple[bytes, int]
"""A partition: topic ID and index."""

CHUNK_BYTES = 128 * 1024
KEYS_A_DELETE = 500
REMOVALS_AT_ONCE = 10
SWEEP_INTERVAL_US = 3_600_000_000
SWEPT_FOR_MS = 24 * 3_600_000
POLL_US = 100_000
"""Interval at which a removal checks whether all events of its partition are known."""


@dataclass(slots=True, eq=False)
class _Scanned:
    """Progress of reading one led partition of ``__remote_log_metadata``."""

    led: Partition
    offset: int = 0
    """The offset up to which it was read."""
    kept: dict[Key, tuple[str, int]] = field(default_factory=dict)
    """The partitions that have events here and are not removed: the topic's name, and the offset up to which the writer
    of the last copy knew the cluster's metadata."""
    removed: dict[Key, tuple[str, int]] = field(default_factory=dict)
    """Partitions that were removed within SWEPT_FOR_MS: the topic's name, and the time of the removal in
    milliseconds."""
    sweeps_at_us: int = 0
    """When to search the store for late objects."""


class DeletedPartitions:
    """``image`` returns the metadata as this node knows it, and ``partitions`` has what it leads."""

    def __init__(
        self,
        ports: StorePorts,
        node_id: int,
        metadata: RemoteLogMetadata,
        image: Callable[[], MetadataImage],
        partitions: Partitions,
        interval_us: int,
    ) -> None:
        self._ports = ports
        self._node_id = node_id
        self._metadata = metadata
        self._image = image
        self._partitions = partitions
        self._interval_us = interval_us
        self._scanned: dict[int, _Scanned] = {}
        self._removals: dict[Key, None] = {}
        self._slots = Slots(ports, REMOVALS_AT_ONCE)

    def start(self) -> None:
        """Begin to look, each ``remote.log.manager.task.interval.ms``. The node calls it once, when it serves."""
        run_slices(self._ports, self._look(), self._wait)

    def _wait(self) -> None:
        later(self._ports, self._interval_us, self.start)

    # --- what is deleted ----------------------------------------------------------------------------------------------

    def _look(self) -> Sliced[None]:
        topic = self._image().topics.get(REMOTE_LOG_METADATA_TOPIC)
        for index in range(len(topic.partitions) if topic is not None else 0):
            led = self._partitions.by_name.get((REMOTE_LOG_METADATA_TOPIC, index))
            if led is None:
                self._scanned.pop(index, None)
                continue
            scanned = self._scanned.get(index)
            if scanned is None or scanned.led is not led:
                scanned = self._scanned[index] = _Scanned(led)
            yield from self._scan(scanned)
            self._find_deleted(scanned)
            self._sweep_if_due(scanned)

    def _scan(self, scanned: _Scanned) -> Sliced[None]:
        """Read what is replicated and was not read yet. Damaged records say nothing."""
        led, taken = scanned.led, 0
        while not led.is_removed and scanned.offset < led.log.high_watermark:
            start = max(scanned.offset, led.log.log_start_offset)
            try:
                view = memoryview(led.log.read(start, CHUNK_BYTES, led.log.high_watermark))
                for position, header in iterate(view):
                    scanned.offset = header.last_offset + 1
                    checked(view, position, len(view))
                    batch = view[position : position + header.size_bytes]
                    for record in () if header.is_control else read_records(batch, MAX_PLAIN_BYTES):
                        _note(scanned, record)
                        taken += 1
                        if taken % REMOTE_RECORDS_PER_SLICE == 0:
                            yield
                if not view:
                    return
            except InvalidRecords:
                if scanned.offset <= start:
                    return
            except (OffsetOutOfRange, DiskError):
                return
            yield

    def _find_deleted(self, scanned: _Scanned) -> None:
        image = self._image()
        names = {topic.topic_id for topic in image.topics.values()} if scanned.kept else set()
        for key, (topic, known_until) in scanned.kept.items():
            # Decision partition-with-events
            if key[0] not in names and image.provenance.offset >= known_until and key not in self._removals:
                self._removals[key] = None
                removal = _Removal(self._ports, self._node_id, self._metadata, key, topic, self._removed)
                self._slots.take(removal.begin)

    def _sweep_if_due(self, scanned: _Scanned) -> None:
        now = self._ports.now()
        for key, (_, removed_ms) in list(scanned.removed.items()):
            if removed_ms <= now.wall_ms - SWEPT_FOR_MS:
                del scanned.removed[key]
        if now.mono_us < scanned.sweeps_at_us:
            return
        scanned.sweeps_at_us = now.mono_us + SWEEP_INTERVAL_US
        for key, (topic, _) in scanned.removed.items():
            if key not in self._removals:
                self._removals[key] = None
                self._slots.take(_Sweep(self._ports, key, topic, self._removed).begin)

    def _removed(self, key: Key) -> None:
        """The deletion is over. If it failed, the next check restarts it."""
        del self._removals[key]
        self._slots.give_back()


def _note(scanned: _Scanned, record: Record) -> None:
    try:
        event = decode(bytes(record.value or b""))
    except DamagedRecord:
        return
    key = event.topic_id, event.partition
    if isinstance(event, RemoteLogSegmentMetadata):
        known_until = scanned.kept.get(key, ("", 0))[1]
        scanned.kept[key] = event.topic, max(event.metadata_offset, known_until)
    elif (
        isinstance(event, RemotePartitionDeleteMetadata)
        and event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    ):
        scanned.kept.pop(key, None)
        scanned.removed[key] = event.topic, event.event_timestamp_ms


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Deletes whatever is in the folder of a partition of a deleted topic. What fails is found again."""

    ports: StorePorts
    key: Key
    topic: str
    over: Callable[[Key], None]

    def begin(self) -> None:
        folder = folder_of(self.topic, *self.key)
        self.ports.store(ListObjects(folder), self._delete, lambda _: self.over(self.key))

    def _delete(self, objects: tuple[StoredObject, ...]) -> None:
        if not objects:
            self.over(self.key)
            return
        batch, remaining = objects[:KEYS_A_DELETE], objects[KEYS_A_DELETE:]
        keys = tuple(each.key for each in batch)
        self.ports.store(Delete(keys), lambda _: self._delete(remaining), lambda _: self.over(self.key))


@dataclass(slots=True)
class _Removal:
    """Removes one partition of a deleted topic. Any step may have been done before, by another node."""

    ports: StorePorts
    node_id: int
    metadata: RemoteLogMetadata
    key: Key
    topic: str
    over: Callable[[Key], None]

    def begin(self) -> None:
        self.metadata.watch(self.key[0], self.topic, self.key[1])
        self._when_ready()

    def _when_ready(self) -> None:
        if self.metadata.is_ready(*self.key):
            self._step()
        else:
            later(self.ports, POLL_US, self._when_ready)

    def _step(self) -> None:
        """The next state follows what is written. All objects go before the last one."""
        state = self.metadata.of(*self.key).delete_state
        if state is None:
            self._write(RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
        elif state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
            self._write(RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
        elif state is RemotePartitionDeleteState.DELETE_PARTITION_STARTED:
            folder = folder_of(self.topic, *self.key)
            self.ports.store(ListObjects(folder), self._delete, self._store_failed)
        else:
            self._end("")

    def _write(self, state: RemotePartitionDeleteState) -> None:
        event = RemotePartitionDeleteMetadata(
            topic_id=self.key[0],
            topic=self.topic,
            partition=self.key[1],
            broker_id=self.node_id,
            event_timestamp_ms=self.ports.now().wall_ms,
            state=state,
        )
        self.metadata.write(event, self._written)

    def _written(self, error: Error) -> None:
        """INVALID_REQUEST: another node was faster."""
        if error in (ErrorCode.none, ErrorCode.invalid_request):
            self._step()
        else:
            self._end(f"a step of a deletion was not written: {error_name(error)}")

    def _delete(self, objects: tuple[StoredObject, ...]) -> None:
        if not objects:
            self._write(RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
            return
        batch, remaining = objects[:KEYS_A_DELETE], objects[KEYS_A_DELETE:]
        self.ports.store(
            Delete(tuple(each.key for each in batch)), lambda _: self._delete(remaining), self._store_failed
        )

    def _store_failed(self, failure: StoreFailure) -> None:
        self._end(f"{failure.kind}: {failure.reason}")

    def _end(self, reason: str) -> None:
        if reason:
            self.ports.note("remote_partition_not_removed", ("topic", self.topic), ("reason", reason))
        self.metadata.unwatch(*self.key)
        self.over(self.key)
