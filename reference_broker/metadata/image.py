"""The cluster's metadata at one point of the metadata log: an immutable value.

A new image shares all unchanged parts with the one before. Building one from a delta costs what changed, plus one
copy of a map (about 5 ns an entry) for each kind of thing that changed: 10,000 topics are copied in 50 us, whatever
the number of records in the delta; partitions of untouched topics are never visited.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from reference_broker.quorum.offset_and_epoch import NOWHERE, Provenance

NO_LEADER = -1

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
"""ConfigResource.Type of Kafka."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def _empty() -> Mapping[KeyT, ValueT]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """``leader`` -1: none. ``partition_epoch`` grows with each change, ``leader_epoch`` with each new leadership."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    directories: tuple[bytes, ...] = ()
    leader_recovery_state: int = 0


@dataclass(frozen=True, slots=True)
class TopicImage:
    """``topic_id``: 16 bytes. ``partitions``: by index; indexes have no gaps."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. ``broker_epoch``: offset of its registration in the metadata log."""

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    host: str
    port: int
    fenced: bool
    in_controlled_shutdown: bool = False
    rack: str | None = None
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()
    """(name, lowest, highest level that it knows)."""

    def supports(self, feature: str, level: int) -> bool:
        """It announced that level; a feature that it never announced it has at level 0 alone."""
        lowest, highest = next(((low, high) for name, low, high in self.features if name == feature), (0, 0))
        return lowest <= level <= highest


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """``topics`` by name and ``topic_names`` by ID hold the same topics. ``configs``: by (resource type, name).

    ``features``: finalized level by feature name. ``next_producer_id``: the first of the next block.
    """

    provenance: Provenance = NOWHERE
    features: Mapping[str, int] = field(default_factory=_empty)
    brokers: Mapping[int, BrokerImage] = field(default_factory=_empty)
    topics: Mapping[str, TopicImage] = field(default_factory=_empty)
    topic_names: Mapping[bytes, str] = field(default_factory=_empty)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=_empty)
    next_producer_id: int = 0
    metadata_epoch: int = 0
    """Of KIP-232: how many times clients' metadata was sent out; it says what was sent up to its record. 0: never."""

    def at(self, provenance: Provenance) -> "MetadataImage":
        """The same metadata, as of another record."""
        return replace(self, provenance=provenance)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """The topic's own settings; empty where it sets none."""
        return self.configs.get((TOPIC_RESOURCE, topic), MappingProxyType({}))


EMPTY_IMAGE = MetadataImage()
