"""The four codecs of record batches. Their libraries are loaded on first use. Decompression stops at a limit."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct names its class in lower case
from typing import Protocol

from reference_broker.records.batch import Buffer, InvalidRecords
from reference_broker.wire.errors import ErrorCode

DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""A batch that decompresses to more is refused, so that a small request cannot make the broker allocate gigabytes."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16
XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_VERSIONS = Struct(">ii")
_BLOCK_LENGTH = Struct(">i")
_XERIAL_START = XERIAL_MAGIC + _XERIAL_VERSIONS.pack(1, 1)


class Compression(IntEnum):
    """Codec numbers of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MAX_EXPANSION = (1, 1032, 22, 255, 32_768)
"""By codec. No byte of its format makes more plain bytes: a deflate match of 258 bytes takes two bits, a snappy copy of
64 bytes takes three bytes, a length byte of lz4 stands for 255, and four bytes of zstd repeat a byte 131,072 times."""

PIECE_BYTES = 256 * 1024
"""The most bytes that are packed or unpacked in one step: 3 ms at most."""
GZIP_PIECE_BYTES = 64 * 1024
"""The most bytes that are packed with gzip in one step. 256 KiB of text with few letters take up to 25 ms."""


DEFAULT_LEVELS = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
"""Kafka's numbers (its CompressionType). At lz4's default Kafka uses the fast compressor, and the one with high
compression at any other level."""
_LZ4_FAST, _LZ4_HIGH, _LZ4_HIGHEST = 0, 3, 16
"""Numbers of the lz4 library: those below 3 are the fast compressor."""


def compress(codec: Compression, data: bytes, level: int | None = None) -> bytes:
    """``level`` is one of Kafka's numbers. None is the default of the codec."""
    if codec is Compression.NONE:
        return data
    return _COMPRESS[codec](data, DEFAULT_LEVELS.get(codec, 0) if level is None else level)


def compressed_pieces(codec: Compression, data: bytes, level: int | None = None) -> Iterator[bytes]:
    """Compress large data as ``compress`` does, in pieces, each of which is little work."""
    piece_bytes = GZIP_PIECE_BYTES if codec is Compression.GZIP else PIECE_BYTES
    if codec is Compression.NONE or len(data) <= piece_bytes:
        yield compress(codec, data, level)
    elif codec is Compression.SNAPPY:
        yield _XERIAL_START
        for start in range(0, len(data), piece_bytes):
            yield _snappy_blocks(data[start : start + piece_bytes])
    else:
        packer = _PACKERS[codec](len(data), DEFAULT_LEVELS[codec] if level is None else level)
        for start in range(0, len(data), piece_bytes):
            yield packer.compress(data[start : start + piece_bytes])
        yield packer.flush()


def decompress(codec: int, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Raise InvalidRecords: UNSUPPORTED_COMPRESSION_TYPE for codecs 5..7, and CORRUPT_MESSAGE for bytes that the codec
    cannot read or that decompress to more than ``max_bytes``."""
    if codec == Compression.NONE and len(data) <= max_bytes:
        return data
    pieces = list(decompressed_pieces(codec, data, max_bytes, max_bytes + 1))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed_pieces(codec: int, data: Buffer, max_bytes: int, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Decompress as ``decompress`` does, in pieces of at most ``piece_bytes``. Snappy's pieces are its blocks, one of
    which may hold all. Raise InvalidRecords as ``decompress`` does, before more than ``max_bytes`` are made."""
    function = _DECOMPRESS.get(codec)
    if function is None:
        raise InvalidRecords(ErrorCode.unsupported_compression_type, f"compression codec {codec} does not exist")
    total = 0
    for piece in function(data, max_bytes, piece_bytes):
        total += len(piece)
        if total > max_bytes:
            raise TooLarge(ErrorCode.corrupt_message, f"a batch decompresses to more than {max_bytes} bytes")
        yield piece


class TooLarge(InvalidRecords):
    """The bytes may be right, but they decompress to more than the limit."""


class _Packer(Protocol):
    """Compresses piece by piece."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def _gzip_packer(size: int, level: int) -> _Packer:  # noqa: ARG001 - same shape as the others
    import zlib

    return zlib.compressobj(level, wbits=31)


def _zstd_packer(size: int, level: int) -> _Packer:
    import zstandard

    return zstandard.ZstdCompressor(level).compressobj(size=size)


def _lz4_level(level: int) -> int:
    return _LZ4_FAST if level == DEFAULT_LEVELS[Compression.LZ4] else min(max(level, _LZ4_HIGH), _LZ4_HIGHEST)


class _Lz4Packer:
    """Kafka's reader takes blocks only that do not refer to each other."""

    def __init__(self, size: int, level: int) -> None:
        import lz4.frame

        self._packer = lz4.frame.LZ4FrameCompressor(block_linked=False, compression_level=_lz4_level(level))
        self._start: bytes = self._packer.begin(size)

    def compress(self, data: bytes, /) -> bytes:
        start, self._start = self._start, b""
        return start + bytes(self._packer.compress(data))

    def flush(self) -> bytes:
        return bytes(self._packer.flush())


_PACKERS: dict[Compression, Callable[[int, int], _Packer]] = {
    Compression.GZIP: _gzip_packer,
    Compression.LZ4: _Lz4Packer,
    Compression.ZSTD: _zstd_packer,
}


def _gzip(data: bytes, level: int) -> bytes:
    import zlib

    packer = zlib.compressobj(
        level, wbits=31
    )  # 31 makes a gzip header without a time, so equal input gives equal bytes.
    return packer.compress(data) + packer.flush()


def _snappy(data: bytes, level: int) -> bytes:  # noqa: ARG001 - snappy has no levels
    return _XERIAL_START + _snappy_blocks(data)


def _snappy_blocks(data: bytes) -> bytes:
    import cramjam

    parts: list[bytes] = []
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: bytes, level: int) -> bytes:
    import lz4.frame

    return bytes(lz4.frame.compress(data, block_linked=False, compression_level=_lz4_level(level)))


def _zstd(data: bytes, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level).compress(data)


def _sliced(data: Buffer, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    for start in range(0, min(len(data), max_bytes + 1), piece_bytes):
        yield bytes(data[start : start + piece_bytes])


def _gunzip(data: Buffer, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    import zlib

    total = 0
    rest: Buffer = data
    try:
        while rest and total <= max_bytes:
            unpacker = zlib.decompressobj(wbits=31)
            left: Buffer = rest
            while total <= max_bytes and not unpacker.eof:
                plain = unpacker.decompress(left, min(piece_bytes, max_bytes + 1 - total))
                left = unpacker.unconsumed_tail
                total += len(plain)
                if not plain and not left and not unpacker.eof:
                    raise _corrupt("gzip", "it ends early")
                yield plain
            rest = unpacker.unused_data
    except zlib.error as error:
        raise _corrupt("gzip", error) from error


def _unsnappy(data: Buffer, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:  # noqa: ARG001 - as the others
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield _unsnappy_block(view, max_bytes)
        return
    total, position = 0, XERIAL_HEADER_BYTES
    while position < len(view):
        try:
            (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        except StructError as error:
            raise _corrupt("snappy", error) from error
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise _corrupt("snappy", f"a block claims {length} bytes")
        plain = _unsnappy_block(view[position : position + length], max_bytes - total)
        yield plain
        total += len(plain)
        position += length


def _unsnappy_block(block: memoryview, max_bytes: int) -> bytes:
    import cramjam

    try:
        claimed = cramjam.snappy.decompress_raw_len(block)  # The length comes first: check it before allocating.
        if claimed > max_bytes:
            raise TooLarge(ErrorCode.corrupt_message, f"a batch decompresses to more than {max_bytes} bytes")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error


def _unlz4(data: Buffer, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    total = 0
    pending: Buffer = data
    while not unpacker.eof and total <= max_bytes:
        try:
            plain = bytes(unpacker.decompress(pending, max_length=min(piece_bytes, max_bytes + 1 - total)))
        except (RuntimeError, EOFError) as error:
            raise _corrupt("lz4", error) from error
        pending = b""
        total += len(plain)
        if not plain and not unpacker.eof:
            raise _corrupt("lz4", "it ends early")
        yield plain


def _unzstd(data: Buffer, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    import zstandard

    unpacker = zstandard.ZstdDecompressor()
    total = 0
    try:
        with unpacker.stream_reader(data, read_across_frames=True) as stream:
            while total <= max_bytes and (plain := stream.read(min(piece_bytes, max_bytes + 1 - total))):
                total += len(plain)
                yield plain
    except zstandard.ZstdError as error:
        raise _corrupt("zstd", error) from error


def _corrupt(codec: str, why: object) -> InvalidRecords:
    return InvalidRecords(ErrorCode.corrupt_message, f"a batch cannot be decompressed as {codec}: {why}")


_COMPRESS: dict[int, Callable[[bytes, int], bytes]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESS: dict[int, Callable[[Buffer, int, int], Iterator[bytes]]] = {
    Compression.NONE: _sliced,
    Compression.GZIP: _gunzip,
    Compression.SNAPPY: _unsnappy,
    Compression.LZ4: _unlz4,
    Compression.ZSTD: _unzstd,
}
