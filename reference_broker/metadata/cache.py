"""The metadata cache: what clients see of the cluster. It is an immutable value that updates replace.

Updates come from this node's metadata image (``update_of``). If the metadata epoch is on, they come from the active
controller's UpdateMetadata instead (``update_from``, KIP-232), unless that is refused. An update names only what
changed, so it costs what changed plus one copy of the topic map.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.metadata.delta import MetadataDelta, with_changes
from reference_broker.metadata.identifiers import is_online
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage, named_listeners
from reference_broker.metadata.records import MetadataFault
from reference_broker.ports.slicing import PARTITION_STATES_PER_SLICE, Sliced
from reference_broker.wire.drafts import (
    FULL_UPDATE,
    UpdateMetadataPartition1000,
    UpdateMetadataPartition1001,
    UpdateMetadataRequest1000,
    UpdateMetadataRequest1001,
)
from reference_broker.wire.errors import Error, ErrorCode

NO_CONTROLLER = -1
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """Changes for a cache."""

    controller_id: int
    controller_epoch: int
    topics: Mapping[str, TopicImage | None]
    """By name. None removes a topic."""
    brokers: tuple[BrokerImage, ...] | None = None
    """All registered brokers, or None if they are unchanged."""
    metadata_epoch: int = NO_EPOCH
    """-1 if the sender keeps none."""
    whole: bool = False
    """Whether topics that the update does not name are gone."""


@dataclass(frozen=True, slots=True)
class MetadataCache:
    """The metadata that clients get from a node."""

    cluster_id: str = ""
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = NO_EPOCH
    metadata_epoch: int = NO_EPOCH
    """The one that the active controller sent last, or -1 if the cache follows this node's image."""
    overtaken_epoch: int = NO_EPOCH
    """Updates up to this epoch are from before the metadata epoch was switched off, and no longer count. It is 0 if it
    was never on."""
    brokers: tuple[BrokerImage, ...] = ()
    """In ascending order of IDs."""
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    """By name."""
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    """Topic names by topic ID."""
    _live: Mapping[int, tuple[bytes, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Collect the live brokers with their directories, because each replica that is described needs them."""
        live = {broker.broker_id: broker.log_dirs for broker in self.brokers if not broker.fenced}
        object.__setattr__(self, "_live", live)

    def apply(self, update: MetadataUpdate) -> "MetadataCache":
        """The cache after this update. The caller has checked the update's epochs."""
        topics, topic_names = self.topics, self.topic_names
        if update.whole:  # Decision metadata-update-applied
            topics = {name: topic for name, topic in update.topics.items() if topic is not None}
            topic_names = {topic.topic_id: name for name, topic in topics.items()}
        elif update.topics:
            topics, topic_names = self._merged(update.topics)
        brokers = self.brokers
        if update.brokers is not None:
            brokers = tuple(sorted(update.brokers, key=lambda broker: broker.broker_id))
            if brokers == self.brokers:
                brokers = self.brokers  # The same object: responses that were built with it stay valid.
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

    def served_epoch(self) -> int:
        """Return the metadata epoch that clients get (M-4), or -1 for none.

        While the metadata epoch is switched off, it stays at the last one. Clients that have accepted it, or
        that find it beside a committed offset, go on then.
        """
        if self.metadata_epoch != NO_EPOCH:  # Decision metadata-epoch-served
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


DELETED = -2
"""The leader of a partition that is deleted."""

NO_TOPIC_ID = bytes(16)

Request: TypeAlias = UpdateMetadataRequest1000 | UpdateMetadataRequest1001
PartitionState: TypeAlias = UpdateMetadataPartition1000 | UpdateMetadataPartition1001


def refusal(update: Request, cache: MetadataCache, broker_epoch: int) -> Error:
    """The error of an update, or NONE if it is accepted or overtaken (``is_overtaken``). ``broker_epoch`` is that of
    this broker's incarnation. Version 1000 names no incarnation."""
    if update.controller_epoch < cache.controller_epoch:  # Decision metadata-update-controller
        return ErrorCode.stale_controller_epoch
    if isinstance(update, UpdateMetadataRequest1000):
        return ErrorCode.none
    if update.broker_epoch != broker_epoch:  # Decision metadata-update-broker-epoch
        return ErrorCode.stale_broker_epoch
    # Decision metadata-update-base-known
    if update.type != FULL_UPDATE and (
        cache.metadata_epoch == NO_EPOCH or update.controller_epoch != cache.controller_epoch
    ):
        return ErrorCode.invalid_request
    return ErrorCode.none


def is_overtaken(update: Request, cache: MetadataCache) -> bool:
    """Return whether an update must be ignored. This is so if the same update or a newer one of the same controller was
    applied before, or if the metadata epoch has been switched off since."""
    # Decision metadata-update-overtaken
    return update.metadata_epoch <= cache.overtaken_epoch or (
        update.controller_epoch == cache.controller_epoch and update.metadata_epoch <= cache.metadata_epoch
    )


@dataclass(slots=True)
class _Topic:
    """A topic that is being assembled on top of what the cache knows of it."""

    topic_id: bytes
    known: tuple[PartitionImage, ...]
    changed: dict[int, PartitionImage] = field(default_factory=dict)
    deleted: bool = False


def is_full(request: Request, cache: MetadataCache) -> bool:
    """Return whether a request replaces all that the broker was sent before. In version 1000 a controller's first one
    does."""
    if isinstance(request, UpdateMetadataRequest1001):
        return request.type == FULL_UPDATE
    return cache.metadata_epoch == NO_EPOCH or request.controller_epoch != cache.controller_epoch


def update_from(request: Request, cache: MetadataCache) -> Sliced[MetadataUpdate | None]:
    """Turn a request into an update of ``cache``. The result is None if a topic has a gap in its
    partitions. Version 1000 names no topic IDs, so a topic keeps the one that is known."""
    whole = is_full(request, cache)
    drafts: dict[str, _Topic] = {}
    states: tuple[PartitionState, ...] = request.partition_states
    for number, state in enumerate(states, 1):
        _add_change(drafts, state, cache.topics.get(state.topic), whole)
        if number % PARTITION_STATES_PER_SLICE == 0:
            yield
    topics: dict[str, TopicImage | None] = {}
    for number, (name, draft) in enumerate(drafts.items(), 1):
        try:  # Decision metadata-update-has-gaps
            partitions = with_changes(name, draft.known, draft.changed)
        except MetadataFault:
            return None
        topics[name] = None if draft.deleted else _topic(name, draft.topic_id, partitions, cache)
        if number % PARTITION_STATES_PER_SLICE == 0:
            yield
    return MetadataUpdate(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        topics=topics,
        brokers=tuple(
            BrokerImage(
                broker_id=broker.id,
                broker_epoch=NO_EPOCH,
                incarnation_id=NO_TOPIC_ID,
                host=broker.endpoints[0].host,
                port=broker.endpoints[0].port,
                fenced=False,
                rack=broker.rack,
                listeners=named_listeners(
                    (endpoint.listener, endpoint.host, endpoint.port) for endpoint in broker.endpoints
                ),
            )
            for broker in request.live_brokers
            if broker.endpoints
        ),
        metadata_epoch=request.metadata_epoch,
        whole=whole,
    )


def _add_change(drafts: dict[str, _Topic], state: PartitionState, before: TopicImage | None, whole: bool) -> None:
    if isinstance(state, UpdateMetadataPartition1000):
        topic_id = NO_TOPIC_ID if before is None else before.topic_id
    else:
        topic_id = NO_TOPIC_ID if state.topic_id is None else state.topic_id.bytes
    draft = drafts.get(state.topic)
    if draft is None or draft.topic_id != topic_id:
        is_known = not whole and before is not None and before.topic_id == topic_id
        draft = drafts[state.topic] = _Topic(topic_id, before.partitions if is_known and before is not None else ())
    draft.deleted = state.leader == DELETED
    draft.changed[state.partition] = PartitionImage(
        replicas=state.replicas,
        isr=state.isr,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.zk_version,
    )


def _topic(name: str, topic_id: bytes, partitions: tuple[PartitionImage, ...], cache: MetadataCache) -> TopicImage:
    """Return the same object as before if nothing changed, so that responses that were built from it stay valid."""
    topic, before = TopicImage(name, topic_id, partitions), cache.topics.get(name)
    return before if before is not None and before == topic else topic
