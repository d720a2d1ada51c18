"""Logs after our log cleaner, read by Kafka's own dump tool."""

from pathlib import Path

import pytest

from bench.peers.tests.java_tools import dump_segments
from reference_broker.log.cleaner.cleaning import Cleaning, cleanable
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.serve.disk import FileDisk

pytestmark = pytest.mark.peer

NOW = Now(0, 1_700_000_000_000)
HORIZON_MS = NOW.wall_ms + LogConfig().delete_retention_ms


def test_kafka_reads_a_cleaned_segment_with_its_empty_batches_and_horizons(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, 100)
    log = run_to_end(open_log(disk, "t-0", LogConfig(cleanup_policy="compact"), NOW, True))
    for number in range(40):
        _append(log, f"key{number % 5}", None if number == 38 else f"value{number}", list(Compression)[number % 5])
    log.roll(NOW)
    part = cleanable(log, NOW)
    assert part is not None
    for step in Cleaning(log, part, NOW, 1 << 20).run():
        disk.synchronise(disk.open_for_sync(step.sync))
    log.close_cleanly()
    disk.close()
    found = dump_segments([tmp_path / "t-0" / f"{0:020d}.log"], "--print-data-log", "--deep-iteration")
    batches = [line for line in found.splitlines() if line.startswith("baseOffset")]
    records = [line for line in found.splitlines() if line.lstrip("| ").startswith("offset")]
    assert [line.split("count: ")[1].split()[0] for line in batches] == ["0", "1", "1", "1", "1", "1"]
    assert all("isvalid: true" in line for line in batches)
    assert [line.split("offset: ")[1].split()[0] for line in records] == ["35", "36", "37", "38", "39"]
    with_horizon = [line for line in batches if f"deleteHorizonMs: OptionalLong[{HORIZON_MS}]" in line]
    assert [line.split("baseOffset: ")[1].split()[0] for line in with_horizon] == ["38"]
    assert [line.split("payload: ")[1] for line in records if "payload: " in line] == [
        "value35",
        "value36",
        "value37",
        "value39",
    ]


def _append(log: UnifiedLog, key: str, value: str | None, codec: Compression) -> None:
    data = None if value is None else value.encode()
    log.append(NOW, build([Record(timestamp_ms=NOW.wall_ms, key=key.encode(), value=data)], compression=codec), 0)
    log.advance_high_watermark(log.log_end_offset)
