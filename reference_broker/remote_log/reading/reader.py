"""Reads partitions from the remote tier, for consumers, look-ups by time, and replicas that begin there.

It never blocks: each result comes at the end of the event or in a later one. A partition does not delay the others, up
to the limit of concurrent gets (``readings.MAX_GETS``).
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from reference_broker.log.timestamp_lookup import FoundOffset
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metrics.metrics import Counter
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import StorePorts
from reference_broker.ports.store import FailureKind
from reference_broker.records.batch import InvalidRecords, iterate
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadata, common_end, lineage_of
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadata, RemoteLogMetadataCache
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.remote_log.objects import name_of
from reference_broker.remote_log.reading.readings import Failure, Reading, Readings
from reference_broker.remote_log.reading.segment_readings import (
    BLOCK_BYTES,
    MAX_BYTES,
    Auxiliary,
    aborted_in_segments,
    auxiliary_of,
    batches_from,
    block,
    block_count,
    boundary_before,
    first_of_time,
    floor_position,
    without_empty,
)
from reference_broker.replication.follower.partition_data_applier import TierState
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import AbortedTransaction

MAX_HEADERS: Final = 1000
"""Limits the batch headers that are read to find out what fits, to some 2 ms. Later batches are omitted."""
_NOT_KNOWN: Final = 1 << 63


class Layout(NamedTuple):
    """Positions of the batches in records that were read from a segment."""

    offset_index: bytes = b""
    """The offset index of the segment."""
    base_offset: int = 0
    """The base offset of the segment."""
    position: int = 0
    """The byte of the segment at which the records begin."""

    def batch_within(self, size: int, end_offset: int) -> int:
        """Return the last known place in the records, at most ``size``, of a batch that begins before ``end_offset``.
        It is 0 if the index knows none."""
        by_size = boundary_before(self.offset_index, self.position + size)
        by_offset = floor_position(self.offset_index, end_offset - 1 - self.base_offset)
        return max(min(by_size, by_offset) - self.position, 0)


class RemoteRecords(NamedTuple):
    """Whole batches of the remote tier."""

    records: bytes
    aborted: Sequence[AbortedTransaction] | None
    """None where all records are read, committed or not."""
    end_offset: int = _NOT_KNOWN
    """No batch reaches beyond it."""
    layout: Layout = Layout()

    def fitting(self, max_bytes: int, end_offset: int, *, at_least_one: bool) -> bytes:
        """Return the batches that begin before ``end_offset`` and fit into ``max_bytes``, or fewer. With
        ``at_least_one`` the first batch may be larger."""
        if self.end_offset <= end_offset and len(self.records) <= max_bytes:
            return self.records
        size = start = self.layout.batch_within(max_bytes, end_offset)
        for number, (position, header) in enumerate(iterate(memoryview(self.records)[start:]), 1):
            end = start + position + header.size_bytes
            is_too_large = end > max_bytes and not (at_least_one and size == 0)
            if header.base_offset >= end_offset or is_too_large:
                break
            size = end
            if number == MAX_HEADERS:
                break
        return self.records[:size]


BLOCKS_LIMIT_BYTES: Final = 64 << 20
"""Limits the cached blocks of log objects, those read ahead included."""
READ_AHEAD_BLOCKS: Final = 1
"""Number of blocks after the last one that are fetched before a reader requests them."""

FoundT = TypeVar("FoundT")
Abandon: TypeAlias = Callable[[], None]


class RemoteReader:
    """Each method calls ``done`` with its result or an error. It returns a function that abandons the reading."""

    def __init__(
        self, ports: StorePorts, metadata: RemoteLogMetadata, metrics: RemoteLogMetrics, indexes_limit_bytes: int
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._readings = Readings(ports, BLOCKS_LIMIT_BYTES, indexes_limit_bytes)
        self._note = ports.note

    def resize(self, indexes_limit_bytes: int) -> None:
        self._readings.indexes.resize(indexes_limit_bytes)

    def read(
        self,
        log: UnifiedLog,
        partition: int,
        offset: int,
        max_bytes: int,
        done: Callable[[RemoteRecords | Error], None],
        *,
        at_least_one: bool = True,
        is_committed: bool = False,
    ) -> Abandon:
        """Read whole batches of a log, from the one that holds ``offset`` on. ``offset`` lies below the log's local
        start. ``is_committed``: with the aborted transactions. As in a local read each batch has records, unless none
        with records follow (``log.reading``).

        Returns at most ``max_bytes``, except that the first batch comes whatever its size if ``at_least_one``. Errors
        are those of Kafka's RemoteLogReader: OFFSET_OUT_OF_RANGE if no segment with the offset is listed (any more),
        REPLICA_NOT_AVAILABLE while it is not known what is listed, CORRUPT_MESSAGE for damaged objects,
        UNKNOWN_SERVER_ERROR if the store fails, and KAFKA_STORAGE_ERROR if this node's disk does.
        """
        self._metrics.fetch_requests.value += 1

        def found(records: RemoteRecords | Error) -> None:
            if isinstance(records, RemoteRecords):
                self._metrics.fetched_bytes.value += len(records.records)
            done(records)

        reading = self._records(log, partition, offset, max_bytes, at_least_one, is_committed)
        return self._begin(log, partition, reading, found, self._metrics.fetch_errors)

    def first_of_time(
        self, log: UnifiedLog, partition: int, timestamp_ms: int, done: Callable[[FoundOffset | Error | None], None]
    ) -> Abandon:
        """Find the first record at or after the log start, and before the local start, whose timestamp is >=
        ``timestamp_ms``. None if the tier has none: the local log may. Errors are those of ``read``."""
        reading = self._first_of_time(log, partition, timestamp_ms)
        return self._begin(log, partition, reading, done, self._metrics.fetch_errors)

    def auxiliary(
        self,
        log: UnifiedLog,
        partition: int,
        leader_epoch: int,
        offset: int,
        done: Callable[[Auxiliary | Error], None],
    ) -> Abandon:
        """Find the state with which a replica begins whose leader has no records before ``offset``. ``leader_epoch``
        is that of the record before it, as the leader says. Unlike in Kafka the replica begins at ``offset``, also
        inside a segment. Errors are those of ``read``."""
        self._metrics.auxiliary_requests.value += 1
        reading = self._auxiliary(log, partition, leader_epoch, offset)
        return self._begin(log, partition, reading, done, self._metrics.auxiliary_errors)

    # --- what is found ------------------------------------------------------------------------------------------------

    def _records(
        self, log: UnifiedLog, partition: int, offset: int, max_bytes: int, at_least_one: bool, is_committed: bool
    ) -> Reading[RemoteRecords | Error]:
        segments = self._known(log, partition)
        if not isinstance(segments, RemoteLogMetadataCache):
            return segments
        lineage = lineage_of(log)
        segment = segments.segment_at(lineage, offset)
        only_empty: RemoteRecords | None = None
        while segment is not None:
            end_offset = common_end(segment, lineage, log.log_end_offset)
            if offset >= end_offset:
                return ErrorCode.offset_out_of_range
            batches = yield from batches_from(segment, offset, end_offset, max_bytes, at_least_one=at_least_one)
            records = yield from without_empty(batches.records)
            if records or (not batches.records and batches.end_offset < end_offset):
                self._read_ahead(segment, batches.end_position)
                break
            if batches.records:
                none_aborted = () if is_committed else None
                only_empty = only_empty or RemoteRecords(batches.records, none_aborted, batches.end_offset)
                yield None
            offset = batches.end_offset  # What is left of the segment up to there is empty batches, or a hole.
            if offset >= log.local_log_start_offset:
                local = _local(log, max_bytes, at_least_one, is_committed)
                return local if local.records or only_empty is None else only_empty
            segment = segments.segment_at(lineage, offset)
        else:
            return only_empty or ErrorCode.offset_out_of_range
        is_whole = len(records) == len(batches.records)
        layout = Layout(batches.offset_index, segment.start_offset, batches.position) if is_whole else Layout()
        if not is_committed or not records:
            return RemoteRecords(records, () if is_committed else None, batches.end_offset, layout)
        first, end = batches.first_offset, batches.end_offset
        remote = yield from aborted_in_segments(segments, segment, lineage, first, end, log.local_log_start_offset)
        aborted = {(each.first_offset, each.producer_id) for each in remote.found}
        if not remote.is_complete:
            aborted |= {
                (transaction.first_offset, transaction.producer_id)
                for transaction in log.aborted_transactions(first, end)
            }
        transactions = [AbortedTransaction(producer_id, first_offset) for first_offset, producer_id in sorted(aborted)]
        return RemoteRecords(records, transactions, end, layout)

    def _read_ahead(self, segment: RemoteLogSegmentMetadata, position: int) -> None:
        """The next blocks come while the reader takes the last one. There is one get at a time for each."""
        first = position // BLOCK_BYTES
        for number in range(first, min(first + 1 + READ_AHEAD_BLOCKS, block_count(segment))):
            self._readings.blocks.read_ahead(block(segment, number))

    def _first_of_time(self, log: UnifiedLog, partition: int, timestamp_ms: int) -> Reading[FoundOffset | Error | None]:
        segments = self._known(log, partition)
        if not isinstance(segments, RemoteLogMetadataCache):
            return segments
        start, end = log.log_start_offset, log.local_log_start_offset
        return (yield from first_of_time(segments, lineage_of(log), timestamp_ms, start, end))

    def _auxiliary(self, log: UnifiedLog, partition: int, leader_epoch: int, offset: int) -> Reading[Auxiliary | Error]:
        segments = self._known(log, partition)
        if not isinstance(segments, RemoteLogMetadataCache):
            return segments
        segment = segments.segment_for(leader_epoch, offset - 1)
        if segment is None:
            return ErrorCode.offset_out_of_range
        return (yield from auxiliary_of(segments, segment, offset, log.producers.empty_copy()))

    def _known(self, log: UnifiedLog, partition: int) -> RemoteLogMetadataCache | Error:
        if not self._metadata.is_ready(log.topic_id, partition):
            return ErrorCode.replica_not_available
        return self._metadata.of(log.topic_id, partition)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        log: UnifiedLog,
        partition: int,
        reading: Reading[FoundT | Error],
        done: Callable[[FoundT | Error], None],
        errors: Counter,
    ) -> Abandon:
        def failed(failure: Failure) -> None:
            errors.value += 1
            self._note("remote_read_failed", ("partition", log.directory), ("reason", str(failure)))
            done(self._error_of(log, partition, failure))

        return self._readings.begin(reading, done, failed)

    def _error_of(self, log: UnifiedLog, partition: int, failure: Failure) -> Error:
        """OFFSET_OUT_OF_RANGE makes consumers reset. So objects that are gone give it only if their segment was deleted
        meanwhile, and not if they are listed still: the store may be away."""
        if isinstance(failure, InvalidRecords):
            return failure.error
        if isinstance(failure, DiskError):
            return ErrorCode.kafka_storage_error
        name = name_of(failure.wanted.key)
        segments = self._known(log, partition)
        if (
            name is None
            or failure.failure.kind is not FailureKind.MISSING
            or not isinstance(segments, RemoteLogMetadataCache)
        ):
            return ErrorCode.unknown_server_error
        # Decision missing-object
        return ErrorCode.unknown_server_error if segments.is_listed(name.segment_id) else ErrorCode.offset_out_of_range


def _local(log: UnifiedLog, max_bytes: int, at_least_one: bool, is_committed: bool) -> RemoteRecords:
    """Return the records of the local log. A reader behind the last record of the tier continues there."""
    start = log.local_log_start_offset
    records = log.read(start, min(max_bytes, MAX_BYTES), at_least_one=at_least_one, skips_empty=True)
    return RemoteRecords(records, tuple(log.aborted_among(start, records)) if is_committed else None)


class RemoteStarts:
    """Implements ``Tier`` of ``replication.follower.offset_lookups``."""

    def __init__(self, reader: RemoteReader) -> None:
        self._reader = reader

    def state_before(
        self,
        log: UnifiedLog,
        partition: int,
        leader_epoch: int,
        offset: int,
        done: Callable[[TierState | Error], None],
    ) -> None:
        def looked_up(result: Auxiliary | Error) -> None:
            if isinstance(result, Auxiliary):
                done(TierState(result.offset, result.epochs, result.snapshot, result.producers))
            else:
                done(result)

        self._reader.auxiliary(log, partition, leader_epoch, offset, looked_up)
