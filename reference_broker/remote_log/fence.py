"""Makes sure that no former leader of a partition changes what is in the tier (P-11)."""

from collections.abc import Callable
from typing import TypeAlias

from reference_broker.ports.node_ports import StorePorts
from reference_broker.remote_log.metadata.events import SegmentState, SegmentUpdate
from reference_broker.remote_log.metadata.partition_segments import RemoteLogMetadata
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

NO_SEGMENT = bytes(16)
"""The segment ID of an event that changes nothing. Segments have random IDs."""

Proven: TypeAlias = Callable[[Error], None]


class Fence:
    """Of one partition that this node leads. It writes an event that changes nothing. When that is read back without
    an error, every event of former leaders is known here, and what they write from then on does not count. Before that
    a former leader may still remove what is listed, so nothing is deleted here because it is listed."""

    def __init__(self, ports: StorePorts, node_id: int, metadata: RemoteLogMetadata, partition: Partition) -> None:
        self._ports = ports
        self._node_id = node_id
        self._metadata = metadata
        self._partition = partition
        self._proven_in: tuple[int, object] = (-1, None)
        """A leader epoch, and the generation of what is known."""
        self._under_way: list[Proven] = []
        """They are told of the event that is being written now."""
        self._waiting: list[Proven] = []
        """They are told of the next one."""

    @property
    def is_up(self) -> bool:
        """Whether it was proven in the leader epoch of now, and what was known then was not forgotten."""
        return self._proven_in == self._now

    @property
    def _now(self) -> tuple[int, object]:
        partition = self._partition
        return partition.leader_epoch, self._metadata.of(partition.topic_id, partition.index).generation

    def put_up(self, then: Proven) -> None:
        """Tells NONE when this is up, else the error of ``prove``."""
        (self._under_way or self._waiting).append(then)
        self._write_next()

    def prove(self, then: Proven) -> None:
        """Tells NONE when an event that was written after this call is read back, and no newer leader has written
        before it. Else it tells the error of ``RemoteLogMetadata.write``, or FENCED_LEADER_EPOCH if another epoch has
        begun or what was known is forgotten."""
        self._waiting.append(then)
        self._write_next()

    def _write_next(self) -> None:
        if self._under_way or not self._waiting:
            return
        partition, written_in = self._partition, self._now
        self._under_way, self._waiting = self._waiting, []
        event = SegmentUpdate(
            topic_id=partition.topic_id,
            topic=partition.topic,
            partition=partition.index,
            segment_id=NO_SEGMENT,
            broker_id=self._node_id,
            event_timestamp_ms=self._ports.now().wall_ms,
            uploader_epoch=partition.leader_epoch,
            state=SegmentState.DELETE_SEGMENT_STARTED,
        )

        def read_back(error: Error) -> None:
            told, self._under_way = self._under_way, []
            if error is ErrorCode.resource_not_found:
                self._proven_in = written_in
                error = ErrorCode.none if self.is_up else ErrorCode.fenced_leader_epoch
            for then in told:
                then(error)
            self._write_next()

        self._metadata.write(event, read_back)
