"""The whole path with real processes: played live, judged by Spark; the control passes, the mutant is caught."""

from pathlib import Path

import pytest

from chaos.live.runner import play
from reports.judge import judge_many
from reports.verdict import Outcome
from scenarios import loader

SCENARIO = "01-lost-response"
MUTANT = "change_mark_cleared_when_sent"


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.clause("F-10", "F-11", "F-14", "F-20")
def test_a_lost_response_costs_nothing_and_its_mutant_loses_records(tmp_path: Path) -> None:
    scenario = loader.find(SCENARIO)
    folders = []
    for mutant in ("", MUTANT):
        folders.append(tmp_path / (mutant or "control"))
        play(scenario, folders[-1], seed=1, mutant=mutant)
    control, caught = judge_many(folders)
    assert control.outcome is Outcome.PASSED, control.summary
    assert caught.outcome is Outcome.FAILED, caught.summary
    assert [each.name for each in caught.guarantees if each.status == "broken"] == ["fetch-gap"]
    for verdict in (control, caught):
        assert verdict.report is not None
        assert "response_lost" in verdict.report.read_text(encoding="utf-8")
