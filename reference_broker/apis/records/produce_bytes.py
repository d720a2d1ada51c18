"""What the first bytes of a batch say before the log has judged it (message format v2)."""

from reference_broker.records.batch import COMPRESSION_MASK, HEADER_BYTES, TRANSACTIONAL

SMALL_BYTES = 4096
"""An uncompressed batch of this size is looked into at once. It holds 576 records at most."""
PACKED_UNIT_BYTES = 1 << 7
"""To pack so many bytes anew takes a unit. So does looking into a record."""


def units_to_look_into(records: bytes | memoryview) -> int:
    """For a small batch. Its header tells the number of records at byte 57. The log refuses one that the bytes cannot
    hold."""
    return int.from_bytes(records[57:HEADER_BYTES], "big") + len(records) // PACKED_UNIT_BYTES


def is_large(records: bytes | memoryview) -> bool:
    """The codec's number is in the attributes, which are big-endian at byte 21."""
    return len(records) > SMALL_BYTES or (len(records) >= HEADER_BYTES and bool(records[22] & COMPRESSION_MASK))


def batch_bytes(records: bytes | memoryview) -> int:
    """Returns the size that the first batch's length field tells. The log judges whether that is right."""
    return int.from_bytes(records[8:12], "big", signed=True) + 12


def is_transactional(records: bytes | memoryview) -> bool:
    """The attributes are big-endian at byte 21."""
    return len(records) >= HEADER_BYTES and bool(records[22] & TRANSACTIONAL)
