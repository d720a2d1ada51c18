"""Planted histories of compacted topics, in which the simulator's checks find what the Spark jobs must find."""

import pytest

from chaos.checks.suite import all_checks
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.planted_histories import history_of
from reports.tests.test_compaction_judged import OF_COMPACTION, PLANTED, VIEW, Table


def looked_at(name: str) -> tuple[dict[str, list[str]], set[str]]:
    """Return the violations of each check in a planted history, and the guarantees that had something to judge."""
    history = Table().play()
    PLANTED[name][0](history)
    rows = history_of(history)
    checks = all_checks(check_context())
    for check in checks:
        check.end(rows)
    said = {
        check.guarantee: [violation.explanation for violation in check.violations]
        for check in checks
        if check.violations
    }
    return said, {check.guarantee for check in checks if check.evidence}


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_guarantee_breaks(name: str) -> None:
    said, _ = looked_at(name)
    assert set(said) & {*OF_COMPACTION, VIEW} == PLANTED[name][1], said


def test_each_compaction_check_has_evidence() -> None:
    _, judged = looked_at("nothing")
    assert judged >= {*OF_COMPACTION, VIEW} - {"group-skip"}  # Its histories are those with a group.


@pytest.mark.clause("X-11")
@pytest.mark.parametrize("name", ["left with fetched records", "went on without polling", "fetched outside a group"])
def test_only_a_member_that_leaves_drops_records_that_it_has_fetched(name: str) -> None:
    """Any other reader has read what it got past."""
    said, _ = looked_at(name)
    assert set(said) & {*OF_COMPACTION, VIEW} == PLANTED[name][1], said
