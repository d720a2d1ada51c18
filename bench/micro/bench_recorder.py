"""Measures what the history costs the load generator. The same operations are recorded to memory and to Parquet."""

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.recorder import HistorySink, MemorySink, Recorder
from bench.micro.node import NOW
from reports.rows import OperationRow, PositionRow

OPERATIONS = 5_000


def _rows(number: int) -> tuple[OperationRow, PositionRow]:
    """Make the rows of a fetch that brought one partition and ended ``number`` ms after the start."""
    at_us = number * 1_000
    operation = OperationRow("fetcher-1", number, "fetch", "ok", at_us, at_us, at_us + 900 + number % 97)
    return operation, PositionRow("fetcher-1", number, "hot", number % 64, number, number + 1, number + 1, 0, None)


@pytest.mark.benchmark(group="recording 5,000 operations")
@pytest.mark.parametrize("kind", ["memory", "parquet"])
def bench_record(benchmark: BenchmarkFixture, tmp_path: Path, kind: str) -> None:
    """Measure the time that the load's own thread spends and waits. Another thread writes Parquet."""
    rows = [_rows(number) for number in range(OPERATIONS)]
    files = iter(range(1_000_000))
    recorders: list[Recorder] = []

    def setup() -> tuple[tuple[Recorder], dict[str, object]]:
        sink: HistorySink = MemorySink()
        if kind == "parquet":
            folder = tmp_path / str(next(files))
            folder.mkdir()
            sink = ParquetSink(folder, "bench")
        recorders.append(Recorder(sink, "bench"))
        return (recorders[-1],), {}

    def record(recorder: Recorder) -> None:
        for row in rows:
            recorder.record(row)

    benchmark.pedantic(record, setup=setup, rounds=20, warmup_rounds=2)  # type: ignore[no-untyped-call]
    assert recorders[-1].totals.fetches == OPERATIONS
    benchmark.extra_info["operations"] = OPERATIONS
    for recorder in recorders:
        recorder.close(NOW)
