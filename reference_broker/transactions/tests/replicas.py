"""Three replicas of one partition, real logs that are copied by the test, and a naive reader of their bytes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import unpack_from
from typing import Any

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import EMPTY_IMAGE
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import BatchHeader, iterate
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.tests.timed_ports import TimedPorts
from reference_broker.transactions.markers import MarkerWriter
from reference_broker.wire.errors import Error, ErrorCode

TOPIC_ID = b"t" * 16
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1, transaction_verification_enable=True)


@dataclass(frozen=True)
class Ended:
    """A transaction with its marker, read from the bytes."""

    producer_id: int
    first: int
    marker: int
    commits: bool


@dataclass
class ReplayedLog:
    """The contents of a log's batches, read byte by byte: KIP-98's attributes and EndTxnMarker.json."""

    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The first offset and the epoch, by producer ID."""
    ended: list[Ended] = field(default_factory=list)
    coordinators: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    """The next one of each producer in its epoch."""

    @staticmethod
    def of(data: bytes) -> "ReplayedLog":
        replayed = ReplayedLog()
        for position, header in iterate(data):
            replayed._add(header, data[position : position + header.size_bytes])
        return replayed

    def _add(self, header: BatchHeader, data: bytes) -> None:
        self.batches.append((header, data))
        producer = header.producer_id
        if header.producer_epoch != self.epochs.get(producer):
            self.sequences[producer] = 0
        self.epochs[producer] = header.producer_epoch
        if header.is_control:
            commits, coordinator = marker_of(data)
            self.coordinators[producer] = coordinator
            if producer in self.open:
                first, _ = self.open.pop(producer)
                self.ended.append(Ended(producer, first, header.base_offset, commits))
        else:
            self.sequences[producer] = header.base_sequence + header.last_offset_delta + 1
            self.open.setdefault(producer, (header.base_offset, header.producer_epoch))

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset (X-4)."""
        held = [first for first, _ in self.open.values()]
        held += [each.first for each in self.ended if each.marker >= high_watermark]
        return min([high_watermark, *held])

    def aborted(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the transactions that overlap the range, by their first offsets (X-5)."""
        found = [each for each in self.ended if not each.commits and each.first < end and each.marker >= offset]
        return sorted((each.first, each.producer_id) for each in found)

    def committed(self, end: int) -> list[int]:
        """Return the base offsets of the batches below ``end`` whose transaction was committed."""
        return [
            header.base_offset
            for header, _ in self.batches
            if not header.is_control and header.base_offset < end and self._is_committed(header)
        ]

    def _is_committed(self, header: BatchHeader) -> bool:
        ends = [
            each for each in self.ended if each.producer_id == header.producer_id and each.marker > header.base_offset
        ]
        return bool(ends) and min(ends, key=lambda one: one.marker).commits


def marker_of(batch: bytes) -> tuple[bool, int]:
    """Return whether a control batch commits, and its coordinator's epoch.

    Its record begins at byte 61: one-byte length, attributes, deltas, key length 4, key (version, type), value length
    6, value (version, epoch).
    """
    _, kind = unpack_from(">hh", batch, 66)
    _, epoch = unpack_from(">hi", batch, 71)
    return kind == 1, epoch


class Ports(TimedPorts):
    def sync(self, _paths: tuple[str, ...], done: Callable[[], None]) -> None:
        """Complete at once: memory is durable."""
        done()


class Replicas:
    """Replica 0 leads first. The high watermark is the smallest log end; ``acks`` wait for it."""

    def __init__(self) -> None:
        self.ports = Ports()
        self.disks = [MemoryDisk() for _ in range(3)]
        self.logs = [self._opened(disk, clean=True) for disk in self.disks]
        self.leader = 0
        self.epoch = 0
        self.acks: list[tuple[Partition, int, Callable[[dict[Partition, Error]], None]]] = []
        self._read_at = (-1, -1)
        self._replayed = ReplayedLog()
        self._lead()

    def _opened(self, disk: MemoryDisk, *, clean: bool) -> UnifiedLog:
        return run_to_end(open_log(disk, "events-0", CONFIG, self.ports.now(), clean))

    def _lead(self) -> None:
        log = self.logs[self.leader]
        log.assign_leader_epoch(self.epoch)
        followers: Any = _InSync()
        self.partition = Partition("events", TOPIC_ID, 0, self.epoch, log, followers=followers)
        partitions = Partitions()
        partitions.add(self.partition)
        ports: Any = self.ports
        leaders: Any = self
        self.writer = MarkerWriter(ports, partitions, leaders, lambda: EMPTY_IMAGE, 30_000)

    # the part of replication that the writer uses

    def appended(self, partition: Partition) -> None:
        assert partition is self.partition

    def acknowledge(
        self,
        offsets: list[tuple[Partition, int]],
        _timeout_ms: int,
        acknowledged: Callable[[dict[Partition, Error]], None],
    ) -> None:
        ((partition, end),) = offsets
        self.acks.append((partition, end, acknowledged))
        self._complete()

    def _complete(self) -> None:
        reached = [ack for ack in self.acks if ack[0].log.high_watermark >= ack[1]]
        self.acks = [ack for ack in self.acks if ack not in reached]
        for _, _, acknowledged in reached:
            acknowledged({})

    # steps

    @property
    def log(self) -> UnifiedLog:
        return self.logs[self.leader]

    def replayed(self) -> ReplayedLog:
        """Return the contents of the leader's log. It only grows, so each state of it is read once."""
        key = (self.epoch, self.log.log_end_offset)
        if self._read_at != key:
            self._read_at, self._replayed = key, ReplayedLog.of(everything(self.log))
        return self._replayed

    def replicate(self, follower: int, batches: int) -> None:
        """Copy the next batches, and notify the follower of the high watermark."""
        log = self.logs[follower]
        missing = [data for header, data in self.replayed().batches if header.base_offset >= log.log_end_offset]
        for data in missing[:batches]:
            log.append_replicated(self.ports.now(), data)
        self.log.advance_high_watermark(min(each.log_end_offset for each in self.logs))
        log.advance_high_watermark(min(self.log.high_watermark, log.log_end_offset))
        self._complete()

    def elect(self, replica: int) -> None:
        """Elect a replica that has all committed records. The others truncate to it."""
        gone, self.acks = self.acks, []
        self.partition.is_removed = True
        committed = self.log.high_watermark
        assert self.logs[replica].log_end_offset >= committed
        self.leader, self.epoch = replica, self.epoch + 1
        self._lead()
        kept = self.replayed().batches
        for log in self.logs:
            if log is not self.log:
                same = 0
                for mine, its in zip(ReplayedLog.of(everything(log)).batches, kept, strict=False):
                    if mine[1] != its[1]:
                        break
                    same = mine[0].last_offset + 1
                assert same >= min(committed, log.log_end_offset)
                log.truncate_to(same)
        for partition, _, acknowledged in gone:
            acknowledged({partition: ErrorCode.not_leader_or_follower})

    def restart(self, follower: int) -> None:
        """Crash the follower. Its writes and the file of high watermarks stay on the disk."""
        known = self.logs[follower].high_watermark
        log = self.logs[follower] = self._opened(self.disks[follower], clean=False)
        log.advance_high_watermark(known)


class _InSync:
    def is_under_min_isr(self, _least: int) -> bool:
        return False


def everything(log: UnifiedLog) -> bytes:
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        part = bytes(log.read(offset, 1 << 20, log.log_end_offset))
        data += part
        offset = [header.last_offset for _, header in iterate(part)][-1] + 1
    return data
