"""Snapshots of published images: made, written and loaded (KIP-630).

A snapshot holds one record for each thing that exists (S-16), in an order that depends on the content alone. Each node
makes its own, after a number of bytes of records or a time. It writes the file a batch at a time, syncs it and renames
it. Only then may the log before it be deleted (``quorum.snapshots.store``). So a crash at any point leaves a whole
snapshot or none. If the disk is full, the node runs without the snapshot and tries again later.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.features import METADATA_VERSION_FEATURE
from reference_broker.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, TopicImage
from reference_broker.metadata.records import (
    SECURITY_PROTOCOL_PLAINTEXT,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataEpoch,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode,
    encode,
)
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.coroutines import Wait, pause, result_of, run_coroutine
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.node_ports import NodeContext, Ports
from reference_broker.ports.slicing import SNAPSHOT_RECORDS_PER_SLICE, Sliced
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.node_files import StartRefused
from reference_broker.quorum.snapshots.format import (
    SnapshotDamaged,
    data_batch,
    footer_batch,
    header_batch,
    header_timestamp_ms,
    made_path,
    read_batches,
    snapshot_path,
)
from reference_broker.quorum.snapshots.store import SnapshotCleaner, SnapshotStore
from reference_broker.quorum.values import OffsetAndEpoch, Provenance
from reference_broker.records.batch import InvalidRecords
from reference_broker.records.record import read_records

NO_BROKER = -1


def records_of(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield the records of an image lazily; the image never changes.
    Replaying them on an empty image gives the same content. The metadata version comes first, because it says how to
    read the rest."""
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION_FEATURE, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    yield from _metadata_epoch(image)
    for broker_id in sorted(image.brokers):
        yield _registration(image.brokers[broker_id])
    for topic in sorted(image.topics):
        yield from _topic(image.topics[topic])
    for resource in sorted(image.configs):
        settings = image.configs[resource]
        for name in sorted(settings):
            yield ConfigRecord(resource_type=resource[0], resource_name=resource[1], name=name, value=settings[name])
    if image.next_producer_id > 0:
        # The metadata does not say which broker got the last block.
        yield ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=image.next_producer_id)


def _metadata_epoch(image: MetadataImage) -> Iterator[MetadataRecord]:
    if image.metadata_epoch > 0:
        yield NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=image.metadata_epoch))


def _registration(broker: BrokerImage) -> MetadataRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=tuple(
            BrokerEndpoint(name=name, host=host, port=port, security_protocol=SECURITY_PROTOCOL_PLAINTEXT)
            for name, host, port in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
    )


def _topic(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for index, partition in enumerate(topic.partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic.topic_id,
            replicas=partition.replicas,
            isr=partition.isr,
            removing_replicas=partition.removing_replicas,
            adding_replicas=partition.adding_replicas,
            leader=partition.leader,
            leader_recovery_state=partition.leader_recovery_state,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            directories=partition.directories,
            eligible_leader_replicas=partition.elr or None,
            last_known_elr=partition.last_known_elr or None,
        )


RECORDS_PER_BATCH = 150
"""Encoding and writing this many records takes some 3 ms."""


def snapshot_id(image: MetadataImage) -> OffsetAndEpoch:
    """Return the ID of the snapshot that has exactly this image."""
    return OffsetAndEpoch(image.provenance.offset + 1, image.provenance.epoch)


def write_snapshot(disk: Disk, image: MetadataImage) -> Sliced[None]:
    """Write one batch in each slice, and the footer in the last one. Then ``made_path`` is complete, but not synced.

    The image never changes, so records that are committed meanwhile do not get into it. Raise DiskError; the caller
    must then delete the file.
    """
    snapshot = snapshot_id(image)
    path = made_path(snapshot)
    timestamp_ms = image.provenance.timestamp_ms
    disk.delete(path)
    disk.append(path, [header_batch(snapshot, timestamp_ms)])
    next_offset = 1
    records = records_of(image)
    while values := tuple(encode(record) for record in islice(records, RECORDS_PER_BATCH)):
        disk.append(path, [data_batch(snapshot, next_offset, timestamp_ms, values)])
        next_offset += len(values)
        yield
    disk.append(path, [footer_batch(snapshot, next_offset, timestamp_ms)])


DOMAIN, KIND = "kafka.controller", "KafkaController"


class SnapshotMetrics:
    """The time it takes to load a snapshot, and to make one until it is synced and renamed, in milliseconds."""

    def __init__(self, ports: Ports, store: SnapshotStore, metrics: Metrics) -> None:
        self._ports = ports
        self._store = store
        self._generated_ms = metrics.histogram(DOMAIN, KIND, "GenSnapshotLatencyMs")
        self._loaded_ms = metrics.histogram(DOMAIN, KIND, "LoadSnapshotLatencyMs")
        self._size_bytes = metrics.gauge(DOMAIN, KIND, "SnapshotSizeBytes")
        store.on_added = self._show_size
        self._show_size()

    def generated(self, latency_us: int) -> None:
        self._generated_ms.record(latency_us // 1000)

    def _show_size(self) -> None:
        """Set the size to that of the newest snapshot, or to 0 without one."""
        latest = self._store.latest
        self._size_bytes.value = 0 if latest is None else self._store.size(latest)

    def loaded(self, snapshot: OffsetAndEpoch, latency_us: int) -> None:
        self._loaded_ms.record(latency_us // 1000)
        self._ports.note("snapshot_loaded", ("end_offset", snapshot.offset), ("epoch", snapshot.epoch))


RETRY_US = 10_000_000
"""The delay between a failure and the next attempt."""


@dataclass(slots=True, eq=False)
class SnapshotGenerator:
    """Makes at most one snapshot at a time, always of the newest image."""

    _node: NodeContext
    _config: BrokerConfig
    _store: SnapshotStore
    _log: MetadataLog
    _metrics: SnapshotMetrics
    cleaner: SnapshotCleaner = field(init=False)
    """Deletes old snapshots."""
    _image: MetadataImage | None = None
    _pending_bytes: int = 0
    """The size of the records published since the image of the last snapshot."""
    _last_us: int = field(init=False)
    """When the last snapshot was begun, loaded or fetched."""
    _not_before_us: int = 0
    """The next snapshot is not begun earlier, because the last attempt failed."""
    _making: OffsetAndEpoch | None = None
    """The snapshot that is being made."""
    _timer: int | None = None
    _timer_us: int = 0

    def __post_init__(self) -> None:
        self.cleaner = SnapshotCleaner(self._node, self._config, self._store, self._log)
        self._last_us = self._node.now_us

    def remake(self) -> None:
        """Make a snapshot soon if the newest one was found to be damaged. The image in memory is whole."""
        self._make_if_due()

    def make_now(self) -> None:
        """Make a snapshot of what is published, whenever the next one is due. Nothing happens if there is one."""
        if self._making is None and self._image is not None and self._is_new(snapshot_id(self._image)):
            self._start(self._image)

    def count_from(self, at_us: int) -> None:
        """The interval to the next snapshot begins at this time of the node's monotonic clock. A run calls it when its
        load begins, perhaps in another thread. A timer that fires earlier checks again what is due."""
        self._last_us = at_us

    def published(self, image: MetadataImage, record_bytes: int) -> None:
        """Take a new image, which ends where a batch ends and has no part of an open transaction. ``record_bytes``
        is the size of the batches since the image before."""
        self._image = image
        self._pending_bytes += record_bytes
        if self._store.holds(snapshot_id(image)):  # Decision published-is-snapshot
            self._pending_bytes = 0
            self._last_us = self._node.now_us
            self.cleaner.check()
        else:
            self._make_if_due()

    # When

    def _make_if_due(self) -> None:
        image = self._image
        if self._making is not None or image is None or not self._is_new(snapshot_id(image)):
            return
        due_us = self._due_us()
        if due_us is None:
            return
        if due_us <= self._node.now_us:  # Decision snapshot-due
            self._start(image)
        else:
            self._wake_at(due_us)

    def _is_new(self, snapshot: OffsetAndEpoch) -> bool:
        latest = self._store.latest
        return latest is None or snapshot.age > latest.age or snapshot in self._store.damaged

    def _due_us(self) -> int | None:
        """Return when the next snapshot is due, or None if not before more is published."""
        config = self._config
        if self._store.latest in self._store.damaged:  # Decision damaged-snapshot-remade
            return self._not_before_us
        # Decision snapshot-due-by-size
        if self._pending_bytes >= config.metadata_log_max_record_bytes_between_snapshots:
            return self._not_before_us
        interval_ms = config.metadata_log_max_snapshot_interval_ms
        return max(self._last_us + interval_ms * 1000, self._not_before_us) if interval_ms > 0 else None

    def _wake_at(self, deadline_us: int) -> None:
        """Set a timer. Only the earliest one is kept. When it fires, the generator checks again what is due."""
        ports = self._node.ports
        if self._timer is not None:
            if self._timer_us <= deadline_us:
                return
            ports.cancel_timer(self._timer)
        self._timer_us = deadline_us
        self._timer = ports.set_timer(deadline_us, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._make_if_due()

    # Making

    def _start(self, image: MetadataImage) -> None:
        snapshot = snapshot_id(image)
        self._making = snapshot
        record_bytes, self._pending_bytes = self._pending_bytes, 0
        self._last_us = self._node.now_us
        self._note("snapshot_started", snapshot)
        run_coroutine(self._make(_Attempt(snapshot, self._last_us, record_bytes), image))

    async def _make(self, attempt: "_Attempt", image: MetadataImage) -> None:
        """Write the snapshot, sync it, rename it and sync its name. Then add it, so that the log before it may be
        deleted. It is dropped if a newer one has come from the leader meanwhile."""
        disk, store, snapshot = self._node.disk, self._store, attempt.id
        await pause(self._node.ports, 0)
        try:  # Decision snapshot-written
            await result_of(self._node.ports, write_snapshot(disk, image))
        except DiskError as error:
            self._failed(attempt, error)
            return
        made = made_path(snapshot)
        self._note("snapshot_written", snapshot, ("bytes", disk.size(made)))
        await self._sync_bytes(made)
        try:
            if not self._is_new(snapshot):  # Decision written-snapshot-new
                disk.delete(made)
            else:
                path = store.name(snapshot, made)
                self._note("snapshot_renamed", snapshot)
                await self._sync_name(path)
                if self._is_new(snapshot):
                    store.add(snapshot)
                    self._metrics.generated(self._node.now_us - attempt.started_us)
                else:
                    disk.delete(path)
        except DiskError as error:
            self._failed(attempt, error)
            return
        self._finished()

    async def _sync_bytes(self, path: str) -> None:
        """Wait until the snapshot's bytes are durable, so that it may be renamed."""
        await Wait[None](lambda resume: self._node.ports.sync((path,), lambda: resume(None)))

    async def _sync_name(self, path: str) -> None:
        """Wait until the snapshot's name is durable, so that the log before it may be deleted."""
        await Wait[None](lambda resume: self._node.ports.sync((path,), lambda: resume(None)))

    def _finished(self) -> None:
        self._making = None
        self.cleaner.check()
        self._make_if_due()

    def _failed(self, attempt: "_Attempt", error: DiskError) -> None:
        """Delete the failed file. Its records still count towards the next snapshot."""
        self._note("snapshot_failed", attempt.id, ("why", str(error)))
        self._making = None
        self._pending_bytes += attempt.record_bytes
        self._not_before_us = self._node.now_us + RETRY_US
        try:
            self._node.disk.delete(made_path(attempt.id))
        except DiskError as left:
            # The next attempt at this snapshot, or the next start, deletes it.
            self._note("snapshot_failed", attempt.id, ("why", str(left)))
        self._wake_at(self._not_before_us)

    def _note(self, what: str, snapshot: OffsetAndEpoch, *more: tuple[str, int | str]) -> None:
        self._node.ports.note(what, ("end_offset", snapshot.offset), ("epoch", snapshot.epoch), *more)


@dataclass(slots=True, eq=False)
class _Attempt:
    """One snapshot that is being made."""

    id: OffsetAndEpoch
    started_us: int
    record_bytes: int
    """The size of the records since the snapshot before."""


def load_snapshot(disk: Disk, snapshot: OffsetAndEpoch) -> Sliced[MetadataImage]:
    """Return the image as of the record before the snapshot's end offset. Raise StartRefused for a damaged snapshot
    and for one with transaction markers (T-3). Nothing of such a file is used."""
    path = snapshot_path(snapshot)
    try:
        return (yield from _loaded(disk, path, snapshot))
    except (SnapshotDamaged, InvalidRecords, MetadataFault) as fault:
        raise StartRefused(
            f"The snapshot {path} cannot be loaded ({fault}): restore it from a copy, or use an empty directory and "
            "let this node fetch the metadata from the others."
        ) from fault


def _loaded(disk: Disk, path: str, snapshot: OffsetAndEpoch) -> Sliced[MetadataImage]:
    delta = MetadataDelta(EMPTY_IMAGE)
    timestamp_ms = -1
    taken = 0
    for batch in read_batches(disk, path, snapshot):
        if batch.header.is_control:
            timestamp_ms = header_timestamp_ms(batch.data) if timestamp_ms < 0 else timestamp_ms
            continue
        for record in read_records(batch.data):
            # ``replay`` knows no markers, so a marker is a fault, as is any record that cannot follow.
            replay(delta, decode(record.value or b""))
            taken += 1
            if taken % SNAPSHOT_RECORDS_PER_SLICE == 0:
                yield
    return delta.build(Provenance(snapshot.offset - 1, snapshot.epoch, timestamp_ms))
