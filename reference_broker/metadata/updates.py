"""UpdateMetadata on the receiving broker: whether it is accepted, and how it changes the metadata cache (KIP-232)."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.metadata.cache import NO_EPOCH, MetadataCache, MetadataUpdate
from reference_broker.metadata.delta import MetadataFault, with_changes
from reference_broker.metadata.image import BrokerImage, PartitionImage, TopicImage, named_listeners
from reference_broker.wire.drafts.updates import (
    FULL_UPDATE,
    UpdateMetadataPartition1000,
    UpdateMetadataPartition1001,
    UpdateMetadataRequest1000,
    UpdateMetadataRequest1001,
)
from reference_broker.wire.errors import Error, ErrorCode

DELETED = -2
"""The leader of a partition that is deleted."""

PARTITIONS_PER_SLICE = 500
"""One event reads the states of this many partitions, in some 2 ms."""

NO_TOPIC_ID = bytes(16)

Request: TypeAlias = UpdateMetadataRequest1000 | UpdateMetadataRequest1001
PartitionState: TypeAlias = UpdateMetadataPartition1000 | UpdateMetadataPartition1001
Slices: TypeAlias = Generator[None, None, MetadataUpdate | None]


def refusal(update: Request, cache: MetadataCache, broker_epoch: int) -> Error:
    """The error of an update, or NONE if it is accepted or overtaken (``is_overtaken``). ``broker_epoch`` is that of
    this broker's incarnation. Version 1000 names no incarnation."""
    if update.controller_epoch < cache.controller_epoch:
        return ErrorCode.stale_controller_epoch
    if isinstance(update, UpdateMetadataRequest1000):
        return ErrorCode.none
    if update.broker_epoch != broker_epoch:
        return ErrorCode.stale_broker_epoch
    if update.type != FULL_UPDATE and (
        cache.metadata_epoch == NO_EPOCH or update.controller_epoch != cache.controller_epoch
    ):
        return ErrorCode.invalid_request
    return ErrorCode.none


def is_overtaken(update: Request, cache: MetadataCache) -> bool:
    """Whether an update must be ignored. This is so if the same update or a newer one of the same controller was
    applied before, or if the metadata epoch has been switched off since."""
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
    """Whether a request replaces all that the broker was sent before. In version 1000 a controller's first one does."""
    if isinstance(request, UpdateMetadataRequest1001):
        return request.type == FULL_UPDATE
    return cache.metadata_epoch == NO_EPOCH or request.controller_epoch != cache.controller_epoch


def update_from(request: Request, cache: MetadataCache) -> Slices:
    """Turns a request into an update of ``cache``, in slices. The result is None if a topic has a gap in its
    partitions. Version 1000 names no topic IDs, so a topic keeps the one that is known."""
    whole = is_full(request, cache)
    drafts: dict[str, _Topic] = {}
    states: tuple[PartitionState, ...] = request.partition_states
    for number, state in enumerate(states, 1):
        _take(drafts, state, cache.topics.get(state.topic), whole)
        if number % PARTITIONS_PER_SLICE == 0:
            yield
    topics: dict[str, TopicImage | None] = {}
    for number, (name, draft) in enumerate(drafts.items(), 1):
        try:
            partitions = with_changes(name, draft.known, draft.changed)
        except MetadataFault:
            return None
        topics[name] = None if draft.deleted else _topic(name, draft.topic_id, partitions, cache)
        if number % PARTITIONS_PER_SLICE == 0:
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
                listeners=named_listeners((each.listener, each.host, each.port) for each in broker.endpoints),
            )
            for broker in request.live_brokers
            if broker.endpoints
        ),
        metadata_epoch=request.metadata_epoch,
        whole=whole,
    )


def _take(drafts: dict[str, _Topic], state: PartitionState, before: TopicImage | None, whole: bool) -> None:
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
    """Returns the same object as before if nothing changed, so that answers that were built from it stay valid."""
    topic, before = TopicImage(name, topic_id, partitions), cache.topics.get(name)
    return before if before is not None and before == topic else topic
