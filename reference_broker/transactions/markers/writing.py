"""Appends transaction markers to the partitions that this node leads, and tells when all replicas in sync have them.

WriteTxnMarkers and the transaction coordinator of this node call it alike.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from reference_broker.log.partition_log import Origin, RecordsRefused
from reference_broker.log.timestamp_lookup import Search, Work
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Ports, run_slices
from reference_broker.records.control import build_marker
from reference_broker.replication.durable import must_be_durable, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.transactions.markers.marker import Marker, TopicPartition, refusal_of
from reference_broker.wire.errors import Error, ErrorCode

Written: TypeAlias = Callable[[dict[TopicPartition, Error]], None]
"""Told once, with the error of each partition. NONE says that the marker is replicated there."""

UNITS_PER_MARKER = 60
"""What an append costs, in microseconds."""
UNITS_PER_LOOK = 3
"""What a partition costs that is refused."""


class OffsetsMarkers(Protocol):
    """Hears of the markers in partitions of ``__consumer_offsets``."""

    def refuses_markers(self, index: int) -> bool:
        """Whether the partition's offsets are not loaded yet. No marker is appended then, and the coordinator comes
        again (NOT_LEADER_OR_FOLLOWER)."""
        ...

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:
        """The marker is in the log at ``offset``. It is not replicated yet, unless there is one replica."""
        ...


class NoOffsets:
    """Nobody keeps offsets here."""

    def refuses_markers(self, index: int) -> bool:  # noqa: ARG002 - the listener's form
        return False

    def marker_appended(self, index: int, producer_id: int, producer_epoch: int, offset: int, is_commit: bool) -> None:
        pass


class MarkerWriter:
    """``image`` returns the metadata as this node knows it. ``offsets`` hears of the markers of the offsets topic."""

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

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], written: Written) -> None:
        """Appends the marker to each partition, to many of them in slices. One that is named twice gets one marker.
        ``written`` is told once all are replicated or refused. The errors are Kafka's:

        - those of ``refusal_of``, with which nothing is written
        - UNKNOWN_TOPIC_OR_PARTITION: this node has no replica. NOT_LEADER_OR_FOLLOWER: it does not lead it.
        - NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, as a produce
          with acks=all. After the second and the third the marker is in the log, and a later one does no harm.
        """
        run_slices(self._ports, self.writing(marker, partitions, written, Work()))

    def writing(
        self, marker: Marker, partitions: Iterable[TopicPartition], written: Written, work: Work
    ) -> Search[None]:
        """Does what ``write`` does, for callers that share the work of a slice among several markers."""
        answers: dict[TopicPartition, Error] = {}
        appended: list[tuple[Partition, int]] = []
        for key in partitions:
            if key in answers:
                continue
            found = self._append(marker, key)
            units = UNITS_PER_LOOK
            if isinstance(found, Error):
                answers[key] = found
            else:
                answers[key], units = ErrorCode.none, UNITS_PER_MARKER
                appended.append(found)
            if work.spend(units):
                yield
        self._settle(answers, appended, written)

    def _append(self, marker: Marker, key: TopicPartition) -> tuple[Partition, int] | Error:
        """Returns the partition and the end of the marker in its log, or why nothing was appended."""
        partition = self._partitions.by_name.get(key)
        if partition is None:
            return self._led_elsewhere(key)
        log, followers = partition.log, partition.followers
        if followers is not None and followers.is_under_min_isr(log.config.min_insync_replicas):
            return ErrorCode.not_enough_replicas
        keeps_offsets = partition.topic == OFFSETS_TOPIC
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
        try:
            appended = log.append(now, batch, partition.leader_epoch, origin=Origin.BROKER)
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

    def _settle(
        self, answers: dict[TopicPartition, Error], appended: list[tuple[Partition, int]], written: Written
    ) -> None:
        """Waits until what was appended is durable where that is asked for, and replicated."""

        def durable() -> None:
            waiting = []
            for partition, end in appended:
                if partition.deleted:
                    answers[partition.topic, partition.index] = ErrorCode.not_leader_or_follower
                elif partition.followers is not None:
                    waiting.append((partition, end))
            if waiting:
                self._leaders.acknowledge(waiting, self.request_timeout_ms, replicated)
            else:
                written(answers)

        def replicated(errors: dict[Partition, Error]) -> None:
            for partition, error in errors.items():
                answers[partition.topic, partition.index] = error
            written(answers)

        due = [partition for partition, _ in appended if not partition.deleted and must_be_durable(partition.log)]
        if due:
            sync_led_then(self._ports, due, durable)
        else:
            durable()
