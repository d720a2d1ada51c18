"""Leading and following on one node (Kafka's ReplicaManager): both halves of replication, and what connects them."""

from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.metadata_quorum_node import MetadataQuorumNode
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.follower.fetcher import ReplicaFetcherManager
from reference_broker.replication.follower.followed import FetchLag, FollowedPartition
from reference_broker.replication.high_watermarks import HighWatermarkCheckpoints
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.leader.replica_metrics import count_late_transactions
from reference_broker.replication.partitions import LeadershipListener, Partition, Partitions, ReplicaListener


@dataclass(slots=True)
class ReplicaManager:
    """Implements ``replication.partitions.PartitionRoles``: each role goes to the half that carries it out."""

    leaders: Leaders
    fetchers: ReplicaFetcherManager
    listeners: list[LeadershipListener] = field(default_factory=list)
    replica_listeners: list[ReplicaListener] = field(default_factory=list)

    def start(self) -> None:
        """Called once this node is registered. What it leads and follows from now on is replicated."""
        self.leaders.start()

    def halt(self) -> None:
        """Called at a clean end. Nothing is fetched or appended after it. Raise DiskError."""
        self.fetchers.halt()
        self.leaders.high_watermarks.write_last()

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        partition.log.horizon.lead()
        self.leaders.leads(partition, state)
        for listener in (*self.listeners, *self.replica_listeners):
            listener.leads(partition)

    def stops_leading(self, partition: Partition) -> None:
        self.leaders.stops_leading(partition)
        self.fetchers.await_marker(partition.log)
        for listener in (*self.listeners, *self.replica_listeners):
            listener.stops_leading(partition)

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: UnifiedLog) -> None:
        self.fetchers.follows(topic, index, state, log)
        for listener in self.replica_listeners:
            listener.follows(topic, index, log)

    def stops_following(self, topic_id: bytes, index: int) -> None:
        self.fetchers.stops_following(topic_id, index)
        for listener in self.replica_listeners:
            listener.stops_following(topic_id, index)

    def reconfigured(self, partition: Partition) -> None:
        self.leaders.reconfigured(partition)
        for listener in self.replica_listeners:
            listener.reconfigured(partition)

    def forgets(self, log: UnifiedLog) -> None:
        self.leaders.high_watermarks.forget(log)


def replication_of(
    ports: Ports,
    node_id: int,
    config: BrokerConfig,
    disk: Disk,
    quorum_node: MetadataQuorumNode,
    metrics: Metrics,
    partitions: Partitions,
) -> ReplicaManager:
    """Read the file of high watermarks. Raise DiskError."""

    def changed(followed: FollowedPartition) -> None:
        partitions.changed(followed.topic_id, followed.name.partition)

    count_late_transactions(metrics, partitions, config.transaction_max_timeout_ms, lambda: ports.now().wall_ms)
    high_watermarks = HighWatermarkCheckpoints(disk, ports, config.replica_high_watermark_checkpoint_interval_ms)
    lag = FetchLag(metrics.gauge("kafka.server", "ReplicaFetcherManager", "MaxLag", clientId="Replica"))
    return ReplicaManager(
        Leaders(ports, node_id, config, quorum_node, high_watermarks, metrics),
        ReplicaFetcherManager(
            ports, node_id, config, lambda: quorum_node.lifecycle.registered_epoch, high_watermarks.moved, lag, changed
        ),
    )
