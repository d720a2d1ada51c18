"""Appends transaction markers to led partitions (KIP-98, KIP-890).

``MarkerWriter`` reports when the markers are replicated. WriteTxnMarkers and the coordinator of this node use it alike.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from reference_broker.log.producer_state import ProducerStateEntry
from reference_broker.log.unified_log import BatchOrigin, RecordsRefused
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TopicPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced, run_slices
from reference_broker.records.control import build_marker
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.syncing import must_sync, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.wire.errors import Error, ErrorCode

MAX_PRODUCER_EPOCH = 2**15 - 1
_NO_PRODUCER = ProducerStateEntry(-1)
EPOCH_RAISED_FROM = 2
"""The ``transaction.version`` from which the coordinator raises the producer's epoch before each marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The leader epoch of the coordinator's partition of ``__transaction_state``."""
    is_commit: bool
    transaction_version: int = 0
    """The version of the transaction, 0 if the request has none."""


def refusal_of(marker: Marker, producer: ProducerStateEntry | None) -> Error:
    """Check a marker against the state of its producer in the partition. Return one of these errors, or NONE:

    - INVALID_REQUEST: no producer has a negative ID.
    - INVALID_PRODUCER_EPOCH: the marker's epoch is negative or older than the producer's. From transaction version 2 on
      it must be newer if a transaction is open: a marker with the epoch of the open transaction is a late one of the
      transaction before.
    - TRANSACTION_COORDINATOR_FENCED: a newer coordinator has written a marker here (X-6).

    A repeated marker of version 2 is no error: no transaction is open, and the first one has raised the producer's
    epoch to that of the marker. A marker with the greatest epoch, which cannot be raised, is no error either
    (KAFKA-19999).
    """
    if marker.producer_id < 0:
        return ErrorCode.invalid_request
    producer = producer or _NO_PRODUCER
    if marker.producer_epoch < max(producer.producer_epoch, 0) or _is_late(marker, producer):  # Decision marker-epoch
        return ErrorCode.invalid_producer_epoch
    if marker.coordinator_epoch < producer.coordinator_epoch:  # Decision marker-coordinator
        return ErrorCode.transaction_coordinator_fenced
    return ErrorCode.none


def _is_late(marker: Marker, producer: ProducerStateEntry) -> bool:
    return (
        marker.transaction_version >= EPOCH_RAISED_FROM
        and marker.producer_epoch == producer.producer_epoch != MAX_PRODUCER_EPOCH
        and producer.current_txn_first_offset >= 0
    )


MarkersWritten: TypeAlias = Callable[[dict[TopicPartition, Error]], None]
"""Called once, with the error of each partition. NONE means that the marker is replicated there."""

UNITS_PER_MARKER = 60
"""The cost of an append, in microseconds."""
UNITS_PER_LOOKUP = 3
"""The cost of a refused partition, in microseconds."""


class OffsetsMarkers(Protocol):
    """Listens to the markers in partitions of ``__consumer_offsets``."""

    def refuses_markers(self, index: int) -> bool:
        """Return whether the partition's offsets are not loaded yet. No marker is appended then, and the coordinator
        retries (NOT_LEADER_OR_FOLLOWER)."""
        ...

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:
        """Called with a marker in the log at ``offset``. It is not replicated yet, unless there is one replica."""
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
        """Append the marker once to each partition. ``written`` is called when all of these markers are replicated or
        refused. The errors are Kafka's:

        - those of ``refusal_of``, with which nothing is written
        - UNKNOWN_TOPIC_OR_PARTITION: this node has no replica. NOT_LEADER_OR_FOLLOWER: it does not lead it.
        - NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, as a produce
          with acks=all. After the second and the third the marker is in the log, and a later one does no harm.
        """
        run_slices(self._ports, self.write_in_slices(marker, partitions, written, Budget(LOOKUP_US_PER_SLICE)))

    def write_in_slices(
        self, marker: Marker, partitions: Iterable[TopicPartition], written: MarkersWritten, budget: Budget
    ) -> Sliced[None]:
        """Do what ``write`` does, in slices, for callers with several markers."""
        errors: dict[TopicPartition, Error] = {}
        appended: list[tuple[Partition, int]] = []
        for key in partitions:
            if key in errors:
                continue
            end_or_error = self._append(marker, key)
            units = UNITS_PER_LOOKUP
            if isinstance(end_or_error, Error):
                errors[key] = end_or_error
            else:
                errors[key], units = ErrorCode.none, UNITS_PER_MARKER
                appended.append(end_or_error)
            if budget.spend(units):
                yield
        self._wait_until_replicated(errors, appended, written)

    def _append(self, marker: Marker, key: TopicPartition) -> tuple[Partition, int] | Error:
        """Return the partition and the end of the marker in its log, or why nothing was appended."""
        partition = self._partitions.by_name.get(key)
        if partition is None:
            return self._led_elsewhere(key)
        log, followers = partition.log, partition.followers
        # Decision marker-min-isr
        if followers is not None and followers.is_under_min_isr(log.config.min_insync_replicas):
            return ErrorCode.not_enough_replicas
        keeps_offsets = partition.topic == OFFSETS_TOPIC
        if keeps_offsets and self.offsets.refuses_markers(partition.index):  # Decision marker-for-offsets
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
        try:  # Decision marker-append
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
                if partition.is_removed:  # Decision marker-leader-lost
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
