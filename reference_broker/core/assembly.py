"""Builds the parts of a broker: also those of a remote tier where there is one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reference_broker.apis.broker import Broker
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.metadata_quorum_node import MetadataQuorumNode, NodeSetup
from reference_broker.core.effect_ports import EffectPorts
from reference_broker.core.randomness import KeyedRandom
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Done, Now
from reference_broker.ports.slicing import run_slices
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replica_manager import ReplicaManager, replication_of
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager, ServeLocally
from reference_broker.transactions.coordinator import TransactionCoordinator
from reference_broker.transactions.markers import MarkerWriter
from reference_broker.transactions.offsets_verification import OffsetsVerifier
from reference_broker.transactions.producer_ids import ProducerIdManager

if TYPE_CHECKING:
    from reference_broker.controller.planning.topic_creation import NewTopic
    from reference_broker.remote_log.manager import RemoteLogManager


def build_broker(
    ports: EffectPorts,
    node_id: int,
    config: BrokerConfig,
    disk: Disk,
    seed: int,
    endpoints: Sequence[Endpoint],
    serve_locally: ServeLocally,
) -> Broker:
    """Build the parts, each with what it needs of the others. Read the file of high watermarks. Raise DiskError."""
    metrics = Metrics()
    partitions = Partitions()
    quorum_node = MetadataQuorumNode(
        NodeSetup(node_id, config, disk, ports, lambda purpose: KeyedRandom(seed, purpose), tuple(endpoints), metrics)
    )
    replication = replication_of(ports, node_id, config, disk, quorum_node, metrics, partitions)
    groups = GroupCoordinator(
        ports, config, replication.leaders, lambda: quorum_node.loader.image, metrics, KeyedRandom(seed, "groups")
    )
    verifier = AddPartitionsToTxnManager(
        ports, node_id, lambda: quorum_node.loader.image, serve_locally, metrics, config.request_timeout_ms
    )
    groups.offset_manager.verifier = OffsetsVerifier(ports, lambda: broker.config, verifier)
    markers = MarkerWriter(
        ports, partitions, replication.leaders, lambda: quorum_node.loader.image, config.request_timeout_ms, groups
    )
    transactions = TransactionCoordinator(
        ports,
        node_id,
        config,
        replication.leaders,
        lambda: quorum_node.loader.image,
        metrics,
        markers,
        ProducerIdManager(node_id, lambda: quorum_node.lifecycle.channel, lambda: quorum_node.controller.broker_epoch),
    )
    replication.listeners += [groups, transactions]
    remote_log = None
    if config.remote_log_storage_system_enable:
        remote_log = _build_remote_tier(
            ports, node_id, config, seed, quorum_node, replication, partitions, metrics, serve_locally
        )
    broker = Broker(
        node_id=node_id,
        config=config,
        now=Now(0, 0),
        disk=disk,
        ports=ports,
        metrics=metrics,
        partitions=partitions,
        quorum_node=quorum_node,
        fetch_sessions=FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            KeyedRandom(seed, "fetch-sessions"),
            metrics,
            ports.note,
            config.crucible_fetch_session_cache_partitions,
            lambda work: run_slices(ports, work),
        ),
        replication=replication,
        groups=groups,
        markers=markers,
        transactions=transactions,
        verifier=verifier,
        remote_log=remote_log,
    )
    return broker


def _build_remote_tier(
    ports: EffectPorts,
    node_id: int,
    config: BrokerConfig,
    seed: int,
    quorum_node: MetadataQuorumNode,
    replication: ReplicaManager,
    partitions: Partitions,
    metrics: Metrics,
    serve_locally: ServeLocally,
) -> "RemoteLogManager":
    """Return the manager of the tier, which observes the roles of replicas. Followers can begin in the tier."""
    # Late imports: other nodes do not load the tier.
    from reference_broker.apis.topics.automatic_creation import request_creation
    from reference_broker.remote_log.expiring.deleted_partitions import DeletedPartitions
    from reference_broker.remote_log.manager import RemoteLogManager
    from reference_broker.remote_log.metadata.topic import MetadataContext, RemoteLogMetadataTopic
    from reference_broker.remote_log.reading.reader import RemoteStarts

    def create(topic: "NewTopic", over: Done) -> None:
        if quorum_node.lifecycle.channel.has_leader:
            request_creation(quorum_node.lifecycle.channel, topic, over)
        else:
            over()

    metadata = RemoteLogMetadataTopic(
        MetadataContext(ports, node_id, config, lambda: quorum_node.loader.image, serve_locally, create)
    )
    random = KeyedRandom(seed, "remote-log")
    interval_us = config.remote_log_manager_task_interval_ms * 1000
    deleted = DeletedPartitions(ports, node_id, metadata, lambda: quorum_node.loader.image, partitions, interval_us)
    manager = RemoteLogManager(ports, node_id, config, metadata, metrics, random, deleted)
    replication.replica_listeners.append(manager)
    replication.fetchers.tier = RemoteStarts(manager.reader)
    return manager
