"""Mutants of a node in the part of an external broker: each breaks what frames show of its fetch sessions.

CI plays the control and one of them (``chaos/live/tests/test_live_verdicts.py``).
"""

from pathlib import Path

import pytest

from chaos.live.tests.external_sessions import MUTANTS, played
from reports.judge import report_runs
from reports.verdict import Outcome


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.clause("F-2", "F-3", "F-10", "F-12", "F-14")
def test_frames_show_each_mutant_that_lacks_a_part_of_sessions(tmp_path: Path) -> None:
    verdicts = report_runs([played(tmp_path, mutant) for mutant in MUTANTS])
    for (mutant, guarantees), verdict in zip(MUTANTS.items(), verdicts, strict=True):
        assert verdict.outcome is Outcome.FAILED, f"{mutant}: {verdict.summary}"
        assert {guarantee.name for guarantee in verdict.guarantees if guarantee.status == "broken"} >= guarantees, (
            mutant
        )
