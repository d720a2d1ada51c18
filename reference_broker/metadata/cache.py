"""The metadata cache: what a broker tells clients about the cluster. It is an immutable value that updates replace.

Updates come from this node's metadata image (``update_of``). If the metadata epoch is on, they come from the active
controller's UpdateMetadata instead (``updates``). An update names only what changed, so it costs what changed plus one
copy of the topic map.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.directories import is_online
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage

NO_CONTROLLER = -1
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """Changes for a cache. In ``topics``, None removes a topic. ``brokers`` holds all registered brokers, or is None if
    they are unchanged.

    ``metadata_epoch`` is -1 if the sender keeps none. ``whole`` says that topics which the update does not name are
    gone.
    """

    controller_id: int
    controller_epoch: int
    topics: Mapping[str, TopicImage | None]
    brokers: tuple[BrokerImage, ...] | None = None
    metadata_epoch: int = NO_EPOCH
    whole: bool = False


@dataclass(frozen=True, slots=True)
class MetadataCache:
    """``topics`` by name and ``topic_names`` by ID hold the same topics. ``brokers`` is in ascending order of IDs.

    ``metadata_epoch`` is the one that the active controller sent last, or -1 if the cache follows this node's image.
    Updates up to ``overtaken_epoch`` are from before the metadata epoch was switched off, and no longer count. It is 0
    if it was never on.
    """

    cluster_id: str = ""
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = NO_EPOCH
    metadata_epoch: int = NO_EPOCH
    overtaken_epoch: int = NO_EPOCH
    brokers: tuple[BrokerImage, ...] = ()
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    _live: Mapping[int, tuple[bytes, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Collects the live brokers with their directories, because each replica that is described asks for them."""
        live = {broker.broker_id: broker.log_dirs for broker in self.brokers if not broker.fenced}
        object.__setattr__(self, "_live", live)

    def apply(self, update: MetadataUpdate) -> "MetadataCache":
        """The cache after this update. The caller has checked the update's epochs."""
        topics, topic_names = self.topics, self.topic_names
        if update.whole:
            topics = {name: topic for name, topic in update.topics.items() if topic is not None}
            topic_names = {topic.topic_id: name for name, topic in topics.items()}
        elif update.topics:
            topics, topic_names = self._merged(update.topics)
        brokers = self.brokers
        if update.brokers is not None:
            brokers = tuple(sorted(update.brokers, key=lambda broker: broker.broker_id))
            if brokers == self.brokers:
                brokers = self.brokers  # The same object: answers that were built with it stay valid.
        return MetadataCache(
            cluster_id=self.cluster_id,
            controller_id=update.controller_id,
            controller_epoch=update.controller_epoch,
            metadata_epoch=update.metadata_epoch,
            overtaken_epoch=self.overtaken_epoch,
            brokers=brokers,
            topics=topics,
            topic_names=topic_names,
        )

    def told_epoch(self) -> int:
        """The metadata epoch that clients are told (M-4), or -1 for none.

        While the metadata epoch is switched off, it stands still at the last one. Clients that have accepted it, or
        that find it beside a committed offset, go on then.
        """
        if self.metadata_epoch != NO_EPOCH:
            return self.metadata_epoch
        return self.overtaken_epoch if self.overtaken_epoch > 0 else NO_EPOCH

    def live_brokers(self) -> tuple[BrokerImage, ...]:
        """The brokers that are not fenced. Clients may connect to them."""
        return tuple(broker for broker in self.brokers if not broker.fenced)

    def is_live(self, broker_id: int) -> bool:
        return broker_id in self._live

    def offline_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The replicas that are not live, or whose directory is not online."""
        live, replicas, homes = self._live, partition.replicas, partition.directories
        if len(homes) != len(replicas):
            return tuple(broker for broker in replicas if broker not in live)
        return tuple(
            broker
            for broker, home in zip(replicas, homes, strict=True)
            if broker not in live or not is_online(home, live[broker])
        )

    def _merged(self, changes: Mapping[str, TopicImage | None]) -> tuple[dict[str, TopicImage], dict[bytes, str]]:
        topics, topic_names = dict(self.topics), dict(self.topic_names)
        for name, topic in changes.items():
            before = topics.get(name)
            if before is not None and (topic is None or topic.topic_id != before.topic_id):
                del topics[name], topic_names[before.topic_id]
            if topic is not None:
                topics[name] = topic
                topic_names[topic.topic_id] = name
        return topics, topic_names


EMPTY_CACHE = MetadataCache()


def update_of(delta: MetadataDelta, image: MetadataImage, controller_id: int) -> MetadataUpdate:
    """The cache update for a published delta."""
    topics: dict[str, TopicImage | None] = {}
    for change in delta.topics:
        if change.after is not None:
            topics[change.after.name] = change.after
        elif change.before is not None:
            topics[change.before.name] = None
    return MetadataUpdate(
        controller_id=controller_id,
        controller_epoch=image.provenance.epoch,
        topics=topics,
        brokers=tuple(image.brokers.values()) if delta.brokers else None,
    )


def cache_of(image: MetadataImage, cluster_id: str, controller_id: int) -> MetadataCache:
    """The cache of a whole image, at start."""
    whole = MetadataUpdate(controller_id, image.provenance.epoch, dict(image.topics), tuple(image.brokers.values()))
    return MetadataCache(cluster_id=cluster_id).apply(whole)
