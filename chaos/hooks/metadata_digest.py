"""A number for the content of a node's metadata. Equal content gives an equal number, however the node came by it.

The digest is the sum, modulo 2^64, of a hash for each live entity (topic, partition, broker, set of configs, feature,
the next producer ID, the metadata epoch). So following a delta costs only what changed. A node that replayed the log,
one that loaded a snapshot and one that did both must agree at each offset.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from chaos.hooks.trace import PassiveHook
from reference_broker.core.events import Effect, Event
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.node_ports import Now

if TYPE_CHECKING:
    from reference_broker.core.node import Node
    from reference_broker.metadata.loader import MetadataLoader


MODULUS = 1 << 64
REMEMBERED = 2048
ROW = "metadata_image"
"""The name of the trace row."""


@dataclass(frozen=True, slots=True)
class Published:
    """One published image of the metadata."""

    offset: int
    """Offset of the last record in the image."""
    epoch: int
    """Leader epoch of that record."""
    topics: int
    """Number of topics."""
    partitions: int
    """Number of partitions of all topics."""
    digest: int

    def fields(self) -> dict[str, int | str]:
        """Return the fields of the trace row. The digest is text, because readers of JSON keep only 53 bits of a
        number."""
        return {
            "offset": self.offset,
            "epoch": self.epoch,
            "topics": self.topics,
            "partitions": self.partitions,
            "digest": f"{self.digest:016x}",
        }


Emit: TypeAlias = Callable[[Published], None]


class Digest:
    """Follows a node's images. ``value`` is the digest of the latest one, and ``partitions`` is its number of
    partitions."""

    __slots__ = ("_image", "partitions", "value")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self.value = digest_of(image)
        self.partitions = sum(len(topic.partitions) for topic in image.topics.values())

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> Published:
        """Follow one publication. A delta on another image than the last one (a test's or a mutant's) is not trusted:
        the whole image is hashed again."""
        if delta.image is self._image:
            self.value = (self.value + _change(delta, image)) % MODULUS
            self.partitions += sum(_count(change.after) - _count(change.before) for change in delta.topics)
            self._image = image
        elif image is not self._image:
            self.__init__(image)  # type: ignore[misc]
        return self.published()

    def published(self) -> Published:
        provenance = self._image.provenance
        return Published(provenance.offset, provenance.epoch, len(self._image.topics), self.partitions, self.value)

    def thorough(self) -> int:
        """Compute the digest again from the whole image."""
        return digest_of(self._image)


class Watch(PassiveHook):
    """Calls ``emit`` with each publication of a node. It subscribes to the node's metadata loader once the node has
    recovered its log."""

    def __init__(self, node: "Node", emit: Emit) -> None:
        self._node = node
        self._emit = emit
        self.digest: Digest | None = None

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self.attach()

    def attach(self) -> bool:
        """Subscribe to the loader if it exists, and return whether it does. If the loader has an image already, it is
        emitted."""
        if self.digest is None:
            if not self._node.listening:
                return False
            loader: MetadataLoader = self._node.broker.quorum_node.loader
            self.digest = Digest(loader.image)
            loader.subscribe(self._published)
            if loader.image.provenance.offset >= 0:
                self._emit(self.digest.published())
        return True

    def _published(self, delta: MetadataDelta, image: MetadataImage) -> None:
        assert self.digest is not None
        self._emit(self.digest.follow(delta, image))


def digest_of(image: MetadataImage) -> int:
    """Return the digest of an image, at the cost of the whole image."""
    topics = sum(_topic(topic, range(len(topic.partitions))) for topic in image.topics.values())
    return (topics + _rest(image, image.brokers, image.configs, image.features)) % MODULUS


def _change(delta: MetadataDelta, after: MetadataImage) -> int:
    """Return what the delta adds to the digest."""
    grown = 0
    for change in delta.topics:
        old, new = change.before, change.after
        touched = range(max(_count(old), _count(new))) if old is None or new is None else change.partitions
        grown += _topic(new, touched) - _topic(old, touched)
    entities = delta.brokers, delta.configs, delta.features
    return grown + _rest(after, *entities) - _rest(delta.image, *entities)


def _rest(
    image: MetadataImage, brokers: Iterable[int], configs: Iterable[tuple[int, str]], features: Iterable[str]
) -> int:
    """Return the sum over these entities, as far as they are in the image, and over what an image has once."""
    texts = [
        *(f"broker {image.brokers[broker]!r}" for broker in brokers if broker in image.brokers),
        *(
            f"config {config} {sorted(image.configs[config].items())}"
            for config in configs
            if image.configs.get(config)
        ),
        *(f"feature {feature} {image.features[feature]}" for feature in features if feature in image.features),
        f"producer {image.next_producer_id}",
    ]
    if image.metadata_epoch:  # A cluster that has no metadata epoch yet equals one that knows none.
        texts.append(f"metadata epoch {image.metadata_epoch}")
    return sum(_remembered_hash(text) for text in texts)


def _topic(topic: TopicImage | None, indexes: Iterable[int]) -> int:
    """Return the sum over the topic and these partitions of it, as far as they exist."""
    if topic is None:
        return 0
    topic_id, known, count = topic.topic_id, topic.partitions, len(topic.partitions)
    of_topic = _remembered_hash(f"topic {topic_id.hex()} {topic.name}")
    return of_topic + sum([_hash_of_partition(topic_id, index, known[index]) for index in indexes if index < count])


def _count(topic: TopicImage | None) -> int:
    return 0 if topic is None else len(topic.partitions)


# Cached because all nodes of a simulated cluster hash the same entities. No two kinds of texts share a first word.


@lru_cache(REMEMBERED)
def _hash_of_partition(topic_id: bytes, index: int, it: PartitionImage) -> int:
    return _hash(
        f"partition {topic_id.hex()} {index} {it.replicas} {it.isr} {it.leader} {it.leader_epoch} {it.partition_epoch} "
        f"{it.adding_replicas} {it.removing_replicas} {it.directories} {it.leader_recovery_state} "
        f"{it.elr} {it.last_known_elr}"
    )


@lru_cache(REMEMBERED)
def _remembered_hash(entity: str) -> int:
    return _hash(entity)


def _hash(entity: str) -> int:
    return int.from_bytes(blake2b(entity.encode(), digest_size=8).digest(), "big")
