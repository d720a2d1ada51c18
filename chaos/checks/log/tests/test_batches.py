"""The checks' own reader of records, by Kafka's format and for each compression."""

import pytest

from chaos.checks.log.batches import PlainRecord, batches_of, is_intact, last_sequence_of, records_in
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build

WRITTEN = [
    Record(timestamp_ms=1_000, key=b"k", value=b"v" * 300),
    Record(timestamp_ms=900, key=None, value=b""),
    Record(timestamp_ms=1_001, key=b"", value=None, headers=(("name", b"x"),)),
]


@pytest.mark.parametrize("codec", list(Compression))
def test_all_records_are_read(codec: Compression) -> None:
    batch = bytes(build(WRITTEN, compression=codec))
    read = list(records_in(batch))
    assert read == [PlainRecord(at, each.timestamp_ms, each.key, each.value) for at, each in enumerate(WRITTEN)]


def test_records_that_do_not_fill_their_batch_are_an_error() -> None:
    batch = bytearray(build(WRITTEN))
    batch[57:61] = (2).to_bytes(4, "big")
    with pytest.raises(ValueError, match="2 records end at"):
        list(records_in(bytes(batch)))


@pytest.mark.parametrize("length", [-(2**31), -12, 0, 25, 48])
def test_length_that_no_batch_has_ends_the_batches(length: int) -> None:
    batch = bytes(build(WRITTEN))
    damaged = batch[:8] + length.to_bytes(4, "big", signed=True) + batch[12:]
    assert [data for _, data in batches_of(batch + damaged)] == [batch]


@pytest.mark.parametrize(("first", "last"), [(7, 9), (2**31 - 1, 1), (-1, -1)])
def test_batch_returns_last_sequence_or_none(first: int, last: int) -> None:
    records = [Record(timestamp_ms=1, value=b"v")] * 3
    batch = build(records, producer_id=5, producer_epoch=2, base_sequence=first)
    assert last_sequence_of(batch) == (5, 2, last)


@pytest.mark.parametrize(
    ("end", "flipped", "intact"),
    [(None, None, True), (0, None, True), (-1, None, False), (40, None, False), (None, -1, False), (None, 11, False)],
)
def test_only_whole_batches_with_the_right_crc_are_intact(end: int | None, flipped: int | None, intact: bool) -> None:
    """A damaged length hides what follows."""
    data = bytearray(2 * bytes(build(WRITTEN)))[:end]
    if flipped is not None:
        data[flipped] ^= 1
    assert is_intact(bytes(data)) is intact
