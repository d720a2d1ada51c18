"""All parts of a broker, for the handlers of its APIs. A handler never touches events or effects."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.broker_lifecycle import BrokerLifecycleManager
from reference_broker.controller.controller import QuorumController
from reference_broker.controller.metadata_quorum_node import MetadataQuorumNode
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metadata.cache import EMPTY_CACHE, MetadataCache
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metrics.metrics import Metrics, Traffic
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now, Ports
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.snapshots.serving import SnapshotChecks
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replica_manager import ReplicaManager
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.coordinator import TransactionCoordinator
from reference_broker.transactions.markers import MarkerWriter

if TYPE_CHECKING:
    from reference_broker.remote_log.manager import RemoteLogManager


@dataclass(slots=True)
class Broker:
    """The state of one node. ``now`` is the instant of the event being handled, set by the core."""

    node_id: int
    config: BrokerConfig
    """As the metadata amends it, set by the core."""
    now: Now
    disk: Disk
    ports: Ports
    """The core's work for handlers, as effects: timers, syncs, requests to other nodes, notes."""
    metrics: Metrics
    partitions: Partitions
    quorum_node: MetadataQuorumNode
    """The node's part in the metadata quorum. Its content exists once the node is listening."""
    fetch_sessions: FetchSessionCache
    replication: ReplicaManager
    groups: GroupCoordinator
    """Consumer groups and their committed offsets, as far as this node coordinates them."""
    markers: MarkerWriter
    """Ends transactions in the partitions that this node leads."""
    transactions: TransactionCoordinator
    """Transactional IDs, as far as this node coordinates them, and the producer IDs that this node allocates."""
    verifier: AddPartitionsToTxnManager
    """Verifies with transaction coordinators that partitions may be written to."""
    remote_log: "RemoteLogManager | None" = None
    """Copies to the remote tier and reads from there. None if the node has no tier."""
    metadata: MetadataCache = EMPTY_CACHE
    """The cluster as clients see it; fed by ``apis.metadata.metadata_feed``, or by UpdateMetadata."""
    traffic: Traffic = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = Traffic.of(self.metrics)

    @property
    def controller(self) -> QuorumController:
        return self.quorum_node.controller

    @property
    def lifecycle(self) -> BrokerLifecycleManager:
        return self.quorum_node.lifecycle

    @property
    def quorum(self) -> KafkaRaftClient:
        return self.quorum_node.quorum

    @property
    def loader(self) -> MetadataLoader:
        return self.quorum_node.loader

    @property
    def snapshots(self) -> SnapshotStore:
        return self.quorum_node.store

    @property
    def snapshot_checks(self) -> SnapshotChecks:
        return self.quorum_node.checks
