"""Brings the markers of decided transactions to the leaders of their partitions, until each partition has its own.

One request at a time goes to each broker, with the markers of many transactions. What this node leads itself it writes
itself. Partitions whose leader does not take the marker now are sent again. Those without a leader wait until the
metadata changes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i8, i16, i32

from reference_broker.coordination.scheduling import SliceQueue, Steps
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.node_ports import Channel, Ports, Slices, later
from reference_broker.transactions.markers.marker import Marker, TopicPartition
from reference_broker.transactions.markers.writing import MarkerWriter
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error

if TYPE_CHECKING:  # Messages are loaded when they are needed first.
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker

PARTITIONS_A_SLICE = 500
"""Their leaders are looked up in one event. It takes some 2 ms."""
PARTITIONS_A_REQUEST = 1000
RETRY_US = 100_000

_OVER: Final = (
    ErrorCode.none,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.unsupported_version,
)
"""Such a partition needs no marker any more. INVALID_PRODUCER_EPOCH says that a newer epoch has ended what was open
there. Deliberately unlike Kafka, which then leaves the transaction undone until another node coordinates it."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One marker on its way. ``missing`` are the partitions that do not have it yet. ``is_wanted`` says whether this
    node still coordinates the transaction. ``delivered`` is called once, when no partition is missing and all else of
    that event is done."""

    marker: Marker
    missing: dict[TopicPartition, None]
    is_wanted: Callable[[], bool]
    delivered: Callable[[], None]


@dataclass(slots=True)
class _Broker:
    """The way to one broker."""

    queue: deque[tuple[Delivery, Sequence[TopicPartition]]] = field(default_factory=deque)
    is_busy: bool = False


class MarkerSender:
    """``image`` returns the metadata as this node knows it."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        image: Callable[[], MetadataImage],
        writer: MarkerWriter,
        steps: Steps,
        waiting: Gauge,
    ) -> None:
        self._ports = ports
        self._steps = steps
        self._node_id = node_id
        self._image = image
        self._writer = writer
        self._brokers: dict[int, _Broker] = {}
        self._again: list[tuple[Delivery, Sequence[TopicPartition]]] = []
        """What is asked for again after RETRY_US."""
        self._leaderless: list[tuple[Delivery, Sequence[TopicPartition]]] = []
        self._looked_into: MetadataImage | None = None
        """The metadata in which the first of the leaderless had no leader."""
        self._waiting = waiting
        self._work = SliceQueue(ports)

    def deliver(self, delivery: Delivery) -> None:
        """Sends the marker to the leader of each partition that is missing."""
        if len(delivery.missing) <= PARTITIONS_A_SLICE:
            self._hand_out(delivery, tuple(delivery.missing))
        else:
            self._work.add(self._hand_out_slices([(delivery, tuple(delivery.missing))]))

    def _hand_out_slices(self, all_of_them: Iterable[tuple[Delivery, Sequence[TopicPartition]]]) -> Slices:
        spent = 0
        for delivery, partitions in all_of_them:
            for at in range(0, len(partitions), PARTITIONS_A_SLICE):
                some = partitions[at : at + PARTITIONS_A_SLICE]
                self._hand_out(delivery, some)
                spent += len(some)
                if spent >= PARTITIONS_A_SLICE:
                    spent = 0
                    yield

    def _hand_out(self, delivery: Delivery, partitions: Sequence[TopicPartition]) -> None:
        """A partition that the metadata does not have is deleted, since this node learned of it before it was added.
        Whoever takes over from this node knows at least as much when it begins to lead."""
        if not delivery.is_wanted():
            return
        image = self._image()
        by_leader: dict[int, list[TopicPartition]] = {}
        is_any_gone = False
        for each in partitions:
            topic = image.topics.get(each[0])
            if topic is None or each[1] >= len(topic.partitions):
                delivery.missing.pop(each, None)
                is_any_gone = True
                continue
            by_leader.setdefault(topic.partitions[each[1]].leader, []).append(each)
        if is_any_gone or not partitions:
            self._look_whether_over(delivery)
        for leader, some in by_leader.items():
            if leader == self._node_id:
                self._writer.write(delivery.marker, some, partial(self._answered, delivery))
            elif leader in image.brokers:
                self._brokers.setdefault(leader, _Broker()).queue.append((delivery, some))
                self._send(leader)
            else:
                self._plan_retry()
                if not self._leaderless:
                    self._looked_into = image
                self._leaderless.append((delivery, some))
                self._waiting.value = len(self._again) + len(self._leaderless)

    # --- to one broker ----------------------------------------------------------------------------------------------

    def _send(self, node_id: int) -> None:
        """Sends what waits for this broker, unless a request to it has no answer yet."""
        from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest

        broker = self._brokers[node_id]
        if broker.is_busy:
            return
        sent: list[tuple[Delivery, Sequence[TopicPartition]]] = []
        count = 0
        while broker.queue and count < PARTITIONS_A_REQUEST:
            delivery, partitions = broker.queue.popleft()
            if delivery.is_wanted():
                sent.append((delivery, partitions))
                count += len(partitions)
        if not sent:
            del self._brokers[node_id]
            return
        broker.is_busy = True
        self._ports.send(
            node_id,
            Channel.MARKERS,
            ApiKey.WRITE_TXN_MARKERS,
            VERSIONS[ApiKey.WRITE_TXN_MARKERS][1],
            WriteTxnMarkersRequest(markers=tuple(_told(delivery.marker, partitions) for delivery, partitions in sent)),
            self._writer.request_timeout_ms,
            partial(self._replied, node_id, sent),
            partial(self._failed, node_id, sent),
        )

    def _replied(self, node_id: int, sent: Sequence[tuple[Delivery, Sequence[TopicPartition]]], answer: object) -> None:
        from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

        assert isinstance(answer, WriteTxnMarkersResponse), f"markers: answered by {type(answer).__name__}"
        errors = {
            (int(each.producer_id), str(topic.name), int(one.partition_index)): known_error(one.error_code)
            for each in answer.markers
            for topic in each.topics
            for one in topic.partitions
        }
        self._go_on(node_id)
        for delivery, partitions in sent:
            producer_id = delivery.marker.producer_id
            # A broker that leaves a partition out has not written there.
            unknown = ErrorCode.unknown_server_error
            self._answered(delivery, {each: errors.get((producer_id, *each), unknown) for each in partitions})

    def _failed(self, node_id: int, sent: Sequence[tuple[Delivery, Sequence[TopicPartition]]]) -> None:
        """Some of the markers may be written. One that comes again does no harm."""
        for delivery, partitions in sent:
            self._ask_again(delivery, partitions)
        self._go_on(node_id)

    def _go_on(self, node_id: int) -> None:
        self._brokers[node_id].is_busy = False
        self._send(node_id)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, delivery: Delivery, errors: dict[TopicPartition, Error]) -> None:
        """A coordinator that is fenced by a newer one stops. Every other error may pass."""
        if not delivery.is_wanted():
            return
        again = []
        for each, error in errors.items():
            if error in _OVER:
                delivery.missing.pop(each, None)
            elif error is not ErrorCode.transaction_coordinator_fenced:
                again.append(each)
        self._ask_again(delivery, again)
        self._look_whether_over(delivery)

    def _look_whether_over(self, delivery: Delivery) -> None:
        if not delivery.missing and delivery.is_wanted():
            delivery.is_wanted = _never
            self._steps.add(delivery.delivered)

    def _ask_again(self, delivery: Delivery, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._plan_retry()
            self._again.append((delivery, partitions))
            self._waiting.value = len(self._again) + len(self._leaderless)

    def _plan_retry(self) -> None:
        if not self._again and not self._leaderless:
            later(self._ports, RETRY_US, self._retry)

    def _retry(self) -> None:
        """Looks up the leaderless only in newer metadata."""
        again, self._again = self._again, []
        if self._image() is not self._looked_into:
            again, self._leaderless = [*again, *self._leaderless], []
        elif self._leaderless:
            later(self._ports, RETRY_US, self._retry)
        self._waiting.value = len(self._leaderless)
        if again:
            self._work.add(self._hand_out_slices(again))


def _never() -> bool:
    return False


def _told(marker: Marker, partitions: Sequence[TopicPartition]) -> "WritableTxnMarker":
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WritableTxnMarkerTopic

    by_topic: dict[str, list[i32]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(i32(index))
    return WritableTxnMarker(
        producer_id=ProducerId(marker.producer_id),
        producer_epoch=i16(marker.producer_epoch),
        transaction_result=marker.is_commit,
        topics=tuple(
            WritableTxnMarkerTopic(name=TopicName(name), partition_indexes=tuple(indexes))
            for name, indexes in by_topic.items()
        ),
        coordinator_epoch=i32(marker.coordinator_epoch),
        transaction_version=i8(marker.transaction_version),
    )
