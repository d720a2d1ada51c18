"""Order and loss of fetch sessions in the trace of a node."""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from chaos.checks.check import Check
from chaos.checks.sessions.fetch_model import FIRST_REVISION
from chaos.checks.sessions.fetch_sessions import (
    INVALID_FETCH_SESSION,
    LARGEST_EPOCH,
    SequenceOrder,
    SessionLost,
    SessionOrder,
)
from chaos.checks.tests.check_context import check_context
from reference_broker.wire.errors import ErrorCode
from reports.rows import TraceRow
from reports.tests.planted_sessions import PLANTED_SESSIONS
from reports.tests.played import generate

SESSION = 77
CLIENT = "fetcher-0"


def row(what: str, number: int = 0, error: int = 0, connection: int = 1, **detail: int | str) -> TraceRow:
    fields = {"session_id": SESSION, **detail}
    return TraceRow(
        0,
        0,
        0,
        0,
        what,
        connection,
        CLIENT,
        1,
        FIRST_REVISION,
        SESSION,
        number,
        SESSION if not error else 0,
        error,
        json.dumps(fields),
    )


CREATED = row("session_created", partitions=2, privileged=0, revision="first")


@pytest.mark.clause("G-3")
@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([row("request", 1), row("reply", 1), row("request", 1), row("reply", 1)], True),
        ([row("request", 1), row("reply", 1), row("request", 2), row("reply", 2)], True),
        ([row("request", 2), row("reply", 2, INVALID_FETCH_SESSION)], True),
        ([row("request", 2), row("reply", 2)], False),
        ([row("request", 1), row("reply", 1, INVALID_FETCH_SESSION)], False),
        ([row("request", 1), row("reply", 1), row("request", 3), row("reply", 3)], False),
        ([row("request", 1), row("reply", 1, 42), row("request", 2), row("reply", 2)], False),
        ([row("request", 1), row("reply", 1, 42), row("request", 1), row("reply", 1)], True),
        (
            [
                row("request", 1, connection=1),
                row("request", 1, connection=2),
                row("reply", 1, INVALID_FETCH_SESSION, connection=1),
                row("reply", 1, connection=2),
            ],
            False,
        ),
        (
            [
                row("request", 1, connection=1),
                row("request", 0, connection=2),
                row("reply", 1, INVALID_FETCH_SESSION, connection=1),
            ],
            True,
        ),
        ([row("session_closed"), row("request", 1), row("reply", 1)], False),
        ([row("session_closed"), row("request", 1), row("reply", 1, INVALID_FETCH_SESSION)], True),
    ],
)
def test_numbers_of_the_first_revision_must_follow_each_other(rows: list[TraceRow], right: bool) -> None:
    check = SequenceOrder(check_context())
    for trace_row in (CREATED, *rows):
        check.trace(trace_row)
    assert (check.violations == []) == right


@pytest.mark.clause("F-2", "G-1")
def test_session_id_given_twice_while_its_session_lives_is_a_violation() -> None:
    check = SessionLost(check_context())
    check.trace(CREATED)
    assert check.violations == []
    check.trace(CREATED)
    assert "still lives" in check.violations[0].explanation


@pytest.mark.clause("F-2", "G-1")
def test_session_ids_reused_more_often_than_by_chance_are_a_violation() -> None:
    check = SessionLost(check_context())
    for _ in range(2):
        check.trace(CREATED)
        check.trace(row("session_closed"))
    assert check.violations == []
    check.trace(CREATED)
    assert "2 IDs came again, more than by chance" in check.violations[0].explanation


NONE, FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH = 0, 70, 71


class Trace:
    """Writes trace rows as a node's recorder does."""

    def __init__(self, *checks: Check) -> None:
        self.checks = checks
        self.seq = 0
        self.incarnation = 0

    def row(self, what: str, **fields: object) -> None:
        row = TraceRow(0, self.incarnation, self.seq, self.seq, what, **fields)  # type: ignore[arg-type]
        self.seq += 1
        for check in self.checks:
            check.trace(row)

    def note(self, what: str, **fields: object) -> None:
        self.row(what, detail=json.dumps(fields, sort_keys=True))

    def request(self, session: int, epoch: int, connection: int = 1) -> None:
        self.row("request", connection=connection, api_key=1, session_id=session, session_epoch=epoch)

    def reply(self, session: int, epoch: int, error: int, connection: int = 1, session_id: int | None = None) -> None:
        response = (session if error == NONE else 0) if session_id is None else session_id
        self.row(
            "reply",
            connection=connection,
            api_key=1,
            session_id=session,
            session_epoch=epoch,
            error=error,
            response_session_id=response,
        )

    def fetch(self, session: int, epoch: int, error: int = NONE, session_id: int | None = None) -> None:
        self.request(session, epoch)
        self.reply(session, epoch, error, session_id=session_id)


def session_checks(first_epoch: int = 1) -> tuple[SessionOrder, SessionLost, Trace]:
    order, lost = SessionOrder(check_context(first_session_epoch=first_epoch)), SessionLost(check_context())
    trace = Trace(order, lost)
    trace.note("session_created", session_id=9)
    return order, lost, trace


@pytest.mark.clause("F-3", "F-7", "F-9", "F-10")
def test_correct_session_violates_nothing() -> None:
    order, lost, trace = session_checks()
    trace.fetch(9, 1)
    trace.fetch(9, 2)
    trace.fetch(9, 2, INVALID_FETCH_SESSION_EPOCH)
    trace.fetch(9, 7, INVALID_FETCH_SESSION_EPOCH)
    trace.fetch(9, 3)
    trace.fetch(8, 1, FETCH_SESSION_ID_NOT_FOUND)
    trace.fetch(9, -5, FETCH_SESSION_ID_NOT_FOUND)
    trace.request(9, 0)
    trace.note("session_closed", session_id=9, reason="replaced")
    trace.note("session_created", session_id=10)
    trace.reply(9, 0, NONE, session_id=10)
    trace.fetch(9, 4, FETCH_SESSION_ID_NOT_FOUND)
    trace.incarnation = 1
    trace.fetch(10, 1, FETCH_SESSION_ID_NOT_FOUND)
    assert order.violations == lost.violations == []


def test_waiting_request_may_be_overtaken_in_its_session() -> None:
    order, lost, trace = session_checks()
    trace.request(9, 1, connection=1)
    trace.request(9, 2, connection=2)
    trace.reply(9, 1, INVALID_FETCH_SESSION_EPOCH, connection=1)
    trace.reply(9, 2, NONE, connection=2)
    trace.request(9, 3, connection=1)
    trace.note("session_evicted", session_id=9)
    trace.reply(9, 3, FETCH_SESSION_ID_NOT_FOUND, connection=1)
    assert order.violations == lost.violations == []


@pytest.mark.parametrize(
    ("fetches", "why"),
    [
        ([(1, NONE), (1, NONE)], "an epoch accepted twice"),
        ([(1, NONE), (2, INVALID_FETCH_SESSION_EPOCH)], "the right epoch refused"),
        ([(2, NONE)], "a later epoch accepted"),
        ([(1, NONE), (3, FETCH_SESSION_ID_NOT_FOUND)], "a wrong epoch refused as an unknown ID"),
        ([(0x7FFFFFFF, NONE)], "the last epoch accepted first"),
    ],
)
def test_response_with_an_error_that_does_not_fit_the_epoch_violates_session_epoch_order(
    fetches: Sequence[tuple[int, int]], why: str
) -> None:
    order, _, trace = session_checks()
    for epoch, error in fetches:
        trace.fetch(9, epoch, error)
    assert len(order.violations) == 1, why


def test_session_order_wraps_to_one() -> None:
    order, _, trace = session_checks(first_epoch=2**31 - 1)
    trace.fetch(9, 2**31 - 1)
    trace.fetch(9, 1)
    assert order.violations == []
    trace.fetch(9, 3, NONE)
    assert order.violations


def test_unknown_session_that_nothing_ended_violates_session_lost() -> None:
    _, lost, trace = session_checks()
    trace.fetch(9, 1, FETCH_SESSION_ID_NOT_FOUND)
    assert "nothing had closed" in lost.violations[0].explanation


def test_session_closed_for_a_wrong_epoch_violates_session_lost() -> None:
    _, lost, trace = session_checks()
    trace.request(9, 5)
    trace.note("session_closed", session_id=9, reason="")
    trace.reply(9, 5, INVALID_FETCH_SESSION_EPOCH)
    assert "that closed the session" in lost.violations[0].explanation


@pytest.mark.parametrize("session_id", [0, 8])
def test_response_with_another_session_id_violates_session_lost(session_id: int) -> None:
    _, lost, trace = session_checks()
    trace.fetch(9, 1, NONE, session_id=session_id)
    assert len(lost.violations) == 1


KAFKA_STORAGE_ERROR, FETCH_SESSION_TOPIC_ID_ERROR = 56, 106
INVALID_FETCH_SESSION = 10001


@pytest.mark.clause("F-9")
@pytest.mark.parametrize(
    ("session", "epoch", "error", "right"),
    [
        (0, 1, FETCH_SESSION_ID_NOT_FOUND, True),
        (0, 1, NONE, False),
        (0, 1, INVALID_FETCH_SESSION_EPOCH, False),
        (0, LARGEST_EPOCH, NONE, False),
        (0, -1, NONE, True),
        (0, 0, NONE, True),
        (9, -2, FETCH_SESSION_ID_NOT_FOUND, True),
        (9, -2, NONE, False),
    ],
)
def test_response_fits_an_epoch_that_names_no_session(session: int, epoch: int, error: int, right: bool) -> None:
    order, _, trace = session_checks()
    trace.fetch(session, epoch, error, session_id=0)
    assert (order.violations == []) is right


@pytest.mark.clause("F-7")
@pytest.mark.parametrize(
    ("error", "right"), [(NONE, True), (FETCH_SESSION_TOPIC_ID_ERROR, True), (KAFKA_STORAGE_ERROR, False)]
)
def test_right_epoch_has_few_other_errors(error: int, right: bool) -> None:
    order, _, trace = session_checks()
    trace.fetch(9, 1, error)
    assert (order.violations == []) is right


def test_error_about_topic_ids_changes_nothing() -> None:
    order, _, trace = session_checks()
    trace.fetch(9, 1, FETCH_SESSION_TOPIC_ID_ERROR)
    trace.fetch(9, 1)
    assert order.violations == []
    trace.fetch(9, 1)
    assert order.violations


@pytest.mark.clause("F-9", "F-10")
@pytest.mark.parametrize(("overtaken", "ended"), [(True, False), (False, True), (False, False)])
def test_waiting_request_is_refused_only_if_something_happened(overtaken: bool, ended: bool) -> None:
    order, _, trace = session_checks()
    trace.request(9, 1, connection=1)
    if overtaken:
        trace.request(9, 2, connection=2)
    if ended:
        trace.note("session_evicted", session_id=9)
    trace.reply(9, 1, FETCH_SESSION_ID_NOT_FOUND if ended else INVALID_FETCH_SESSION_EPOCH, connection=1)
    assert bool(order.violations) is not (overtaken or ended)


def test_refused_request_does_not_overtake_others() -> None:
    order, _, trace = session_checks()
    trace.request(9, 1, connection=1)
    trace.fetch(9, 7, INVALID_FETCH_SESSION_EPOCH)
    trace.request(9, 1, connection=1)
    assert order.violations == []
    order, _, trace = session_checks()
    trace.request(9, 1, connection=1)
    trace.request(9, 7, connection=2)
    trace.reply(9, 7, INVALID_FETCH_SESSION_EPOCH, connection=2)
    trace.reply(9, 1, INVALID_FETCH_SESSION_EPOCH, connection=1)
    assert len(order.violations) == 1


@pytest.mark.clause("F-4", "F-5", "F-6", "F-8")
@pytest.mark.parametrize(
    ("session", "epoch", "session_id", "right"),
    [
        (0, -1, 0, True),
        (9, -1, 0, True),
        (0, -1, 9, False),
        (9, -1, 9, False),
        (9, 0, 0, True),
        (9, 0, 9, False),
        (0, 0, 8, False),
        (0, 0, 10, True),
        (9, 0, 10, True),
    ],
)
def test_response_to_a_full_fetch_has_0_or_the_id_of_a_new_session(
    session: int, epoch: int, session_id: int, right: bool
) -> None:
    _, lost, trace = session_checks()
    trace.request(session, epoch)
    if session:
        trace.note("session_closed", session_id=session, reason="")
    if session_id == 10:
        trace.note("session_created", session_id=10)
    trace.reply(session, epoch, NONE, session_id=session_id)
    assert (lost.violations == []) is right


@pytest.mark.clause("G-3", "G-10")
@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([row("request", 1), row("reply", 1, KAFKA_STORAGE_ERROR)], False),
        ([row("request", 3), row("reply", 3, KAFKA_STORAGE_ERROR)], False),
        ([row("request", 1), row("reply", 1, 10002)], True),
        ([row("request", 1), row("session_evicted"), row("reply", 1, INVALID_FETCH_SESSION)], True),
        ([row("session_evicted"), row("request", 1), row("reply", 1, KAFKA_STORAGE_ERROR)], False),
        (
            [
                row("request", 1, connection=1),
                row("request", 3, connection=2),
                row("reply", 3, INVALID_FETCH_SESSION, connection=2),
                row("reply", 1, INVALID_FETCH_SESSION, connection=1),
            ],
            False,
        ),
    ],
)
def test_number_of_the_first_revision_has_few_other_errors(rows: list[TraceRow], right: bool) -> None:
    check = SequenceOrder(check_context())
    for trace_row in (CREATED, *rows):
        check.trace(trace_row)
    assert (check.violations == []) is right


@pytest.mark.clause("G-4")
@pytest.mark.parametrize(
    ("number", "error", "right"),
    [(1, INVALID_FETCH_SESSION, True), (1, ErrorCode.none, False), (0, ErrorCode.none, True)],
)
def test_incremental_request_without_a_session_must_be_refused(number: int, error: int, right: bool) -> None:
    check = SequenceOrder(check_context())
    for what in ("request", "reply"):
        code = error if what == "reply" else 0
        check.trace(TraceRow(0, 0, 0, 0, what, 1, "f", 1, FIRST_REVISION, 0, number, 0, code, "{}"))
    assert (check.violations == []) is right


@pytest.mark.clause("G-3")
@pytest.mark.parametrize(
    ("second", "error", "right"), [(1, NONE, True), (1, INVALID_FETCH_SESSION, False), (2, INVALID_FETCH_SESSION, True)]
)
def test_waiting_request_is_overtaken_by_a_later_one_and_not_by_itself(second: int, error: int, right: bool) -> None:
    order = SequenceOrder(check_context())
    requests = [row("request", 1, connection=1), row("request", second, connection=2)]
    for request in (CREATED, *requests, row("reply", 1, error, connection=1), row("reply", second, connection=2)):
        order.trace(request)
    assert (order.violations == []) is right


@pytest.mark.clause("G-3", "G-4")
@pytest.mark.parametrize(
    ("full_responds", "errors", "right"),
    [("after", 1, True), ("before the request", 1, False), ("before the error", 1, False), ("after", 2, False)],
)
def test_full_request_under_way_overtakes_one_request_that_came_after_it(
    full_responds: str, errors: int, right: bool
) -> None:
    """Nothing says which of two requests a node handles first if they are under way on two connections at once."""
    full, reply = row("request", 0, connection=2), row("reply", 0, connection=2)
    request, refused = row("request", 1, connection=1), row("reply", 1, INVALID_FETCH_SESSION, connection=1)
    order = {
        "after": [full, *[request, refused] * errors, reply],
        "before the request": [full, reply, request, refused],
        "before the error": [full, request, reply, refused],
    }[full_responds]
    check = SequenceOrder(check_context())
    for each in (CREATED, *order):
        check.trace(each)
    assert (check.violations == []) is right


COLUMNS = [field_.name for field_ in fields(TraceRow)]


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
                check.trace(TraceRow(**{column: row[column] for column in COLUMNS}))
    assert {check.guarantee for check in checks if check.violations} == expected
