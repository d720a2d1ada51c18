"""Makes record batches from records. Clients, the metadata log, snapshots and the cleaner use it."""

from collections.abc import Sequence

from reference_broker.records.batch import (
    CONTROL,
    LOG_APPEND_TIME,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    sealed,
)
from reference_broker.records.compression import Compression, compress
from reference_broker.records.record import Record
from reference_broker.records.varint import zigzag

__all__ = ["Compression", "Record", "build"]

_NULL = zigzag(-1)


def build(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    compression: Compression = Compression.NONE,
    log_append_time_ms: int | None = None,
    is_control: bool = False,
    is_transactional: bool = False,
    keep_offsets: bool = False,
) -> bytes:
    """Builds one batch. Records get consecutive offsets from ``base_offset`` on. With ``keep_offsets`` they keep their
    own offsets, which must ascend and not lie below ``base_offset``. With ``log_append_time_ms`` the batch has that
    time as LogAppendTime, and the records' own timestamps do not count."""
    assert records, "a batch holds at least one record"
    base_timestamp_ms = records[0].timestamp_ms
    max_timestamp_ms = max(record.timestamp_ms for record in records)
    attributes = int(compression) | (CONTROL if is_control else 0) | (TRANSACTIONAL if is_transactional else 0)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp_ms = log_append_time_ms
    plain = bytearray()
    delta = 0
    for index, record in enumerate(records):
        delta = record.offset - base_offset if keep_offsets else index
        _write_record(plain, record, delta, record.timestamp_ms - base_timestamp_ms)
    body = compress(compression, bytes(plain))
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return sealed(header, body)


def _write_record(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(b"\x00")  # Record attributes: none are defined.
    body += zigzag(timestamp_delta)
    body += zigzag(offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    body += zigzag(len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    out += zigzag(len(body))
    out += body


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += _NULL
    else:
        out += zigzag(len(data))
        out += data
