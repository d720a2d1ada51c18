"""The simulator's checks of sessions find in a trace what is planted there for the Spark jobs, and nothing else."""

from dataclasses import fields
from typing import Any

import pytest

from chaos.checks.check import Check
from chaos.checks.fetch_sessions import SequenceOrder, SessionLost, SessionOrder
from chaos.tests.check_context import check_context
from reports.rows import TraceRow
from reports.tests.planted_sessions import PLANTED_SESSIONS
from reports.tests.played import generate

COLUMNS = [each.name for each in fields(TraceRow)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED_SESSIONS)
def test_exactly_the_planted_guarantee_breaks(name: str) -> None:
    plant, expected = PLANTED_SESSIONS[name]
    history = generate(list(PLANTED_SESSIONS).index(name))
    plant(history)
    checks: tuple[Check, ...] = (
        SessionOrder(check_context()),
        SequenceOrder(check_context()),
        SessionLost(check_context()),
    )
    rows: list[dict[str, Any]] = history.tables["trace"]
    for row in sorted(rows, key=lambda row: (row["incarnation"], row["seq"])):
        for check in checks:
            if row["what"] in check.rows:
                check.trace(TraceRow(**{each: row[each] for each in COLUMNS}))
    assert {check.guarantee for check in checks if check.violations} == expected
