"""WriteTxnMarkers to the leaders of partitions, once a transaction is in PrepareCommit or PrepareAbort (KIP-98).

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

_NEEDS_NO_MARKER: Final = (
    ErrorCode.none,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.unsupported_version,
)
"""A partition with one of these errors needs no marker any more. INVALID_PRODUCER_EPOCH means that a newer epoch has
ended the open transaction there. Kafka stops at that error, and the transaction is not completed until another node
coordinates it."""


@dataclass(slots=True, eq=False)
class PendingCompleteTxn:
    """A transaction whose markers are being sent."""

    marker: Marker
    partitions: dict[TopicPartition, None]
    """The partitions that do not have the marker yet."""
    is_coordinated: Callable[[], bool]
    """Returns whether this node still coordinates the transaction."""
    complete: Callable[[], None]
    """Called once, at the end of the event after which all partitions have the marker."""
    is_complete: bool = False
    """Whether ``complete`` was called or is about to be."""

    @property
    def is_active(self) -> bool:
        """Whether some markers have to be sent, and this node still coordinates the transaction."""
        return not self.is_complete and self.is_coordinated()


PendingPartitions: TypeAlias = tuple[PendingCompleteTxn, Sequence[TopicPartition]]
"""A transaction, and some of its partitions."""


@dataclass(slots=True)
class _TxnMarkerQueue:
    """The markers for the partitions that one broker leads."""

    queue: deque[PendingPartitions] = field(default_factory=deque)
    is_request_in_flight: bool = False
    """Whether a request to it is in flight."""


class TransactionMarkerChannelManager:
    """Sends the markers of prepared transactions to the leaders of their partitions, until each partition has its own.
    ``image`` returns the cluster's metadata as this node knows it."""

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
        self._queues: dict[int, _TxnMarkerQueue] = {}
        """By node ID of the broker."""
        self._to_retry: list[PendingPartitions] = []
        """Markers that are sent again after RETRY_US."""
        self._leaderless: list[PendingPartitions] = []
        """Markers of partitions that had no leader."""
        self._leaderless_image: MetadataImage | None = None
        """The metadata in which the first of ``_leaderless`` had no leader."""
        self._waiting = waiting
        self._work = SliceQueue(ports)

    def add_markers_to_send(self, pending_txn: PendingCompleteTxn) -> None:
        """Send the marker to the leader of each partition that does not have it yet."""
        partitions = tuple(pending_txn.partitions)
        if len(partitions) <= MARKER_PARTITIONS_PER_SLICE:
            self._add_to_broker_queues(pending_txn, partitions)
        else:
            self._work.add(self._add_all_to_broker_queues([(pending_txn, partitions)]))

    def _add_all_to_broker_queues(self, pending: Iterable[PendingPartitions]) -> Sliced[None]:
        budget = Budget(MARKER_PARTITIONS_PER_SLICE)
        for pending_txn, partitions in pending:
            for partitions_of_slice in in_batches(partitions, MARKER_PARTITIONS_PER_SLICE):
                self._add_to_broker_queues(pending_txn, partitions_of_slice)
                if budget.spend(len(partitions_of_slice)):
                    yield

    def _add_to_broker_queues(self, pending_txn: PendingCompleteTxn, partitions: Sequence[TopicPartition]) -> None:
        """Queue the marker for the leaders of these partitions. A partition that does not exist was deleted, and needs
        no marker: it was in the metadata of this node before it was added to the transaction, and a node that takes
        over has at least that metadata."""
        if not pending_txn.is_active:  # Decision marker-wanted
            return
        image = self._image()
        by_leader: dict[int | None, list[TopicPartition]] = {}
        for key in partitions:
            by_leader.setdefault(_leader_of(image, key), []).append(key)
        deleted = by_leader.pop(None, ())
        for key in deleted:
            pending_txn.partitions.pop(key, None)
        if deleted or not partitions:
            self._complete_if_all_have_markers(pending_txn)
        for leader, led in by_leader.items():
            if leader is not None:
                self._add_markers_for_broker(pending_txn, leader, led, image)

    def _add_markers_for_broker(
        self, pending_txn: PendingCompleteTxn, leader: int, led: Sequence[TopicPartition], image: MetadataImage
    ) -> None:
        """Write the marker to the partitions of this node, queue it for another leader, or retry without a leader."""
        if leader == self._node_id:  # Decision marker-local
            self._writer.write(pending_txn.marker, led, partial(self._handle_errors, pending_txn))
        elif leader in image.brokers:  # Decision marker-leader-known
            self._queues.setdefault(leader, _TxnMarkerQueue()).queue.append((pending_txn, led))
            self._send(leader)
        else:
            self._schedule_retry()
            if not self._leaderless:
                self._leaderless_image = image
            self._leaderless.append((pending_txn, led))
            self._waiting.value = len(self._to_retry) + len(self._leaderless)

    # --- requests to one broker ---------------------------------------------------------------------------------------

    def _send(self, node_id: int) -> None:
        """Send the next request to this broker, unless one is in flight."""
        from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest

        markers = self._queues[node_id]
        if markers.is_request_in_flight:  # Decision marker-request-busy
            return
        sent: list[PendingPartitions] = []
        count = 0
        while markers.queue and count < PARTITIONS_A_REQUEST:
            pending_txn, partitions = markers.queue.popleft()
            if pending_txn.is_active:
                sent.append((pending_txn, partitions))
                count += len(partitions)
        if not sent:
            del self._queues[node_id]
            return
        markers.is_request_in_flight = True
        self._ports.send(
            node_id,
            Channel.MARKERS,
            ApiKey.WRITE_TXN_MARKERS,
            VERSIONS[ApiKey.WRITE_TXN_MARKERS][1],
            WriteTxnMarkersRequest(
                markers=tuple(_writable_marker(pending_txn.marker, partitions) for pending_txn, partitions in sent)
            ),
            self._writer.request_timeout_ms,
            partial(self._replied, node_id, sent),
            partial(self._failed, node_id, sent),
        )

    def _replied(self, node_id: int, sent: Sequence[PendingPartitions], response: object) -> None:
        from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

        assert isinstance(response, WriteTxnMarkersResponse), f"markers: got {type(response).__name__}"
        errors = {
            (int(marker.producer_id), str(topic.name), int(result.partition_index)): known_error(result.error_code)
            for marker in response.markers
            for topic in marker.topics
            for result in topic.partitions
        }
        self._send_next(node_id)
        for pending_txn, partitions in sent:
            producer_id = pending_txn.marker.producer_id
            # A broker that omits a partition has not written there.
            unknown = ErrorCode.unknown_server_error
            self._handle_errors(pending_txn, {key: errors.get((producer_id, *key), unknown) for key in partitions})

    def _failed(self, node_id: int, sent: Sequence[PendingPartitions]) -> None:
        """Retry all. Some of the markers may be written, and a repeated one does no harm."""
        for pending_txn, partitions in sent:
            self._retry_later(pending_txn, partitions)
        self._send_next(node_id)

    def _send_next(self, node_id: int) -> None:
        self._queues[node_id].is_request_in_flight = False
        self._send(node_id)

    # --- responses ----------------------------------------------------------------------------------------------------

    def _handle_errors(self, pending_txn: PendingCompleteTxn, errors: dict[TopicPartition, Error]) -> None:
        """Handle the errors of some partitions. A coordinator that is fenced by a newer one stops. All others are
        retried."""
        if not pending_txn.is_active:
            return
        refused = []
        for key, error in errors.items():
            if error in _NEEDS_NO_MARKER:  # Decision marker-delivered
                pending_txn.partitions.pop(key, None)
            elif error is not ErrorCode.transaction_coordinator_fenced:  # Decision marker-coordinator-fenced
                refused.append(key)
        self._retry_later(pending_txn, refused)
        self._complete_if_all_have_markers(pending_txn)

    def _complete_if_all_have_markers(self, pending_txn: PendingCompleteTxn) -> None:
        """Call ``complete`` at the end of the event, if all partitions have the marker."""
        if not pending_txn.partitions and pending_txn.is_active:  # Decision markers-complete
            pending_txn.is_complete = True
            self._deferred.add(pending_txn.complete)

    def _retry_later(self, pending_txn: PendingCompleteTxn, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._schedule_retry()
            self._to_retry.append((pending_txn, partitions))
            self._waiting.value = len(self._to_retry) + len(self._leaderless)

    def _schedule_retry(self) -> None:
        if not self._to_retry and not self._leaderless:
            later(self._ports, RETRY_US, self._retry)

    def _retry(self) -> None:
        """Send the markers again. Those of partitions without a leader are sent only with newer metadata."""
        due, self._to_retry = self._to_retry, []
        if self._image() is not self._leaderless_image:  # Decision leaderless-markers
            due, self._leaderless = [*due, *self._leaderless], []
        elif self._leaderless:
            later(self._ports, RETRY_US, self._retry)
        self._waiting.value = len(self._leaderless)
        if due:
            self._work.add(self._add_all_to_broker_queues(due))


def _leader_of(image: MetadataImage, key: TopicPartition) -> int | None:
    """Return the node ID of the partition's leader, -1 if it has none, or None if the partition was deleted."""
    name, index = key
    topic = image.topics.get(name)
    if topic is None or index >= len(topic.partitions):  # Decision marker-partition-deleted
        return None
    return topic.partitions[index].leader


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
