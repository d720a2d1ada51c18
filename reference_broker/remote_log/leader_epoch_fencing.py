"""Leader epoch fencing of the remote tier: former leaders of a partition must not change it any more (P-11)."""

from collections.abc import Callable
from typing import TypeAlias

from reference_broker.ports.node_ports import StorePorts
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadata
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

NO_SEGMENT = bytes(16)
"""Segment ID of the no-op event. Segments have random IDs."""

FencingCallback: TypeAlias = Callable[[Error], None]
"""Called once, with NONE or with the error of ``LeaderEpochFencing.verify_leadership``."""


class LeaderEpochFencing:
    """Fencing of the former leaders of one partition that this node leads.

    It writes a no-op event of an unknown segment to ``__remote_log_metadata``. Once the event is read back, all
    events of former leaders have been applied, and later ones are rejected. Until then a former leader may still
    remove listed segments, so no local segment is deleted because it is listed.
    """

    def __init__(self, ports: StorePorts, node_id: int, metadata: RemoteLogMetadata, partition: Partition) -> None:
        self._ports = ports
        self._node_id = node_id
        self._metadata = metadata
        self._partition = partition
        self._established_in: tuple[int, object] = (-1, None)
        """The leader epoch and the generation of the segment metadata in which former leaders were fenced."""
        self._in_flight: list[FencingCallback] = []
        """Callbacks of the event that is being written."""
        self._waiting: list[FencingCallback] = []
        """Callbacks of the next event."""

    @property
    def is_established(self) -> bool:
        """Whether former leaders are fenced in the current leader epoch. Metadata that was discarded since, because its
        topic lost events, may show former leaders' events again."""
        return self._established_in == self._now

    @property
    def _now(self) -> tuple[int, object]:
        partition = self._partition
        return partition.leader_epoch, self._metadata.of(partition.topic_id, partition.index).generation

    def establish(self, then: FencingCallback) -> None:
        """Call back with NONE once former leaders are fenced, or with an error of ``verify_leadership``."""
        (self._in_flight or self._waiting).append(then)
        self._write_next()

    def verify_leadership(self, then: FencingCallback) -> None:
        """Call back with NONE once an event that was written after this call is read back, and no newer leader wrote
        before it. Otherwise call back with the error of ``RemoteLogMetadata.write``, or with FENCED_LEADER_EPOCH if the
        leader epoch changed or the segment metadata was discarded."""
        self._waiting.append(then)
        self._write_next()

    def _write_next(self) -> None:
        if self._in_flight or not self._waiting:
            return
        partition, written_in = self._partition, self._now
        self._in_flight, self._waiting = self._waiting, []
        event = RemoteLogSegmentMetadataUpdate(
            topic_id=partition.topic_id,
            topic=partition.topic,
            partition=partition.index,
            segment_id=NO_SEGMENT,
            broker_id=self._node_id,
            event_timestamp_ms=self._ports.now().wall_ms,
            uploader_epoch=partition.leader_epoch,
            state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        )

        def read_back(error: Error) -> None:
            # No segment has this ID. Such an error means that the event was applied, so it was not fenced.
            callbacks, self._in_flight = self._in_flight, []
            if error is ErrorCode.resource_not_found:  # Decision fence-event
                self._established_in = written_in
                error = ErrorCode.none if self.is_established else ErrorCode.fenced_leader_epoch
            for then in callbacks:
                then(error)
            self._write_next()

        self._metadata.write(event, read_back)
