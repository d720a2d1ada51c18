"""The interceptor's rules for roles, for the notes of a node, and for responses of other nodes."""

from dataclasses import replace
from random import Random

import pytest

from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.rules import SharedHitCounter, rules_for
from chaos.interceptor.tests.intercepted import (
    FETCH,
    NOW,
    SNAPSHOT,
    Ended,
    Log,
    interceptor,
    peer_response,
    reply,
    request,
    rule,
    send,
)
from reference_broker.core.events import Effect, Note, PeerDown, PeerReply, Send
from reference_broker.ports.node_ports import Channel
from scenarios.loader import find
from scenarios.model import Fault, Match, Range


@pytest.mark.parametrize(
    ("wanted", "role", "hits"),
    [
        ("leader", "leader", 1),
        ("leader", "follower", 0),
        ("observer", "observer", 1),
        ("any", "follower", 1),
        (3, "", 1),
        (2, "leader", 0),
    ],
)
def test_rule_for_a_role_fires_only_while_the_node_is_that(wanted: int | str, role: str, hits: int) -> None:
    log = Log()
    interceptor(log, rule("node_paused", node=wanted), node=3, role=role).before(NOW, request())
    assert len(log.rows) == hits


def test_matches_are_counted_only_while_the_node_has_the_role() -> None:
    log, roles = Log(), ["follower", "follower", "leader", "leader"]
    subject = Interceptor(
        0, [rule("node_paused", node="leader", nth=2)], log, Random(1), 0, SharedHitCounter(), lambda: roles[0]
    )
    while roles:
        subject.before(NOW, request())
        roles.pop(0)
        assert len(log.rows) == (0 if roles else 1)


def test_role_is_watched_on_all_nodes_and_a_number_on_one() -> None:
    scenario = replace(
        find("1"),
        faults=(Fault("a", "node_killed", "note", node="leader"), Fault("b", "node_killed", "note", node=1)),
    )
    names = [[each.name for each in rules_for(scenario, node, Random(1))] for node in range(3)]
    assert names == [["a"], ["a", "b"], ["a"]]


COMMITTED = Note("metadata_committed", (("offset", 9), ("kind", "batch"), ("number", 3), ("of", 5)))


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(note="metadata_committed"), True),
        (Match(note="metadata_appended"), False),
        (Match(note="metadata_committed", fields=(("kind", "[be]*"),)), True),
        (Match(note="metadata_committed", fields=(("kind", "end"),)), False),
        (Match(note="metadata_committed", fields=(("number", Range(3, 4)), ("remaining", Range(2, 2)))), True),
        (Match(note="metadata_committed", fields=(("remaining", Range(0, 0)),)), False),
        (Match(note="metadata_committed", fields=(("unknown", Range(0, 99)),)), False),
        (Match(note="metadata_committed", role="leader"), True),
        (Match(note="metadata_committed", role="observer"), False),
    ],
)
def test_note_is_matched_by_its_name_and_fields(match: Match, hit: bool) -> None:
    log = Log()
    effects: list[Effect] = [COMMITTED, reply(request())]
    subject = interceptor(log, rule("node_paused", on="note", match=match, duration_us=5), role="leader")
    assert list(subject.after(NOW, request(), effects)) == effects
    assert [call[0] for call in log.calls] == (["report", "pause"] if hit else [])
    if hit:
        assert log.rows[0].detail == "leader metadata_committed offset=9 kind=batch number=3 of=5"


def test_kill_at_note_suppresses_all_output_of_the_event() -> None:
    log = Log()
    killed = rule("node_killed", on="note", match=Match(note="metadata_committed"))
    with pytest.raises(Ended):
        interceptor(log, killed).after(NOW, request(), [reply(request()), COMMITTED])


def send_requests(subject: Interceptor, *sends: Send) -> None:
    assert list(subject.after(NOW, request(), sends)) == list(sends)


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(), True),
        (Match(api=SNAPSHOT, position=Range(256, 300), role="follower", from_node=2), True),
        (Match(api=FETCH), False),
        (Match(position=Range(0, 255)), False),
        (Match(from_node=1), False),
        (Match(role="observer"), False),
    ],
)
def test_response_of_another_node_is_matched_by_its_request(match: Match, hit: bool) -> None:
    log = Log()
    subject = interceptor(log, rule("node_paused", on="peer_response", match=match), role="follower")
    send_requests(subject, send(7, position=256))
    assert list(subject.before(NOW, peer_response(7))) == [peer_response(7)]
    assert [row.detail for row in log.rows] == (["from node-2"] if hit else [])


def test_doubled_response_comes_in_the_place_of_the_next_one_of_its_kind() -> None:
    log = Log()
    subject = interceptor(log, rule("response_duplicated", on="peer_response", match=Match(api=SNAPSHOT), total=1))
    send_requests(subject, send(1))
    assert list(subject.before(NOW, peer_response(1))) == [peer_response(1)]
    send_requests(subject, send(2, api=FETCH))
    assert [call[0] for call in log.calls] == ["report"]
    send_requests(subject, send(3, position=5))
    assert log.calls[-1] == ("deliver_later", peer_response(3), 0)
    again = log.calls[-1][1]
    assert isinstance(again, PeerReply)
    assert list(subject.before(NOW, again)) == [again]
    assert list(subject.before(NOW, peer_response(3, b"true"))) == [peer_response(3, b"true")]


def test_delayed_response_holds_back_what_follows_on_its_channel() -> None:
    log = Log()
    subject = interceptor(log, rule("response_delayed", on="peer_response", delay_ms=Range(3, 3), total=1))
    send_requests(subject, send(1), send(2))
    late, following, down = peer_response(1), peer_response(2), PeerDown(2, Channel.RAFT)
    other = PeerDown(1, Channel.RAFT)
    assert list(subject.before(NOW, late)) == []
    assert log.calls[-1] == ("deliver_later", late, 3000)
    assert list(subject.before(NOW, following)) == []
    assert list(subject.before(NOW, down)) == []
    assert list(subject.before(NOW, other)) == [other]
    assert list(subject.before(NOW, late)) == [late, following, down]
    assert list(subject.before(NOW, down)) == [down]
