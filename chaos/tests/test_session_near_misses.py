"""What excuses a response of a fetch session, and what barely does not."""

import pytest

from chaos.checks.fetch_model import FIRST_REVISION
from chaos.checks.fetch_sessions import LARGEST_EPOCH, SequenceOrder
from chaos.tests.check_context import check_context
from chaos.tests.test_checks import NONE, UNKNOWN, WRONG, session_checks
from chaos.tests.test_fetch_checks import CREATED, row
from reference_broker.wire.errors import ErrorCode
from reports.rows import TraceRow

OTHER_ERROR, TOPIC_ID_ERROR = 56, 106
REFUSED = 10001


@pytest.mark.clause("F-9")
@pytest.mark.parametrize(
    ("session", "epoch", "error", "right"),
    [
        (0, 1, UNKNOWN, True),
        (0, 1, NONE, False),
        (0, 1, WRONG, False),
        (0, LARGEST_EPOCH, NONE, False),
        (0, -1, NONE, True),
        (0, 0, NONE, True),
        (9, -2, UNKNOWN, True),
        (9, -2, NONE, False),
    ],
)
def test_pair_that_names_no_session(session: int, epoch: int, error: int, right: bool) -> None:
    order, _, trace = session_checks()
    trace.fetch(session, epoch, error, session_id=0)
    assert (order.violations == []) is right


@pytest.mark.clause("F-7")
@pytest.mark.parametrize(("error", "right"), [(NONE, True), (TOPIC_ID_ERROR, True), (OTHER_ERROR, False)])
def test_right_epoch_has_few_other_errors(error: int, right: bool) -> None:
    order, _, trace = session_checks()
    trace.fetch(9, 1, error)
    assert (order.violations == []) is right


def test_error_about_topic_ids_changes_nothing() -> None:
    order, _, trace = session_checks()
    trace.fetch(9, 1, TOPIC_ID_ERROR)
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
    trace.reply(9, 1, UNKNOWN if ended else WRONG, connection=1)
    assert bool(order.violations) is not (overtaken or ended)


def test_refused_request_does_not_overtake_others() -> None:
    order, _, trace = session_checks()
    trace.request(9, 1, connection=1)
    trace.fetch(9, 7, WRONG)
    trace.request(9, 1, connection=1)
    assert order.violations == []
    order, _, trace = session_checks()
    trace.request(9, 1, connection=1)
    trace.request(9, 7, connection=2)
    trace.reply(9, 7, WRONG, connection=2)
    trace.reply(9, 1, WRONG, connection=1)
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
def test_session_id_in_response_to_full_fetch(session: int, epoch: int, session_id: int, right: bool) -> None:
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
        ([row("request", 1), row("reply", 1, OTHER_ERROR)], False),
        ([row("request", 3), row("reply", 3, OTHER_ERROR)], False),
        ([row("request", 1), row("reply", 1, 10002)], True),
        ([row("request", 1), row("session_evicted"), row("reply", 1, REFUSED)], True),
        ([row("session_evicted"), row("request", 1), row("reply", 1, OTHER_ERROR)], False),
        (
            [
                row("request", 1, connection=1),
                row("request", 3, connection=2),
                row("reply", 3, REFUSED, connection=2),
                row("reply", 1, REFUSED, connection=1),
            ],
            False,
        ),
    ],
)
def test_number_of_the_first_revision_has_few_other_errors(rows: list[TraceRow], right: bool) -> None:
    check = SequenceOrder(check_context())
    for each in (CREATED, *rows):
        check.trace(each)
    assert (check.violations == []) is right


@pytest.mark.clause("G-4")
@pytest.mark.parametrize(
    ("number", "error", "right"), [(1, REFUSED, True), (1, ErrorCode.none, False), (0, ErrorCode.none, True)]
)
def test_incremental_request_without_a_session(number: int, error: int, right: bool) -> None:
    check = SequenceOrder(check_context())
    for what in ("request", "reply"):
        code = error if what == "reply" else 0
        check.trace(TraceRow(0, 0, 0, 0, what, 1, "f", 1, FIRST_REVISION, 0, number, 0, code, "{}"))
    assert (check.violations == []) is right


@pytest.mark.clause("G-3")
@pytest.mark.parametrize(("second", "error", "right"), [(1, NONE, True), (1, REFUSED, False), (2, REFUSED, True)])
def test_waiting_request_is_overtaken_by_a_later_one_and_not_by_itself(second: int, error: int, right: bool) -> None:
    order = SequenceOrder(check_context())
    requests = [row("request", 1, connection=1), row("request", second, connection=2)]
    for each in (CREATED, *requests, row("reply", 1, error, connection=1), row("reply", second, connection=2)):
        order.trace(each)
    assert (order.violations == []) is right
