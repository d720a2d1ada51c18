"""Batches by column are those that are made and read record by record."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fleet.batch_reader import BatchReader, spans_of_batch
from bench.fleet.value_batches import BatchMaker, ColumnReader
from bench.fleet.values import ValueMaker, ValueSpan, smallest_size_bytes
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, read_header, sealed
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build

WRITERS = st.text(min_size=1, max_size=12).filter(lambda name: len(name.encode()) <= 40)
SEQUENCES = st.one_of(st.integers(0, 300), st.integers(2**16 - 200, 2**16), st.integers(0, 2**62))
COUNTS = st.one_of(st.integers(1, 20), st.integers(60, 70), st.just(200))


@st.composite
def makers(draw: st.DrawFn) -> ValueMaker:
    writer = draw(WRITERS)
    return ValueMaker(writer, smallest_size_bytes(writer) + draw(st.integers(0, 80)), draw(st.binary(max_size=20)))


def by_record(values: ValueMaker, first: int, count: int, keys: list[bytes], wall_ms: int = 7) -> list[Record]:
    return [
        Record(timestamp_ms=wall_ms, key=keys[number % len(keys)] if keys else None, value=values.make(number))
        for number in range(first, first + count)
    ]


def spans(batch: bytes) -> tuple[ValueSpan, ...]:
    header = read_header(batch)
    return spans_of_batch(memoryview(batch), header.producer_id, header.last_offset, header.base_offset)


def column(batch: bytes, reader: ColumnReader | None = None) -> ValueSpan | None:
    return (ColumnReader() if reader is None else reader).read(read_header(batch), memoryview(batch))


@given(
    makers(),
    SEQUENCES,
    COUNTS,
    st.lists(st.binary(min_size=3, max_size=3), max_size=5),
    st.sampled_from(Compression),
    st.booleans(),
)
def test_batch_made_by_column_equals_one_built_of_records(
    values: ValueMaker, first: int, count: int, keys: list[bytes], compression: Compression, transactional: bool
) -> None:
    maker = BatchMaker(values, count, keys)
    for sequence in (first, first + count):
        made = maker.make(
            sequence,
            7,
            producer_id=5,
            producer_epoch=2,
            base_sequence=11,
            compression=compression,
            is_transactional=transactional,
        )
        assert made == build(
            by_record(values, sequence, count, keys),
            producer_id=5,
            producer_epoch=2,
            base_sequence=11,
            compression=compression,
            is_transactional=transactional,
        )


@pytest.mark.thorough
@given(makers(), SEQUENCES, COUNTS, st.sampled_from([[], [b""], [b"k1", b"k2", b"k3"]]), st.sampled_from(Compression))
def test_batch_read_by_column_is_the_span_that_its_records_are(
    values: ValueMaker, first: int, count: int, keys: list[bytes], compression: Compression
) -> None:
    reader = ColumnReader()
    for sequence in (first, first + 1):
        records = by_record(values, sequence, count, keys)
        batch = build(records, base_offset=90, producer_id=3, compression=compression)
        expected = None if count < 2 else spans(batch)
        span = column(batch, reader)
        assert (None if span is None else (span,)) == expected


@given(makers(), st.integers(0, 2**40), st.integers(2, 80), st.data())
def test_damage_is_never_read_by_column(values: ValueMaker, first: int, count: int, data: st.DataObject) -> None:
    batch = build(by_record(values, first, count, [b"key"]))
    body = bytearray(batch[HEADER_BYTES:])
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    damaged = sealed(read_header(batch), bytes(body))  # The batch's own CRC is right.
    span = column(damaged)
    assert span is None or (span,) == spans(damaged)  # A damaged key is still a key.


@pytest.mark.parametrize("change", ["gap", "repeated", "swapped", "other-writer", "tombstone", "later", "header"])
def test_batch_of_another_layout_is_decoded_record_by_record(change: str) -> None:
    values = ValueMaker("producer-1", 100)
    records = by_record(values, 50, 100, [])
    if change == "gap":
        records[70:] = by_record(values, 121, 30, [])
    elif change == "repeated":
        records[70] = records[69]
    elif change == "swapped":
        records[70], records[71] = records[71], records[70]
    elif change == "other-writer":
        records[70] = by_record(ValueMaker("producer-2", 100), 120, 1, [])[0]
    elif change == "tombstone":
        records[70] = Record(timestamp_ms=7, key=b"k", headers=(("proof", values.make(120)),))
    elif change == "later":
        records[70] = Record(timestamp_ms=8, value=records[70].value)
    else:
        records[70] = Record(timestamp_ms=7, value=records[70].value, headers=(("more", b""),))
    assert column(build(records)) is None


def test_compacted_batch_is_decoded_record_by_record() -> None:
    records = [
        Record(offset, 7, None, value.value)
        for offset, value in zip(range(0, 200, 2), by_record(ValueMaker("p", 60), 0, 100, []), strict=True)
    ]
    assert column(build(records, keep_offsets=True)) is None


def test_keys_of_several_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="equally long"):
        BatchMaker(ValueMaker("p", 60), 2, [b"a", b"bb"])


def test_reader_forgets_layouts_that_were_not_met_for_long() -> None:
    reader = ColumnReader(capacity=2)
    for count in (2, 3, 4, 2):
        assert column(build(by_record(ValueMaker("p", 60), 0, count, [])), reader) is not None
    assert reader.remembered == 2


@given(makers(), st.lists(SEQUENCES, min_size=2, max_size=5), st.integers(16, 70), st.booleans(), st.data())
def test_batches_read_together_are_those_that_are_read_one_by_one(
    values: ValueMaker, firsts: list[int], count: int, has_keys: bool, data: st.DataObject
) -> None:
    maker = BatchMaker(values, count, [b"abc", b"abd"] if has_keys else ())
    batches = [bytearray(maker.make(first, 7)) for first in firsts]
    for _ in range(data.draw(st.integers(0, 3))):
        damaged = data.draw(st.sampled_from(batches))
        damaged[data.draw(st.integers(HEADER_BYTES, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    views, headers = [memoryview(bytes(batch)) for batch in batches], [read_header(batch) for batch in batches]
    reader = ColumnReader()
    for view, header, together in zip(views, headers, reader.read_alike(headers, views), strict=True):
        alone = ColumnReader().read(header, view)
        assert together in (alone, None)
    if all(batch == maker.make(first, 7) for batch, first in zip(batches, firsts, strict=True)):
        spans = [(each.first_sequence, each.count, each.valid) for each in reader.read_alike(headers, views) if each]
        assert spans == [(first, count, True) for first in firsts]


def test_reader_of_batches_verifies_neighbours_together() -> None:
    maker = BatchMaker(ValueMaker("w", 100), 20)
    where, batches = TopicPartition("t", 0), [bytearray(maker.make(number * 20, 7)) for number in range(40)]
    batches[7][-2] ^= 1
    for number, batch in enumerate(batches):
        header = read_header(batch)._replace(base_offset=number * 20)
        batches[number] = bytearray(sealed(header, bytes(batch[HEADER_BYTES:])))
    batches[9][-1] ^= 1  # Its CRC shows it, that of the batch above not.
    taken = [TakenBatch(read_header(batch), memoryview(batch), 0) for batch in batches]
    counts: list[int] = []

    class CountingReader(ColumnReader):
        def read_alike(self, headers: Sequence[BatchHeader], batches: Sequence[memoryview]) -> list[ValueSpan | None]:
            counts.append(len(headers))
            return super().read_alike(headers, batches)

    reader = BatchReader()
    reader._columns = CountingReader()
    valid = [(each.first_offset, each.count) for each in reader.read(where, taken) if each.valid]
    assert counts == [39]
    assert sum(count for _, count in valid) == 20 * 38 + 19
    assert (0, 140 + 19) in valid
    assert reader.read(where, taken) == BatchReader().read(where, taken)
    assert counts == [39], "what is remembered is not read again"
