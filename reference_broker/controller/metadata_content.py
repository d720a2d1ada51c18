"""The content of UpdateMetadata (M-3): one image with its metadata epoch, as a whole or as the difference to another.

Kafka's UpdateMetadata request names the leader of each partition, which is -2 for a deleted one. Every update holds all
live brokers, because they are few.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import SECURITY_PROTOCOL_PLAINTEXT
from reference_broker.ports.node_ports import Ports
from reference_broker.wire.drafts.updates import (
    UpdateMetadataBroker1000,
    UpdateMetadataEndpoint1000,
    UpdateMetadataPartition1001,
)

DELETED = -2
"""The leader of a deleted partition (LeaderAndIsr.LeaderDuringDelete)."""

PARTITIONS_PER_SLICE = 500
"""One event makes the states of this many partitions, in some 2 ms."""

TOPICS_PER_SLICE = 5000
"""One event compares this many topics, if it is not known which of them changed."""

MOST_REMEMBERED = 64
"""The number of epochs whose changed topics are remembered. For a broker that is further behind, every topic is
compared."""

States: TypeAlias = tuple[UpdateMetadataPartition1001, ...]
Slices: TypeAlias = Generator[None, None, States]


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one epoch. ``image`` is the metadata as of the epoch's record. ``topics`` names the topics that
    changed since the epoch before. ``controller_epoch`` is that of the controller that wrote the record; no other one
    sends it."""

    metadata_epoch: int
    controller_epoch: int
    image: MetadataImage
    topics: tuple[str, ...]

    def live_brokers(self) -> tuple[BrokerImage, ...]:
        """The brokers that are not fenced, by ID. Clients are told of them, and they get the update."""
        brokers = self.image.brokers
        return tuple(brokers[broker_id] for broker_id in sorted(brokers) if not brokers[broker_id].fenced)


def is_told(delta: MetadataDelta) -> bool:
    """Whether the delta changes what clients are told about topics, or about brokers that they may connect to."""
    return bool(delta.topics) or any(
        _address(delta.image.brokers.get(broker_id)) != _address(broker) for broker_id, broker in delta.brokers.items()
    )


def _address(broker: BrokerImage | None) -> tuple[int, tuple[tuple[str, str, int], ...], str | None] | None:
    """Includes the broker epoch, because a new incarnation knows nothing and needs an update."""
    if broker is None or broker.fenced:
        return None
    return broker.broker_epoch, broker.endpoints, broker.rack


def live_broker(broker: BrokerImage) -> UpdateMetadataBroker1000:
    endpoints = tuple(
        UpdateMetadataEndpoint1000(port=port, host=host, listener=name, security_protocol=SECURITY_PROTOCOL_PLAINTEXT)
        for name, host, port in broker.endpoints
    )
    return UpdateMetadataBroker1000(id=broker.broker_id, endpoints=endpoints, rack=broker.rack)


@dataclass(slots=True)
class Frames:
    """Makes partition states in slices. What several brokers need is made once, and kept until ``forget``."""

    ports: Ports
    history: deque[tuple[int, tuple[str, ...]]] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))
    _made: dict[tuple[int, int], States] = field(default_factory=dict)
    _waiting: dict[tuple[int, int], list[Callable[[States], None]]] = field(default_factory=dict)

    def remember(self, content: Content) -> None:
        self.history.append((content.metadata_epoch, content.topics))
        self._made.clear()

    def forget(self) -> None:
        self._made.clear()

    def clear(self) -> None:
        """Forgets everything. Callbacks that wait are never called."""
        self.history.clear()
        self._made.clear()
        self._waiting.clear()

    def make(self, base: Content | None, target: Content, then: Callable[[States], None]) -> None:
        """Calls ``then`` with the states that lead from ``base`` to ``target``, in this event or a later one. A
        ``base`` of None stands for nothing."""
        key = (-1 if base is None else base.metadata_epoch, target.metadata_epoch)
        made = self._made.get(key)
        if made is not None:
            then(made)
        elif key in self._waiting:
            self._waiting[key].append(then)
        else:
            waiting = self._waiting[key] = [then]
            self._step(key, waiting, self._slices(base, target))

    def _step(self, key: tuple[int, int], waiting: list[Callable[[States], None]], slices: Slices) -> None:
        if self._waiting.get(key) is not waiting:
            return
        try:
            next(slices)
        except StopIteration as stop:
            del self._waiting[key]
            self._made[key] = stop.value
            for then in waiting:
                then(stop.value)
        else:
            self.ports.set_timer(self.ports.now().mono_us, lambda: self._step(key, waiting, slices))

    def _slices(self, base: Content | None, target: Content) -> Slices:
        live = {broker.broker_id: True for broker in target.live_brokers()}
        states: list[UpdateMetadataPartition1001] = []
        for looked_at, name in enumerate(self._names(base, target), 1):
            before = None if base is None else base.image.topics.get(name)
            for state in _topic_states(before, target.image.topics.get(name), target.controller_epoch, live):
                states.append(state)
                if len(states) % PARTITIONS_PER_SLICE == 0:
                    yield
            if looked_at % TOPICS_PER_SLICE == 0:
                yield
        return tuple(states)

    def _names(self, base: Content | None, target: Content) -> Iterable[str]:
        if base is None:
            return target.image.topics
        if base.image.topics is target.image.topics:
            return ()
        if self.history and self.history[0][0] <= base.metadata_epoch + 1:
            epochs = (names for epoch, names in self.history if base.metadata_epoch < epoch <= target.metadata_epoch)
            return dict.fromkeys(name for names in epochs for name in names)
        return {**base.image.topics, **target.image.topics}


def _topic_states(
    before: TopicImage | None, after: TopicImage | None, controller_epoch: int, live: dict[int, bool]
) -> Iterable[UpdateMetadataPartition1001]:
    if before is after:
        return
    if after is None:
        assert before is not None, "a topic that is nowhere has not changed"
        for index, partition in enumerate(before.partitions):
            yield _state(before, index, partition, controller_epoch, live, DELETED)
        return
    known = before.partitions if before is not None and before.topic_id == after.topic_id else ()
    for index, partition in enumerate(after.partitions):
        if index >= len(known) or (known[index] is not partition and known[index] != partition):
            yield _state(after, index, partition, controller_epoch, live, partition.leader)


def _state(
    topic: TopicImage, index: int, partition: PartitionImage, controller_epoch: int, live: dict[int, bool], leader: int
) -> UpdateMetadataPartition1001:
    return UpdateMetadataPartition1001(
        topic=topic.name,
        partition=index,
        controller_epoch=controller_epoch,
        leader=leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        zk_version=partition.partition_epoch,
        replicas=partition.replicas,
        offline_replicas=tuple(broker for broker in partition.replicas if broker not in live),
        topic_id=UUID(bytes=topic.topic_id),
    )
