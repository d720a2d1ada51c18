"""The simulator's checks say of the planted histories of compacted topics what the jobs must say of them."""

import pytest

from chaos.checks.suite import all_checks
from chaos.tests.check_context import check_context
from chaos.tests.test_transaction_checks import history_of
from reports.rows import MembershipRow
from reports.tests.test_compaction_judged import OF_COMPACTION, PLANTED, TOPIC, VIEW, Table


def looked_at(name: str) -> tuple[dict[str, list[str]], set[str]]:
    """Return what each check says of a planted history, and the guarantees that had something to judge."""
    history = Table().play()
    PLANTED[name][0](history)
    rows = history_of(history)
    checks = all_checks(check_context())
    for check in checks:
        check.end(rows)
    said = {check.guarantee: [each.story for each in check.violations] for check in checks if check.violations}
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
@pytest.mark.parametrize(("reader", "is_red"), [("left", False), ("goes on", True), ("no member", True)])
def test_only_a_member_that_leaves_drops_records_that_it_has_fetched(reader: str, *, is_red: bool) -> None:
    """It had got them before they were superseded. Any other reader has read what it got past."""
    history = Table().play()
    PLANTED["superseded"][0](history)
    table = Table(history, now_us=5_000_000)
    table.read("member-0", "fetch", 0, 0, 10)
    if reader == "goes on":
        table.read("member-0", "fetch", 0, 10, 10)
    if reader != "no member":
        fields = ("group", "member-0", 1, "assigned", TOPIC, 0)
        table.add("memberships", MembershipRow("member-0", *fields, 4_000_000, 4_000_000))
    rows = history_of(history)
    checks = all_checks(check_context())
    for check in checks:
        check.end(rows)
    assert any(check.violations for check in checks if check.guarantee == "lost-write") is is_red
