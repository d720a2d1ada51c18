"""What a broker tells clients about the cluster: an immutable value, changed only by updates.

Fed by the metadata image of this node (``update_of``) or, where the metadata epoch is on, by the active controller's
UpdateMetadata (``metadata_updates``). An update names what changed, so it costs what changed plus one copy of the topic
map.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import BrokerImage, MetadataImage, TopicImage

NO_CONTROLLER = -1
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """Changes for a cache. ``topics``: None removes it. ``brokers`` None: unchanged, else all registered ones.

    ``metadata_epoch`` -1: the sender keeps none. ``whole``: topics that it does not name are gone.
    """

    controller_id: int
    controller_epoch: int
    topics: Mapping[str, TopicImage | None]
    brokers: tuple[BrokerImage, ...] | None = None
    metadata_epoch: int = NO_EPOCH
    whole: bool = False


@dataclass(frozen=True, slots=True)
class MetadataCache:
    """``topics`` by name and ``topic_names`` by ID hold the same topics; ``brokers`` by ID, ascending.

    ``metadata_epoch`` -1: it follows this node's image, else it is what the active controller sent last.
    ``overtaken_epoch``: what was sent up to that one is of before the epoch was switched off, and counts no more.
    """

    cluster_id: str = ""
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = NO_EPOCH
    metadata_epoch: int = NO_EPOCH
    overtaken_epoch: int = NO_EPOCH
    brokers: tuple[BrokerImage, ...] = ()
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    _live: frozenset[int] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        """Asked for each partition that is described, so it is looked up, not searched."""
        live = frozenset(broker.broker_id for broker in self.brokers if not broker.fenced)
        object.__setattr__(self, "_live", live)

    def apply(self, update: MetadataUpdate) -> "MetadataCache":
        """The cache after this update; the caller has judged its epochs."""
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
                brokers = self.brokers  # What was described with them still holds.
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

    def live_brokers(self) -> tuple[BrokerImage, ...]:
        """Those that are not fenced: what clients may connect to."""
        return tuple(broker for broker in self.brokers if not broker.fenced)

    def is_live(self, broker_id: int) -> bool:
        return broker_id in self._live

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
    """What a published delta means for the cache."""
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
