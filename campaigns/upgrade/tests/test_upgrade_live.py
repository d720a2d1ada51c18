"""The whole way with a real broker: a directory that is made by hand is taken over, made tiered, and judged."""

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from campaigns.upgrade import old_directory, taking_over
from campaigns.upgrade.kafka_files import EPOCH_AT, batches, file_name, offsets_of
from campaigns.upgrade.upgrade_command import UpgradeRequest, run
from crucible_kafka import cli

pytestmark = [pytest.mark.live, pytest.mark.nightly]

LIMIT_S = 60.0


@pytest.mark.clause("P-8", "P-9", "P-10", "P-13", "P-14")
def test_every_eligible_segment_is_uploaded_with_the_snapshot_of_a_full_replay(tmp_path: Path) -> None:
    lines: list[str] = []
    outcome = run(UpgradeRequest(None, tmp_path / "out", (), {}, LIMIT_S), lines.append)
    (verdict,) = outcome.verdicts
    assert verdict.is_good, verdict
    assert verdict.uploaded >= 20
    assert verdict.missing_before >= verdict.uploaded - 3
    assert verdict.recreated >= verdict.uploaded - 3
    assert 0 < verdict.replayed_bytes < verdict.log_bytes / 2, "most producers are expired"
    assert lines[-1].startswith(f"{verdict.eligible} of {verdict.eligible}")
    assert "cluster.id=" + old_directory.CLUSTER_ID in (tmp_path / "out/data/meta.properties").read_text()


@pytest.mark.clause("P-14")
@pytest.mark.parametrize("snapshots", ["none", "empty"])
def test_no_snapshot_is_needed_nor_believed_and_old_leader_epochs_are_no_obstacle(
    tmp_path: Path, snapshots: str
) -> None:
    old = tmp_path / "old"
    made = old_directory.WantedLog(size_bytes=4 << 20, segment_bytes=1 << 19, hours=12)
    old_directory.make(old, made, time.time_ns() // 1_000_000)
    folder = old / f"{old_directory.TOPIC}-0"
    for path in folder.glob("*.snapshot"):
        path.write_bytes(b"") if snapshots == "empty" else path.unlink()
    _raise_epochs(folder)
    outcome = run(UpgradeRequest(old, tmp_path / "out", (), {}, LIMIT_S), lambda _: None)
    (verdict,) = outcome.verdicts
    assert verdict.is_good, verdict
    assert verdict.missing_before == verdict.segments - 1
    assert taking_over.read(old, ()).partitions[0].snapshots == frozenset(), "the old directory is as it was"


def _raise_epochs(folder: Path) -> None:
    """The second half of the log gets later leader epochs."""
    bases = offsets_of(folder, ".log")
    for epoch, base in enumerate(bases[len(bases) // 2 :], 5):
        path = folder / file_name(base, ".log")
        data = bytearray(path.read_bytes())
        for batch in batches(path):
            data[batch.position + EPOCH_AT : batch.position + EPOCH_AT + 4] = epoch.to_bytes(4, "big")
        path.write_bytes(data)


def test_error_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    whole = [str(tmp_path), "--out"]
    for words in ([str(tmp_path)], [*whole, str(tmp_path / "new")], [*whole, str(file)], [*whole, str(tmp_path)]):
        result = CliRunner().invoke(cli.main, ["upgrade-path", *words])
        assert result.exit_code == 2, result.output
        assert re.fullmatch(r"crucible: [^\n]+\n", result.stderr), result.stderr
