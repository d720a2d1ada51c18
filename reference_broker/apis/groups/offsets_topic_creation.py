"""Asks the active controller for ``__consumer_offsets``, with the settings that it must have."""

from typing import Protocol

from reference_broker.apis.parts import HasConfig, HasGroups, HasLifecycle, HasLoader, HasNodeId
from reference_broker.apis.topics.automatic_creation import ask_to_create
from reference_broker.controller.planning.topic_creation import WantedTopic
from reference_broker.groups.storage.topic import OFFSETS_TOPIC, replication_factor, topic_configs


class CreatesOffsetsTopic(HasGroups, HasLifecycle, HasLoader, HasConfig, HasNodeId, Protocol):
    """What it takes to ask for the topic."""


def ask_to_create_offsets_topic(broker: CreatesOffsetsTopic) -> None:
    """One request at a time. Clients ask again until the topic is there."""
    groups, image, config = broker.groups, broker.loader.image, broker.config
    if groups.is_creating or not broker.lifecycle.channel.has_leader or OFFSETS_TOPIC in image.topics:
        return
    wanted = WantedTopic(
        OFFSETS_TOPIC,
        partitions=config.offsets_topic_num_partitions,
        replication_factor=replication_factor(image, config, len(config.voters(broker.node_id))),
        configs=topic_configs(config),
    )

    def over() -> None:
        groups.is_creating = False

    groups.is_creating = True
    ask_to_create(broker, wanted, over)
