"""Values, spans and histograms, by property."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from bench.fleet.batch_reader import BatchReader
from bench.fleet.recorder import bounds_us, bucket_of
from bench.fleet.values import (
    FOREIGN,
    ValueMaker,
    ValueSpan,
    compress,
    joins,
    read_value,
    smallest_size_bytes,
)
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import read_header
from reference_broker.records.record import Record, build

WHERE = TopicPartition("hot", 0)
names = st.text(min_size=1, max_size=20).filter(lambda each: len(each.encode(errors="ignore")) > 0)
sequences = st.integers(min_value=0, max_value=2**63 - 1)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    sequences,
    st.integers(0, 200),
    st.binary(max_size=9),
)
def test_value_has_writer_sequence_and_requested_size(writer: str, sequence: int, more: int, padding: bytes) -> None:
    size = smallest_size_bytes(writer) + more
    value = ValueMaker(writer, size, padding).make(sequence)
    assert len(value) == size
    assert read_value(value) == (writer, sequence, True)
    assert read_value(memoryview(value)) == (writer, sequence, True)


@given(sequences, st.data())
def test_changed_value_is_foreign(sequence: int, data: DataObject) -> None:
    value = bytearray(ValueMaker("producer-1", 60).make(sequence))
    position = data.draw(st.integers(0, len(value) - 1))
    value[position] ^= data.draw(st.integers(1, 255))
    assert read_value(bytes(value)) == FOREIGN


@given(st.one_of(st.none(), st.binary(max_size=100)))
def test_any_other_bytes_are_foreign(value: bytes | None) -> None:
    assert read_value(value) == FOREIGN


def test_value_too_small_for_its_writer_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 25 bytes"):
        ValueMaker("producer-1", 24)


parts = st.builds(
    ValueSpan,
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(-1, 1),
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 5),
    st.booleans(),
).map(lambda span: span if span.writer else ValueSpan(span.first_offset, span.count, span.producer_id, "", -1, False))


def records(spans: list[ValueSpan]) -> list[tuple[int, int, str, int, bool]]:
    return [
        (
            span.first_offset + number,
            span.producer_id,
            span.writer,
            span.first_sequence + number if span.writer else -1,
            span.valid,
        )
        for span in spans
        for number in range(span.count)
    ]


@given(st.lists(parts, max_size=30))
def test_spans_equal_records_and_are_maximal(given_parts: list[ValueSpan]) -> None:
    spans = compress(given_parts)
    assert records(spans) == records(given_parts)
    assert not any(joins(first, first.count, second) for first, second in itertools.pairwise(spans))


@given(parts, st.integers(0, 12))
def test_tail_of_a_span_holds_its_records_from_an_offset_on(span: ValueSpan, offset: int) -> None:
    tail = span.tail(offset)
    assert records([tail] if tail else []) == [record for record in records([span]) if record[0] >= offset]


def batch(first: int, count: int, writer: str = "producer-1", producer_id: int = 5, base_offset: int = 0) -> bytes:
    make = ValueMaker(writer, 60).make
    return build(
        [Record(timestamp_ms=1, key=b"k", value=make(first + number)) for number in range(count)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def taken(data: bytes, from_offset: int = 0) -> TakenBatch:
    return TakenBatch(read_header(data), memoryview(data), from_offset)


def test_batches_are_read_as_runs_over_their_borders() -> None:
    first, second = batch(10, 4), batch(14, 2, base_offset=4)
    assert BatchReader().read(WHERE, [taken(first), taken(second)]) == [ValueSpan(0, 6, 5, "producer-1", 10, True)]


def test_batch_in_whose_middle_the_position_lies_is_read_from_there() -> None:
    reader, data = BatchReader(), batch(10, 4, base_offset=100)
    for _ in range(2):
        assert reader.read(WHERE, [taken(data, 102)]) == [ValueSpan(102, 2, 5, "producer-1", 12, True)]


def test_batch_changed_on_the_way_is_one_foreign_run_even_if_the_true_one_was_read_before() -> None:
    reader, data = BatchReader(), batch(10, 4)
    assert reader.read(WHERE, [taken(data)])[0].valid
    broken = bytearray(data)
    broken[-3] ^= 1
    assert reader.read(WHERE, [taken(bytes(broken))]) == [ValueSpan(0, 4, 5, "", -1, False)]


def test_reader_remembers_a_bounded_number_of_batches() -> None:
    reader = BatchReader(capacity=3)
    for number in range(10):
        reader.read(WHERE, [taken(batch(number * 2, 2, base_offset=number * 2))])
    assert len(reader._found) == 3


@given(st.integers(0, 2**50))
def test_bucket_holds_its_value_and_is_at_most_one_percent_wide(value: int) -> None:
    low, high = bounds_us(bucket_of(value))
    assert low <= value < high
    assert high - low == 1 or (high - low) * 100 <= low


@given(st.integers(0, 2**20))
def test_buckets_follow_each_other_without_gaps(bucket: int) -> None:
    assert bounds_us(bucket)[1] == bounds_us(bucket + 1)[0]
    assert bucket_of(bounds_us(bucket)[0]) == bucket


@given(st.lists(st.integers(0, 10**9)))
def test_every_value_is_in_the_bucket_that_holds_it(values: list[int]) -> None:
    kept = [bounds_us(bucket) for bucket in sorted(map(bucket_of, values))]
    assert all(low <= value < high for value, (low, high) in zip(sorted(values), kept, strict=True))
