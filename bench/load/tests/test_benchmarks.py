"""Whole benchmarks on brokers that run: the reference broker, and one that nobody finds."""

from pathlib import Path

import pytest

from bench.load.run import LoadError, LoadOptions, run, started
from bench.load.workload import workload_of

pytestmark = pytest.mark.live
OPTIONS = LoadOptions(seconds=3, warmup_s=1, workers=2)


def test_a_workload_on_the_reference_broker(tmp_path: Path) -> None:
    table = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 5_000, "subscriptionsPerTopic": 2}
    lines: list[str] = []
    with started("reference", lines.append) as target:
        found = run(workload_of(table, "w", "w"), target, OPTIONS, tmp_path, lines.append)
        with pytest.raises(LoadError, match="INVALID_REPLICATION_FACTOR"):
            run(workload_of(table, "w", "w"), target, LoadOptions(replication=3), tmp_path, lines.append)
        wrong = {**table, "crucible": {"topicConfig": {"cleanup.policy": "wild"}}}
        with pytest.raises(LoadError, match=r"refuse topics with INVALID_CONFIG \(cleanup.policy is 'wild'"):
            run(workload_of(wrong, "w", "w"), target, OPTIONS, tmp_path, lines.append)
    assert found.findings.is_clean
    assert found.findings.acknowledged == found.findings.read > 2 * 5_000
    assert not found.unfinished
    assert found.samples("end_to_end") > 0
    assert found.brokers_cpu_s > 0
    assert any("load, " in line for line in lines)
