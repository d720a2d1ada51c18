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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.write_operations import (
    ActiveController,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
    raise_bug,
)
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE, sends_metadata_epoch
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import SECURITY_PROTOCOL_PLAINTEXT, MetadataEpoch, NoOpRecord
from reference_broker.ports.node_ports import Channel, NodeContext, Ports
from reference_broker.ports.slicing import COMPARED_TOPICS_PER_SLICE, PARTITION_STATES_PER_SLICE, Sliced
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

MAX_REMEMBERED = 64
"""The number of epochs whose changed topics are remembered. For a broker that is further behind, every topic is
compared."""

States: TypeAlias = tuple[UpdateMetadataPartition1001, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one metadata epoch."""

    metadata_epoch: int
    controller_epoch: int
    """The epoch of the controller that wrote the epoch's record. No other one sends this content."""
    image: MetadataImage
    """The metadata as of the epoch's record."""
    topics: tuple[str, ...]
    """The topics that changed since the epoch before."""

    def live_brokers(self) -> tuple[BrokerImage, ...]:
        """Return the brokers that are not fenced, by ID. Clients see them, and they get the update."""
        brokers = self.image.brokers
        return tuple(brokers[broker_id] for broker_id in sorted(brokers) if not brokers[broker_id].fenced)


def is_visible_to_clients(delta: MetadataDelta) -> bool:
    """Return whether the delta changes what clients see of topics, or of brokers that they may connect to."""
    return bool(delta.topics) or any(
        _address(delta.image.brokers.get(broker_id)) != _address(broker) for broker_id, broker in delta.brokers.items()
    )


def _address(broker: BrokerImage | None) -> tuple[int, tuple[tuple[str, str, int], ...], str | None] | None:
    """Include the broker epoch, because a new incarnation knows nothing and needs an update."""
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
    """The partition states of updates. What several brokers need is built once, and kept until ``forget``."""

    ports: Ports
    history: deque[tuple[int, tuple[str, ...]]] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))
    _made: dict[tuple[int, int], States] = field(default_factory=dict)
    _waiting: dict[tuple[int, int], list[Callable[[States], None]]] = field(default_factory=dict)

    def remember(self, content: Content) -> None:
        self.history.append((content.metadata_epoch, content.topics))
        self._made.clear()

    def forget(self) -> None:
        self._made.clear()

    def clear(self) -> None:
        """Drop everything. Pending callbacks are never called."""
        self.history.clear()
        self._made.clear()
        self._waiting.clear()

    def make(self, base: Content | None, target: Content, then: Callable[[States], None]) -> None:
        """Call ``then`` with the states that lead from ``base`` to ``target``, in this event or a later one. A ``base``
        of None means nothing."""
        key = (-1 if base is None else base.metadata_epoch, target.metadata_epoch)
        states = self._made.get(key)
        if states is not None:
            then(states)
        elif key in self._waiting:
            self._waiting[key].append(then)
        else:
            waiting = self._waiting[key] = [then]
            self._step(key, waiting, self._slices(base, target))

    def _step(self, key: tuple[int, int], waiting: list[Callable[[States], None]], slices: Sliced[States]) -> None:
        if self._waiting.get(key) is not waiting:  # Decision metadata-update-abandoned
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

    def _slices(self, base: Content | None, target: Content) -> Sliced[States]:
        live = {broker.broker_id: True for broker in target.live_brokers()}
        states: list[UpdateMetadataPartition1001] = []
        for looked_at, name in enumerate(self._names(base, target), 1):
            before = None if base is None else base.image.topics.get(name)
            for state in _topic_states(before, target.image.topics.get(name), target.controller_epoch, live):
                states.append(state)
                if len(states) % PARTITION_STATES_PER_SLICE == 0:
                    yield
            if looked_at % COMPARED_TOPICS_PER_SLICE == 0:
                yield
        return tuple(states)

    def _names(self, base: Content | None, target: Content) -> Iterable[str]:
        if base is None:
            return target.image.topics
        if base.image.topics is target.image.topics:
            return ()
        if self.history and self.history[0][0] <= base.metadata_epoch + 1:  # Decision metadata-update-difference
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
    earlier = before.partitions if before is not None and before.topic_id == after.topic_id else ()
    for index, partition in enumerate(after.partitions):
        if index >= len(earlier) or (earlier[index] is not partition and earlier[index] != partition):
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


@dataclass(slots=True)
class NextMetadataEpoch(ControllerWriteOperation[ApiError | None]):
    """The record of the next metadata epoch. There is none if the feature was switched off in the meantime."""

    name = "metadata epoch"

    sends: Callable[[MetadataImage], bool]
    controller_epoch: int

    def plan(self, context: PlanContext) -> Records:
        latest = context.latest
        if not self.sends(latest):  # Decision metadata-epoch-written
            return ()
        return (NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=latest.metadata_epoch + 1)),)

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused


VERSION = 1001
FIRST_RETRY_MS = 50
LONGEST_RETRY_MS = 800
"""The pause between attempts to reach one broker. It doubles each time, and is shortened at random."""


@dataclass(slots=True, eq=False)
class _Recipient:
    """One incarnation of a broker."""

    broker_id: int
    broker_epoch: int
    known: Content | None = None
    """The content that it acknowledged last."""
    target: Content | None = None
    """The content that is sent now or again."""
    in_flight: bool = False
    """An update is being built or has no response yet."""
    timer: int | None = None
    retry_ms: int = FIRST_RETRY_MS


@dataclass(slots=True, eq=False)
class MetadataBroadcast:
    """Writes metadata epochs and sends their content to the live brokers."""

    _node: NodeContext
    _config: BrokerConfig
    _controller: ActiveController
    _epoch: int = -1
    """The epoch of this node's term, or -1."""
    _dirty: bool = False
    """Something that clients see has changed."""
    _epoch_pending: bool = False
    """A record of the next metadata epoch is on its way."""
    _content_replaced: bool = False
    """``_content`` was replaced, and is sent to brokers when this event is over."""
    _changed: dict[str, None] = field(default_factory=dict)
    """The topics that changed since the last metadata epoch."""
    _content: Content | None = None
    _recipients: dict[int, _Recipient] = field(default_factory=dict)
    _frames: Frames = field(init=False)

    def __post_init__(self) -> None:
        self._frames = Frames(self._node.ports)

    # Called by the controller

    def activated(self) -> None:
        """Write a new epoch soon, so that this controller sends everything to all brokers."""
        self._epoch = self._controller.epoch
        self._dirty = True
        self._node.after(0, self.progressed)

    def deactivated(self) -> None:
        self._epoch = -1
        self._epoch_pending = False
        self._stop()

    def published(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Note what was published. This is called before all other listeners of this node."""
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
        elif METADATA_EPOCH_FEATURE in delta.features or is_visible_to_clients(delta):  # Decision metadata-epoch-due
            self._dirty = True

    def progressed(self) -> None:
        """Send what was published, because all listeners of this node have it."""
        if not self._controller.is_active or not self._sends(self._controller.image):
            return
        if self._dirty and not self._epoch_pending:  # Decision metadata-epoch-proposed
            self._write_epoch()
        if self._content_replaced:
            self._content_replaced = False
            self._send_to_all()

    # Writing the epoch

    def _write_epoch(self) -> None:
        term, self._epoch_pending = self._epoch, True

        def completed(refusal: ApiError | None) -> None:
            """A refusal means that the disk failed or the term is over. The next term writes an epoch."""
            if term != self._epoch:  # Decision metadata-epoch-of-ended-term
                return
            self._epoch_pending = False
            if refusal is not None:  # Decision metadata-epoch-refused
                self._node.after(LONGEST_RETRY_MS * 1000, self.progressed)

        self._controller.append_write_event(NextMetadataEpoch(self._sends, self._epoch), completed, raise_bug)

    def _take_content(self, image: MetadataImage) -> None:
        content = Content(image.metadata_epoch, self._epoch, image, tuple(self._changed))
        self._changed.clear()
        self._dirty = False
        self._content = content
        self._content_replaced = True
        self._refresh_brokers(content)
        self._frames.remember(content)
        self._node.ports.note(
            "metadata_epoch",
            ("epoch", content.metadata_epoch),
            ("controller_epoch", content.controller_epoch),
            ("offset", image.provenance.offset),
        )

    def _sends(self, image: MetadataImage) -> bool:
        return self._config.crucible_metadata_epoch_enable and sends_metadata_epoch(image)

    # Sending to brokers

    def _refresh_brokers(self, content: Content) -> None:
        """Drop brokers that are no longer registered, and add live ones. A fenced broker is not dropped, because it may
        still have the content of the last update."""
        registered = content.image.brokers
        for recipient in list(self._recipients.values()):
            broker = registered.get(recipient.broker_id)
            if broker is None or broker.broker_epoch != recipient.broker_epoch:  # Decision metadata-recipient-restarted
                self._cancel(recipient)
                del self._recipients[recipient.broker_id]
            elif broker.fenced:
                self._cancel(recipient)
        for broker in content.live_brokers():
            if broker.broker_id not in self._recipients:
                self._recipients[broker.broker_id] = _Recipient(broker.broker_id, broker.broker_epoch)

    def _send_to_all(self) -> None:
        for recipient in list(self._recipients.values()):
            self._send_next(recipient)

    def _send_next(self, recipient: _Recipient) -> None:
        if recipient.in_flight or recipient.timer is not None:
            return
        target = recipient.target or self._content
        if target is None or recipient.known is target or not self._is_live(recipient):
            return
        recipient.target, recipient.in_flight = target, True
        self._frames.make(recipient.known, target, lambda states: self._send(recipient, target, states))

    def _send(self, recipient: _Recipient, target: Content, states: States) -> None:
        if not self._is_current(recipient):
            return
        if self._controller.is_writing_transaction:  # Decision metadata-update-in-transaction
            recipient.in_flight, self._content_replaced = (
                False,
                True,
            )  # ``_send_next`` is called again when the End is committed.
            return
        body = UpdateMetadataRequest1001(
            controller_id=self._node.node_id,
            controller_epoch=target.controller_epoch,
            metadata_epoch=target.metadata_epoch,
            partition_states=states,
            live_brokers=tuple(live_broker(broker) for broker in target.live_brokers()),
            broker_epoch=recipient.broker_epoch,
            type=FULL_UPDATE if recipient.known is None else INCREMENTAL_UPDATE,  # Decision metadata-update-kind
        )
        ports = self._node.ports
        ports.note("update_metadata_sent", ("broker", recipient.broker_id), ("epoch", target.metadata_epoch))

        def replied(response: object) -> None:
            self._responded(recipient, target, response)

        if recipient.broker_id == self._node.node_id:
            self._controller.serve_locally(ApiKey.UPDATE_METADATA, body, replied)
            return
        timeout_ms = self._config.controller_quorum_request_timeout_ms
        ports.send(
            recipient.broker_id,
            Channel.METADATA,
            ApiKey.UPDATE_METADATA,
            VERSION,
            body,
            timeout_ms,
            replied,
            lambda: self._failed(recipient),
        )

    def _responded(self, recipient: _Recipient, target: Content, response: object) -> None:
        assert isinstance(response, UpdateMetadataResponse1000), f"an update got {type(response).__name__}"
        if not self._is_current(recipient):  # Decision metadata-update-response-late
            return
        if response.error_code == ErrorCode.stale_controller_epoch:  # Decision controller-fenced
            self._failed(recipient)  # A newer controller has reached it. This node will soon learn of that.
        elif response.error_code != ErrorCode.none:  # Decision metadata-update-refused
            recipient.known = recipient.target = None  # The next update has everything.
            self._failed(recipient)
        else:
            recipient.known, recipient.target, recipient.in_flight = target, None, False
            recipient.retry_ms = FIRST_RETRY_MS
            self._send_next(recipient)
            if not any(each.in_flight for each in self._recipients.values()):
                self._frames.forget()

    def _failed(self, recipient: _Recipient) -> None:
        """Resend the update after a pause. The broker may have applied it or not."""
        if not self._is_current(recipient):
            return
        recipient.in_flight = False
        if not self._is_live(recipient):  # Decision metadata-recipient-failed
            return
        pause_ms, recipient.retry_ms = recipient.retry_ms, min(2 * recipient.retry_ms, LONGEST_RETRY_MS)
        pause_ms -= self._node.random.randrange(pause_ms // 2)
        recipient.timer = self._node.after(pause_ms * 1000, lambda: self._again(recipient))

    def _again(self, recipient: _Recipient) -> None:
        recipient.timer = None
        self._send_next(recipient)

    def _is_current(self, recipient: _Recipient) -> bool:
        return self._recipients.get(recipient.broker_id) is recipient

    def _is_live(self, recipient: _Recipient) -> bool:
        broker = None if self._content is None else self._content.image.brokers.get(recipient.broker_id)
        return broker is not None and not broker.fenced and broker.broker_epoch == recipient.broker_epoch

    def _cancel(self, recipient: _Recipient) -> None:
        if recipient.timer is not None:
            self._node.ports.cancel_timer(recipient.timer)
            recipient.timer = None

    def _stop(self) -> None:
        """Drop all brokers, because the term is over or the metadata epoch was switched off."""
        for recipient in self._recipients.values():
            self._cancel(recipient)
        self._recipients.clear()
        self._changed.clear()
        self._content = None
        self._dirty = self._content_replaced = False
        self._frames.clear()
