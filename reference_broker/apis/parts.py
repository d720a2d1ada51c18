"""The parts of a broker, each by its name. A handler's ``broker`` parameter is typed by those that the handler uses.

A module that uses several of them joins them into one protocol. So the signature tells what an API may touch, and a
test gives the handler just that.
"""

from typing import TYPE_CHECKING, Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.broker_lifecycle import BrokerLifecycle
from reference_broker.controller.controller import Controller
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metrics.metrics import Traffic
from reference_broker.ports.node_ports import Now, Ports
from reference_broker.quorum.quorum import Quorum
from reference_broker.quorum.snapshots.serving import SnapshotChecks
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replication import Replication
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.coordinator import TransactionCoordinator
from reference_broker.transactions.markers.writing import MarkerWriter
from reference_broker.transactions.verification.verifier import Verifier

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


class HasOutside(Protocol):
    @property
    def outside(self) -> Ports: ...


class HasPartitions(Protocol):
    @property
    def partitions(self) -> Partitions: ...


class HasRemoteLog(Protocol):
    @property
    def remote_log(self) -> "RemoteLogManager | None":
        """None where the node has no remote tier."""
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
    def verifier(self) -> Verifier: ...


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
