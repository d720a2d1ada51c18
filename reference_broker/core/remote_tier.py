"""Puts the parts together that a node with a remote tier has. Other nodes do not even load them."""

from reference_broker.apis.topics.automatic_creation import ask_to_create
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.metadata_replica import MetadataReplica
from reference_broker.controller.planning.topics import WantedTopic
from reference_broker.core.outside import Outside
from reference_broker.core.randomness import KeyedRandom
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Done
from reference_broker.remote_log.expiring.deleted_partitions import DeletedPartitions
from reference_broker.remote_log.manager import RemoteLogManager
from reference_broker.remote_log.metadata.leaders import ServeLocally
from reference_broker.remote_log.metadata.topic import MetadataSurroundings, RemoteLogMetadataTopic
from reference_broker.remote_log.starts import RemoteStarts
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replication import Replication


def remote_tier(
    outside: Outside,
    node_id: int,
    config: BrokerConfig,
    seed: int,
    replica: MetadataReplica,
    replication: Replication,
    partitions: Partitions,
    metrics: Metrics,
    serve_locally: ServeLocally,
) -> RemoteLogManager:
    """Makes the manager of the tier, which hears of the roles of replicas. Followers can begin in the tier."""
    metadata = _metadata(outside, node_id, config, replica, serve_locally)
    random = KeyedRandom(seed, "remote-log")
    interval_us = config.remote_log_manager_task_interval_ms * 1000
    deleted = DeletedPartitions(outside, node_id, metadata, lambda: replica.loader.image, partitions, interval_us)
    manager = RemoteLogManager(outside, node_id, config, metadata, metrics, random, deleted)
    replication.replica_listeners.append(manager)
    replication.fetchers.tier = RemoteStarts(manager.reader)
    return manager


def _metadata(
    outside: Outside, node_id: int, config: BrokerConfig, replica: MetadataReplica, serve_locally: ServeLocally
) -> RemoteLogMetadataTopic:
    def create(wanted: WantedTopic, over: Done) -> None:
        if replica.lifecycle.channel.has_leader:
            ask_to_create(replica, wanted, over)
        else:
            over()

    return RemoteLogMetadataTopic(
        MetadataSurroundings(outside, node_id, config, lambda: replica.loader.image, serve_locally, create)
    )
