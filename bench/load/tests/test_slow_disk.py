"""A slow disk of the reference broker shows in the latencies of a benchmark, where its acknowledgements wait for it."""

from pathlib import Path

import pytest

from bench.load.options import LoadOptions
from bench.load.results import LoadResult
from bench.load.run import run
from bench.load.target import started
from bench.load.workload import workload_of
from bench.locust.processes import ROOT

pytestmark = pytest.mark.live
DELAY_MS = 20
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from reference_broker.serve.file_syncs import FileSyncs
begin = FileSyncs.__init__
def slow(self, *words):
    begin(self, *words)
    self.delay_s = {DELAY_MS} / 1000
FileSyncs.__init__ = slow
from crucible_kafka.cli import main
main(prog_name="crucible")
"""


def played(target: str, folder: Path, flushes: bool) -> LoadResult:
    own = {"topicConfig": {"flush.messages": 1} if flushes else {}}
    table = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 1_000, "crucible": own}
    with started(target, lambda _: None) as brokers:
        return run(workload_of(table, "w", "w"), brokers, LoadOptions(seconds=2, warmup_s=1), folder, lambda _: None)


def slow_target(folder: Path) -> str:
    """Return the reference broker as a target whose syncs take DELAY_MS longer."""
    program, target = folder / "slow.py", folder / "slow-disk.toml"
    program.write_text(PROGRAM)
    described = (ROOT / "bench" / "targets" / "reference.toml").read_text()
    target.write_text(described.replace("{root}/crucible_kafka", str(program)))
    assert str(program) in target.read_text()
    return str(target)


@pytest.mark.rotated(4, "load")
def test_each_acknowledgement_that_waits_for_a_slow_disk_is_later(tmp_path: Path) -> None:
    slow = played(slow_target(tmp_path), tmp_path / "slow", flushes=True)
    fast = played("reference", tmp_path / "fast", flushes=True)
    assert slow.findings.is_clean
    for measure in ("publish", "response"):
        assert slow.quantile_ms(measure, 0.01) >= DELAY_MS
        assert fast.quantile_ms(measure, 0.01) < DELAY_MS


@pytest.mark.rotated(4, "load")
def test_without_a_flush_no_acknowledgement_waits_for_the_disk(tmp_path: Path) -> None:
    slow = played(slow_target(tmp_path), tmp_path / "slow", flushes=False)
    assert slow.findings.is_clean
    assert slow.quantile_ms("publish", 0.01) < DELAY_MS
