"""Transaction markers: judged and appended where this node leads the partition, sent to other leaders.

Sources: KIP-98, KIP-890.

``MarkerWriter`` appends markers to led partitions and reports when they are replicated. WriteTxnMarkers and the
coordinator of this node use it alike. ``MarkerSender`` brings the markers of decided transactions to all leaders: one
request at a time to each broker, with the markers of many transactions. Partitions whose leader does not accept the
marker now are retried. Those without a leader wait until the metadata changes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i8, i16, i32

from reference_broker.coordination.scheduling import DeferredCallbacks
from reference_broker.log.partition_log import BatchOrigin, RecordsRefused
from reference_broker.log.producer_state import Producer
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Channel, Ports, later
from reference_broker.ports.slicing import (
    LOOKUP_US_PER_SLICE,
    MARKER_PARTITIONS_PER_SLICE,
    Budget,
    Sliced,
    SliceQueue,
    in_batches,
    run_slices,
)
from reference_broker.records.control import build_marker
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.syncing import must_sync, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker


TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""

MAX_PRODUCER_EPOCH = 2**15 - 1
_UNKNOWN = Producer(-1)
EPOCH_RAISED_FROM = 2
"""The ``transaction.version`` from which the coordinator raises the producer's epoch before each marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of one producer's transaction. ``coordinator_epoch`` is the leader epoch of the coordinator's partition
    of ``__transaction_state``. ``transaction_version`` is that of the transaction, 0 if the request has none."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


def refusal_of(marker: Marker, known: Producer | None) -> Error:
    """Judge a marker by what the partition knows of the producer. Returns one of these errors:

    - INVALID_REQUEST: nobody has a negative producer ID.
    - INVALID_PRODUCER_EPOCH: its epoch is negative, or older than the producer's. From transaction version 2 on it must
      be newer, since a marker of that version with the epoch of an open transaction is late and would end the next one.
    - TRANSACTION_COORDINATOR_FENCED: a newer coordinator has written a marker here (X-6).

    A marker of version 2 that comes again is no error: nothing is open, and it has the epoch that it has raised. Nor is
    one with the last epoch that there is, which cannot be raised (KAFKA-19999).
    """
    if marker.producer_id < 0:
        return ErrorCode.invalid_request
    known = known or _UNKNOWN
    # Decision marker-epoch: older or late, refused | current
    if marker.producer_epoch < max(known.producer_epoch, 0) or _is_late(marker, known):
        return ErrorCode.invalid_producer_epoch
    # Decision marker-coordinator: older coordinator, refused | current
    if marker.coordinator_epoch < known.coordinator_epoch:
        return ErrorCode.transaction_coordinator_fenced
    return ErrorCode.none


def _is_late(marker: Marker, known: Producer) -> bool:
    return (
        marker.transaction_version >= EPOCH_RAISED_FROM
        and marker.producer_epoch == known.producer_epoch != MAX_PRODUCER_EPOCH
        and known.current_txn_first_offset >= 0
    )


MarkersWritten: TypeAlias = Callable[[dict[TopicPartition, Error]], None]
"""Called once, with the error of each partition. NONE means that the marker is replicated there."""

UNITS_PER_MARKER = 60
"""The cost of an append, in microseconds."""
UNITS_PER_LOOK = 3
"""The cost of a refused partition, in microseconds."""


class OffsetsMarkers(Protocol):
    """A listener for the markers in partitions of ``__consumer_offsets``."""

    def refuses_markers(self, index: int) -> bool:
        """Return whether the partition's offsets are not loaded yet. No marker is appended then, and the coordinator
        retries (NOT_LEADER_OR_FOLLOWER)."""
        ...

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:
        """The marker is in the log at ``offset``. It is not replicated yet, unless there is one replica."""
        ...


class NoOffsets:
    """The listener where no group coordinator exists."""

    def refuses_markers(self, index: int) -> bool:  # noqa: ARG002 - the listener's form
        return False

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:
        pass


class MarkerWriter:
    """Append markers to the partitions that this node leads. ``image`` returns the metadata as this node knows it.
    ``offsets`` is notified of the markers of the offsets topic."""

    def __init__(
        self,
        ports: Ports,
        partitions: Partitions,
        leaders: Leaders,
        image: Callable[[], MetadataImage],
        request_timeout_ms: int,
        offsets: OffsetsMarkers | None = None,
    ) -> None:
        self.request_timeout_ms = request_timeout_ms
        self._ports = ports
        self._partitions = partitions
        self._leaders = leaders
        self._image = image
        self.offsets: OffsetsMarkers = offsets or NoOffsets()

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], written: MarkersWritten) -> None:
        """Append the marker to each partition. One that is named twice gets one marker.
        ``written`` is called once all are replicated or refused. The errors are Kafka's:

        - those of ``refusal_of``, with which nothing is written
        - UNKNOWN_TOPIC_OR_PARTITION: this node has no replica. NOT_LEADER_OR_FOLLOWER: it does not lead it.
        - NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, as a produce
          with acks=all. After the second and the third the marker is in the log, and a later one does no harm.
        """
        run_slices(self._ports, self.writing(marker, partitions, written, Budget(LOOKUP_US_PER_SLICE)))

    def writing(
        self, marker: Marker, partitions: Iterable[TopicPartition], written: MarkersWritten, budget: Budget
    ) -> Sliced[None]:
        """Do what ``write`` does, for callers with several markers."""
        errors: dict[TopicPartition, Error] = {}
        appended: list[tuple[Partition, int]] = []
        for key in partitions:
            if key in errors:
                continue
            found = self._append(marker, key)
            units = UNITS_PER_LOOK
            if isinstance(found, Error):
                errors[key] = found
            else:
                errors[key], units = ErrorCode.none, UNITS_PER_MARKER
                appended.append(found)
            if budget.spend(units):
                yield
        self._wait_until_replicated(errors, appended, written)

    def _append(self, marker: Marker, key: TopicPartition) -> tuple[Partition, int] | Error:
        """Return the partition and the end of the marker in its log, or why nothing was appended."""
        partition = self._partitions.by_name.get(key)
        if partition is None:
            return self._led_elsewhere(key)
        log, followers = partition.log, partition.followers
        # Decision marker-min-isr: too few in sync | enough
        if followers is not None and followers.is_under_min_isr(log.config.min_insync_replicas):
            return ErrorCode.not_enough_replicas
        keeps_offsets = partition.topic == OFFSETS_TOPIC
        # Decision marker-for-offsets: offsets are loading | written
        if keeps_offsets and self.offsets.refuses_markers(partition.index):
            return ErrorCode.not_leader_or_follower
        refusal = refusal_of(marker, log.producers.by_id.get(marker.producer_id))
        if refusal:
            return refusal
        now = self._ports.now()
        batch = build_marker(
            commit=marker.is_commit,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=now.wall_ms,
        )
        # Decision marker-append: refused | appended
        try:
            appended = log.append(now, batch, partition.leader_epoch, origin=BatchOrigin.BROKER)
        except RecordsRefused as refused:
            return refused.error
        except DiskError as failure:
            self._ports.note("append_failed", ("partition", log.directory), ("reason", str(failure)))
            return ErrorCode.kafka_storage_error
        self._note(partition, marker, appended.first_offset)
        self._leaders.appended(partition)
        plan_timed_flush(self._ports, partition)
        if appended.rolled:
            sync_led_then(self._ports, [partition], nobody_waits)
        partition.changed()
        if keeps_offsets:
            self.offsets.marker_appended(
                partition.index, marker.producer_id, marker.producer_epoch, appended.first_offset, marker.is_commit
            )
        return partition, appended.last_offset + 1

    def _led_elsewhere(self, key: TopicPartition) -> Error:
        topic = self._image().topics.get(key[0])
        is_followed = topic is not None and (topic.topic_id, key[1]) in self._partitions.followed
        return ErrorCode.not_leader_or_follower if is_followed else ErrorCode.unknown_topic_or_partition

    def _note(self, partition: Partition, marker: Marker, offset: int) -> None:
        self._ports.note(
            "transaction_marker",
            ("partition", partition.log.directory),
            ("offset", offset),
            ("producer_id", marker.producer_id),
            ("producer_epoch", marker.producer_epoch),
            ("coordinator_epoch", marker.coordinator_epoch),
            ("result", "commit" if marker.is_commit else "abort"),
        )

    def _wait_until_replicated(
        self, errors: dict[TopicPartition, Error], appended: list[tuple[Partition, int]], written: MarkersWritten
    ) -> None:
        """Wait until the markers are synced, where that is required, and replicated."""

        def synced() -> None:
            waiting = []
            for partition, end in appended:
                # Decision marker-leader-lost: led no longer | still led
                if partition.is_removed:
                    errors[partition.topic, partition.index] = ErrorCode.not_leader_or_follower
                elif partition.followers is not None:
                    waiting.append((partition, end))
            if waiting:
                self._leaders.acknowledge(waiting, self.request_timeout_ms, replicated)
            else:
                written(errors)

        def replicated(acknowledged: dict[Partition, Error]) -> None:
            for partition, error in acknowledged.items():
                errors[partition.topic, partition.index] = error
            written(errors)

        due = [partition for partition, _ in appended if not partition.is_removed and must_sync(partition.log)]
        if due:
            sync_led_then(self._ports, due, synced)
        else:
            synced()


PARTITIONS_A_REQUEST = 1000
RETRY_US = 100_000

_DELIVERED: Final = (
    ErrorCode.none,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.unsupported_version,
)
"""A partition with one of these errors needs no marker any more. INVALID_PRODUCER_EPOCH means that a newer epoch has
ended the open transaction there. Unlike Kafka, which then leaves the transaction undone until another node coordinates
it."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One marker on its way to the leaders of its partitions."""

    marker: Marker
    missing: dict[TopicPartition, None]
    """The partitions that do not have the marker yet."""
    is_wanted: Callable[[], bool]
    """Returns whether this node still coordinates the transaction."""
    delivered: Callable[[], None]
    """Called once, at the end of the event after which no partition is missing."""


@dataclass(slots=True)
class _Broker:
    """The queue of deliveries to one broker, and whether a request to it is in flight."""

    queue: deque[tuple[Delivery, Sequence[TopicPartition]]] = field(default_factory=deque)
    is_busy: bool = False


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
        self._again: list[tuple[Delivery, Sequence[TopicPartition]]] = []
        """Deliveries that are retried after RETRY_US."""
        self._leaderless: list[tuple[Delivery, Sequence[TopicPartition]]] = []
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

    def _distribute_all(self, deliveries: Iterable[tuple[Delivery, Sequence[TopicPartition]]]) -> Sliced[None]:
        budget = Budget(MARKER_PARTITIONS_PER_SLICE)
        for delivery, partitions in deliveries:
            for some in in_batches(partitions, MARKER_PARTITIONS_PER_SLICE):
                self._distribute(delivery, some)
                if budget.spend(len(some)):
                    yield

    def _distribute(self, delivery: Delivery, partitions: Sequence[TopicPartition]) -> None:
        """Queue the delivery for each leader. A partition that the metadata lacks is deleted, since this node knew it
        before it was added. A node that takes over knows at least as much when it begins to lead."""
        # Decision marker-wanted: ended or lost | still wanted
        if not delivery.is_wanted():
            return
        image = self._image()
        by_leader: dict[int, list[TopicPartition]] = {}
        is_any_deleted = False
        for each in partitions:
            topic = image.topics.get(each[0])
            # Decision marker-partition-deleted: nothing to write | exists
            if topic is None or each[1] >= len(topic.partitions):
                delivery.missing.pop(each, None)
                is_any_deleted = True
                continue
            by_leader.setdefault(topic.partitions[each[1]].leader, []).append(each)
        if is_any_deleted or not partitions:
            self._finish_if_delivered(delivery)
        for leader, some in by_leader.items():
            # Decision marker-local: written here | another leader
            if leader == self._node_id:
                self._writer.write(delivery.marker, some, partial(self._handle_errors, delivery))
            # Decision marker-leader-known: sent to it | no leader, retried
            elif leader in image.brokers:
                self._brokers.setdefault(leader, _Broker()).queue.append((delivery, some))
                self._send(leader)
            else:
                self._schedule_retry()
                if not self._leaderless:
                    self._leaderless_image = image
                self._leaderless.append((delivery, some))
                self._waiting.value = len(self._again) + len(self._leaderless)

    # --- to one broker ------------------------------------------------------------------------------------------------

    def _send(self, node_id: int) -> None:
        """Send the next request to this broker, unless one is in flight."""
        from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest

        broker = self._brokers[node_id]
        # Decision marker-request-busy: one is in flight | next one
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
            WriteTxnMarkersRequest(
                markers=tuple(_writable_marker(delivery.marker, partitions) for delivery, partitions in sent)
            ),
            self._writer.request_timeout_ms,
            partial(self._replied, node_id, sent),
            partial(self._failed, node_id, sent),
        )

    def _replied(
        self, node_id: int, sent: Sequence[tuple[Delivery, Sequence[TopicPartition]]], response: object
    ) -> None:
        from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

        assert isinstance(response, WriteTxnMarkersResponse), f"markers: got {type(response).__name__}"
        errors = {
            (int(each.producer_id), str(topic.name), int(one.partition_index)): known_error(one.error_code)
            for each in response.markers
            for topic in each.topics
            for one in topic.partitions
        }
        self._send_next(node_id)
        for delivery, partitions in sent:
            producer_id = delivery.marker.producer_id
            # A broker that omits a partition has not written there.
            unknown = ErrorCode.unknown_server_error
            self._handle_errors(delivery, {each: errors.get((producer_id, *each), unknown) for each in partitions})

    def _failed(self, node_id: int, sent: Sequence[tuple[Delivery, Sequence[TopicPartition]]]) -> None:
        """Retry all. Some of the markers may be written, and a repeated one does no harm."""
        for delivery, partitions in sent:
            self._retry_later(delivery, partitions)
        self._send_next(node_id)

    def _send_next(self, node_id: int) -> None:
        self._brokers[node_id].is_busy = False
        self._send(node_id)

    # --- responses ----------------------------------------------------------------------------------------------------

    def _handle_errors(self, delivery: Delivery, errors: dict[TopicPartition, Error]) -> None:
        """Handle the errors of some partitions. A coordinator that is fenced by a newer one stops. Every other error
        may pass."""
        if not delivery.is_wanted():
            return
        again = []
        for each, error in errors.items():
            # Decision marker-delivered: delivered | refused
            if error in _DELIVERED:
                delivery.missing.pop(each, None)
            # Decision marker-coordinator-fenced: retried | fenced, given up
            elif error is not ErrorCode.transaction_coordinator_fenced:
                again.append(each)
        self._retry_later(delivery, again)
        self._finish_if_delivered(delivery)

    def _finish_if_delivered(self, delivery: Delivery) -> None:
        # Decision markers-complete: transaction completes | some are missing
        if not delivery.missing and delivery.is_wanted():
            delivery.is_wanted = _never
            self._deferred.add(delivery.delivered)

    def _retry_later(self, delivery: Delivery, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._schedule_retry()
            self._again.append((delivery, partitions))
            self._waiting.value = len(self._again) + len(self._leaderless)

    def _schedule_retry(self) -> None:
        if not self._again and not self._leaderless:
            later(self._ports, RETRY_US, self._retry)

    def _retry(self) -> None:
        """Retry the deliveries. Those without a leader are tried only with newer metadata."""
        again, self._again = self._again, []
        # Decision leaderless-markers: tried with new leaders | same metadata
        if self._image() is not self._leaderless_image:
            again, self._leaderless = [*again, *self._leaderless], []
        elif self._leaderless:
            later(self._ports, RETRY_US, self._retry)
        self._waiting.value = len(self._leaderless)
        if again:
            self._work.add(self._distribute_all(again))


def _never() -> bool:
    return False


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
