"""Measures one pass of the log cleaner over a log on a disk in memory, by the size of its records."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.node import NOW
from reference_broker.log.cleaner.cleaning import Cleaning, cleanable
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build

TOTAL_BYTES = 4_000_000
BATCH_BYTES = 16_384
KEYS = 2_000
CASES = {
    "100 bytes": (100, Compression.NONE),
    "1 KiB": (1_024, Compression.NONE),
    "100 bytes, zstd": (100, Compression.ZSTD),
}


@pytest.mark.thorough
@pytest.mark.benchmark(group="log cleaner, 4 MB")
@pytest.mark.parametrize(("value_bytes", "codec"), CASES.values(), ids=CASES)
def bench_pass(benchmark: BenchmarkFixture, value_bytes: int, codec: Compression) -> None:
    """``extra_info`` has the bytes read. The cleaner reads each record twice."""
    read_bytes = 0

    def set_up() -> tuple[tuple[UnifiedLog], dict[str, object]]:
        return (_dirty_log(value_bytes, codec),), {}

    def run(log: UnifiedLog) -> None:
        nonlocal read_bytes
        part = cleanable(log, NOW)
        assert part is not None
        cleaning = Cleaning(log, part, NOW, 1 << 27)
        for _ in cleaning.run():
            pass
        read_bytes = cleaning.done.read_bytes
        assert 0 < cleaning.done.kept < cleaning.done.records

    benchmark.pedantic(run, setup=set_up, rounds=5)  # type: ignore[no-untyped-call]
    benchmark.extra_info["read_bytes"] = read_bytes


def _dirty_log(value_bytes: int, codec: Compression) -> UnifiedLog:
    log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(cleanup_policy="compact"), NOW, clean=True))
    count = max(BATCH_BYTES // value_bytes, 1)
    for first in range(0, TOTAL_BYTES // value_bytes, count):
        records = [
            Record(timestamp_ms=NOW.wall_ms, key=b"key-%06d" % ((first + at) * 7 % KEYS), value=b"x" * value_bytes)
            for at in range(count)
        ]
        log.append(NOW, build(records, compression=codec), 0)
    log.advance_high_watermark(log.log_end_offset)
    log.roll(NOW)
    return log
