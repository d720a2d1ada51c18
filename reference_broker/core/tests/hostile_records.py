"""Record batches that no client would build, with valid lengths and checksums."""

from reference_broker.core.tests.node_world import START_WALL_MS
from reference_broker.records.batch import (
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    BatchHeader,
    checksum,
    write_header,
)
from reference_broker.records.compression import Compression, compress


def varint(value: int) -> bytes:
    """Return a zigzag number of any size, also one beyond 64 bits."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def raw_record(
    timestamp_delta: int = 0, offset_delta: int = 0, key: bytes | None = b"k", value: bytes | None = b"v"
) -> bytes:
    fields = b"\0" + varint(timestamp_delta) + varint(offset_delta)
    for each in (key, value):
        fields += varint(-1) if each is None else varint(len(each)) + each
    fields += varint(0)
    return varint(len(fields)) + fields


def bomb(codec: Compression, count: int) -> bytes:
    """Return identical records of seven bytes, whose offsets are all that of the first one."""
    return raw_batch(raw_record(key=None, value=None) * count, count, codec, max_timestamp_ms=START_WALL_MS + 5)


def raw_batch(
    plain: bytes,
    count: int = 1,
    codec: Compression = Compression.NONE,
    base_timestamp_ms: int = START_WALL_MS,
    max_timestamp_ms: int = START_WALL_MS,
    body: bytes | None = None,
) -> bytes:
    """Return a batch with ``body`` in place of the compressed ``plain`` if it is given."""
    content = compress(codec, plain) if body is None else body
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_BYTES + len(content) - LENGTH_OVERHEAD_BYTES,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=int(codec),
        last_offset_delta=count - 1,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )
    covered = write_header(header)[CRC_FROM:] + content
    return write_header(header._replace(crc=checksum(covered)))[:CRC_FROM] + covered
