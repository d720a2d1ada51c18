"""What a full replay of a log says of its producers, and how a snapshot of them is read, without the broker's own code.

Source: Kafka's ProducerSnapshot schema (version 1, CRC-32C over what follows), KIP-98 and KIP-890 for what a batch and
a marker change.
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from chaos.checks.batches import Batch, last_sequence_of, producing_of, records_in

_HEAD = Struct(">hIi")
"""Version, CRC and number of producers."""
_CRC_FROM = 6
_ROW = Struct(">qhiqiqiq")
"""Producer ID, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of the open
transaction."""
_VERSION = 1


class ProducerState(NamedTuple):
    """What is known of one producer. Without a batch of the epoch ``last_sequence`` and ``last_offset`` are -1, and so
    are ``open_from`` without an open transaction and ``coordinator_epoch`` without a marker."""

    epoch: int
    last_sequence: int
    last_offset: int
    timestamp_ms: int
    coordinator_epoch: int
    open_from: int
    silence_ms: int = 0
    """How long it wrote nothing at most since its last marker. A snapshot does not tell it."""

    @property
    def told(self) -> tuple[int, int, int, int, int, int]:
        """What a snapshot tells."""
        return self[:6]


def read_snapshot(data: bytes) -> dict[int, ProducerState]:
    """Returns the producers by their IDs. Raises ValueError for what is no such file."""
    if len(data) < _HEAD.size:
        raise ValueError(f"it has only {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or crc != crc32c(data[_CRC_FROM:]) or len(data) != _HEAD.size + count * _ROW.size:
        raise ValueError(f"version {version}, {count} producers in {len(data)} bytes, or a CRC that does not fit")
    rows = (_ROW.unpack_from(data, _HEAD.size + number * _ROW.size) for number in range(count))
    return {row[0]: ProducerState(row[1], row[2], row[3], row[5], row[6], row[7]) for row in rows}


def replayed(known: Mapping[int, ProducerState], batch: bytes, place: Batch) -> dict[int, ProducerState]:
    """Returns what is known after the next whole batch, which lies at ``place``."""
    producing = producing_of(batch)
    producer_id, epoch, sequence = last_sequence_of(batch)
    if producer_id < 0:
        return dict(known)
    before = known.get(producer_id, ProducerState(-1, -1, -1, -1, -1, -1))
    if place.control:
        coordinator_epoch = _coordinator_epoch(batch)
        if coordinator_epoch is None:
            return dict(known)
        kept = (-1, -1) if epoch > before.epoch else (before.last_sequence, before.last_offset)
        newest = max(coordinator_epoch, before.coordinator_epoch)
        return {**known, producer_id: ProducerState(epoch, *kept, producing.largest_ms, newest, -1)}
    open_from = before.open_from
    if producing.is_transactional and open_from < 0:
        open_from = place.base_offset
    written = ProducerState(
        epoch, sequence, place.last_offset, producing.largest_ms, before.coordinator_epoch, open_from
    )
    silence_ms = max(before.silence_ms, producing.largest_ms - before.timestamp_ms) if producer_id in known else 0
    return {**known, producer_id: written._replace(silence_ms=silence_ms)}


def _coordinator_epoch(batch: bytes) -> int | None:
    """A marker's key is its version and its type: 0 for an abort, 1 for a commit. Its value is its version and the
    coordinator's epoch (EndTxnMarker)."""
    record = next(records_in(batch), None)
    if record is None or record.key is None or record.key[2:4] not in (b"\x00\x00", b"\x00\x01"):
        return None
    return int.from_bytes((record.value or b"")[2:6], signed=True)
