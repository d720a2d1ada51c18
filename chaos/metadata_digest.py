"""A number for the content of a node's metadata. Equal content gives an equal number, however the node came by it.

The digest is the sum, modulo 2^64, of a hash for each live entity (topic, partition, broker, set of configs, feature,
the next producer ID, the metadata epoch). So following a delta costs only what changed. A node that replayed the log,
one that loaded a snapshot and one that did both must agree at each offset.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from reference_broker.core.effects import Effect
from reference_broker.core.events import Event
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.now import Now

if TYPE_CHECKING:
    from reference_broker.core.node import Node
    from reference_broker.metadata.loader import MetadataLoader

MODULUS = 1 << 64
REMEMBERED = 2048
ROW = "metadata_image"
"""The name of the trace row."""


@dataclass(frozen=True, slots=True)
class Published:
    """One publication. ``offset`` and ``epoch`` are those of the last record in the image. ``partitions`` counts those
    of all topics."""

    offset: int
    epoch: int
    topics: int
    partitions: int
    digest: int

    def fields(self) -> dict[str, int | str]:
        """Returns the fields of the trace row. The digest is text, because readers of JSON keep only 53 bits of a
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
        """Follows one publication. A delta on another image than the last one (a test's or a mutant's) is not trusted:
        the whole image is hashed anew."""
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
        """Computes the digest again from the whole image."""
        return digest_of(self._image)


class Watch:
    """Implements core.hooks.Hooks and changes nothing. It joins the loader once the node's log is recovered."""

    __slots__ = ("_emit", "_node", "digest")

    def __init__(self, node: "Node", emit: Emit) -> None:
        self._node = node
        self._emit = emit
        self.digest: Digest | None = None

    def before(self, now: Now, event: Event) -> Sequence[Event]:  # noqa: ARG002
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:  # noqa: ARG002
        if self.digest is None:
            self.attach()
        return effects

    def attach(self) -> bool:
        """Returns whether it is joined to the loader now. The image that the loader already has is emitted."""
        if self.digest is None:
            if not self._node.listening:
                return False
            loader: MetadataLoader = self._node.broker.replica.loader
            self.digest = Digest(loader.image)
            loader.subscribe(self._published)
            if loader.image.provenance.offset >= 0:
                self._emit(self.digest.published())
        return True

    def _published(self, delta: MetadataDelta, image: MetadataImage) -> None:
        assert self.digest is not None
        self._emit(self.digest.follow(delta, image))


def watch(node: "Node", emit: Emit) -> Watch:
    """Returns a hook to put among the node's hooks. Or call its ``attach`` after each event until it returns True."""
    return Watch(node, emit)


def digest_of(image: MetadataImage) -> int:
    """Returns the digest of an image, at the cost of the whole image."""
    return sum(_hashes(image)) % MODULUS


def _hashes(image: MetadataImage) -> Iterator[int]:
    yield from (_whole(topic) for topic in image.topics.values())
    yield from (_of_broker(each) for each in image.brokers.values())
    yield from (_of_config(resource, image.configs) for resource in image.configs)
    yield from (_of_feature(name, image.features) for name in image.features)
    yield _hash(_producer_id(image.next_producer_id))
    yield _of_epoch(image.metadata_epoch)


def _change(delta: MetadataDelta, after: MetadataImage) -> int:
    """Returns what the delta adds to the digest."""
    before = delta.image
    grown = 0
    for change in delta.topics:
        if change.before is None or change.after is None:
            grown += _whole(change.after) - _whole(change.before)
        else:
            grown += _partitions(change.after, change.partitions) - _partitions(change.before, change.partitions)
            grown += _of_topic(change.after) - _of_topic(change.before)
    for resource in delta.configs:
        grown += _of_config(resource, after.configs) - _of_config(resource, before.configs)
    for number in delta.brokers:
        grown += _of_broker(after.brokers.get(number)) - _of_broker(before.brokers.get(number))
    for name in delta.features:
        grown += _of_feature(name, after.features) - _of_feature(name, before.features)
    if after.next_producer_id != before.next_producer_id:
        grown += _hash(_producer_id(after.next_producer_id)) - _hash(_producer_id(before.next_producer_id))
    if after.metadata_epoch != before.metadata_epoch:
        grown += _of_epoch(after.metadata_epoch) - _of_epoch(before.metadata_epoch)
    return grown


def _of_topic(topic: TopicImage) -> int:
    return _hash_of_topic(topic.topic_id, topic.name)


def _count(topic: TopicImage | None) -> int:
    return 0 if topic is None else len(topic.partitions)


def _whole(topic: TopicImage | None) -> int:
    if topic is None:
        return 0
    return _of_topic(topic) + _partitions(topic, range(len(topic.partitions)))


def _partitions(topic: TopicImage, indexes: Sequence[int]) -> int:
    known = len(topic.partitions)
    return sum(_hash_of_partition(topic.topic_id, each, topic.partitions[each]) for each in indexes if each < known)


def _of_config(resource: tuple[int, str], configs: Mapping[tuple[int, str], Mapping[str, str]]) -> int:
    found = configs.get(resource)
    return _hash(_config(resource, found)) if found else 0


@lru_cache(REMEMBERED)
def _of_broker(broker: BrokerImage | None) -> int:
    return 0 if broker is None else _hash(f"broker {broker!r}")


def _of_feature(name: str, features: Mapping[str, int]) -> int:
    level = features.get(name)
    return 0 if level is None else _hash(_feature(name, level))


# One text for each entity; no two kinds share a first word.


def _partition(topic_id: bytes, index: int, it: PartitionImage) -> str:
    return (
        f"partition {topic_id.hex()} {index} {it.replicas} {it.isr} {it.leader} {it.leader_epoch} {it.partition_epoch} "
        f"{it.adding_replicas} {it.removing_replicas} {it.directories} {it.leader_recovery_state}"
    )


def _config(resource: tuple[int, str], values: Mapping[str, str]) -> str:
    return f"config {resource} {sorted(values.items())}"


def _feature(name: str, level: int) -> str:
    return f"feature {name} {level}"


def _producer_id(number: int) -> str:
    return f"producer {number}"


def _of_epoch(metadata_epoch: int) -> int:
    """Returns 0 while there is no metadata epoch, so that such a cluster equals one that knows none."""
    return _hash(f"metadata epoch {metadata_epoch}") if metadata_epoch else 0


# Cached because all nodes of a simulated cluster hash the same texts.


@lru_cache(REMEMBERED)
def _hash_of_topic(topic_id: bytes, name: str) -> int:
    return _hash(f"topic {topic_id.hex()} {name}")


@lru_cache(REMEMBERED)
def _hash_of_partition(topic_id: bytes, index: int, it: PartitionImage) -> int:
    return _hash(_partition(topic_id, index, it))


def _hash(entity: str) -> int:
    return int.from_bytes(blake2b(entity.encode(), digest_size=8).digest(), "big")
