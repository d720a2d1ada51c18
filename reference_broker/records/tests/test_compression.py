"""Codecs: what goes in comes out, within the limit, and damage has one error."""

import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.records.batch import InvalidRecords
from reference_broker.records.compression import (
    PIECE_BYTES,
    XERIAL_BLOCK_BYTES,
    Compression,
    TooLarge,
    compress,
    compressed_pieces,
    decompress,
    decompressed_pieces,
)
from reference_broker.wire.errors import ErrorCode

LIMIT = 10_000
PACKED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]


def unpacked(codec: Compression, data: bytes) -> bytes | None:
    """None: refused as corrupt."""
    try:
        return bytes(decompress(codec, data, LIMIT))
    except InvalidRecords as refused:
        return None if refused.error == ErrorCode.corrupt_message else b"another error" * LIMIT


@given(st.sampled_from(list(Compression)), st.binary(max_size=2000), st.integers(1, 50))
def test_round_trip(codec: Compression, data: bytes, times: int) -> None:
    plain = data * times
    packed = compress(codec, plain)
    assert packed == compress(codec, plain)
    assert decompress(codec, packed) == plain
    assert decompress(codec, memoryview(packed), max_bytes=len(plain)) == plain


@pytest.mark.parametrize("codec", list(Compression))
def test_one_byte_over_the_limit_is_refused(codec: Compression) -> None:
    packed = compress(codec, bytes(1_000_000))
    assert len(decompress(codec, packed, 1_000_000)) == 1_000_000
    for limit in (0, 1, 999_999):
        with pytest.raises(InvalidRecords) as refused:
            decompress(codec, packed, limit)
        assert refused.value.error == ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", PACKED)
def test_cut_short_is_corrupt(codec: Compression) -> None:
    plain = b"some bytes, and some bytes again" * 9
    packed = compress(codec, plain)
    for end in range(1, len(packed)):
        data_read = unpacked(codec, packed[:end])
        # Framed snappy is whole at each block's end, and zstd gives what it can: the record count shows the damage.
        assert data_read is None or (codec in (Compression.SNAPPY, Compression.ZSTD) and plain.startswith(data_read))


@given(st.sampled_from(PACKED), st.binary(max_size=100))
def test_garbage_is_corrupt(codec: Compression, data: bytes) -> None:
    data_read = unpacked(codec, data)
    assert data_read is None or len(data_read) <= LIMIT


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_returns_unsupported_compression_type(codec: int) -> None:
    with pytest.raises(InvalidRecords) as refused:
        decompress(codec, b"")
    assert refused.value.error == ErrorCode.unsupported_compression_type


def test_snappy_is_read_framed_and_raw_and_written_framed() -> None:
    plain = bytes(range(256)) * 300
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(plain))) == plain
    framed = compress(Compression.SNAPPY, plain)
    assert framed.startswith(b"\x82SNAPPY\x00")
    assert len(plain) > 2 * XERIAL_BLOCK_BYTES
    assert decompress(Compression.SNAPPY, framed) == plain


def test_snappy_bomb_is_refused_before_it_is_unpacked() -> None:
    claims_4_gib = b"\xff\xff\xff\xff\x0f" + b"\x00"
    with pytest.raises(InvalidRecords):
        decompress(Compression.SNAPPY, claims_4_gib)


def test_gzip_members_in_a_row_are_one_text() -> None:
    def member(data: bytes) -> bytes:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()

    assert decompress(Compression.GZIP, member(b"one") + member(b"two")) == b"onetwo"


LARGE = b"".join(b"%d," % number for number in range(200_000))
"""Some 1.3 MB."""


@pytest.mark.parametrize("codec", list(Compression))
def test_large_data_is_packed_and_unpacked_in_pieces(codec: Compression) -> None:
    packed = b"".join(compressed_pieces(codec, LARGE))
    assert decompress(codec, packed) == LARGE
    for source in (packed, compress(codec, LARGE)):
        pieces = list(decompressed_pieces(codec, memoryview(source), len(LARGE)))
        assert b"".join(pieces) == LARGE
        assert max(map(len, pieces)) <= PIECE_BYTES
        with pytest.raises(TooLarge):
            list(decompressed_pieces(codec, source, len(LARGE) - 1))


def test_blocks_of_lz4_do_not_refer_to_each_other_because_kafka_does_not_read_such() -> None:
    """The bit is 5 in the byte behind the magic number (lz4 frame format)."""
    for packed in (compress(Compression.LZ4, LARGE), b"".join(compressed_pieces(Compression.LZ4, LARGE))):
        assert packed[4] & 0x20
