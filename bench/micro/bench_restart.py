"""Measures a start of a log with many producers on a real disk, with its snapshot of producers and without.

The environment scales it: ``RESTART_MB`` (64), ``RESTART_PRODUCERS`` (1000) and ``RESTART_BATCH_BYTES`` (4096). The
files stay in the page cache.
"""

import os
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.node import NOW
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build
from reference_broker.serve.disk import FileDisk

TOTAL_MB = int(os.environ.get("RESTART_MB", "64"))
PRODUCERS = int(os.environ.get("RESTART_PRODUCERS", "1000"))
BATCH_BYTES = int(os.environ.get("RESTART_BATCH_BYTES", "4096"))
CONFIG = LogConfig(segment_bytes=max(TOTAL_MB * 100_000, 1_000_000))
"""Ten segments."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that was stopped cleanly. The producers take turns."""
    folder = tmp_path_factory.mktemp("restart")
    log = _opened(folder)
    value = b"x" * BATCH_BYTES
    for number in range(TOTAL_MB * 1_000_000 // BATCH_BYTES):
        turn, producer_id = divmod(number, PRODUCERS)
        records = [Record(timestamp_ms=NOW.wall_ms, value=value)]
        log.append(NOW, build(records, producer_id=producer_id, producer_epoch=0, base_sequence=turn), 0)
    for _ in range(2):
        log.close_cleanly()
        log.mark_synced(log.sync_point())
    return folder


def _opened(folder: Path) -> UnifiedLog:
    return run_to_end(open_log(FileDisk(folder, 64), "t-0", CONFIG, NOW, clean=True))


@pytest.mark.thorough
@pytest.mark.benchmark(group=f"start of a log of {TOTAL_MB} MB with {PRODUCERS} producers")
@pytest.mark.parametrize("snapshots", [True, False], ids=["with its snapshot", "without"])
def bench_restart(benchmark: BenchmarkFixture, written: Path, snapshots: bool) -> None:
    def without() -> None:
        for path in () if snapshots else (written / "t-0").glob("*.snapshot"):
            path.unlink()

    def start() -> None:
        log = _opened(written)
        assert bool(log.recovered.snapshot) == snapshots
        assert len(log.producers.by_id) == min(PRODUCERS, TOTAL_MB * 1_000_000 // BATCH_BYTES)

    benchmark.pedantic(start, setup=without, rounds=3)  # type: ignore[no-untyped-call]


@pytest.mark.thorough
@pytest.mark.benchmark(group=f"snapshot of {PRODUCERS} producers")
def bench_snapshot(benchmark: BenchmarkFixture, written: Path) -> None:
    """Measure the whole snapshot. Where there are many producers, the appends that follow the roll share it."""
    log = _opened(written)
    benchmark(lambda: log.segments.snapshots.write(log.log_end_offset, log.producers))


@pytest.mark.benchmark(group=f"snapshot of {PRODUCERS} producers")
def bench_snapshot_begun(benchmark: BenchmarkFixture, written: Path) -> None:
    """Measure the part of a snapshot for which a roll waits."""
    log = _opened(written)
    benchmark(lambda: log.segments.snapshots.begin(log.log_end_offset, log.producers))
