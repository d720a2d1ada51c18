"""Asks the active controller for the topics of coordinators, with the settings that they must have."""

from typing import Protocol

from reference_broker.apis.parts import HasConfig, HasGroups, HasLifecycle, HasLoader, HasNodeId, HasTransactions
from reference_broker.apis.topics.automatic_creation import ask_to_create
from reference_broker.controller.planning.topics import WantedTopic
from reference_broker.groups.records import offsets_topic_configs
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.transactions.storage import topic as transaction_topic

COORDINATOR_TOPICS = (OFFSETS_TOPIC, TRANSACTION_TOPIC)


class CreatesCoordinatorTopics(HasGroups, HasTransactions, HasLifecycle, HasLoader, HasConfig, HasNodeId, Protocol):
    """What it takes to ask for the topics."""


def ask_to_create_topic(broker: CreatesCoordinatorTopics, name: str) -> None:
    """``name`` is one of COORDINATOR_TOPICS. One request for each at a time. Clients ask again until the topic is
    there."""
    coordinator = broker.groups if name == OFFSETS_TOPIC else broker.transactions
    image = broker.loader.image
    if coordinator.is_creating or not broker.lifecycle.channel.has_leader or name in image.topics:
        return

    def over() -> None:
        coordinator.is_creating = False

    coordinator.is_creating = True
    ask_to_create(broker, _wanted(broker, name, image), over)


def replicas_of(wanted: int, image: MetadataImage, voters: int) -> int:
    """Returns the replication factor that was ``wanted``, but no more than there are brokers. The voters count as
    brokers that will come, so that a cluster whose nodes still start does not get a topic on one node only."""
    return min(wanted, max(len(image.brokers), voters, 1))


def _wanted(broker: CreatesCoordinatorTopics, name: str, image: MetadataImage) -> WantedTopic:
    config = broker.config
    voters = len(config.voters(broker.node_id))
    if name == OFFSETS_TOPIC:
        return WantedTopic(
            name,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=replicas_of(config.offsets_topic_replication_factor, image, voters),
            configs=offsets_topic_configs(config),
        )
    replicas = replicas_of(config.transaction_state_log_replication_factor, image, voters)
    return WantedTopic(
        name,
        partitions=config.transaction_state_log_num_partitions,
        replication_factor=replicas,
        configs=transaction_topic.topic_configs(config, replicas),
    )
