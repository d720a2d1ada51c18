"""View of producers and transactions in logs.

It is replayed from the bytes of each log's batches.

Sources: KIP-98 (a producer's epoch, sequence numbers and transactions, markers, the last stable offset), KIP-360 and
KIP-890, and Kafka's ProducerStateManager for the five remembered batches.

Batches are read once, when they are appended. So the view keeps the whole history of a log, even if retention or a
cleaner has removed batches, or the node's process has ended. After a truncation or a start the log is replayed from its
bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.history import TopicPartition
from chaos.checks.log.batches import records_in
from chaos.checks.replication.replica_view import ReplicaView
from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import DiskError

if TYPE_CHECKING:
    from reference_broker.core.node import Node


_HEADER = Struct(">qiiBIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, largest timestamp,
producer ID, producer epoch, base sequence, number of records."""
_LENGTH_FROM = 12
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_READ_BYTES = 1 << 20
REMEMBERED = 5
"""Kafka's number of batches by which a retry is recognised."""
METADATA_LOG = "__cluster_metadata"
SKIPPED_CHANGES = 24
"""Bounds the cost: a log that is followed, or has no open transaction, is read once in this number of appends."""


class ProducedBatch(NamedTuple):
    """A batch of a producer with an ID, or a marker of one."""

    offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    timestamp_ms: int
    is_transactional: bool
    commits: bool | None
    """None for data, else whether the marker commits"""
    coordinator_epoch: int
    """-1 for data"""


class LoggedBatch(NamedTuple):
    """One remembered batch of a producer, in the order in which a log keeps its fields."""

    first_sequence: int
    last_sequence: int
    offset: int
    last_offset: int
    timestamp_ms: int


class LoggedProducer(NamedTuple):
    """The state that a log must have of a producer, in the order of its own fields."""

    epoch: int
    batches: tuple[LoggedBatch, ...]
    """the last five of its epoch; none after a marker that raised the epoch"""
    timestamp_ms: int
    coordinator_epoch: int
    open_from: int
    """first offset of its open transaction, -1 without one"""


class EndedTransaction(NamedTuple):
    """A transaction with its marker."""

    producer_id: int
    first_offset: int
    marker: int
    """offset of its marker"""
    stable_end: int
    """where the first transaction began that was open behind the marker, or one past the marker (AbortedTxn)"""
    commits: bool


@dataclass(slots=True, eq=False)
class LogProducers:
    """The producers and transactions of one replica's log."""

    log: UnifiedLog
    topic_id: bytes
    index: int
    read_end: int = 0
    known_from: int = 0
    """offset from which all batches are known; 0 means the whole history"""
    batches: list[ProducedBatch] = field(default_factory=list)
    states: dict[int, LoggedProducer] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """first offset of each open transaction, by producer ID"""
    ended: list[EndedTransaction] = field(default_factory=list)
    """in the order of their markers"""
    idle: set[int] = field(default_factory=set)
    """producers that may have expired (P-7) at some time, and may have come back"""
    opened_end: int = 0
    """the log's end when it was opened or truncated last"""
    cuts: int = 0
    """number of the log's last truncation"""
    skipped: int = 0
    """number of appends since it was read"""
    stable: int = 0
    """the last stable offset by clause X-4"""
    most_stable: int = 0
    """the same without transactions whose records a cleaner may have removed (X-11): they were decided before"""
    greatest_stable: int = 0
    """its greatest value since then"""
    cleaned_end: int = 0
    """where the cleaner's last pass ended that was ever seen. Physical: a power loss may take the checkpoint of it, and
    leave the cleaned segments."""

    @property
    def is_whole(self) -> bool:
        """Whether the log itself still has all batches whose effect it must know."""
        return self.known_from == self.log.local_log_start_offset == 0 and not self.log.config.is_compacted

    def unread(self) -> list[ProducedBatch]:
        """Return the batches that the log has and the view has not read yet. Physical: the log of a process that has
        ended may have lost its files."""
        if self.log.is_offline:
            return []
        try:
            with WatchedDisk.unwatched():
                return _read(self.log, max(self.read_end, self.log.local_log_start_offset), self.log.log_end_offset)
        except DiskError:
            return []

    def settle(self) -> None:
        """Compute the last stable offset: the high watermark, or the first offset of the earliest transaction that is
        open or whose marker the high watermark has not passed."""
        log = self.log
        self.cleaned_end = max(self.cleaned_end, log.cleaned_offset)
        if not self.open and (not self.ended or self.ended[-1].marker < log.high_watermark):
            self.stable = self.most_stable = log.high_watermark
            self.greatest_stable = max(self.greatest_stable, self.stable)
            return
        stable = most = min(log.high_watermark, *self.open.values()) if self.open else log.high_watermark
        cleaned_end = log.cleaned_offset if log.config.is_compacted else 0
        for transaction in reversed(self.ended):
            if transaction.marker < log.high_watermark:
                break
            stable = min(stable, transaction.first_offset)
            if transaction.first_offset >= cleaned_end:
                most = min(most, transaction.first_offset)
        self.stable, self.most_stable = max(stable, log.log_start_offset), max(most, log.log_start_offset)
        self.greatest_stable = max(self.greatest_stable, self.most_stable)

    def apply(self, batch: ProducedBatch, idle_ms: int) -> None:
        """Replay the next batch. ``idle_ms`` is the time before which a producer's last record makes it expire."""
        producer_id, epoch = batch.producer_id, batch.epoch
        known = self.states.get(producer_id)
        if known is None:
            known = LoggedProducer(epoch, (), -1, -1, -1)
        elif known.open_from < 0 and known.timestamp_ms <= idle_ms:
            self.idle.add(producer_id)
        if batch.commits is None:
            remembered = known.batches if epoch == known.epoch else ()
            logged = LoggedBatch(
                batch.first_sequence, batch.last_sequence, batch.offset, batch.last_offset, batch.timestamp_ms
            )
            open_from = known.open_from
            if open_from < 0 and batch.is_transactional:
                open_from = self.open[producer_id] = batch.offset
            self.states[producer_id] = LoggedProducer(
                epoch, (*remembered[1 - REMEMBERED :], logged), batch.timestamp_ms, known.coordinator_epoch, open_from
            )
            return
        self.states[producer_id] = LoggedProducer(
            max(epoch, known.epoch),
            () if epoch > known.epoch else known.batches,
            batch.timestamp_ms,
            max(known.coordinator_epoch, batch.coordinator_epoch),
            -1,
        )
        first = self.open.pop(producer_id, None)
        if first is not None:
            stable_end = min(self.open.values(), default=batch.offset + 1)
            self.ended.append(EndedTransaction(producer_id, first, batch.offset, stable_end, batch.commits))

    def replay(self, idle_ms: int) -> None:
        """Replay all batches that are known."""
        self.states, self.open, self.ended = {}, {}, []
        for batch in self.batches:
            self.apply(batch, idle_ms)


_Key: TypeAlias = tuple[int, str]
"""A node's ID, and the directory of a log."""


class ProducerView:
    """The producers of all logs, by node and directory."""

    def __init__(self) -> None:
        self.logs: dict[_Key, LogProducers] = {}
        self.on_batch_appended: list[
            Callable[[int, Node, LogProducers, LoggedProducer | None, ProducedBatch], None]
        ] = []
        """called with the time, the node, the producers of a log, the producer before, and its batch, for each batch
        that was appended since the last event"""
        self.on_log_replayed: list[Callable[[int, Node, LogProducers, Sequence[ProducedBatch] | None], None]] = []
        """called after an event that changed a log, with the time, the node, the log's producers, and its new batches
        of producers, which are replayed. None means all batches: the log was opened, or truncated, or everything is
        compared"""
        self.on_high_watermark_moved: list[Callable[[int, Node, LogProducers], None]] = []
        """called after an event that changed a log with transactions, and appended nothing"""
        self.wall_ms: dict[int, int] = {}
        """by node: the greatest time that its wall clock has shown"""

    def follow(self, replicas: ReplicaView) -> None:
        """Follow the logs of the nodes from now on, before other views do: the markers in logs come before the values
        of transactional IDs."""
        if self.logs_touched not in replicas.on_logs_touched:
            replicas.on_logs_touched.insert(0, self.logs_touched)

    def of(self, at_us: int, node: "Node", log: UnifiedLog) -> LogProducers | None:
        """Return the producers of a node's log, or None if it cannot be read."""
        if log.is_offline:
            return None
        self._follow(at_us, node, log, must_read=True)
        producers = self.logs[node.broker.node_id, log.directory]
        producers.settle()
        return producers

    def holding(self, partition: TopicPartition, stable_offset: int) -> list[int | None]:
        """Return the producer whose transaction begins at a partition's last stable offset, and those that have one
        open behind it. None means a first one that no log shows."""
        directory = f"{partition[0]}-{partition[1]}"
        logs = [each for (_, name), each in self.logs.items() if name == directory]
        newest = max(logs, key=lambda log: log.log.high_watermark, default=None)
        if newest is None:
            return [None]
        first_offsets = {producer_id: offset for producer_id, offset in newest.open.items() if offset >= stable_offset}
        first_offsets |= {
            transaction.producer_id: transaction.first_offset
            for transaction in newest.ended
            if transaction.first_offset == stable_offset
        }
        return [*first_offsets, *([] if stable_offset in first_offsets.values() else [None])]

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:
        """Follow the logs that an event of the node changed. With ``thorough`` let the checks compare all of them."""
        node_id, wall_ms = node.broker.node_id, node.broker.now.wall_ms
        if wall_ms > self.wall_ms.get(node_id, -1):
            self.wall_ms[node_id] = wall_ms
        for log in touched:
            if not log.is_offline and not log.directory.startswith(METADATA_LOG):
                self._follow(at_us, node, log)
        if thorough and node.listening:  # Before that a starting node has no replica of the metadata log yet.
            for log in list(node.logs()):
                known = self.logs.get((node_id, log.directory))
                if known is not None and known.log is log and not log.is_offline:
                    self._follow(at_us, node, log, must_read=True)
                    self._report(at_us, node, self.logs[node_id, log.directory], None)

    def idle_ms(self, node_id: int, log: UnifiedLog) -> int:
        """Return the time up to which a producer's last record may have made it expire on this node (P-7)."""
        return max(self.wall_ms[node_id], log.producers.swept_ms) - log.config.producer_id_expiration_ms

    def _follow(self, at_us: int, node: "Node", log: UnifiedLog, *, must_read: bool = False) -> None:
        node_id, end, cuts = node.broker.node_id, log.log_end_offset, log.durability.last_cut
        known = self.logs.get((node_id, log.directory))
        is_new = known is None or known.log is not log or known.cuts != cuts
        if known is None or is_new or not log.local_log_start_offset <= known.read_end <= end:
            self._reopen(at_us, node, log, known)
            return
        if end == known.read_end:
            if known.open or known.ended or log.producers.open_transactions or log.producers.completed:
                known.settle()
                for high_watermark_moved in self.on_high_watermark_moved:
                    high_watermark_moved(at_us, node, known)
            return
        known.skipped += 1
        # Retention deletes closed segments, so these are read at once.
        if not must_read and known.skipped < SKIPPED_CHANGES and log.bases and log.bases[-1] <= known.read_end:
            is_open = known.open or log.producers.open_transactions
            if not is_open or (log.topic_id, known.index) not in node.broker.partitions.by_id:
                return
        known.skipped = 0
        with WatchedDisk.unwatched():
            new = _read(log, known.read_end, end)
        known.read_end = end
        if not new and not known.states and not log.producers.by_id:
            return
        known.batches += new
        idle_ms = self.idle_ms(node_id, log) if new else 0
        for batch in new:
            before = known.states.get(batch.producer_id)
            known.apply(batch, idle_ms)
            for batch_appended in self.on_batch_appended:
                batch_appended(at_us, node, known, before, batch)
        self._report(at_us, node, known, new)

    def _reopen(self, at_us: int, node: "Node", log: UnifiedLog, known: LogProducers | None) -> None:
        producers = self.logs[node.broker.node_id, log.directory] = self._reopened(known, log)
        end = log.log_end_offset
        with WatchedDisk.unwatched():
            producers.batches += _read(log, producers.read_end, end)
        producers.read_end = producers.opened_end = end
        producers.cuts = log.durability.last_cut
        producers.replay(self.idle_ms(node.broker.node_id, log))
        self._report(at_us, node, producers, None)

    @staticmethod
    def _reopened(known: LogProducers | None, log: UnifiedLog) -> LogProducers:
        """Return the part of what is known that a log still has which was opened or truncated."""
        start, end = log.local_log_start_offset, log.log_end_offset
        index = int(log.directory.rpartition("-")[2])
        made = LogProducers(log, log.topic_id, index, read_end=start, known_from=start)
        is_same = known is not None and (known.topic_id == log.topic_id or not known.topic_id or not log.topic_id)
        if known is None or not is_same or known.read_end < start or start == end:
            return made
        # The cleaner may have removed batches, whose effect stays.
        kept_end = min(known.read_end, end) if log.config.is_compacted else start
        made.batches = [batch for batch in known.batches if batch.last_offset < kept_end]
        made.read_end, made.known_from, made.idle = kept_end, known.known_from, known.idle
        made.cleaned_end = min(known.cleaned_end, end)
        return made

    def _report(self, at_us: int, node: "Node", producers: LogProducers, new: Sequence[ProducedBatch] | None) -> None:
        producers.settle()
        for log_replayed in self.on_log_replayed:
            log_replayed(at_us, node, producers, new)


def _read(log: UnifiedLog, offset: int, end_offset: int) -> list[ProducedBatch]:
    """Return the batches of [offset, end_offset) that have a producer ID."""
    batches: list[ProducedBatch] = []
    while offset < end_offset:
        data = log.read(offset, _READ_BYTES, end_offset)
        position, size, before = 0, len(data), offset
        while position + _HEADER.size <= size:
            (base, length, leader_epoch, _, _, attributes, delta, _, largest_ms, producer_id, epoch, first, _) = (
                _HEADER.unpack_from(data, position)
            )
            end = position + _LENGTH_FROM + length
            if end > size:
                break
            offset = base + delta + 1
            if producer_id >= 0:
                commits, coordinator_epoch = None, -1
                if attributes & _CONTROL:
                    commits, coordinator_epoch = _marker(data[position:end])
                if commits is not None or not attributes & _CONTROL:
                    last = -1 if first < 0 else (first + delta) % (1 << 31)
                    is_transactional = bool(attributes & _TRANSACTIONAL)
                    batches.append(
                        ProducedBatch(
                            *(base, offset - 1, leader_epoch, producer_id, epoch, first, last, largest_ms),
                            *(is_transactional, commits, coordinator_epoch),
                        )
                    )
            position = end
        if offset <= before:
            break
    return batches


def lone_batch_in(records: bytes | memoryview | None) -> tuple[int, int, int] | None:
    """Return the producer ID, the epoch and the first sequence of records that are one batch with a sequence."""
    if records is None or len(records) < _HEADER.size:
        return None
    header = _HEADER.unpack_from(records)
    producer_id, epoch, first = header[9:12]
    is_alone = header[1] + _LENGTH_FROM == len(records)
    return (producer_id, epoch, first) if is_alone and producer_id >= 0 and first >= 0 else None


def lone_batch_offsets(records: bytes | memoryview | None) -> int:
    """Return the number of offsets that records take which are one batch, or 0."""
    if records is None or len(records) < _HEADER.size:
        return 0
    header = _HEADER.unpack_from(records)
    return int(header[6]) + 1 if header[1] + _LENGTH_FROM == len(records) else 0


def _marker(batch: bytes) -> tuple[bool | None, int]:
    """Return whether a marker commits, and its coordinator's epoch (EndTxnMarker), or None for another control batch.

    A marker's key is its version and its type: 0 for an abort, 1 for a commit.
    """
    record = next(records_in(batch), None)
    if record is None or record.key is None or record.key[2:4] not in (b"\x00\x00", b"\x00\x01"):
        return None, -1
    return record.key[2:4] == b"\x00\x01", int.from_bytes((record.value or b"")[2:6], signed=True)
