"""Batches of control records: transaction markers (KIP-98), leader changes (KIP-595) and snapshot delimiters (KIP-630).

A control record's key is an int16 version and an int16 type. Its value is a message of Kafka's schemas, which kio
provides (LeaderChangeMessage.json, SnapshotHeaderRecord.json, SnapshotFooterRecord.json, EndTxnMarker.json).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

from reference_broker.records.batch import NO_LEADER_EPOCH, BatchHeader, Buffer, InvalidRecords
from reference_broker.records.record import Record, build, read_records
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord

_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(slots=True, frozen=True)
class ControlRecord:
    """A record of a control batch."""

    type: int
    """A ControlType, or a number that is not known here."""
    version: int
    value: bytes
    """The bytes of the message."""


def control_record(type_: ControlType, value: bytes, timestamp_ms: int) -> Record:
    return Record(timestamp_ms=timestamp_ms, key=_KEY.pack(0, type_), value=value)


def build_control(records: Sequence[Record], *, base_offset: int = 0, leader_epoch: int = NO_LEADER_EPOCH) -> bytes:
    """Build a control batch of the metadata log or of a snapshot. It has no producer."""
    return build(records, base_offset=base_offset, leader_epoch=leader_epoch, is_control=True)


def read_control(record: Record) -> ControlRecord:
    """Split a control record into its type, version and value. Raise InvalidRecords (CORRUPT_MESSAGE) if its key is
    not a control key."""
    if record.key is None or len(record.key) < _KEY.size:
        raise InvalidRecords(ErrorCode.corrupt_message, "a control record has no control key")
    version, type_ = _KEY.unpack_from(record.key)
    return ControlRecord(type_, version, record.value or b"")


def build_marker(
    *, commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """Build the batch that ends a producer's transaction in one partition (EndTxnMarker.json, version 0)."""
    type_ = ControlType.COMMIT if commit else ControlType.ABORT
    record = control_record(type_, _MARKER_VALUE.pack(0, coordinator_epoch), timestamp_ms)
    return build(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, is_control=True, is_transactional=True
    )


def read_marker(batch: Buffer, header: BatchHeader) -> tuple[ControlType, int] | None:
    """Return the type of a transaction marker (COMMIT or ABORT) and its coordinator epoch. Return None for any other
    control batch, and for a batch whose record cannot be read, since it ends no transaction."""
    if header.record_count < 1:
        return None
    try:
        control = read_control(next(read_records(batch)))
    except InvalidRecords:
        return None
    if control.type not in (ControlType.ABORT, ControlType.COMMIT) or len(control.value) < _MARKER_VALUE.size:
        return None
    return ControlType(control.type), int(_MARKER_VALUE.unpack_from(control.value)[1])


def encode_message(message: object) -> bytes:
    """Encode a kio message (LeaderChangeMessage, SnapshotHeaderRecord, ...). No version precedes it."""
    out = bytearray()
    kind: type = type(message)
    encoder(kind, kind)(out, message)
    return bytes(out)


def leader_change(leader_id: int, voters: Sequence[int], granting: Sequence[int], timestamp_ms: int) -> Record:
    """Make the first record that a new leader of the metadata log appends."""
    from kio.schema.leader_change_message.v0.data import LeaderChangeMessage, Voter
    from kio.schema.types import BrokerId
    from kio.static.primitive import i16, i32

    message = LeaderChangeMessage(
        version=i16(0),
        leader_id=BrokerId(leader_id),
        voters=tuple(Voter(voter_id=i32(voter)) for voter in voters),
        granting_voters=tuple(Voter(voter_id=i32(voter)) for voter in granting),
    )
    return control_record(ControlType.LEADER_CHANGE, encode_message(message), timestamp_ms)


def snapshot_header(last_contained_log_timestamp_ms: int, timestamp_ms: int) -> Record:
    """Make the first record of a snapshot (S-16)."""
    from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
    from kio.static.primitive import i16, i64

    message = SnapshotHeaderRecord(version=i16(0), last_contained_log_timestamp=i64(last_contained_log_timestamp_ms))
    return control_record(ControlType.SNAPSHOT_HEADER, encode_message(message), timestamp_ms)


def snapshot_footer(timestamp_ms: int) -> Record:
    """Make the last record of a snapshot (S-16)."""
    from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
    from kio.static.primitive import i16

    value = encode_message(SnapshotFooterRecord(version=i16(0)))
    return control_record(ControlType.SNAPSHOT_FOOTER, value, timestamp_ms)


def decode_snapshot_header(control: ControlRecord) -> "SnapshotHeaderRecord":
    from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
    from kio.serial import entity_reader

    return entity_reader(SnapshotHeaderRecord)(control.value, 0)[0]
