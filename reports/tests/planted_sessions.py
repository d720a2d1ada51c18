"""One violation each of the guarantees of fetch sessions, and legal near misses."""

import json
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
    mine[-1].update(error=71, response_session_id=0)


def _first_revision(history: History, shift: int) -> list[Row]:
    """Turn the longest session into one of the first revision, with each number from the fifth fetch on raised by
    ``shift``."""
    mine = _session(history)
    for row in mine:
        row["api_version"] = 1000
    for row in mine[8:]:
        row["session_epoch"] = int_of(row, "session_epoch") + shift
    return mine


def legal_retransmission(history: History) -> None:
    """The fourth number of a first revision's session comes twice, and is accepted twice."""
    _first_revision(history, -1)


def _parked_while_sent_again(history: History, more: int) -> Row:
    """The last number waits, and is refused when a number comes on another connection that is ``more`` and is served.
    Returns the request that waits."""
    response = _first_revision(history, 0)[-1]
    for row in history.tables["trace"]:
        row["seq"] = 4 * int_of(row, "seq")
    at = int_of(response, "seq")
    again = {**response, "connection": -6, "session_epoch": int_of(response, "session_epoch") + more}
    request = {**again, "seq": at - 1, "what": "request", "response_session_id": 0}
    history.tables["trace"] += [request, {**again, "seq": at + 1}]
    response.update(error=10001, response_session_id=0)
    return request


def legal_overtaking(history: History) -> None:
    _parked_while_sent_again(history, 1)


def legal_overtaking_by_a_full_request(history: History) -> None:
    request = _parked_while_sent_again(history, 1)
    full = [row for row in history.tables["trace"] if row["connection"] == -6]
    for row in full:
        row["session_epoch"] = 0
    assert request in full


def _earlier_full_request(history: History, reply_after: int) -> None:
    """A full request comes before the number that is refused, on another connection. Its response comes as many rows
    after the refusal, or before it."""
    request = _parked_while_sent_again(history, 1)
    rows = history.tables["trace"]
    (response,) = [row for row in rows if row["connection"] == -6 and row["what"] == "reply"]
    (refused,) = [row for row in rows if row["seq"] == int_of(response, "seq") - 1 and row["error"] == 10001]
    same = ("node", "incarnation", "connection", "session_id", "session_epoch")
    waiting = [row for row in rows if row["what"] == "request" and all(row[each] == refused[each] for each in same)]
    request.update(seq=min(int_of(row, "seq") for row in waiting) - 1, session_epoch=0)
    response.update(seq=int_of(refused, "seq") + reply_after, session_epoch=0)


def legal_overtaking_by_an_earlier_full_request(history: History) -> None:
    _earlier_full_request(history, 1)


def plant_refused_after_a_full_request(history: History) -> None:
    """The full request has its response already, so it was handled before and overtakes nothing."""
    _earlier_full_request(history, -1)


def plant_two_refused_beside_one_full_request(history: History) -> None:
    """A full request overtakes one number. It excuses no second refusal."""
    _earlier_full_request(history, 3)
    rows = history.tables["trace"]
    (response,) = [row for row in rows if row["connection"] == -6 and row["what"] == "reply"]
    (refused,) = [row for row in rows if row["seq"] == int_of(response, "seq") - 3 and row["error"] == 10001]
    at = int_of(refused, "seq")
    again = {**refused, "connection": -7}
    rows += [{**again, "seq": at + 1, "what": "request", "error": 0}, {**again, "seq": at + 2}]


def plant_refused_by_its_own_retransmission(history: History) -> None:
    """A repeated number is no proof that its first response is not awaited (G-3)."""
    _parked_while_sent_again(history, 0)


def plant_refused_for_an_older_number(history: History) -> None:
    """An earlier number is repeated and served. It proves nothing about the pending number (G-3)."""
    _parked_while_sent_again(history, -1)


def plant_refused_after_a_retransmission(history: History) -> None:
    """The last number is refused at once. The number before it was accepted, came again, and waited until then."""
    request, response = _first_revision(history, 0)[-2:]
    for row in history.tables["trace"]:
        row["seq"] = 4 * int_of(row, "seq")
    at = int_of(request, "seq")
    again = {**request, "connection": -6, "session_epoch": int_of(request, "session_epoch") - 1, "seq": at - 1}
    history.tables["trace"] += [again, {**again, "what": "reply", "seq": at + 1, "error": 10001}]
    response.update(error=10001, response_session_id=0)


def plant_draft_error_outside_drafts(history: History) -> None:
    """An unknown session is refused with an error of the drafts (D-2)."""
    _session(history)[-1].update(error=10001, response_session_id=0)
    for row in _session(history)[-2:]:
        row["session_id"] = 77


def plant_other_error(history: History) -> None:
    _session(history)[-1].update(error=56)


def legal_topic_id_error(history: History) -> None:
    _session(history)[-1].update(error=106)


def plant_closed_for_an_epoch(history: History, api_version: int = 17) -> None:
    """The last request has a wrong epoch, and ends the session."""
    request, response = _session(history)[-2:]
    for row in history.tables["trace"]:
        row["seq"] = 4 * int_of(row, "seq")
    for row in _session(history):
        row["api_version"] = api_version
    for row in (request, response):
        row["session_epoch"] = int_of(row, "session_epoch") + 5
    response.update(error=71 if api_version == 17 else 10001, response_session_id=0)
    made = history.rows("trace", what="session_created")[0]
    note = json.dumps({"session_id": request["session_id"], "reason": "wrong epoch"})
    history.tables["trace"].append(
        {**made, "incarnation": request["incarnation"], "seq": int_of(request, "seq") + 1, "what": "session_closed"}
        | {"at_us": request["at_us"], "detail": note}
    )


def plant_closed_for_a_number(history: History) -> None:
    plant_closed_for_an_epoch(history, 1000)


def plant_response_of_another_session(history: History) -> None:
    _session(history)[-1]["response_session_id"] = 77


def plant_response_without_its_session(history: History) -> None:
    _session(history)[-1]["response_session_id"] = 0


def _made_again(history: History, notes: list[str]) -> None:
    """After its last response a session's ID is in each of these notes. No request uses it."""
    last = _session(history)[-1]
    made = history.rows("trace", what="session_created", incarnation=last["incarnation"])[0]
    note = json.dumps({**json.loads(str(made["detail"])), "session_id": last["session_id"]})
    for place, what in enumerate(notes):
        history.tables["trace"].append({**made, "what": what, "detail": note, "seq": 10**7 + place})


def plant_session_made_twice(history: History) -> None:
    _made_again(history, ["session_created"])


def plant_ids_made_again(history: History) -> None:
    _made_again(history, ["session_closed", "session_created"] * 2)


def legal_id_made_again(history: History) -> None:
    """F-2 requires random IDs, so that of an ended session may occur again."""
    _made_again(history, ["session_closed", "session_created"])


def plant_session_for_who_wants_none(history: History) -> None:
    """A sessionless full fetch opens a session (F-4), which no request uses."""
    _full_fetch(history, epoch=-1, session=88)


def legal_full_fetch_without_a_session(history: History) -> None:
    _full_fetch(history, epoch=-1, session=0)


def plant_full_fetch_with_response_of_old_session(history: History) -> None:
    _full_fetch(history, epoch=0, session=77)


def _full_fetch(history: History, epoch: int, session: int) -> None:
    last = _session(history)[-1]
    row = {**last, "connection": -7, "session_id": 0, "session_epoch": epoch, "response_session_id": session}
    request = {**row, "seq": 10**7, "what": "request", "response_session_id": 0}
    made = history.rows("trace", what="session_created")[0]
    note = {**made, "incarnation": last["incarnation"], "seq": 10**7 + 1, "detail": json.dumps({"session_id": 88})}
    history.tables["trace"] += [request, *([note] if session == 88 else []), {**row, "seq": 10**7 + 2}]


def plant_number_skipped(history: History) -> None:
    """A number of the first revision that is neither the last nor the next one is accepted."""
    _first_revision(history, 1)


def plant_number_refused(history: History) -> None:
    """The next number is refused at once, by the error that is used for unknown sessions too."""
    _first_revision(history, 0)[-1].update(error=10001, response_session_id=0)


def plant_session_lost(history: History) -> None:
    last = _session(history)[-1]
    last.update(error=70, response_session_id=0)


def legal_wrap_and_fetch_without_a_reply(history: History) -> None:
    """A preset lets every session begin at 2^31-2; after 2^31-1 comes 1; a fetch without a reply may count."""
    first = 2**31 - 2
    reply = _session(history)[7]  # the reply to a fourth fetch
    for row in history.tables["trace"]:
        epoch = int_of(row, "session_epoch")
        row["session_epoch"] = (epoch + first - 2) % (2**31 - 1) + 1 if epoch >= 1 else epoch
    history.drop("trace", reply)
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
    "number overtaken by a full request": (legal_overtaking_by_a_full_request, set()),
    "number overtaken by an earlier full request": (legal_overtaking_by_an_earlier_full_request, set()),
    "number refused after a full request": (plant_refused_after_a_full_request, {"session-epoch-order"}),
    "number refused by itself": (plant_refused_by_its_own_retransmission, {"session-epoch-order"}),
    "number refused for an older one": (plant_refused_for_an_older_number, {"session-epoch-order"}),
    "number refused after one sent again": (plant_refused_after_a_retransmission, {"session-epoch-order"}),
    "draft error outside drafts": (plant_draft_error_outside_drafts, {"session-epoch-order"}),
    "other error": (plant_other_error, {"session-epoch-order"}),
    "topic IDs mixed": (legal_topic_id_error, set()),
    "number skipped": (plant_number_skipped, {"session-epoch-order"}),
    "number refused": (plant_number_refused, {"session-epoch-order"}),
    "session-lost": (plant_session_lost, {"session-lost", "session-epoch-order"}),
    "closed for an epoch": (plant_closed_for_an_epoch, {"session-lost"}),
    "closed for a number": (plant_closed_for_a_number, {"session-lost"}),
    "response of another session": (plant_response_of_another_session, {"session-lost"}),
    "response without its session": (plant_response_without_its_session, {"session-lost"}),
    "session made twice": (plant_session_made_twice, {"session-lost"}),
    "IDs made again": (plant_ids_made_again, {"session-lost"}),
    "ID made again": (legal_id_made_again, set()),
    "session for who wants none": (plant_session_for_who_wants_none, {"session-lost"}),
    "full fetch without a session": (legal_full_fetch_without_a_session, set()),
    "old session for a full fetch": (plant_full_fetch_with_response_of_old_session, {"session-lost"}),
    "two numbers refused beside a full request": (plant_two_refused_beside_one_full_request, {"session-epoch-order"}),
}
