"""Decodes the records of a batch. Clients, the cleaner and time look-ups use it; the broker's hot path never does."""

from collections.abc import Generator, Iterator

from reference_broker.records.batch import HEADER_BYTES, BatchHeader, Buffer, InvalidRecords, iterate, read_header
from reference_broker.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    TooLarge,
    decompress,
    decompressed_pieces,
)
from reference_broker.records.record import HeaderPair, Record
from reference_broker.records.varint import INT64_END, read_zigzag, wrapped
from reference_broker.wire.errors import ErrorCode

__all__ = ["Record", "read_all", "read_records"]


MOST_PLAIN_BYTES = 16 * 2**20
MOST_RECORDS = 100_000
"""The broker does not look into a batch that has more of either once it is unpacked, because a few bytes may unpack to
any number of records."""


def plain_records(header: BatchHeader, batch: memoryview) -> Generator[None, None, bytes | None]:
    """The decompressed records of a batch; None if they are too many to look into. Yields after each piece but the
    last, which takes a few milliseconds. Raises InvalidRecords (CORRUPT_MESSAGE)."""
    body = batch[HEADER_BYTES : header.size_bytes]
    if header.record_count > MOST_RECORDS:
        return None
    if header.compression == 0:
        return bytes(body)
    pieces: list[bytes] = []
    try:
        for piece in decompressed_pieces(header.compression, body, MOST_PLAIN_BYTES):
            if pieces:
                yield
            pieces.append(piece)
    except TooLarge:
        return None
    return b"".join(pieces)


def read_all(
    batches: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[BatchHeader, Record]]:
    """Yields every record of several whole batches, each with its batch's header."""
    view = memoryview(batches)
    for position, header in iterate(view):
        batch = view[position : position + header.size_bytes]
        for record in read_records(batch, max_decompressed_bytes):
            yield header, record


def read_records(batch: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Yields the records of one batch, with absolute offsets and timestamps (ms).

    Raises InvalidRecords (CORRUPT_MESSAGE) if the bytes are not records. The CRC is not checked here.
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
    """The records of a batch, whose bytes are decompressed. Raises InvalidRecords (CORRUPT_MESSAGE)."""
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
