"""What a full replay of a log says of its producers, and how a snapshot of them is read, without the broker's own code.

Source: Kafka's ProducerSnapshot schema (version 1, CRC-32C over what follows), KIP-98 and KIP-890 for what a batch and
a marker change.
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from chaos.checks.batches import Batch
from chaos.checks.records import last_sequence_of, producing_of, records_in

_HEAD = Struct(">hIi")
"""Version, CRC and number of producers."""
_CRC_FROM = 6
_ROW = Struct(">qhiqiqiq")
"""Producer ID, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of the open
transaction."""
_VERSION = 1


class Producing(NamedTuple):
    """What is known of one producer. Without a batch of the epoch ``last_sequence`` and ``last_offset`` are -1, and so
    is ``open_from`` without an open transaction."""

    epoch: int
    last_sequence: int
    last_offset: int
    timestamp_ms: int
    open_from: int

    @property
    def told(self) -> tuple[int, int, int, int]:
        """What must be equal in a snapshot."""
        return self.epoch, self.last_sequence, self.last_offset, self.open_from


def read_snapshot(data: bytes) -> dict[int, Producing]:
    """Returns the producers by their IDs. Raises ValueError for what is no such file."""
    if len(data) < _HEAD.size:
        raise ValueError(f"it has only {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or crc != crc32c(data[_CRC_FROM:]) or len(data) != _HEAD.size + count * _ROW.size:
        raise ValueError(f"version {version}, {count} producers in {len(data)} bytes, or a CRC that does not fit")
    rows = (_ROW.unpack_from(data, _HEAD.size + number * _ROW.size) for number in range(count))
    return {row[0]: Producing(row[1], row[2], row[3], row[5], row[7]) for row in rows}


def replayed(known: Mapping[int, Producing], batch: bytes, place: Batch) -> dict[int, Producing]:
    """Returns what is known after the next whole batch, which lies at ``place``."""
    producing = producing_of(batch)
    producer_id, epoch, sequence = last_sequence_of(batch)
    if producer_id < 0:
        return dict(known)
    before = known.get(producer_id)
    is_new_epoch = before is None or epoch > before.epoch
    if place.control:
        if not _is_marker(batch):
            return dict(known)
        kept = (-1, -1) if is_new_epoch or before is None else (before.last_sequence, before.last_offset)
        return {**known, producer_id: Producing(epoch, *kept, producing.largest_ms, -1)}
    open_from = -1 if before is None else before.open_from
    if producing.is_transactional and open_from < 0:
        open_from = place.base_offset
    return {**known, producer_id: Producing(epoch, sequence, place.last_offset, producing.largest_ms, open_from)}


def _is_marker(batch: bytes) -> bool:
    """A marker's key is its version and its type: 0 for an abort, 1 for a commit."""
    key = next(records_in(batch)).key
    return key is not None and key[2:4] in (b"\x00\x00", b"\x00\x01")
