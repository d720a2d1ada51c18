"""Schedules copying and deletion for tiered replicas (Kafka's RemoteLogManager).

Replication reports which partitions the node leads and follows. The leader copies segments. Every replica learns how
far its log is copied, so that it may delete what is listed.
"""

from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.scheduling import Slots
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import RandomSource, StorePorts, later
from reference_broker.ports.slicing import REMOTE_REPLICAS_PER_SLICE, Sliced, run_slices
from reference_broker.remote_log.copier import CopiedEnd, Copier, CopierContext
from reference_broker.remote_log.expiring.deleted_partitions import DeletedPartitions
from reference_broker.remote_log.expiring.expirer import Expirer, ExpiringSetting
from reference_broker.remote_log.leader_epoch_fencing import LeaderEpochFencing
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadata
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.remote_log.reading.reader import RemoteReader
from reference_broker.replication.partitions import Partition

EXPIRERS_AT_ONCE = 10
"""Number of partitions whose remote segments are deleted at the same time."""

Key = tuple[bytes, int]
"""A partition: topic ID and index."""


@dataclass(slots=True, eq=False)
class _Replica:
    """A replica of this node."""

    topic: str
    log: UnifiedLog
    copied_end: CopiedEnd
    led: "_Led | None" = None
    """Set while this node leads the partition."""
    leader_epoch: int = -1
    """The newest known one."""
    is_followed: bool = False
    is_watched: bool = False
    """Whether this node follows the metadata of its remote segments (``RemoteLogMetadata.watch``)."""
    is_cleared: bool = False
    """The topic has no tier any more, and no object of it is left there."""

    @property
    def is_tiered(self) -> bool:
        return self.log.config.remote_storage_enable

    @property
    def needs_remote_metadata(self) -> bool:
        """Whether this node must follow the metadata of the replica's remote segments: its topic has a tier, or had
        one that this leader still has to clear."""
        is_clearing = self.led is not None and self.log.config.remote_log_delete_on_disable and not self.is_cleared
        return self.is_tiered or is_clearing


@dataclass(slots=True, eq=False)
class _Led:
    """The work for a partition that this node leads."""

    partition: Partition
    fencing: LeaderEpochFencing
    expirer: Expirer
    copied_end: CopiedEnd
    copier: Copier | None = None
    """Set while its topic is tiered."""

    def close_copier(self) -> None:
        """Stop copying. Listed segments may be deleted remotely from now on, so the local ones stay."""
        self.copied_end.reset()
        if self.copier is not None:
            self.copier.close()
            self.copier = None


class RemoteLogManager:
    """Implements ``replication.partitions.ReplicaListener``. There is one only where
    ``remote.log.storage.system.enable`` is set."""

    def __init__(
        self,
        ports: StorePorts,
        node_id: int,
        config: BrokerConfig,
        metadata: RemoteLogMetadata,
        metrics: Metrics,
        random: RandomSource,
        deleted: DeletedPartitions | None = None,
    ) -> None:
        counted = RemoteLogMetrics.of(metrics)
        self.metadata = metadata
        self.reader = RemoteReader(ports, metadata, counted, config.remote_log_index_file_cache_total_size_bytes)
        self._ports = ports
        self._interval_us = config.remote_log_manager_task_interval_ms * 1000
        self._context = CopierContext(
            node_id=node_id,
            ports=ports,
            metadata=metadata,
            metrics=counted,
            slots=Slots(ports, config.remote_log_manager_copier_thread_pool_size),
            random=random,
            first_pause_ms=config.remote_log_manager_task_retry_backoff_ms,
            longest_pause_ms=config.remote_log_manager_task_retry_backoff_max_ms,
        )
        self.expiring = ExpiringSetting(node_id, ports, metadata, counted, Slots(ports, EXPIRERS_AT_ONCE))
        self._replicas: dict[Key, _Replica] = {}
        self._deleted = deleted
        self._is_started = False

    def start(self) -> None:
        """Begin to copy. The node calls it once, when it serves. Then every replica is checked each
        ``remote.log.manager.task.interval.ms``."""
        self._is_started = True
        if self._deleted is not None:
            self._deleted.start()
        run_slices(self._ports, self._check_all(), self._wait)

    def settings_changed(self, config: BrokerConfig) -> None:
        """Apply the settings that can change while the broker runs."""
        self._context.slots.resize(config.remote_log_manager_copier_thread_pool_size)
        self.reader.resize(config.remote_log_index_file_cache_total_size_bytes)

    def image_changed(self, _delta: MetadataDelta, _image: MetadataImage) -> None:
        """A listener of the loader."""
        self.metadata.image_changed()

    def copied_now(self, topic_id: bytes, partition: int) -> bytes | None:
        """Return the ID of the segment that is being copied. Its objects are no garbage, although it is not
        finished."""
        replica = self._replicas.get((topic_id, partition))
        copier = None if replica is None or replica.led is None else replica.led.copier
        under_way = None if copier is None else copier.copy
        return None if under_way is None or under_way.data is None else under_way.segment.segment_id

    # --- roles --------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition) -> None:
        replica = self._replica(partition.topic, partition.topic_id, partition.index, partition.log)
        replica.is_followed, replica.leader_epoch = False, partition.leader_epoch
        if replica.led is None:
            replica.copied_end.reset()
            key = partition.topic_id, partition.index
            fencing = LeaderEpochFencing(self._ports, self._context.node_id, self.metadata, partition)
            expirer = Expirer(self.expiring, partition, fencing, lambda: self.copied_now(*key))
            replica.led = _Led(partition, fencing, expirer, replica.copied_end)
        self._check((partition.topic_id, partition.index), replica)

    def stops_leading(self, partition: Partition) -> None:
        key = partition.topic_id, partition.index
        replica = self._replicas.get(key)
        if replica is None or replica.led is None:
            return
        replica.led.close_copier()
        replica.led.expirer.close()
        replica.led = None
        if partition.is_topic_deleted:
            self._drop(key)

    def follows(self, topic: TopicImage, index: int, log: UnifiedLog) -> None:
        replica = self._replica(topic.name, topic.topic_id, index, log)
        replica.is_followed, replica.leader_epoch = True, topic.partitions[index].leader_epoch
        self._check((topic.topic_id, index), replica)

    def stops_following(self, topic_id: bytes, index: int) -> None:
        """A replica without a leader is forgotten at the next check, unless it has a role by then."""
        replica = self._replicas.get((topic_id, index))
        if replica is not None:
            replica.is_followed = False

    def reconfigured(self, partition: Partition) -> None:
        replica = self._replicas.get((partition.topic_id, partition.index))
        if replica is not None:
            self._check((partition.topic_id, partition.index), replica)

    def _replica(self, topic: str, topic_id: bytes, index: int, log: UnifiedLog) -> _Replica:
        key = topic_id, index
        replica = self._replicas.get(key)
        if replica is None or replica.log is not log:
            self._drop(key)
            replica = self._replicas[key] = _Replica(topic, log, CopiedEnd(log, self.metadata, *key))
        return replica

    def _drop(self, key: Key) -> None:
        replica = self._replicas.pop(key, None)
        if replica is not None and replica.led is not None:
            replica.led.expirer.close()
        if replica is not None and replica.is_watched:
            self.metadata.unwatch(*key)

    # --- the periodic check -------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        later(self._ports, self._interval_us, lambda: run_slices(self._ports, self._check_all(), self._wait))

    def _check_all(self) -> Sliced[None]:
        for number, (key, replica) in enumerate(list(self._replicas.items()), 1):
            if self._replicas.get(key) is replica:
                if replica.led is None and not replica.is_followed:
                    self._drop(key)
                else:
                    self._check(key, replica)
            if number % REMOTE_REPLICAS_PER_SLICE == 0:
                yield

    def _check(self, key: Key, replica: _Replica) -> None:
        """Bring the replica in line with its role and its topic's settings, and do what is due for it: a leader copies
        and deletes segments, and every replica updates ``copied_end_offset`` of its log."""
        led = replica.led
        if replica.is_tiered:
            replica.is_cleared = False
        if replica.needs_remote_metadata and not replica.is_watched:
            self._watch(key, replica)
        elif replica.is_watched and not replica.needs_remote_metadata:
            self._unwatch(key, replica)
        replica.copied_end.reset_if_discarded()
        if led is not None and not replica.is_tiered:
            led.close_copier()
        if not self._is_started:
            return
        if led is not None:
            self._copy_and_delete(led, replica)
        elif replica.is_watched:
            replica.copied_end.advance_unfenced(replica.leader_epoch)

    def _watch(self, key: Key, replica: _Replica) -> None:
        topic_id, index = key
        replica.is_watched = True
        self.metadata.watch(topic_id, replica.topic, index)

    def _unwatch(self, key: Key, replica: _Replica) -> None:
        replica.is_watched = False
        self.metadata.unwatch(*key)
        replica.copied_end.reset()

    def _copy_and_delete(self, led: _Led, replica: _Replica) -> None:
        """Delete the led partition's expired remote segments, and copy its closed local ones."""
        led.expirer.delete_due_segments()
        if not replica.is_tiered:
            replica.is_cleared |= replica.is_watched and led.expirer.is_cleared
        elif not led.expirer.is_clearing:
            if led.copier is None:
                led.copier = Copier(self._context, led.partition, led.fencing, led.copied_end)
            led.copier.count_lag()
            led.copier.copy_due_segments()
            if not replica.log.config.is_remote_copy_enabled:
                replica.copied_end.advance_unfenced(replica.leader_epoch)
