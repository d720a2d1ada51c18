"""This node's replica of the metadata log, whole: log, snapshots, quorum, loader, controller and broker lifecycle.

The one place that knows all of them; each of them knows only its neighbours below. What the quorum learns walks
through here: a new high watermark to the loader, what the loader publishes to the snapshots and to the controller.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation import Endpoint
from reference_broker.controller.broker_lifecycle import BrokerLifecycle
from reference_broker.controller.controller import Controller
from reference_broker.controller.controller_channel import ControllerChannel
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metadata.snapshots.generator import SnapshotGenerator
from reference_broker.metadata.uuids import random_uuid, uuid_text
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.chance import RandomSource
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Ports, Surroundings
from reference_broker.quorum.metadata_log import MetadataLog, open_metadata_log
from reference_broker.quorum.node_files import (
    METADATA_DIRECTORY,
    Identity,
    StartRefused,
    put_in_place,
    read_identity,
    write_identity,
)
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.quorum import Quorum
from reference_broker.quorum.snapshots.download import SnapshotDownload
from reference_broker.quorum.snapshots.store import SnapshotStore


@dataclass(frozen=True, slots=True)
class Home:
    """Where a replica lives. ``random_for``: one generator for each purpose. ``endpoint``: what clients are told to
    connect to."""

    node_id: int
    config: BrokerConfig
    disk: Disk
    ports: Ports
    random_for: Callable[[str], RandomSource]
    endpoint: Endpoint
    metrics: Metrics


class MetadataReplica:
    """Implements ``quorum.quorum.QuorumListener``. The parts exist after ``load``."""

    store: SnapshotStore
    log: MetadataLog
    loader: MetadataLoader
    quorum: Quorum
    controller: Controller
    lifecycle: BrokerLifecycle
    generator: SnapshotGenerator
    download: SnapshotDownload

    def __init__(self, home: Home) -> None:
        self._home = home
        self.on_leader_changed: Callable[[], None] = lambda: None
        """Is called when the known leader changes, or whether this node is the active controller."""
        self._identity_known = False
        self._keeping_identity = False
        self.identity = Identity("", home.node_id, "")

    def load(self, clean: bool) -> Generator[None, None, None]:
        """Recovers the metadata log in slices and builds the parts. Raises StartRefused for another node's or a
        damaged directory."""
        home = self._home
        known = read_identity(home.disk, home.node_id)
        self.store = SnapshotStore(home.disk)
        self.log = yield from open_metadata_log(home.disk, home.config, home.ports.now(), clean, self.store)
        if known is not None and self.log.end_offset == 0:
            raise StartRefused(
                f"The metadata log in {METADATA_DIRECTORY} is gone, although this node has served before: restore it "
                "from a copy or use an empty directory."
            )
        self.identity = self._own_identity(known)
        self._identity_known = known is not None
        self._build()
        yield from self.loader.load()

    def start(self) -> None:
        """After ``load``: from now on this node takes part in the quorum, and seeks to be registered once its identity
        is durable: the registration tells the directory's ID."""
        self.quorum.start()
        if self._identity_known:
            self.lifecycle.start()

    def shut_down(self, done: Callable[[], None]) -> None:
        """The broker leaves the cluster in good order, then the voter its quorum."""
        self.lifecycle.shut_down(lambda: self.quorum.shut_down(done))

    def halt(self) -> None:
        """At once, in good order or not: nothing is appended to the log any more."""
        self.quorum.halt()

    # quorum.values.QuorumListener

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        self.controller.succession.leader_changed(leader_id, epoch)
        self.lifecycle.leader_changed(leader_id, epoch)
        self.on_leader_changed()

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        self.controller.succession.leadership_won(epoch, start_offset)
        self.on_leader_changed()

    def leadership_lost(self, epoch: int) -> None:
        self.controller.succession.leadership_lost(epoch)
        self.on_leader_changed()

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Everything below is committed, and stands in this node's log."""
        self._keep_identity()
        self.loader.catch_up(high_watermark)

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        self._keep_identity()
        self.loader.reload(snapshot)

    # Building

    def _build(self) -> None:
        home, cluster_id = self._home, self.identity.cluster_id
        self.download = SnapshotDownload(self._around("download"), home.config, cluster_id, self.store, self.log)
        self.quorum = Quorum(self._around("quorum"), home.config, cluster_id, self.log, self, self.download)
        self.loader = MetadataLoader(self._around("loader"), self.log, self.store)
        self.controller = Controller(
            self._around("controller"),
            home.config,
            cluster_id,
            self.loader,
            self.quorum,
            home.random_for("apis"),  # Of placement. Under another name each seed would play another run.
        )
        channel = ControllerChannel(self._around("channel"), home.config, self.controller)
        self.lifecycle = BrokerLifecycle(self._around("lifecycle"), home.config, self.identity, home.endpoint, channel)
        self.controller.on_activated = self._activated
        self.generator = SnapshotGenerator(self._around("snapshots"), home.config, self.store, self.log, home.metrics)
        self.loader.on_published = self.generator.published

    def _around(self, purpose: str) -> Surroundings:
        home = self._home
        return Surroundings(home.node_id, home.disk, home.ports, home.random_for(purpose))

    def _own_identity(self, known: Identity | None) -> Identity:
        """A new cluster's ID is drawn by its one voter or configured on all."""
        wanted = self._home.config.crucible_cluster_id
        if known is not None:
            if wanted and wanted != known.cluster_id:
                raise StartRefused(
                    f"The data directory belongs to cluster {known.cluster_id}, not {wanted}: give that "
                    "crucible.cluster.id, or another directory."
                )
            return known
        random = self._home.random_for("identity")
        return Identity(wanted or uuid_text(random_uuid(random)), self._home.node_id, uuid_text(random_uuid(random)))

    def _keep_identity(self) -> None:
        """Once something is committed here and durable: from then on a missing log is a loss, not a beginning."""
        if self._identity_known or self._keeping_identity:
            return
        self._keeping_identity = True
        self.quorum.log_sync.request(self._write_identity)

    def _write_identity(self) -> None:
        disk = self._home.disk
        path = write_identity(disk, self.identity)

        def durable() -> None:
            put_in_place(disk, path)
            self._identity_known = True
            self.lifecycle.start()

        self._home.ports.sync((path,), durable)

    def _activated(self) -> None:
        self.lifecycle.controller_activated()
        self.on_leader_changed()
