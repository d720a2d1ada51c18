"""Records inside of a batch: encoding and decoding, with Kafka's zigzag varints (ByteUtils.writeVarint / writeVarlong).

Clients, the metadata log, snapshots, the cleaner and lookups by time use it; the broker's hot path never does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.ports.slicing import Sliced
from reference_broker.records.batch import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    InvalidRecords,
    iterate,
    read_header,
    sealed,
)
from reference_broker.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Compression,
    TooLarge,
    compress,
    decompress,
    decompressed_pieces,
)
from reference_broker.wire.errors import ErrorCode

HeaderPair: TypeAlias = tuple[str, bytes | None]


@dataclass(slots=True, frozen=True)
class Record:
    """One record."""

    offset: int = -1
    """-1 before the builder has numbered the record."""
    timestamp_ms: int = -1
    """-1 if it has no timestamp."""
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[HeaderPair, ...] = ()


MAX_VARINT_BYTES = 10
_MASK = 0xFFFF_FFFF_FFFF_FFFF
INT64_END = 1 << 63
"""One past the largest int64."""


def zigzag(value: int) -> bytes:
    """Encode a number. Small magnitudes take few bytes: -64..63 take one, -8192..8191 take two."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def wrapped(number: int) -> int:
    """The int64 that Java's arithmetic makes of a number: what does not fit 64 bits is dropped."""
    return ((number + INT64_END) & _MASK) - INT64_END


def read_zigzag(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value, next position). The value fits int64: ten bytes hold 70 bits, and Kafka's reader drops what is
    beyond 64, too. Raise InvalidRecords (CORRUPT_MESSAGE) at the buffer's end or after 10 bytes."""
    try:
        byte = buffer[position]
        position += 1
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position
        result = byte & 0x7F
        for shift in range(7, 7 * MAX_VARINT_BYTES, 7):
            byte = buffer[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                result &= _MASK
                return (result >> 1) ^ -(result & 1), position
    except IndexError as error:
        raise InvalidRecords(ErrorCode.corrupt_message, "a record ends inside a number") from error
    raise InvalidRecords(ErrorCode.corrupt_message, "a record holds a number of more than 10 bytes")


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


MAX_PLAIN_BYTES = 16 * 2**20
MAX_RECORDS = 100_000
"""The broker does not decode a batch that has more of either once it is decompressed, because a few bytes may expand to
any number of records."""


def plain_records(header: BatchHeader, batch: memoryview) -> Sliced[bytes | None]:
    """Return the decompressed records of a batch; None if they are too many to decode. Yield after each piece but the
    last, which takes a few milliseconds. Raise InvalidRecords (CORRUPT_MESSAGE)."""
    body = batch[HEADER_BYTES : header.size_bytes]
    if header.record_count > MAX_RECORDS:
        return None
    if header.compression == 0:
        return bytes(body)
    pieces: list[bytes] = []
    try:
        for piece in decompressed_pieces(header.compression, body, MAX_PLAIN_BYTES):
            if pieces:
                yield
            pieces.append(piece)
    except TooLarge:
        return None
    return b"".join(pieces)


def read_all(
    batches: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[BatchHeader, Record]]:
    """Yield every record of several whole batches, each with its batch's header."""
    view = memoryview(batches)
    for position, header in iterate(view):
        batch = view[position : position + header.size_bytes]
        for record in read_records(batch, max_decompressed_bytes):
            yield header, record


def read_records(batch: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Yield the records of one batch, with absolute offsets and timestamps (ms).

    Raise InvalidRecords (CORRUPT_MESSAGE) if the bytes are not records. The CRC is not checked here.
    """
    view = memoryview(batch)
    header = read_header(view)
    if not HEADER_BYTES <= header.size_bytes <= len(view):
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"a batch claims {header.size_bytes} bytes, but {len(view)} are there"
        )
    body = view[HEADER_BYTES : header.size_bytes]
    plain = body if header.compression == 0 else decompress(header.compression, body, max_decompressed_bytes)
    yield from decoded(bytes(plain), header)


def decoded(plain: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of a batch, whose bytes are decompressed. Raise InvalidRecords (CORRUPT_MESSAGE)."""
    position = 0
    for _ in range(header.record_count):
        length, start = read_zigzag(plain, position)
        position = start + length
        if length < 0 or position > len(plain):
            raise InvalidRecords(
                ErrorCode.corrupt_message, f"a record claims {length} bytes, but {len(plain) - start} are left"
            )
        yield _decode_record(plain, start, position, header)
    if position != len(plain):
        raise InvalidRecords(ErrorCode.corrupt_message, f"{len(plain) - position} bytes follow the last record")


def _decode_record(plain: bytes, start: int, end: int, header: BatchHeader) -> Record:
    timestamp_delta, position = read_zigzag(plain, start + 1)
    offset_delta, position = read_zigzag(plain, position)
    key, position = _read_bytes(plain, position, end)
    value, position = _read_bytes(plain, position, end)
    count, position = read_zigzag(plain, position)
    headers: tuple[HeaderPair, ...] = ()
    if count:
        headers, position = _read_headers(plain, position, end, count)
    if position != end:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"the fields of a record end at byte {position}, but the record ends at {end}"
        )
    timestamp_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + timestamp_delta
    if not -INT64_END <= timestamp_ms < INT64_END:
        timestamp_ms = wrapped(timestamp_ms)
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, headers)


def _read_headers(plain: bytes, position: int, end: int, count: int) -> tuple[tuple[HeaderPair, ...], int]:
    if not 0 <= count <= end - position:
        raise InvalidRecords(ErrorCode.corrupt_message, f"a record claims {count} headers")
    pairs = []
    for _ in range(count):
        name, position = _read_bytes(plain, position, end)
        value, position = _read_bytes(plain, position, end)
        if name is None:
            raise InvalidRecords(ErrorCode.corrupt_message, "a record header has no name")
        pairs.append((name.decode(errors="replace"), value))
    return tuple(pairs), position


def _read_bytes(plain: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_zigzag(plain, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"a field of a record claims {length} bytes, but {end - position} are left"
        )
    return plain[position : position + length], position + length


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
    """Build one batch. Records get consecutive offsets from ``base_offset`` on. With ``keep_offsets`` they keep their
    own offsets, which must ascend and not be below ``base_offset``. With ``log_append_time_ms`` the batch has that
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
