"""Zigzag variable-length integers, as records use them (Kafka's ByteUtils.writeVarint / writeVarlong)."""

from reference_broker.records.batch import Buffer, InvalidRecords
from reference_broker.wire.errors import ErrorCode

MAX_VARINT_BYTES = 10
_MASK = 0xFFFF_FFFF_FFFF_FFFF
INT64_END = 1 << 63
"""One past the largest int64."""


def zigzag(value: int) -> bytes:
    """Encodes a number. Small magnitudes take few bytes: -64..63 take one, -8192..8191 take two."""
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
    """Returns (value, next position). The value fits int64: ten bytes hold 70 bits, and Kafka's reader drops what is
    beyond 64, too. Raises InvalidRecords (CORRUPT_MESSAGE) at the buffer's end or after 10 bytes."""
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
