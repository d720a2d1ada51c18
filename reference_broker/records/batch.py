"""Record batches (magic 2) as views over bytes: headers, iteration, CRC-32C, patching. No record is decoded here.

Layout: Kafka's DefaultRecordBatch (KIP-98). The CRC covers everything from the attributes to the end, so the broker
can set the base offset and the partition leader epoch without computing it again.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c as _crc32c

from reference_broker.wire.errors import Error, ErrorCode

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC = 2
HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12
"""The size of base offset and length. The batch's length field does not count these bytes."""
UNPATCHED_FROM = 16
"""The position behind base offset, length and leader epoch. The broker may rewrite the bytes before it."""
CRC_FROM = 21
"""The CRC covers the bytes from here (the attributes) on."""

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 0x7FFFFFFF

_HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qii")
_AFTER_CRC = Struct(">hiqqqhii")
_MAGIC_AND_CRC = Struct(">bI")
_new = tuple.__new__
"""Makes a BatchHeader faster than ``_make``, which counts the fields first. Headers are read so often that this can be
measured."""


class InvalidRecords(Exception):  # noqa: N818 - the name is the contract between rooms
    """The bytes may not be appended or cannot be read. ``error`` is Kafka's code for the reason."""

    def __init__(self, error: Error, message: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.record_errors = record_errors
        """A pair for each wrong record: its index in the batch, and what is wrong with it."""


class BatchHeader(NamedTuple):
    """The fields of the 61 bytes before the records, in their order. Offsets and timestamps (ms) are as stored."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1 if the batch has none. After 2^31-1 comes 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def compression(self) -> int:
        """Codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd (5..7 do not exist)."""
        return self.attributes & COMPRESSION_MASK


def add_sequence(sequence: int, count: int) -> int:
    """Advance a sequence number by ``count``. After 2^31-1 comes 0."""
    return (sequence + count) & MAX_SEQUENCE


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at ``position``, without a check of its values. Raise InvalidRecords (CORRUPT_MESSAGE) if fewer
    than 61 bytes are left."""
    if len(buffer) - position < HEADER_BYTES:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"a batch header needs 61 bytes, but {len(buffer) - position} are left"
        )
    return _new(BatchHeader, _HEADER.unpack_from(buffer, position))


def write_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(*header)


def sealed(header: BatchHeader, body: bytes) -> bytes:
    """Return a whole batch with these fields and record. Its length and its CRC are those of what it holds."""
    after_crc = _AFTER_CRC.pack(*header[5:])
    crc = checksum(body, checksum(after_crc))
    size = HEADER_BYTES + len(body) - LENGTH_OVERHEAD_BYTES
    prefix = _PREFIX.pack(header.base_offset, size, header.leader_epoch)
    return b"".join((prefix, _MAGIC_AND_CRC.pack(header.magic, crc), after_crc, body))


def iterate(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch. Raise InvalidRecords (CORRUPT_MESSAGE) if a length does not fit."""
    position, end = 0, len(buffer)
    while position < end:
        header = read_header(buffer, position)
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if size < HEADER_BYTES or position + size > end:
            raise InvalidRecords(
                ErrorCode.corrupt_message,
                f"the batch at byte {position} claims {size} bytes, but {end - position} are left",
            )
        yield position, header
        position += size


def end_of(records: Buffer) -> int:
    """Return one past the last offset of the batches, of which there is at least one. Raise InvalidRecords
    (CORRUPT_MESSAGE) if a length does not fit."""
    end = 0
    for _, header in iterate(records):
        end = header.last_offset + 1
    return end


def validate(buffer: Buffer) -> list[tuple[int, BatchHeader]]:
    """Check magic, lengths and CRC of every batch and return (position, header) pairs.

    Raise InvalidRecords: CORRUPT_MESSAGE, or UNSUPPORTED_FOR_MESSAGE_FORMAT for the formats before magic 2.
    """
    view = memoryview(buffer)
    batches = []
    position, end = 0, len(view)
    while position < end:
        header = checked(view, position, end)
        batches.append((position, header))
        position += header.batch_length + LENGTH_OVERHEAD_BYTES
    return batches


def checked(view: memoryview, position: int, end: int) -> BatchHeader:
    """Check the batch at ``position``, which must end at or before ``end``. Raise InvalidRecords as ``validate``."""
    left = end - position
    if left > UNPATCHED_FROM and view[position + UNPATCHED_FROM] != MAGIC:
        magic = view[position + UNPATCHED_FROM]
        error = ErrorCode.unsupported_for_message_format if magic < MAGIC else ErrorCode.corrupt_message
        raise InvalidRecords(error, f"the batch at byte {position} has magic {magic}, not 2")
    header = read_header(view, position)
    size = header.batch_length + LENGTH_OVERHEAD_BYTES
    if size < HEADER_BYTES or size > left:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"the batch at byte {position} claims {size} bytes, but {left} are left"
        )
    if checksum(view[position + CRC_FROM : position + size]) != header.crc:
        raise InvalidRecords(ErrorCode.corrupt_message, f"the batch at byte {position} has a wrong CRC")
    return header


def checksum(covered: Buffer, before: int = 0) -> int:
    """Compute the CRC-32C of ``covered``: of a batch, its bytes from the attributes on. ``before`` is the CRC of the
    bytes that come before them, if any do."""
    return int(_crc32c(covered, before))


def patched_prefix(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch's first 16 bytes with the broker's values. The rest of the batch does not change."""
    return _PREFIX.pack(base_offset, header.batch_length, leader_epoch)


def patched_log_append_time(
    batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int, log_append_time_ms: int
) -> bytes:
    """Return the batch's 61 header bytes with LogAppendTime set. Attributes, largest timestamp and CRC change too."""
    attributes = header.attributes | LOG_APPEND_TIME
    after_crc = _AFTER_CRC.pack(
        attributes, header.last_offset_delta, header.base_timestamp_ms, log_append_time_ms, *header[9:]
    )
    crc = checksum(batch[HEADER_BYTES : header.size_bytes], checksum(after_crc))
    return _PREFIX.pack(base_offset, header.batch_length, leader_epoch) + _MAGIC_AND_CRC.pack(MAGIC, crc) + after_crc
