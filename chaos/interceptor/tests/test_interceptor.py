"""The interceptor's rules, as tables: which frame is hit, what happens then, and what is left as evidence."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.interceptor.rules import Counter, FileHitCounter, HitCounter, SharedHitCounter, rules_for
from chaos.interceptor.tests.intercepted import FETCH, NOW, PRODUCE, Ended, Log, interceptor, reply, request, rule
from reference_broker.core.events import Close, Closed, Effect, Note, Opened, Request
from reference_broker.wire.errors import ErrorCode
from reports.rows import FaultRow
from scenarios.loader import find
from scenarios.model import Fault, Match, Range


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(), True),
        (Match(api=FETCH), True),
        (Match(api=PRODUCE), False),
        (Match(client_id="fetcher-*"), True),
        (Match(client_id="producer-*"), False),
        (Match(session=True), True),
        (Match(session=False), False),
        (Match(session_epoch=Range(3, 3)), True),
        (Match(session_epoch=Range(4, 9)), False),
        (Match(error=0), True),
        (Match(error=ErrorCode.invalid_fetch_session_epoch), False),
        (Match(role="peer"), False),
        (Match(position=Range(0, 10)), False),
        (
            Match(api=FETCH, client_id="fetcher-1", session=True, session_epoch=Range(1, 3), error=0, role="client"),
            True,
        ),
    ],
)
def test_rule_hits_exactly_the_frames_that_it_names(match: Match, hit: bool) -> None:
    log = Log()
    seen = interceptor(log, rule("request_dropped", match=match)).before(NOW, request())
    assert (list(seen) == []) is hit
    assert (len(log.rows) == 1) is hit


@pytest.mark.parametrize(
    ("counting", "hits"),
    [
        ({}, "1"),
        ({"nth": 3}, "3"),
        ({"nth": 2, "every": 3, "times": 0}, "2 5 8"),
        ({"nth": 1, "every": 1, "times": 4}, "1 2 3 4"),
        ({"nth": 1, "every": 2, "times": 0, "total": 2}, "1 3"),
        ({"nth": 1, "every": 1, "times": 0, "after_us": 4, "until_us": 6}, "4 5"),
    ],
)
def test_rule_hits_the_counted_matches_of_one_client(counting: dict[str, Any], hits: str) -> None:
    counter = Counter(rule("request_dropped", **counting), SharedHitCounter())
    assert " ".join(str(at) for at in range(1, 9) if counter.count_match("one", at)) == hits


def test_each_client_is_counted_by_itself_and_total_over_all() -> None:
    counter = Counter(rule("request_dropped", nth=2, total=2), SharedHitCounter())
    order = ["a", "b", "a", "b", "c", "c"]
    assert [counter.count_match(client, 0) for client in order] == [0, 0, 1, 2, 0, 0]


@pytest.mark.parametrize("between_processes", [False, True])
def test_total_counts_over_all_nodes_and_incarnations(between_processes: bool, tmp_path: Path) -> None:
    shared = SharedHitCounter()
    hits = []
    for node in (0, 1, 1, 2):
        hit_counter: HitCounter = FileHitCounter(tmp_path / "hit-counts") if between_processes else shared
        log = Log()
        interceptor(log, rule("node_paused", total=2), hit_counter=hit_counter, node=node).before(NOW, request())
        hits.append([row.hit for row in log.rows])
    assert hits == [[1], [2], [], []]


def test_range_is_drawn_from_the_seed() -> None:
    fault = Fault("f", "request_dropped", "request", nth=Range(1, 1000))
    scenario = replace(find("1"), faults=(fault,))
    draws = [rules_for(scenario, 0, Random(seed))[0].nth for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_evidence_names_the_frame_and_comes_before_the_kill() -> None:
    log = Log()
    subject = interceptor(log, rule("node_killed"))
    with pytest.raises(Ended):
        subject.before(NOW, request())
    assert [call[0] for call in log.calls] == ["report", "kill"]
    assert log.rows == [FaultRow("rule", "node_killed", 1_000_000, 1_000_000, "node-0", 1, "fetcher-1", FETCH, 9, 3)]


@pytest.mark.parametrize(
    ("more", "kind", "call"),
    [
        ({"duration_us": 7}, "node_paused", ("pause", 7)),
        ({"step_ms": -3}, "clock_stepped", ("step_clock", -3)),
    ],
)
def test_fault_of_the_node_lets_the_frame_pass(more: dict[str, Any], kind: str, call: tuple[object, ...]) -> None:
    log = Log()
    assert list(interceptor(log, rule(kind, **more)).before(NOW, request())) == [request()]
    assert log.calls[1] == call
    assert [row.detail for row in log.rows] == ["step_ms=-3" if kind == "clock_stepped" else ""]


@pytest.mark.parametrize("kind", ["node_killed", "node_powered_off", "host_lost"])
def test_kill_on_a_reply_sends_nothing(kind: str) -> None:
    log = Log()
    with pytest.raises(Ended):
        interceptor(log, rule(kind, on="response")).after(NOW, request(), [reply(request())])


def test_dropped_request_loses_its_connection() -> None:
    log = Log()
    assert list(interceptor(log, rule("request_dropped")).before(NOW, request(connection=8))) == []
    assert log.calls[1] == ("discard", 8)


def test_dropped_response_loses_its_connection_and_leaves_other_effects() -> None:
    log = Log()
    effects: Sequence[Effect] = [
        Note("a"),
        reply(request()),
        reply(request(connection=2, client="fetcher-2", session=0)),
    ]
    kept = interceptor(log, rule("response_dropped", on="response", match=Match(session=True))).after(
        NOW, request(), effects
    )
    assert list(kept) == [effects[0], effects[2]]
    assert log.calls[1] == ("discard", 1)


def test_delayed_response_goes_out_later() -> None:
    log = Log()
    late = reply(request())
    subject = interceptor(log, rule("response_delayed", on="response", delay_ms=Range(4, 4)))
    assert list(subject.after(NOW, request(), [late])) == []
    assert log.calls[1] == ("reply_later", late, 4000)


def test_duplicated_request_is_repeated_on_own_connection() -> None:
    log = Log()
    first, opened, again = interceptor(log, rule("request_duplicated")).before(NOW, request())
    assert first == request()
    assert isinstance(opened, Opened)
    assert isinstance(again, Request)
    assert again.connection == opened.connection < 0
    assert (again.body, again.tag, again.correlation_id) == (request().body, request().tag, request().correlation_id)


def test_response_to_the_second_copy_is_evidence_and_goes_nowhere() -> None:
    log = Log()
    subject = interceptor(log, rule("request_duplicated"))
    _, opened, again = subject.before(NOW, request())
    assert isinstance(again, Request)
    assert list(subject.after(NOW, again, [reply(again, error=ErrorCode.invalid_fetch_session_epoch)])) == []
    assert log.rows[-1].kind == "request_duplicated_response"
    assert log.rows[-1].detail == "responded with error 71"
    assert isinstance(opened, Opened)
    assert log.calls[-1] == ("deliver_later", Closed(opened.connection), 0)


def test_close_of_the_second_copy_is_evidence_too() -> None:
    log = Log()
    subject = interceptor(log, rule("request_duplicated"))
    _, _, again = subject.before(NOW, request())
    assert isinstance(again, Request)
    assert list(subject.after(NOW, again, [Close(again.connection, "why")])) == []
    assert log.rows[-1].detail == "closed: why"


def test_late_copy_is_delivered_through_before() -> None:
    log = Log()
    subject = interceptor(log, rule("request_duplicated", delay_ms=Range(2, 2)))
    assert list(subject.before(NOW, request())) == [request()]
    _, again, delay_us = log.calls[1]
    assert isinstance(again, Request)
    assert delay_us == 2000
    assert list(subject.before(NOW, again)) == [Opened(again.connection, "phantom"), again]


def test_delayed_request_is_held_and_then_passes_without_being_hit_again() -> None:
    log = Log()
    subject = interceptor(log, rule("request_delayed", every=1, times=0, delay_ms=Range(3, 3)))
    held = request()
    assert list(subject.before(NOW, held)) == []
    assert log.calls[1] == ("deliver_later", held, 3000)
    assert list(subject.before(NOW, held)) == [held]
    assert len(log.rows) == 1


def test_delayed_request_arrives_even_if_its_client_left() -> None:
    log = Log()
    subject = interceptor(log, rule("request_delayed", delay_ms=Range(3, 3)))
    held = request()
    subject.before(NOW, held)
    assert list(subject.before(NOW, Closed(held.connection))) == [Closed(held.connection)]
    opened, late = subject.before(NOW, held)
    assert isinstance(opened, Opened)
    assert isinstance(late, Request)
    assert late.connection == opened.connection != held.connection
    assert late.tag == held.tag


def test_disarmed_interceptor_injects_nothing() -> None:
    log = Log()
    subject = interceptor(log, rule("request_dropped"))
    subject.disarm()
    assert list(subject.before(NOW, request())) == [request()]
    assert log.calls == []
