"""The metadata epoch and UpdateMetadata, on the active controller (KIP-232, M-1 to M-3).

Each change of what clients see leads to a new metadata epoch, which is a record of its own. One such record is under
way at a time, and changes that come meanwhile share the next. When the record is committed and published here, its
content (the image as of that record) is sent to every live broker, this node included.

A broker gets what changed since the content that it acknowledged last. It gets everything if it has not acknowledged
any content of this controller. It gets one update at a time. If no response comes, the same update is sent again after
a pause. Kafka's UpdateMetadata request names the leader of each partition, which is -2 for a deleted one. Every update
holds all live brokers, because they are few.

While a transaction is being written, nothing is sent and no epoch is written, because nothing may come between its
records.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.changes import ActiveController, Records, Refusal
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE, sends_metadata_epoch
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import SECURITY_PROTOCOL_PLAINTEXT, MetadataEpoch, NoOpRecord
from reference_broker.ports.node_ports import Channel, Ports, Surroundings
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import (
    FULL_UPDATE,
    INCREMENTAL_UPDATE,
    UpdateMetadataBroker1000,
    UpdateMetadataEndpoint1000,
    UpdateMetadataPartition1001,
    UpdateMetadataRequest1001,
    UpdateMetadataResponse1000,
)
from reference_broker.wire.errors import ErrorCode

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


VERSION = 1001
FIRST_RETRY_MS = 50
LONGEST_RETRY_MS = 800
"""The pause between attempts to reach one broker. It doubles each time, and is shortened at random."""


@dataclass(slots=True, eq=False)
class _Told:
    """One incarnation of a broker. ``known`` is the content that it acknowledged last, and ``target`` the one that is
    sent now or again. ``asking`` says that an update is being made or has not been answered."""

    broker_id: int
    broker_epoch: int
    known: Content | None = None
    target: Content | None = None
    asking: bool = False
    timer: int | None = None
    retry_ms: int = FIRST_RETRY_MS


@dataclass(slots=True, eq=False)
class MetadataBroadcast:
    """``_epoch`` is that of this node's term, or -1. ``_dirty`` says that clients must be told something new, and
    ``_asked`` that a record of the next metadata epoch is on its way. ``_changed`` names the topics that changed since
    the last one. ``_has_news`` says that ``_content`` was replaced, and that brokers are told when this event is over.
    """

    _surroundings: Surroundings
    _config: BrokerConfig
    _controller: ActiveController
    _epoch: int = -1
    _dirty: bool = False
    _asked: bool = False
    _has_news: bool = False
    _changed: dict[str, None] = field(default_factory=dict)
    _content: Content | None = None
    _told: dict[int, _Told] = field(default_factory=dict)
    _frames: Frames = field(init=False)

    def __post_init__(self) -> None:
        self._frames = Frames(self._surroundings.ports)

    # The controller's news

    def activated(self) -> None:
        """Writes a new epoch soon, so that this controller sends everything to all brokers."""
        self._epoch = self._controller.epoch
        self._dirty = True
        self._surroundings.after(0, self.progressed)

    def deactivated(self) -> None:
        self._epoch = -1
        self._asked = False
        self._stop()

    def published(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Is called before all other listeners of this node, so it only notes what happened."""
        if not self._controller.is_active:
            return
        if not self._sends(image):
            if METADATA_EPOCH_FEATURE in delta.features:
                self._stop()
            return
        for change in delta.topics:
            topic = change.after or change.before
            assert topic is not None, "a topic change has a topic before it or after it"
            self._changed[topic.name] = None
        if delta.metadata_epoch is not None:
            self._take_content(image)
        elif METADATA_EPOCH_FEATURE in delta.features or is_told(delta):
            self._dirty = True

    def progressed(self) -> None:
        """Is called when all listeners of this node have what was published."""
        if not self._controller.is_active or not self._sends(self._controller.image):
            return
        if self._dirty and not self._asked:
            self._ask_for_epoch()
        if self._has_news:
            self._has_news = False
            self._tell_all()

    # Writing the epoch

    def _ask_for_epoch(self) -> None:
        term, self._asked = self._epoch, True

        def answered(refusal: Refusal | None) -> None:
            """A refusal means that the disk failed or the term is over. The next term writes an epoch."""
            if term != self._epoch:
                return
            self._asked = False
            if refusal is not None:
                self._surroundings.after(LONGEST_RETRY_MS * 1000, self.progressed)

        self._controller.submit(self._plan, answered, name="metadata epoch")

    def _plan(self) -> Records:
        latest = self._controller.latest
        if not self._sends(latest):
            return ()
        return (NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=latest.metadata_epoch + 1)),)

    def _take_content(self, image: MetadataImage) -> None:
        content = Content(image.metadata_epoch, self._epoch, image, tuple(self._changed))
        self._changed.clear()
        self._dirty = False
        self._content = content
        self._has_news = True
        self._refresh_brokers(content)
        self._frames.remember(content)
        self._surroundings.ports.note(
            "metadata_epoch",
            ("epoch", content.metadata_epoch),
            ("controller_epoch", content.controller_epoch),
            ("offset", image.provenance.offset),
        )

    def _sends(self, image: MetadataImage) -> bool:
        return self._config.crucible_metadata_epoch_enable and sends_metadata_epoch(image)

    # Telling brokers

    def _refresh_brokers(self, content: Content) -> None:
        """Forgets brokers that are no longer registered, and adds live ones. A fenced broker is kept, because it may
        still have what it was sent."""
        registered = content.image.brokers
        for told in list(self._told.values()):
            broker = registered.get(told.broker_id)
            if broker is None or broker.broker_epoch != told.broker_epoch:
                self._cancel(told)
                del self._told[told.broker_id]
            elif broker.fenced:
                self._cancel(told)
        for broker in content.live_brokers():
            if broker.broker_id not in self._told:
                self._told[broker.broker_id] = _Told(broker.broker_id, broker.broker_epoch)

    def _tell_all(self) -> None:
        for told in list(self._told.values()):
            self._tell(told)

    def _tell(self, told: _Told) -> None:
        if told.asking or told.timer is not None:
            return
        target = told.target or self._content
        if target is None or told.known is target or not self._is_live(told):
            return
        told.target, told.asking = target, True
        self._frames.make(told.known, target, lambda states: self._send(told, target, states))

    def _send(self, told: _Told, target: Content, states: States) -> None:
        if not self._is_current(told):
            return
        if self._controller.is_writing_transaction:
            told.asking, self._has_news = False, True  # ``_tell`` is called again when the End is committed.
            return
        body = UpdateMetadataRequest1001(
            controller_id=self._surroundings.node_id,
            controller_epoch=target.controller_epoch,
            metadata_epoch=target.metadata_epoch,
            partition_states=states,
            live_brokers=tuple(live_broker(broker) for broker in target.live_brokers()),
            broker_epoch=told.broker_epoch,
            type=FULL_UPDATE if told.known is None else INCREMENTAL_UPDATE,
        )
        ports = self._surroundings.ports
        ports.note("update_metadata_sent", ("broker", told.broker_id), ("epoch", target.metadata_epoch))

        def replied(answer: object) -> None:
            self._answered(told, target, answer)

        if told.broker_id == self._surroundings.node_id:
            self._controller.serve_locally(ApiKey.UPDATE_METADATA, body, replied)
            return
        timeout_ms = self._config.controller_quorum_request_timeout_ms
        ports.send(
            told.broker_id,
            Channel.METADATA,
            ApiKey.UPDATE_METADATA,
            VERSION,
            body,
            timeout_ms,
            replied,
            lambda: self._failed(told),
        )

    def _answered(self, told: _Told, target: Content, answer: object) -> None:
        assert isinstance(answer, UpdateMetadataResponse1000), f"an update was answered by {type(answer).__name__}"
        if not self._is_current(told):
            return
        if answer.error_code == ErrorCode.stale_controller_epoch:
            self._failed(told)  # A newer controller has reached it. This node will soon learn of that.
        elif answer.error_code != ErrorCode.none:
            told.known = told.target = None  # It cannot use a difference. It gets everything next time.
            self._failed(told)
        else:
            told.known, told.target, told.asking = target, None, False
            told.retry_ms = FIRST_RETRY_MS
            self._tell(told)
            if not any(each.asking for each in self._told.values()):
                self._frames.forget()

    def _failed(self, told: _Told) -> None:
        """Sends the update again after a pause. The broker may have applied it or not."""
        if not self._is_current(told):
            return
        told.asking = False
        if not self._is_live(told):
            return
        pause_ms, told.retry_ms = told.retry_ms, min(2 * told.retry_ms, LONGEST_RETRY_MS)
        pause_ms -= self._surroundings.random.randrange(pause_ms // 2)
        told.timer = self._surroundings.after(pause_ms * 1000, lambda: self._again(told))

    def _again(self, told: _Told) -> None:
        told.timer = None
        self._tell(told)

    def _is_current(self, told: _Told) -> bool:
        return self._told.get(told.broker_id) is told

    def _is_live(self, told: _Told) -> bool:
        broker = None if self._content is None else self._content.image.brokers.get(told.broker_id)
        return broker is not None and not broker.fenced and broker.broker_epoch == told.broker_epoch

    def _cancel(self, told: _Told) -> None:
        if told.timer is not None:
            self._surroundings.ports.cancel_timer(told.timer)
            told.timer = None

    def _stop(self) -> None:
        """Forgets all brokers, because the term is over or the metadata epoch was switched off."""
        for told in self._told.values():
            self._cancel(told)
        self._told.clear()
        self._changed.clear()
        self._content = None
        self._dirty = self._has_news = False
        self._frames.clear()
