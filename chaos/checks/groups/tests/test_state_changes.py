"""Moves of a group: none is a violation while a coordinator follows Kafka's rules, and each other step is."""

import pytest

from chaos.checks.groups.responses import HEARTBEAT, JOIN, SYNC
from chaos.checks.groups.tests.classic_group import (
    A,
    B,
    Coordinator,
    first_generation,
    heartbeat_reply,
    join_group_error_reply,
    member,
    stable_group,
    sync_group_reply,
)
from chaos.checks.groups.timeouts import NEW_MEMBER_US
from chaos.checks.tests.kafka_messages import heartbeat_request as heartbeat
from chaos.checks.tests.kafka_messages import join_group_request as joining
from chaos.checks.tests.kafka_messages import sync_group_request as syncing
from chaos.checks.tests.stub_node import StubGroupCoordinatorShard
from reference_broker.core.events import Closed
from reference_broker.groups.group import GroupState
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.clause("X-14")


def test_first_generation_is_clean() -> None:
    world = Coordinator()
    first_generation(world)
    world.park_sync(A)
    world.request(SYNC, syncing(generation=1, assignments={A: b"all"}))
    number = world.number
    world.respond_to_sync(A)
    world.handle_timer(world.stabilise(), sync_group_reply(b"all")._replace(connection=number))
    world.request(HEARTBEAT, heartbeat(generation=1), heartbeat_reply(ErrorCode.none))
    assert world.explanations == []
    assert world.check.evidence > 4


def test_static_member_that_returns_has_another_id() -> None:
    world = stable_group(member(B, "i", assignment=b"2"))
    world.group.replace_static("i", "b-2")
    world.park_join("b-2")
    world.request(JOIN, joining(instance="i"))
    number = world.number
    world.respond_to_join("b-2")
    world.handle_timer(world.joined("b-2", members=(), leader=B)._replace(connection=number))
    world.request(SYNC, syncing("b-2", instance="i"), sync_group_reply(b"2"))
    world.request(HEARTBEAT, heartbeat(B, instance="i"), heartbeat_reply(ErrorCode.fenced_instance_id))
    assert world.explanations == []
    world.request(HEARTBEAT, heartbeat(B, instance="i"), heartbeat_reply(ErrorCode.none))
    assert "got NONE, and FENCED_INSTANCE_ID is due" in world.explanations[0]


def test_generation_without_assignment_is_not_stable() -> None:
    world = Coordinator()
    first_generation(world)
    world.handle_timer(world.stabilise())
    assert "generation 1 is Stable, and its leader has assigned nothing" in world.explanations[0]
    world = stable_group(member(A), member(B))
    world.handle_timer(world.begin(), after_us=1)
    for each in (A, B):
        world.park_join(each)
    world.handle_timer(world.generation())
    world.request(SYNC, syncing(B, generation=4), world.stabilise(), sync_group_reply(b""))
    assert "generation 4 is Stable, and its leader has assigned nothing" in "".join(world.explanations)


def test_parked_requests_end_with_the_coordinator() -> None:
    for responds in (True, False):
        world = stable_group(member(A), member(B))
        world.park_join(A)
        world.request(JOIN, joining(A), world.begin())
        number = world.number
        world.request(JOIN, joining("x"), join_group_error_reply(ErrorCode.unknown_member_id, "x"))
        world.node.broker.groups.shards = [StubGroupCoordinatorShard(index=7)]
        replies = [join_group_error_reply(ErrorCode.not_coordinator)._replace(connection=number)] if responds else []
        world.unload(*replies)
        world.inspect_later(3_000_000)
        assert bool(world.explanations) is not responds
    assert "left JoinGroup of client to group g without a response" in world.explanations[0]


def test_request_whose_connection_is_closed_needs_no_response() -> None:
    world = stable_group(member(A), member(B))
    world.park_join(A)
    world.request(JOIN, joining(A), world.begin())
    world.unload()
    world.handle(Closed(world.number))
    world.inspect_later(3_000_000)
    assert world.explanations == []


def test_parked_request_without_any_response_is_found() -> None:
    world = stable_group(member(A), member(B))
    world.park_join(A)
    world.request(JOIN, joining(A), world.begin())
    world.respond_to_join(A)
    world.request(HEARTBEAT, heartbeat(B), heartbeat_reply(ErrorCode.rebalance_in_progress))
    assert "JoinGroup of client wait" in world.explanations[0]


def test_group_with_members_is_not_deleted_and_no_state_changes_in_silence() -> None:
    world = stable_group(member(A))
    world.group.state = GroupState.PREPARING_REBALANCE
    world.inspect()
    assert "when it moved last" in world.explanations[0]
    world = stable_group(member(A))
    world.partition.groups.clear()
    world.request(HEARTBEAT, heartbeat(), heartbeat_reply(ErrorCode.unknown_member_id))
    assert "it is gone, and was Stable" in "\n".join(world.explanations)


def test_first_join_of_a_member_may_be_parked_for_five_minutes() -> None:
    world = stable_group(member(A))
    world.add_joining(member(B, is_new=True))
    world.request(JOIN, joining(instance=None), world.begin(), version=3)
    assert world.check._groups[1]["g"].sessions[B] == (world.now_us + NEW_MEMBER_US,) * 2
