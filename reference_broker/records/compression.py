"""The four codecs of record batches. Their libraries are loaded on first use. Decompression stops at a limit."""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct names its class in lower case

from reference_broker.records.batch import Buffer, InvalidRecords
from reference_broker.wire.errors import ErrorCode

DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""A batch that decompresses to more is refused, so that a small request cannot make the broker allocate gigabytes."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16
XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_VERSIONS = Struct(">ii")
_BLOCK_LENGTH = Struct(">i")


class Compression(IntEnum):
    """Codec numbers of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: bytes) -> bytes:
    return data if codec is Compression.NONE else _COMPRESS[codec](data)


def decompress(codec: int, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Returns the decompressed bytes. Raises InvalidRecords: UNSUPPORTED_COMPRESSION_TYPE for codecs 5..7, and
    CORRUPT_MESSAGE for bytes that the codec cannot read or that decompress to more than ``max_bytes``."""
    function = _DECOMPRESS.get(codec)
    if function is None:
        raise InvalidRecords(ErrorCode.unsupported_compression_type, f"compression codec {codec} does not exist")
    plain = function(data, max_bytes)
    if len(plain) > max_bytes:
        raise InvalidRecords(ErrorCode.corrupt_message, f"a batch decompresses to more than {max_bytes} bytes")
    return plain


def _gzip(data: bytes) -> bytes:
    import zlib

    packer = zlib.compressobj(wbits=31)  # 31 makes a gzip header without a time, so equal input gives equal bytes.
    return packer.compress(data) + packer.flush()


def _snappy(data: bytes) -> bytes:
    import cramjam

    parts = [XERIAL_MAGIC, _XERIAL_VERSIONS.pack(1, 1)]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: bytes) -> bytes:
    import lz4.frame

    return bytes(lz4.frame.compress(data))


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def _keep(data: Buffer, max_bytes: int) -> Buffer:  # noqa: ARG001 - same shape as the codecs
    return data


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    import zlib

    parts, total = [], 0
    rest: Buffer = data
    try:
        while rest and total <= max_bytes:
            unpacker = zlib.decompressobj(wbits=31)
            plain = unpacker.decompress(rest, max_bytes + 1 - total)
            parts.append(plain)
            total += len(plain)
            if not unpacker.eof and total <= max_bytes:
                raise _corrupt("gzip", "it ends early")
            rest = unpacker.unused_data
    except zlib.error as error:
        raise _corrupt("gzip", error) from error
    return b"".join(parts)


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _unsnappy_block(view, max_bytes)
    parts, total, position = [], 0, XERIAL_HEADER_BYTES
    while position < len(view):
        try:
            (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        except StructError as error:
            raise _corrupt("snappy", error) from error
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise _corrupt("snappy", f"a block claims {length} bytes")
        plain = _unsnappy_block(view[position : position + length], max_bytes - total)
        parts.append(plain)
        total += len(plain)
        position += length
    return b"".join(parts)


def _unsnappy_block(block: memoryview, max_bytes: int) -> bytes:
    import cramjam

    try:
        claimed = cramjam.snappy.decompress_raw_len(block)  # The length comes first: check it before allocating.
        if claimed > max_bytes:
            raise _corrupt("snappy", f"it claims to decompress to {claimed} bytes, but {max_bytes} are allowed")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error


def _unlz4(data: Buffer, max_bytes: int) -> bytes:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(unpacker.decompress(data, max_length=max_bytes + 1))
    except (RuntimeError, EOFError) as error:
        raise _corrupt("lz4", error) from error
    if not unpacker.eof and len(plain) <= max_bytes:
        raise _corrupt("lz4", "it ends early")
    return plain


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    import zstandard

    unpacker = zstandard.ZstdDecompressor()
    try:
        with unpacker.stream_reader(data, read_across_frames=True) as stream:
            plain = stream.read(max_bytes + 1)
    except zstandard.ZstdError as error:
        raise _corrupt("zstd", error) from error
    return plain


def _corrupt(codec: str, why: object) -> InvalidRecords:
    return InvalidRecords(ErrorCode.corrupt_message, f"a batch cannot be decompressed as {codec}: {why}")


_COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESS: dict[int, Callable[[Buffer, int], Buffer]] = {
    Compression.NONE: _keep,
    Compression.GZIP: _gunzip,
    Compression.SNAPPY: _unsnappy,
    Compression.LZ4: _unlz4,
    Compression.ZSTD: _unzstd,
}
