"""All parts of a broker, as the core puts them together for the handlers of its APIs, and a protocol for each part.

A handler's ``broker`` parameter is typed by the parts that the handler uses. A module that uses several of them joins
them into one protocol. So the signature says what an API may touch, and a test gives the handler just that. A handler
never touches events or effects.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.broker_lifecycle import BrokerLifecycle
from reference_broker.controller.controller import Controller
from reference_broker.controller.metadata_replica import MetadataReplica
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metadata.cache import EMPTY_CACHE, MetadataCache
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metrics.metrics import Metrics, Traffic
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now, Ports
from reference_broker.quorum.quorum import Quorum
from reference_broker.quorum.snapshots.serving import SnapshotChecks
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replication import Replication
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.coordinator import TransactionCoordinator
from reference_broker.transactions.markers import MarkerWriter

if TYPE_CHECKING:
    from reference_broker.remote_log.manager import RemoteLogManager


class HasNodeId(Protocol):
    @property
    def node_id(self) -> int: ...


class HasConfig(Protocol):
    @property
    def config(self) -> BrokerConfig: ...


class HasNow(Protocol):
    @property
    def now(self) -> Now:
        """The instant of the event that is being handled."""
        ...


class HasPorts(Protocol):
    @property
    def ports(self) -> Ports: ...


class HasPartitions(Protocol):
    @property
    def partitions(self) -> Partitions: ...


class HasRemoteLog(Protocol):
    @property
    def remote_log(self) -> "RemoteLogManager | None":
        """None if the node has no remote tier."""
        ...


class HasReplication(Protocol):
    @property
    def replication(self) -> Replication: ...


class HasFetchSessions(Protocol):
    @property
    def fetch_sessions(self) -> FetchSessionCache: ...


class HasGroups(Protocol):
    @property
    def groups(self) -> GroupCoordinator: ...


class HasTransactions(Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...


class HasMarkers(Protocol):
    @property
    def markers(self) -> MarkerWriter: ...


class HasVerifier(Protocol):
    @property
    def verifier(self) -> AddPartitionsToTxnManager: ...


class HasMetadata(Protocol):
    @property
    def metadata(self) -> MetadataCache: ...


class HasController(Protocol):
    @property
    def controller(self) -> Controller: ...


class HasLoader(Protocol):
    @property
    def loader(self) -> MetadataLoader: ...


class HasTraffic(Protocol):
    @property
    def traffic(self) -> Traffic: ...


class HasLifecycle(Protocol):
    @property
    def lifecycle(self) -> BrokerLifecycle: ...


class HasQuorum(Protocol):
    @property
    def quorum(self) -> Quorum: ...


class HasSnapshots(Protocol):
    @property
    def snapshots(self) -> SnapshotStore: ...

    @property
    def snapshot_checks(self) -> SnapshotChecks: ...


@dataclass(slots=True)
class Broker:
    """The state of one node. ``now`` is the instant of the event being handled, set by the core."""

    node_id: int
    config: BrokerConfig
    """As the metadata amends it, set by the core."""
    now: Now
    disk: Disk
    ports: Ports
    """What the core does for handlers, as effects: timers, syncs, requests to other nodes, notes."""
    metrics: Metrics
    partitions: Partitions
    replica: MetadataReplica
    """The node's part in the metadata quorum. Its content exists once the node is listening."""
    fetch_sessions: FetchSessionCache
    replication: Replication
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
    """What clients see of the cluster; fed by ``apis.metadata.metadata_feed``, or by UpdateMetadata."""
    traffic: Traffic = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = Traffic.of(self.metrics)

    @property
    def controller(self) -> Controller:
        return self.replica.controller

    @property
    def lifecycle(self) -> BrokerLifecycle:
        return self.replica.lifecycle

    @property
    def quorum(self) -> Quorum:
        return self.replica.quorum

    @property
    def loader(self) -> MetadataLoader:
        return self.replica.loader

    @property
    def snapshots(self) -> SnapshotStore:
        return self.replica.store

    @property
    def snapshot_checks(self) -> SnapshotChecks:
        return self.replica.checks
