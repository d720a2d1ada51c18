"""Measures what one produce and one fetch cost below the API, in record batches and the log."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.node import NOW
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import validate
from reference_broker.records.record import Record, build

RECORDS = {"1 record": 1, "150 records (16 KiB)": 150}


def _batch(records: int) -> bytes:
    return build([Record(at, NOW.wall_ms, None, b"x" * 100, ()) for at in range(records)])


@pytest.mark.benchmark(group="batch validation")
@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def bench_validate(benchmark: BenchmarkFixture, records: int) -> None:
    batch = _batch(records)
    assert len(benchmark(validate, batch)) == 1
    benchmark.extra_info["bytes"] = len(batch)


@pytest.mark.benchmark(group="append")
@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def bench_append(benchmark: BenchmarkFixture, records: int) -> None:
    """Measure an append: the batch is validated, numbered, patched, indexed, and written to a disk in memory."""
    batch = _batch(records)
    log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), NOW, clean=True))
    appended = benchmark.pedantic(  # type: ignore[no-untyped-call]
        log.append, args=(NOW, batch, 0), rounds=300, iterations=1, warmup_rounds=20
    )
    assert appended.last_offset - appended.first_offset == records - 1
    benchmark.extra_info["bytes"] = len(batch)


@pytest.mark.benchmark(group="read")
def bench_read_one_mebibyte(benchmark: BenchmarkFixture) -> None:
    """Measure a fetch's read in the middle of a segment of 64 MiB: a look into the index, a walk over headers, and one
    disk read."""
    batch = _batch(150)
    log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), NOW, clean=True))
    for _ in range(4000):
        log.append(NOW, batch, 0)
    log.advance_high_watermark(log.log_end_offset)
    found = benchmark(log.read, 300_075, 1 << 20)
    assert 0 < len(found) <= 1 << 20
