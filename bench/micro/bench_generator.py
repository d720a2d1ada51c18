"""Measures what a record costs a load worker before any socket: batches made and read by column, and record by record
for comparison."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.fleet.batch_reader import spans_of_batch
from bench.fleet.value_batches import BatchMaker, ColumnReader
from bench.fleet.values import ValueMaker
from reference_broker.records.batch import read_header
from reference_broker.records.record import Record, build

RECORDS = {"100 records": 100, "1,000 records": 1_000}
VALUES = ValueMaker("producer-1", 100)


def _by_record(count: int) -> bytes:
    return build([Record(timestamp_ms=7, value=VALUES.make(number)) for number in range(count)])


@pytest.mark.benchmark(group="making a batch of 100-byte values")
@pytest.mark.parametrize("way", ["by column", "by record"])
@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def bench_make(benchmark: BenchmarkFixture, records: int, way: str) -> None:
    maker = BatchMaker(VALUES, records)
    made = benchmark(maker.make, 0, 7) if way == "by column" else benchmark(_by_record, records)
    assert made == _by_record(records)
    benchmark.extra_info["records"] = records


@pytest.mark.benchmark(group="reading a batch of 100-byte values")
@pytest.mark.parametrize("way", ["by column", "by record"])
@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def bench_read(benchmark: BenchmarkFixture, records: int, way: str) -> None:
    batch = memoryview(_by_record(records))
    header = read_header(batch)
    reader = ColumnReader()
    if way == "by column":
        span = benchmark(reader.read, header, batch)
    else:
        (span,) = benchmark(spans_of_batch, batch, header.producer_id, header.last_offset, header.base_offset)
    assert (span.writer, span.first_sequence, span.count, span.valid) == ("producer-1", 0, records, True)
    benchmark.extra_info["records"] = records
