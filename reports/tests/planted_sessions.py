"""One breach each of what fetch sessions promise, and what looks like one and is none."""

from collections.abc import Callable

from reports.tests.history import History, Row, int_of


def _session(history: History) -> list[Row]:
    """All requests and replies of a session that made many fetches, in order."""
    fetches = [row for row in history.rows("trace", what="request") if row["session_id"]]
    session = next(row["session_id"] for row in fetches if row["session_epoch"] == 12)
    return [row for row in history.tables["trace"] if row["session_id"] == session]


def plant_session_epoch_order(history: History) -> None:
    """A session's fifth fetch is accepted with the epoch of its fourth."""
    mine = _session(history)
    for row in mine[8:10]:
        row["session_epoch"] = int_of(row, "session_epoch") - 1


def plant_session_refused(history: History) -> None:
    """The expected epoch is refused as wrong, at once."""
    mine = _session(history)
    assert mine[-1]["what"] == "reply"
    mine[-1].update(error=71, answered_session_id=0)


def _first_revision(history: History, shift: int) -> list[Row]:
    """Its longest session in that revision; from the fifth fetch on each number is ``shift`` more."""
    mine = _session(history)
    for row in mine:
        row["api_version"] = 1000
    for row in mine[8:]:
        row["session_epoch"] = int_of(row, "session_epoch") + shift
    return mine


def legal_retransmission(history: History) -> None:
    """The fourth number of a first revision's session comes twice, and is accepted twice."""
    _first_revision(history, -1)


def legal_overtaking(history: History) -> None:
    """A number comes again on another connection while it waits: who waits is refused then, the other is served."""
    answer = _first_revision(history, 0)[-1]
    for row in history.tables["trace"]:
        row["seq"] = 4 * int_of(row, "seq")
    at = int_of(answer, "seq")
    again = {**answer, "connection": -6}
    asked = {**again, "seq": at - 1, "what": "request", "answered_session_id": 0}
    history.tables["trace"] += [asked, {**again, "seq": at + 1}]
    answer.update(error=10001, answered_session_id=0)


def plant_number_skipped(history: History) -> None:
    """A number of the first revision that is neither the last nor the next one is accepted."""
    _first_revision(history, 1)


def plant_number_refused(history: History) -> None:
    """The next number is refused at once, by the error that stands for unknown sessions too."""
    _first_revision(history, 0)[-1].update(error=10001, answered_session_id=0)


def plant_session_lost(history: History) -> None:
    last = _session(history)[-1]
    last.update(error=70, answered_session_id=0)


def legal_wrap_and_untold_fetch(history: History) -> None:
    """A preset lets every session begin at 2^31-2; after 2^31-1 comes 1; an untold fetch may have counted or not."""
    first = 2**31 - 2
    untold = _session(history)[7]  # the answer to a fourth fetch
    for row in history.tables["trace"]:
        epoch = int_of(row, "session_epoch")
        row["session_epoch"] = (epoch + first - 2) % (2**31 - 1) + 1 if epoch >= 1 else epoch
    history.drop("trace", untold)
    preset = {
        **history.tables["faults"][0],
        "name": "near_the_wrap",
        "kind": "preset_fetch_session_epoch",
        "at_us": 0,
        "until_us": 0,
        "session_epoch": first,
    }
    history.tables["faults"].append(preset)


PLANTED_SESSIONS: dict[str, tuple[Callable[[History], None], set[str]]] = {
    "session-epoch-order": (plant_session_epoch_order, {"session-epoch-order"}),
    "session refused": (plant_session_refused, {"session-epoch-order"}),
    "number sent again": (legal_retransmission, set()),
    "number overtaken": (legal_overtaking, set()),
    "number skipped": (plant_number_skipped, {"session-epoch-order"}),
    "number refused": (plant_number_refused, {"session-epoch-order"}),
    "session-lost": (plant_session_lost, {"session-lost"}),
}
