"""A consumer's positions and how a fetch answer moves them. There is no I/O here.

Batches before the position are skipped. A batch that contains the position is taken from there on. Control batches move
the position and give no records, and so do batches of the aborted transactions that the answer names. A gap or a
repetition *inside* an answer is kept as it is, because those who judge histories must see it. An answer never moves the
position back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_broker.client.aborted import AbortedBatches
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import CRC_FROM, HEADER_BYTES, BatchHeader, Buffer, checksum, read_header
from reference_broker.wire.fetch import PartitionData


class TakenBatch(NamedTuple):
    """One batch of an answer. ``data`` holds its bytes. The reader must skip records below ``from_offset``."""

    header: BatchHeader
    data: memoryview
    from_offset: int


def _whole_batches(view: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    start, end = 0, len(view)
    while end - start >= HEADER_BYTES:
        header = read_header(view, start)
        if not HEADER_BYTES <= header.size_bytes <= end - start:
            return
        yield start, header
        start += header.size_bytes


def is_damaged(records: Buffer) -> bool:
    """Returns whether a whole batch of an answer fails its CRC.

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
    """``offset`` is the next to read. ``leader_epoch`` is that of the last batch taken, or -1.

    ``high_watermark`` and ``log_start_offset`` come from the last answer. They are -1 before any answer.
    """

    offset: int
    leader_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class ConsumerState:
    positions: dict[TopicPartition, Position] = field(default_factory=dict)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Moves the position to ``offset``. The high watermark and log start stay as last answered."""
        known = self.positions.get(where)
        if known is None:
            self.positions[where] = Position(offset)
        else:
            known.offset, known.leader_epoch = offset, -1

    def take(self, where: TopicPartition, data: PartitionData) -> list[TakenBatch]:
        """Applies one partition of an answer without error, and returns the batches that are new.

        A batch that is cut short at the end of the bytes is not taken. That is no error, since brokers may cut at a
        byte limit. Only lengths are checked here; ``is_damaged`` checks CRCs.
        """
        position = self.positions[where]
        if data.high_watermark >= 0:
            position.high_watermark = data.high_watermark
        if data.log_start_offset >= 0:
            position.log_start_offset = data.log_start_offset
        if not data.records:
            return []
        asked, reached, epoch = position.offset, position.offset, position.leader_epoch
        taken: list[TakenBatch] = []
        view = memoryview(data.records)
        aborted = AbortedBatches(data.aborted_transactions) if data.aborted_transactions else None
        for start, header in _whole_batches(view):
            last = header.last_offset
            is_dropped = aborted is not None and aborted.drops(header, view[start : start + header.size_bytes])
            if last < asked:
                continue
            if last >= reached:
                reached, epoch = last + 1, header.leader_epoch
            if not header.is_control and not is_dropped:
                taken.append(TakenBatch(header, view[start : start + header.size_bytes], asked))
        position.offset, position.leader_epoch = reached, epoch
        return taken
