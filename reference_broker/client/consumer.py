"""A consumer's positions, and how a Fetch response moves them. There is no I/O here.

Batches before the position are skipped. A batch that contains the position is taken from there on. Control batches move
the position and have no records, and so do batches of the aborted transactions of the response. A gap or a repetition
*inside* a response is kept as it is, because checks of histories must see it. A response never moves the position back.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import CRC_FROM, HEADER_BYTES, BatchHeader, Buffer, checksum, read_header
from reference_broker.records.control import ControlType, read_marker
from reference_broker.wire.fetch import AbortedTransaction, PartitionData

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


@dataclass(slots=True)
class AbortedBatches:
    """The batches of aborted transactions in one partition of one response (KIP-98). Batches are passed in their order.

    A broker sends a read_committed consumer the aborted transactions that overlap the response, each with its first
    offset. Batches of a producer in the list are dropped from there on, until the marker that ends the transaction.
    """

    transactions: Iterable[AbortedTransaction]
    _to_come: list[tuple[int, int]] = field(init=False)
    _aborted: set[int] = field(default_factory=set)
    """The producers whose aborted transaction is open at this point."""

    def __post_init__(self) -> None:
        self._to_come = sorted(
            ((transaction.first_offset, transaction.producer_id) for transaction in self.transactions), reverse=True
        )

    def drops(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether this batch, the next of the response, belongs to an aborted transaction. Markers do not."""
        if not header.is_transactional:
            return False
        while self._to_come and self._to_come[-1][0] <= header.last_offset:
            self._aborted.add(self._to_come.pop()[1])
        if not header.is_control:
            return header.producer_id in self._aborted
        marker = read_marker(batch, header)
        if marker is not None and marker[0] is ControlType.ABORT:
            self._aborted.discard(header.producer_id)
        return False


def remembered_after(position: int, horizon: int) -> int:
    """Return the tombstone horizon that a fetcher remembers after a response to its fetch from ``position``; 0 in its
    normal mode. If it is greater than the remembered one, the fetcher drops the response and begins again.

    Each response says below which offset tombstones may be gone (KIP-630's rejected alternative; H-3 to H-7). A fetcher
    that reads on below that offset may keep records whose tombstones it never sees. So it forgets everything it has
    read and begins at the start of the log. This bootstrap is unsafe if more tombstones go meanwhile. The fetcher
    remembers the horizon as long as its position is below it, and begins again if the horizon has moved.

    ``horizon`` is that of the replica that responded. Records read from another replica with a smaller horizon may need
    tombstones that this one lacks. So a horizon that comes back after a smaller one counts as moved.
    """
    return horizon if position < horizon else 0


class TakenBatch(NamedTuple):
    """One batch of a response."""

    header: BatchHeader
    data: memoryview
    """Its bytes."""
    from_offset: int
    """The reader must skip records below it."""


def _whole_batches(view: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    start, end = 0, len(view)
    while end - start >= HEADER_BYTES:
        header = read_header(view, start)
        if not HEADER_BYTES <= header.size_bytes <= end - start:
            return
        yield start, header
        start += header.size_bytes


def is_damaged(records: Buffer) -> bool:
    """Return whether a whole batch of a response fails its CRC.

    This must be known before anything in its header is believed: a control batch, or one that ends before the position,
    gives no records, but moves the position or lets a later batch move it.
    """
    view = memoryview(records)
    return any(
        checksum(view[start + CRC_FROM : start + header.size_bytes]) != header.crc
        for start, header in _whole_batches(view)
    )


@dataclass(slots=True)
class Position:
    """A consumer's position in one partition."""

    offset: int
    """The next one to read."""
    leader_epoch: int = -1
    """The leader epoch of the last batch read, or -1."""
    high_watermark: int = -1
    """From the last response, -1 before any, as is ``log_start_offset``."""
    log_start_offset: int = -1


@dataclass(slots=True)
class ConsumerState:
    positions: dict[TopicPartition, Position] = field(default_factory=dict)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position to ``offset``. The high watermark and log start stay those of the last response."""
        known = self.positions.get(partition)
        if known is None:
            self.positions[partition] = Position(offset)
        else:
            known.offset, known.leader_epoch = offset, -1

    def take(self, partition: TopicPartition, data: PartitionData) -> list[TakenBatch]:
        """Apply one partition of a response without error, and return the batches that are new.

        A batch that is cut short at the end of the bytes is not taken. That is no error, since brokers may cut at a
        byte limit. Only lengths are checked here; ``is_damaged`` checks CRCs.
        """
        position = self.positions[partition]
        if data.high_watermark >= 0:
            position.high_watermark = data.high_watermark
        if data.log_start_offset >= 0:
            position.log_start_offset = data.log_start_offset
        if not data.records:
            return []
        fetch_offset, reached, epoch = position.offset, position.offset, position.leader_epoch
        taken: list[TakenBatch] = []
        view = memoryview(data.records)
        aborted = AbortedBatches(data.aborted_transactions) if data.aborted_transactions else None
        for start, header in _whole_batches(view):
            last = header.last_offset
            is_dropped = aborted is not None and aborted.drops(header, view[start : start + header.size_bytes])
            if last < fetch_offset:
                continue
            if last >= reached:
                reached, epoch = last + 1, header.leader_epoch
            if not header.is_control and not is_dropped:
                taken.append(TakenBatch(header, view[start : start + header.size_bytes], fetch_offset))
        position.offset, position.leader_epoch = reached, epoch
        return taken
