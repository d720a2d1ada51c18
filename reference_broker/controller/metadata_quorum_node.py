"""Builds and connects the metadata parts of a node: the node's log, quorum, loader, snapshots, controller and broker
registration.

It is the quorum's listener. A new high watermark goes to the loader, and the images that the loader publishes go to the
snapshots and the controller.
"""

from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.broker_lifecycle import AssignmentsManager, BrokerLifecycleManager
from reference_broker.controller.controller import NodeToControllerChannelManager, QuorumController
from reference_broker.controller.planning.brokers import Incarnation
from reference_broker.log.opening import note_recovery
from reference_broker.metadata.identifiers import random_uuid, uuid_from_text, uuid_text
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metadata.snapshots import SnapshotGenerator, SnapshotMetrics
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import NodeContext, Ports, RandomSource
from reference_broker.ports.slicing import Sliced
from reference_broker.quorum.metadata_log import MetadataLog, open_metadata_log
from reference_broker.quorum.node_files import (
    META_PROPERTIES,
    METADATA_DIRECTORY,
    QUORUM_STATE,
    Identity,
    IdentityFile,
    StartRefused,
    read_identity,
)
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.snapshots.download import SnapshotDownload
from reference_broker.quorum.snapshots.serving import SnapshotChecks
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import OffsetAndEpoch

PLACEMENT = "apis"
"""The purpose of the random numbers that place replicas. Any other text would give each seed of the simulator another
run."""


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """The parts of the process from which a ``MetadataQuorumNode`` is built."""

    node_id: int
    config: BrokerConfig
    disk: Disk
    ports: Ports
    random_for: Callable[[str], RandomSource]
    """Returns a generator for each purpose."""
    endpoints: tuple[Endpoint, ...]
    """The addresses that the node registers, one for each listener of brokers."""
    metrics: Metrics


class MetadataQuorumNode:
    """Implements ``quorum.values.QuorumListener``. ``load`` recovers the log and then builds the parts in ``_build``,
    so none of them exists before."""

    store: SnapshotStore
    log: MetadataLog
    loader: MetadataLoader
    quorum: KafkaRaftClient
    controller: QuorumController
    lifecycle: BrokerLifecycleManager
    assignment: AssignmentsManager
    generator: SnapshotGenerator
    download: SnapshotDownload
    checks: SnapshotChecks

    def __init__(self, setup: NodeSetup) -> None:
        self._setup = setup
        self.on_leader_changed: Callable[[], None] = lambda: None
        """Called when the known leader changes, or whether this node is the active controller."""
        self._identity_file = IdentityFile(setup.disk, setup.ports, Identity("", setup.node_id, ""), False)

    @property
    def identity(self) -> Identity:
        """The IDs of this node. The cluster ID is empty before ``load``."""
        return self._identity_file.identity

    def load(self, clean: bool) -> Sliced[None]:
        """Recover the metadata log and build the parts. Raise StartRefused for a damaged directory or that
        of another node."""
        setup = self._setup
        identity = read_identity(setup.disk, setup.node_id)
        self.store = SnapshotStore(setup.disk)
        self.log = yield from open_metadata_log(setup.disk, setup.config, setup.ports.now(), clean, self.store)
        note_recovery(self.log.log, setup.ports.note)
        if identity is not None and self.log.end_offset == 0:
            raise StartRefused(
                f"The metadata log in {METADATA_DIRECTORY} is gone, although this node has served before: restore it "
                "from a copy or use an empty directory."
            )
        self._identity_file = IdentityFile(setup.disk, setup.ports, self._own_identity(identity), identity is not None)
        self._build()
        yield from self.loader.load()

    def start(self) -> None:
        """Call it after ``load``. The node takes part in the quorum when it knows that the vote that it found is
        synced: a process that was killed may have left the file's name unsynced. It registers when its identity is
        synced, because the registration names the directory's ID."""
        self._setup.ports.sync((META_PROPERTIES, QUORUM_STATE), self._begin)

    def _begin(self) -> None:
        if self.quorum.stopped:
            return
        self.quorum.start()
        if self._identity_file.is_durable:
            self.lifecycle.start()

    def shut_down(self, done: Callable[[], None]) -> None:
        """Make the broker leave the cluster, and then the voter its quorum."""
        self.lifecycle.shut_down(lambda: self.quorum.shut_down(done))

    def halt(self) -> None:
        """Stop at once. Nothing is appended to the log any more."""
        self.quorum.halt()

    # quorum.values.QuorumListener

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        self.controller.activation.leader_changed(leader_id, epoch)
        self.lifecycle.leader_changed(leader_id, epoch)
        self.on_leader_changed()

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        self.controller.activation.leadership_won(epoch, start_offset)
        self.on_leader_changed()

    def leadership_lost(self, epoch: int) -> None:
        self.controller.activation.leadership_lost(epoch)
        self.on_leader_changed()

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Every record below it is committed, and is in this node's log."""
        self._write_identity()
        self.loader.catch_up(high_watermark)

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        self._write_identity()
        self.loader.reload(snapshot)

    # Building

    def _build(self) -> None:
        setup, cluster_id = self._setup, self.identity.cluster_id
        self.download = SnapshotDownload(self._node_context("download"), setup.config, cluster_id, self.store, self.log)
        self.quorum = KafkaRaftClient(
            self._node_context("quorum"), setup.config, cluster_id, self.log, self, self.download
        )
        self.loader = MetadataLoader(self._node_context("loader"), self.log, self.store)
        self.controller = QuorumController(
            self._node_context("controller"),
            setup.config,
            cluster_id,
            self.loader,
            self.quorum,
            setup.random_for(PLACEMENT),
        )
        channel = NodeToControllerChannelManager(self._node_context("channel"), setup.config, self.controller)
        self.lifecycle = BrokerLifecycleManager(
            self._node_context("lifecycle"), setup.config, self.identity, setup.endpoints, channel
        )
        self.controller.own_broker = Incarnation(setup.node_id, self.lifecycle.incarnation_id)
        directory = uuid_from_text(self.identity.directory_id)
        self.assignment = AssignmentsManager(self._node_context("directories"), self.lifecycle, directory)
        self.controller.on_activated = self._activated
        metrics = SnapshotMetrics(setup.ports, self.store, setup.metrics)
        self.generator = SnapshotGenerator(self._node_context("snapshots"), setup.config, self.store, self.log, metrics)
        self.checks = SnapshotChecks(self._node_context("checks"), self.store, self.generator.remake)
        self.loader.on_loaded = metrics.loaded
        self.loader.on_published = self.generator.published

    def _node_context(self, purpose: str) -> NodeContext:
        setup = self._setup
        return NodeContext(setup.node_id, setup.disk, setup.ports, setup.random_for(purpose))

    def _own_identity(self, stored: Identity | None) -> Identity:
        """The ID of a new cluster is configured on all nodes, or drawn by its only voter."""
        cluster_id = self._setup.config.crucible_cluster_id
        if stored is not None:
            if cluster_id and cluster_id != stored.cluster_id:
                raise StartRefused(
                    f"The data directory belongs to cluster {stored.cluster_id}, not {cluster_id}: give that "
                    "crucible.cluster.id, or another directory."
                )
            return stored
        random = self._setup.random_for("identity")
        return Identity(
            cluster_id or uuid_text(random_uuid(random)), self._setup.node_id, uuid_text(random_uuid(random))
        )

    def _write_identity(self) -> None:
        self._identity_file.write_once(self.quorum.log_sync.request, self.lifecycle.start)

    def _activated(self) -> None:
        self.lifecycle.controller_activated()
        self.on_leader_changed()
