"""Packs a batch anew with another codec, for topics whose ``compression.type`` is not ``producer``."""

from collections.abc import Generator

from reference_broker.records.batch import (
    COMPRESSION_MASK,
    BatchHeader,
    InvalidRecords,
    sealed,
)
from reference_broker.records.compression import Compression, compressed_pieces
from reference_broker.records.reader import MOST_PLAIN_BYTES, MOST_RECORDS, plain_records
from reference_broker.wire.errors import ErrorCode

CODECS = {"uncompressed": Compression.NONE, **{each.name.lower(): each for each in Compression if each}}
"""The codecs by their names in ``compression.type``. ``producer`` is none of them."""


def repacked(
    header: BatchHeader, batch: memoryview, codec: Compression, level: int | None = None
) -> Generator[None, None, bytes]:
    """The batch with the same records and another codec of this level, in slices. The records are not decoded.

    Raises InvalidRecords: MESSAGE_TOO_LARGE for too many records or plain bytes, CORRUPT_MESSAGE for bytes that the
    batch's own codec cannot read.
    """
    plain = yield from plain_records(header, batch)
    if plain is None:
        raise InvalidRecords(
            ErrorCode.message_too_large,
            f"a batch that is packed anew may hold {MOST_RECORDS} records and {MOST_PLAIN_BYTES} bytes, uncompressed",
        )
    pieces: list[bytes] = []
    for piece in compressed_pieces(codec, plain, level):
        if pieces:
            yield
        pieces.append(piece)
    body = b"".join(pieces)
    return sealed(header._replace(attributes=(header.attributes & ~COMPRESSION_MASK) | codec), body)
