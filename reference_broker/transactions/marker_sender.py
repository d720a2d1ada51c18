"""Delivery of transaction markers to the leaders of partitions: once the transaction is decided (KIP-98; Kafka's
TransactionMarkerChannelManager).

There is one request at a time to each broker, with the markers of many transactions. Partitions whose leader does not
accept the marker now are retried. Those without a leader wait until the metadata changes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i8, i16, i32

from reference_broker.coordination.scheduling import DeferredCallbacks
from reference_broker.metadata.identifiers import TopicPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.node_ports import Channel, Ports, later
from reference_broker.ports.slicing import (
    MARKER_PARTITIONS_PER_SLICE,
    Budget,
    Sliced,
    SliceQueue,
    in_batches,
)
from reference_broker.transactions.markers import Marker, MarkerWriter
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker


PARTITIONS_A_REQUEST = 1000
RETRY_US = 100_000

_DELIVERED: Final = (
    ErrorCode.none,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.unsupported_version,
)
"""A partition with one of these errors needs no marker any more. INVALID_PRODUCER_EPOCH means that a newer epoch has
ended the open transaction there. Kafka stops at that error, and the transaction is not completed until another node
coordinates it."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One marker on its way to the leaders of its partitions."""

    marker: Marker
    missing: dict[TopicPartition, None]
    """The partitions that do not have the marker yet."""
    is_coordinated: Callable[[], bool]
    """Returns whether this node still coordinates the transaction."""
    delivered: Callable[[], None]
    """Called once, at the end of the event after which no partition is missing."""
    is_delivered: bool = False
    """Whether ``delivered`` was called or is about to be."""

    @property
    def is_active(self) -> bool:
        """Whether it has to go on: some markers are missing, and this node still coordinates the transaction."""
        return not self.is_delivered and self.is_coordinated()


PartialDelivery: TypeAlias = tuple[Delivery, Sequence[TopicPartition]]
"""A delivery, and some of its partitions."""


@dataclass(slots=True)
class _Broker:
    """The markers for the partitions that one broker leads."""

    queue: deque[PartialDelivery] = field(default_factory=deque)
    is_busy: bool = False
    """Whether a request to it is in flight."""


class MarkerSender:
    """Sends the markers of decided transactions to the leaders of their partitions, until each partition has its own.
    ``image`` returns the metadata as this node knows it."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        image: Callable[[], MetadataImage],
        writer: MarkerWriter,
        deferred: DeferredCallbacks,
        waiting: Gauge,
    ) -> None:
        self._ports = ports
        self._deferred = deferred
        self._node_id = node_id
        self._image = image
        self._writer = writer
        self._brokers: dict[int, _Broker] = {}
        self._to_retry: list[PartialDelivery] = []
        """Deliveries that are retried after RETRY_US."""
        self._leaderless: list[PartialDelivery] = []
        """Deliveries that wait for metadata with a leader."""
        self._leaderless_image: MetadataImage | None = None
        """The metadata in which the first of ``_leaderless`` had no leader."""
        self._waiting = waiting
        self._work = SliceQueue(ports)

    def deliver(self, delivery: Delivery) -> None:
        """Send the marker to the leader of each missing partition."""
        if len(delivery.missing) <= MARKER_PARTITIONS_PER_SLICE:
            self._distribute(delivery, tuple(delivery.missing))
        else:
            self._work.add(self._distribute_all([(delivery, tuple(delivery.missing))]))

    def _distribute_all(self, deliveries: Iterable[PartialDelivery]) -> Sliced[None]:
        budget = Budget(MARKER_PARTITIONS_PER_SLICE)
        for delivery, partitions in deliveries:
            for partitions_of_slice in in_batches(partitions, MARKER_PARTITIONS_PER_SLICE):
                self._distribute(delivery, partitions_of_slice)
                if budget.spend(len(partitions_of_slice)):
                    yield

    def _distribute(self, delivery: Delivery, partitions: Sequence[TopicPartition]) -> None:
        """Queue the delivery for each leader. A partition that is missing in the metadata was deleted: it was in the
        metadata of this node before it was added to the transaction, and a node that takes over has at least that
        metadata."""
        if not delivery.is_active:  # Decision marker-wanted
            return
        image = self._image()
        by_leader: dict[int, list[TopicPartition]] = {}
        is_any_deleted = False
        for key in partitions:
            name, index = key
            topic = image.topics.get(name)
            if topic is None or index >= len(topic.partitions):  # Decision marker-partition-deleted
                delivery.missing.pop(key, None)
                is_any_deleted = True
                continue
            by_leader.setdefault(topic.partitions[index].leader, []).append(key)
        if is_any_deleted or not partitions:
            self._finish_if_delivered(delivery)
        for leader, led in by_leader.items():
            if leader == self._node_id:  # Decision marker-local
                self._writer.write(delivery.marker, led, partial(self._handle_errors, delivery))
            elif leader in image.brokers:  # Decision marker-leader-known
                self._brokers.setdefault(leader, _Broker()).queue.append((delivery, led))
                self._send(leader)
            else:
                self._schedule_retry()
                if not self._leaderless:
                    self._leaderless_image = image
                self._leaderless.append((delivery, led))
                self._waiting.value = len(self._to_retry) + len(self._leaderless)

    # --- to one broker ------------------------------------------------------------------------------------------------

    def _send(self, node_id: int) -> None:
        """Send the next request to this broker, unless one is in flight."""
        from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest

        broker = self._brokers[node_id]
        if broker.is_busy:  # Decision marker-request-busy
            return
        sent: list[PartialDelivery] = []
        count = 0
        while broker.queue and count < PARTITIONS_A_REQUEST:
            delivery, partitions = broker.queue.popleft()
            if delivery.is_active:
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
            WriteTxnMarkersRequest(
                markers=tuple(_writable_marker(delivery.marker, partitions) for delivery, partitions in sent)
            ),
            self._writer.request_timeout_ms,
            partial(self._replied, node_id, sent),
            partial(self._failed, node_id, sent),
        )

    def _replied(self, node_id: int, sent: Sequence[PartialDelivery], response: object) -> None:
        from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

        assert isinstance(response, WriteTxnMarkersResponse), f"markers: got {type(response).__name__}"
        errors = {
            (int(marker.producer_id), str(topic.name), int(result.partition_index)): known_error(result.error_code)
            for marker in response.markers
            for topic in marker.topics
            for result in topic.partitions
        }
        self._send_next(node_id)
        for delivery, partitions in sent:
            producer_id = delivery.marker.producer_id
            # A broker that omits a partition has not written there.
            unknown = ErrorCode.unknown_server_error
            self._handle_errors(delivery, {key: errors.get((producer_id, *key), unknown) for key in partitions})

    def _failed(self, node_id: int, sent: Sequence[PartialDelivery]) -> None:
        """Retry all. Some of the markers may be written, and a repeated one does no harm."""
        for delivery, partitions in sent:
            self._retry_later(delivery, partitions)
        self._send_next(node_id)

    def _send_next(self, node_id: int) -> None:
        self._brokers[node_id].is_busy = False
        self._send(node_id)

    # --- responses ----------------------------------------------------------------------------------------------------

    def _handle_errors(self, delivery: Delivery, errors: dict[TopicPartition, Error]) -> None:
        """Handle the errors of some partitions. A coordinator that is fenced by a newer one stops. All others are
        retried."""
        if not delivery.is_active:
            return
        refused = []
        for key, error in errors.items():
            if error in _DELIVERED:  # Decision marker-delivered
                delivery.missing.pop(key, None)
            elif error is not ErrorCode.transaction_coordinator_fenced:  # Decision marker-coordinator-fenced
                refused.append(key)
        self._retry_later(delivery, refused)
        self._finish_if_delivered(delivery)

    def _finish_if_delivered(self, delivery: Delivery) -> None:
        """Call ``delivered`` at the end of the event, if no partition misses the marker."""
        if not delivery.missing and delivery.is_active:  # Decision markers-complete
            delivery.is_delivered = True
            self._deferred.add(delivery.delivered)

    def _retry_later(self, delivery: Delivery, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._schedule_retry()
            self._to_retry.append((delivery, partitions))
            self._waiting.value = len(self._to_retry) + len(self._leaderless)

    def _schedule_retry(self) -> None:
        if not self._to_retry and not self._leaderless:
            later(self._ports, RETRY_US, self._retry)

    def _retry(self) -> None:
        """Retry the deliveries. Those without a leader are tried only with newer metadata."""
        due, self._to_retry = self._to_retry, []
        if self._image() is not self._leaderless_image:  # Decision leaderless-markers
            due, self._leaderless = [*due, *self._leaderless], []
        elif self._leaderless:
            later(self._ports, RETRY_US, self._retry)
        self._waiting.value = len(self._leaderless)
        if due:
            self._work.add(self._distribute_all(due))


def _writable_marker(marker: Marker, partitions: Sequence[TopicPartition]) -> "WritableTxnMarker":
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
