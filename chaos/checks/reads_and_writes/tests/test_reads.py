"""Reads of consumers and fetchers, and what excuses a gap in them."""

from dataclasses import replace

import pytest

from chaos.checks.tests.client_history import (
    ASSIGNMENT,
    BASE,
    END,
    OPERATIONS,
    POSITIONS,
    READS,
    SENDS,
    TOPIC,
    operation,
    position,
    read,
    violated_guarantees,
)
from reports.rows import END_OF_RUN_US, AssignmentRow, HistoryRow, SpanRow


def test_seek_begins_a_new_walk() -> None:
    again = [AssignmentRow("f", TOPIC, 0, 20, 29, 0), AssignmentRow("f", TOPIC, 0, 29, END_OF_RUN_US, 0)]
    rows = [*OPERATIONS, END, *again, *SENDS, position(0, 0, 10), position(1, 0, 10), read(0, 0, 10), read(1, 0, 10)]
    assert violated_guarantees(rows) == []
    assert violated_guarantees([*OPERATIONS, END, ASSIGNMENT, *rows[7:]]) == ["nonmonotonic-poll"]


def test_failed_fetch_moves_no_cursor() -> None:
    rows = [*BASE[1:], *SENDS, *POSITIONS, *READS]
    assert violated_guarantees([operation("p", 0, "produce"), *rows]) == []
    failed: list[HistoryRow] = [
        operation("f", 2, "fetch", "fail", 40),
        SpanRow("f", 2, 0, "read", TOPIC, 0, 0, 5, 7, "p", 0, True),
    ]
    assert violated_guarantees([operation("p", 0, "produce"), *rows, *failed]) == []


REST: list[HistoryRow] = [*OPERATIONS, ASSIGNMENT, END]


@pytest.mark.thorough
@pytest.mark.clause("F-12")
@pytest.mark.parametrize(("until_us", "from_us", "is_red"), [(31, 36, False), (30, 36, True), (29, 35, False)])
def test_response_about_what_was_forgotten_or_not_yet_requested(until_us: int, from_us: int, is_red: bool) -> None:
    """The second fetch is sent at 30 and gets its response at 35."""
    given = [replace(ASSIGNMENT, until_us=until_us), replace(ASSIGNMENT, from_us=from_us, from_offset=5)]
    found = violated_guarantees([*OPERATIONS, END, *given, *SENDS, *POSITIONS, *READS])
    assert ("unrequested-partition" in found) is is_red


@pytest.mark.clause("F-20")
@pytest.mark.parametrize(("following", "is_red"), [(9, True), (10, False), (11, True)])
def test_fetcher_ends_exactly_at_the_high_watermark(following: int, is_red: bool) -> None:
    rows = [*REST, *SENDS, position(0, 0, 5), position(1, 5, following), *READS]
    assert violated_guarantees(rows) == (["fetch-gap"] if is_red else [])


@pytest.mark.clause("F-20")
@pytest.mark.parametrize(("ended_us", "is_red"), [(35, True), (36, False)])
def test_fetcher_is_where_the_last_response_left_it(ended_us: int, is_red: bool) -> None:
    """The fetcher fetches from two nodes at once. The response to the second fetch, at 35, is empty."""
    operations = [*OPERATIONS[:2], operation("f", 0, "fetch", at_us=ended_us - 5), OPERATIONS[3]]
    responses: list[HistoryRow] = [position(0, 0, 10), position(1, 0, 0), read(0, 0, 10)]
    found = violated_guarantees([*operations, ASSIGNMENT, END, *SENDS, *responses])
    assert found == (["fetch-gap"] if is_red else [])
