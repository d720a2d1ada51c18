"""Responses of a group coordinator that differ from what its group and its leader demand."""

from typing import Any

import pytest

from chaos.checks.groups.responses import COMMIT, HEARTBEAT, JOIN, LEAVE, SYNC
from chaos.checks.groups.tests.classic_group import (
    A,
    B,
    heartbeat_reply,
    join_group_error_reply,
    member,
    offset_commit_reply,
    reply,
    stable_group,
    sync_group_reply,
)
from chaos.checks.tests.kafka_messages import heartbeat_request as heartbeat
from chaos.checks.tests.kafka_messages import join_group_request as joining
from chaos.checks.tests.kafka_messages import leave_group_request, leave_group_response, leaving_member
from chaos.checks.tests.kafka_messages import offset_commit_request as committing
from chaos.checks.tests.kafka_messages import sync_group_request as syncing
from reference_broker.core.events import Close, Reply, Request
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

pytestmark = pytest.mark.clause("X-14")


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        ({"generation_id": 2}, "got generation, type and protocol (2,"),
        ({"protocol_name": "sticky"}, "'sticky'"),
        ({"members": ()}, "leads and got members {}"),
        ({"leader": "x"}, "got leader x"),
        ({"member_id": "x"}, "joined as x, which is no member"),
    ],
)
def test_response_of_join_group_that_differs_from_the_group(change: dict[str, Any], explanation: str) -> None:
    world = stable_group(member(A))
    world.park_join(A)
    notes = [world.begin(), world.generation()]
    world.request(JOIN, joining(A), *notes, world.joined(A, **change))
    assert explanation in world.explanations[0]


def test_metadata_that_is_not_replaced() -> None:
    world = stable_group(member(A))
    body = joining(A, protocols={"range": b"new"})
    notes = [world.begin(), world.generation()]
    world.request(JOIN, body, *notes, world.joined(A))
    assert "joins with" in world.explanations[0]


def test_follower_gets_no_members_and_each_member_what_the_leader_sent() -> None:
    world = stable_group(member(A, assignment=b"1"), member(B, assignment=b"2"))
    world.request(SYNC, syncing(B), sync_group_reply(b"2"))
    world.request(SYNC, syncing(A), sync_group_reply(b"1"))
    assert world.explanations == []
    world.request(SYNC, syncing(B), sync_group_reply(b"1"))
    assert "got assignment b'1'" in world.explanations[0]


@pytest.mark.parametrize(("given", "is_right"), [(b"2", True), (b"1", False), (b"", False)])
def test_parked_members_get_what_the_leader_sends_in_the_same_event(given: bytes, is_right: bool) -> None:
    world = stable_group(member(A), member(B))
    world.park_join(B)
    world.request(JOIN, joining(B), world.begin())
    number = world.number
    world.park_join(A)
    notes = [world.generation()]
    world.number += 1
    joins = Request(world.number, 1, JOIN, 9, "client", joining(A), Tag(JOIN, 9, "client", 0, -1))
    joined = [world.joined(key)._replace(connection=of) for key, of in ((A, world.number), (B, number))]
    world.handle(joins, *notes, *joined)
    world.park_sync(B)
    world.request(SYNC, syncing(B, generation=4))
    parked = world.number
    world.respond_to_sync(B)
    sent = {A: b"1", B: b"2"}
    world.number += 1
    body, tag = syncing(A, generation=4, assignments=sent), Tag(SYNC, 9, "client", 0, -1)
    replies = (
        sync_group_reply(given)._replace(connection=parked),
        sync_group_reply(b"1")._replace(connection=world.number),
    )
    world.handle(Request(world.number, 1, SYNC, 9, "client", body, tag), world.stabilise(), *replies)
    if is_right:
        assert world.explanations == []
    else:
        assert len(world.explanations) == 1
        assert f"got assignment {given!r}, and the leader sent" in world.explanations[0]


@pytest.mark.parametrize(
    ("api_key", "body", "response", "explanation"),
    [
        (
            HEARTBEAT,
            heartbeat(generation=2),
            heartbeat_reply(ErrorCode.none),
            "got NONE, and ILLEGAL_GENERATION is due",
        ),
        (HEARTBEAT, heartbeat(), heartbeat_reply(ErrorCode.unknown_member_id), "got UNKNOWN_MEMBER_ID, for no reason"),
        (SYNC, syncing("x"), sync_group_reply(b""), "got NONE, and UNKNOWN_MEMBER_ID is due"),
        (
            JOIN,
            joining("x"),
            join_group_error_reply(ErrorCode.illegal_generation, "x"),
            "got ILLEGAL_GENERATION, and UNKNOWN_MEMBER_ID is due",
        ),
        (JOIN, joining("x"), None, "is parked, and UNKNOWN_MEMBER_ID is due"),
        (
            LEAVE,
            leave_group_request(leaving_member("x")),
            reply(LEAVE, leave_group_response(ErrorCode.none)),
            "got ['NONE'], and ['UNKNOWN_MEMBER_ID'] are due",
        ),
    ],
)
def test_response_that_is_not_due(api_key: int, body: Any, response: Reply | None, explanation: str) -> None:
    world = stable_group(member(A))
    world.request(api_key, body, *([] if response is None else [response]))
    assert explanation in world.explanations[0]


@pytest.mark.parametrize(("connection", "is_red"), [(1, False), (2, True)])
def test_no_response_is_due_on_a_connection_that_the_node_closes(connection: int, is_red: bool) -> None:
    world = stable_group(member(A))
    world.request(JOIN, joining("x"), Close(connection, "the node is shutting down"))
    assert bool(world.explanations) is is_red


def test_delayed_commit_response_is_fenced() -> None:
    world = stable_group(member(A))
    world.request(COMMIT, committing(), offset_commit_reply(ErrorCode.none))
    world.request(COMMIT, committing(generation=2), offset_commit_reply(ErrorCode.illegal_generation))
    world.request(COMMIT, committing("", -1), offset_commit_reply(ErrorCode.unknown_member_id))
    assert world.explanations == []
    world.request(COMMIT, committing("", -1))
    world.handle_timer(offset_commit_reply(ErrorCode.none, connection=world.number))
    assert "is acknowledged, and UNKNOWN_MEMBER_ID is due" in world.explanations[0]
    world.request(COMMIT, committing(), offset_commit_reply(ErrorCode.illegal_generation))
    assert "got ILLEGAL_GENERATION, and NONE is due" in world.explanations[1]


def test_commit_whose_member_came_and_went_meanwhile_is_not_judged() -> None:
    world = stable_group(member(A))
    world.request(COMMIT, committing(generation=4))
    number = world.number
    world.park_join(A)
    notes = [world.begin(), world.generation()]
    world.request(JOIN, joining(A), *notes, world.joined(A))
    world.handle_timer(offset_commit_reply(ErrorCode.none, connection=number))
    assert world.explanations == []
