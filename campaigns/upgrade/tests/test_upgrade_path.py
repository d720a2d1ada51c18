"""A directory that Apache Kafka 2.7.2 wrote: uploaded whole by this broker, and stuck on Apache Kafka 4.1.1."""

from pathlib import Path

import pytest

from campaigns.upgrade.upgrade_command import UpgradeRequest, run, written

pytestmark = pytest.mark.peer

LIMIT_S = 120.0


@pytest.mark.timeout(600)
@pytest.mark.clause("P-8", "P-10", "P-14")
def test_same_directory_is_uploaded_whole_here_and_gets_stuck_there(tmp_path: Path) -> None:
    outcome = run(UpgradeRequest(None, tmp_path / "out", (), {}, LIMIT_S, with_kafka=True), print)
    (verdict,) = outcome.verdicts
    assert verdict.is_good, verdict
    assert verdict.uploaded >= 5
    assert verdict.missing_before >= verdict.uploaded - 3
    assert outcome.lives
    for life in outcome.lives:
        assert life.eligible == verdict.eligible
        assert life.is_stuck, life
        assert "NullPointerException" in life.message
    page = written(outcome)
    assert "retried without end" in page
    assert verdict.partition in page
