"""The group coordinator of one node: the groups in the partitions of ``__consumer_offsets`` that it leads.

``coordination.coordinator_shards`` loads and drops these partitions. ``group_metadata_manager`` serves the requests
about members and generations, ``offset_metadata_manager`` those about committed offsets.
"""

from collections.abc import Callable, Iterable

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.coordinator_shards import CoordinatorShards
from reference_broker.coordination.log import CoordinatorLog
from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard, OffsetsPlayback, OffsetsRetention
from reference_broker.groups.group_metadata_manager import GroupMetadataManager
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offset_cleanup import OffsetCleanup
from reference_broker.groups.offset_metadata_manager import OffsetMetadataManager
from reference_broker.groups.records import partition_count
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Ports, RandomSource
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode


class GroupCoordinator:
    """``image`` returns the metadata as this node knows it."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        leaders: Leaders,
        image: Callable[[], MetadataImage],
        metrics: Metrics,
        random: RandomSource,
    ) -> None:
        self._ports = ports
        self._config = config
        self._leaders = leaders
        self._image = image
        self.metrics = GroupMetrics(metrics)
        self._shards: CoordinatorShards[GroupCoordinatorShard] = CoordinatorShards(
            ports, OFFSETS_TOPIC, self, self.metrics.loading, self.metrics.load_time_ms, "coordinator"
        )
        self.leads = self._shards.leads
        self.stops_leading = self._shards.stops_leading
        self.group_manager = GroupMetadataManager(ports, config, self.find, self.metrics, random)
        self.offset_manager = OffsetMetadataManager(ports, config, self.find, self.group_manager, image, self.metrics)
        self._cleanup = OffsetCleanup(ports, config, self.active, self.group_manager, self.metrics)
        self.is_creating = False
        """A request to create the topic is in flight."""

    def start(self) -> None:
        """Begin the checks for expired offsets. The node calls it once, when it serves."""
        self._cleanup.start()

    # --- what is coordinated here -------------------------------------------------------------------------------------

    def find(self, group_id: str) -> GroupCoordinatorShard | Error:
        """Return the partition that keeps the group, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or
        INVALID_GROUP_ID for an ID that no record can hold. Where Kafka refuses the empty ID, the caller does."""
        if not fits(group_id):
            return ErrorCode.invalid_group_id
        return self._shards.find(partition_of(group_id, partition_count(self._image(), self._config)))

    def active(self) -> Iterable[GroupCoordinatorShard]:
        """Return every loaded partition, by index."""
        return self._shards.active()

    def loading(self) -> bool:
        """Return whether a partition that is led here is not loaded yet."""
        return self._shards.is_loading()

    def validate(self) -> None:
        """Assert the invariants. It looks at all groups, so only tests and the simulator call it."""
        self._shards.validate()
        self.group_manager.validate()

    # --- transactions -------------------------------------------------------------------------------------------------

    def refuses_markers(self, index: int) -> bool:
        """Return whether the partition is not loaded here. Implements ``transactions.markers.OffsetsMarkers``."""
        return isinstance(self._shards.find(index), Error)

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:  # noqa: ARG002 - the listener's form
        """Record the transaction marker in the log of the partition at ``offset``, which need not be replicated."""
        shard = self._shards.find(index)
        assert not isinstance(shard, Error), f"a marker was written to partition {index}, which is not loaded"
        shard.transaction_ended(producer_id, offset, is_commit=is_commit)

    # --- partitions that come and go ----------------------------------------------------------------------------------

    def new_shard(self, partition: Partition) -> GroupCoordinatorShard:
        log = CoordinatorLog(self._ports, self._config.offsets_commit_timeout_ms, self._leaders, partition)
        return GroupCoordinatorShard(
            self._ports, log, OffsetsRetention(self._config.offsets_retention_minutes), self.metrics
        )

    def new_playback(self, shard: GroupCoordinatorShard) -> OffsetsPlayback:
        return OffsetsPlayback(self._ports, shard)

    def loaded(self, shard: GroupCoordinatorShard) -> None:
        self.group_manager.loaded(shard)
        missing = [topic for topic in shard.offsets.topics() if topic not in self._image().topics]
        # Decision offsets-of-deleted-topics
        if missing:  # A former coordinator had no time to remove their offsets.
            self._cleanup.forget_topics(missing)

    def unloaded(self, shard: GroupCoordinatorShard) -> None:
        self.group_manager.unloaded(shard)

    def image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:  # noqa: ARG002 - the listener's form
        """Remove the offsets of deleted topics."""
        gone = [
            change.before.name
            for change in delta.topics
            if change.before is not None and (change.after is None or change.after.topic_id != change.before.topic_id)
        ]
        if gone and self._shards:
            self._cleanup.forget_topics(gone)
