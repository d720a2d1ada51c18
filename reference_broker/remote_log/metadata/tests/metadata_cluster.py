"""Nodes of a cluster in virtual time, each with its view of remote segments from ``__remote_log_metadata``."""

from collections.abc import Callable, Sequence
from typing import Any

from reference_broker.apis.topics.automatic_creation import request_creation
from reference_broker.controller.planning.topic_creation import NewTopic
from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.ports.node_ports import Done, later
from reference_broker.remote_log.metadata.events import RemoteLogEvent
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadataCache
from reference_broker.remote_log.metadata.tests.remote_events import TOPIC, TOPIC_ID
from reference_broker.remote_log.metadata.topic import (
    MetadataContext,
    RemoteLogMetadataTopic,
    metadata_partition_of,
)
from reference_broker.wire.errors import Error

Errors = list[Error]
"""The error of a write, once there is one."""


class MetadataCluster(ClusterWorld):
    """``topics``: the metadata of each node."""

    def __init__(self, nodes: int = 3, **config: str) -> None:
        self.topics: dict[int, RemoteLogMetadataTopic] = {}
        few = {"rlmm_config_remote_log_metadata_topic_num_partitions": "3"}
        super().__init__(nodes, **{**few, **config})

    def start(self, number: int, **config: str) -> None:
        super().start(number, **config)
        node = self.members[number].node
        broker = node.broker

        def create(new_topic: NewTopic, over: Done) -> None:
            if broker.lifecycle.channel.has_leader:
                request_creation(broker.lifecycle.channel, new_topic, over)
            else:
                later(broker.ports, 0, over)

        context = MetadataContext(
            broker.ports, number, broker.config, lambda: broker.loader.image, node._serve_locally, create
        )
        topic = self.topics[number] = RemoteLogMetadataTopic(context)
        broker.quorum_node.loader.subscribe(lambda *_: topic.image_changed())

    def at(self, number: int, work: Callable[[RemoteLogMetadataTopic], Any]) -> Any:
        """Run work at a node, and let its requests be served."""
        member = self.members[number]
        result = work(self.topics[number])
        self._take(member, member.node._take_effects())
        return result

    def watch(self, *numbers: int, partition: int = 0, topic_id: bytes = TOPIC_ID) -> None:
        for number in numbers:
            self.at(number, lambda topic: topic.watch(topic_id, TOPIC, partition))
        self.run_until(lambda: all(self.topics[number].is_ready(topic_id, partition) for number in numbers))

    def start_write(self, number: int, event: RemoteLogEvent) -> Errors:
        errors: Errors = []
        self.at(number, lambda topic: topic.write(event, errors.append))
        return errors

    def write(self, number: int, event: RemoteLogEvent) -> Error:
        errors = self.start_write(number, event)
        self.run_until(lambda: bool(errors))
        (error,) = errors
        return error

    def segments(self, number: int, partition: int = 0, topic_id: bytes = TOPIC_ID) -> RemoteLogMetadataCache:
        return self.topics[number].of(topic_id, partition)

    def index(self, partition: int = 0, topic_id: bytes = TOPIC_ID) -> int:
        return metadata_partition_of(topic_id, partition, len(self.state_of_topic))

    @property
    def state_of_topic(self) -> Sequence[Any]:
        image: Any = max((each.node.broker.loader.image for each in self.living), key=lambda one: one.provenance.offset)
        partitions: Sequence[Any] = image.topics[REMOTE_LOG_METADATA_TOPIC].partitions
        return partitions

    def keeper(self, partition: int = 0) -> int:
        """Return the leader of the metadata topic's partition that keeps a partition."""
        return self.leader(REMOTE_LOG_METADATA_TOPIC, self.index(partition))
