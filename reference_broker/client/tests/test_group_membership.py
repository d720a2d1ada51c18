"""One member and its coordinator: requests, and the effects of responses."""

from typing import Any

import pytest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from reference_broker.client import group_requests as requests
from reference_broker.client.consumer_protocol import (
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from reference_broker.client.group_membership import (
    Assigned,
    Failed,
    GroupConfig,
    GroupMembership,
    Joined,
    Left,
    Lost,
    MemberState,
    Revoked,
)
from reference_broker.client.group_requests import GroupCoordinator
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.tests.group_world import (
    NODE,
    NODES,
    RebalanceWorld,
    due,
    found,
    heartbeat_response,
    join_response,
    leave_response,
    sync_response,
)
from reference_broker.wire.errors import ErrorCode, known_error

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
COOPERATIVE = ("cooperative-sticky",)


def member(**more: Any) -> GroupMembership:
    config = GroupConfig("g", ("t",), heartbeat_interval_us=1000, backoff_us=100, **more)
    return GroupMembership(config, GroupCoordinator("g", backoff_us=100))


def expect(membership: GroupMembership, now: int, api_key: int) -> Any:
    request = due(membership.next_request(now))
    assert request.api_key == api_key
    return request


def given(*partitions: TopicPartition) -> SyncGroupResponse:
    return sync_response(0, encode_assignment(Assignment(partitions)))


def follow(
    membership: GroupMembership, now: int, *partitions: TopicPartition, generation: int = 1, protocol: str = "range"
) -> None:
    """Join a generation that another member leads."""
    expect(membership, now, requests.JOIN_GROUP)
    membership.responded(now, join_response(0, generation, protocol, "leader", "me"))
    expect(membership, now, requests.SYNC_GROUP)
    membership.responded(now, given(*partitions))


def joined_member(*partitions: TopicPartition, now: int = 0, **more: Any) -> GroupMembership:
    membership = member(**more)
    expect(membership, now, requests.FIND_COORDINATOR)
    membership.responded(now, found())
    follow(membership, now, *partitions, protocol=membership.config.protocols[0])
    membership.take_events()
    return membership


def test_new_member_finds_coordinator_joins_syncs_and_sends_heartbeats() -> None:
    membership = member()
    assert expect(membership, 0, requests.FIND_COORDINATOR).to is None
    membership.responded(0, found())
    first = expect(membership, 0, requests.JOIN_GROUP)
    assert (first.to, first.body.member_id) == (NODE, "")
    membership.responded(0, join_response(79, member_id="me"))
    assert expect(membership, 0, requests.JOIN_GROUP).body.member_id == "me"
    membership.responded(0, join_response(0, 5, "range", "leader", "me"))
    sync = expect(membership, 0, requests.SYNC_GROUP).body
    assert sync.generation_id == 5
    assert sync.member_id == "me"
    assert sync.protocol_name == "range"
    assert sync.assignments == ()
    membership.responded(0, given(T0))
    assert membership.take_events() == [Joined(5, "me", False), Assigned((T0,), 5)]
    assert (membership.next_request(999), membership.wake_at_us) == (None, 1000)
    assert expect(membership, 1000, requests.HEARTBEAT).body.generation_id == 5


def test_leader_requests_unknown_topics_then_assigns() -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    rows = [(each, None, encode_subscription(Subscription(("t", "u")))) for each in ("a", "me")]
    membership.responded(0, join_response(0, 1, "range", "me", "me", rows))
    assert membership.wanted_topics == ("t", "u")
    assert (membership.next_request(0), membership.wake_at_us) == (None, None)
    membership.learn_partitions({"t": 3})
    sent = {
        assignment.member_id: assignment.assignment
        for assignment in expect(membership, 0, requests.SYNC_GROUP).body.assignments
    }
    assert sent == {"a": encode_assignment(Assignment((T0, T1))), "me": encode_assignment(Assignment((T2,)))}


def test_only_leader_rejoins_when_topic_grows() -> None:
    membership = member()
    membership.learn_partitions({"t": 1})
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    row = ("me", None, encode_subscription(Subscription(("t",))))
    membership.responded(0, join_response(0, 1, "range", "me", "me", [row]))
    membership.next_request(0)
    membership.responded(0, given(T0))
    membership.learn_partitions({"t": 1})
    assert membership.next_request(0) is None
    membership.learn_partitions({"t": 2})
    assert membership.next_request(0) is None  # First it revokes its partitions.
    assert membership.state is MemberState.RELEASING

    other = joined_member(T0)
    other.learn_partitions({"t": 5})
    assert other.next_request(0) is None
    assert other.state is MemberState.STABLE


def test_leader_with_skip_assignment_assigns_nothing() -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    row = ("me", "i", encode_subscription(Subscription(("t",))))
    membership.responded(0, join_response(0, 1, "range", "me", "me", [row], skip=True))
    assert expect(membership, 0, requests.SYNC_GROUP).body.assignments == ()


def test_eager_member_revokes_all_before_rejoin() -> None:
    membership = joined_member(T0, T1)
    expect(membership, 1000, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_response(27))
    assert membership.next_request(1000) is None
    assert membership.take_events() == [Revoked((T0, T1), 1)]
    assert expect(membership, 2000, requests.HEARTBEAT)  # It sends heartbeats while the application commits.
    membership.responded(2000, heartbeat_response(27))
    membership.release()
    again = expect(membership, 2000, requests.JOIN_GROUP).body
    assert again.member_id == "me"
    assert decode_subscription(again.protocols[0].metadata).owned == ()


def test_cooperative_member_keeps_partitions_and_rejoins_after_revocation() -> None:
    membership = joined_member(T0, T1, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    again = expect(membership, 0, requests.JOIN_GROUP).body
    joined = decode_subscription(again.protocols[0].metadata)
    assert (joined.owned, joined.generation_id, joined.user_data) == ((T0, T1), 1, b"\0\0\0\1")
    membership.responded(0, join_response(0, 2, COOPERATIVE[0], "leader", "me"))
    membership.next_request(0)
    membership.responded(0, given(T1, T2))
    assert membership.take_events() == [Joined(2, "me", False), Revoked((T0,), 2), Assigned((T2,), 2)]
    assert membership.next_request(0) is None
    membership.release()
    assert decode_subscription(expect(membership, 0, requests.JOIN_GROUP).body.protocols[0].metadata).owned == (T1, T2)


@pytest.mark.parametrize(
    ("error", "keeps_id"), [(ErrorCode.unknown_member_id, False), (ErrorCode.illegal_generation, True)]
)
def test_unknown_member_or_illegal_generation_loses_partitions(error: int, keeps_id: bool) -> None:
    membership = joined_member(T0)
    expect(membership, 1000, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_response(error))
    assert membership.take_events() == [Lost((T0,), 1)]
    assert (membership.generation, membership.assignment) == (-1, ())
    assert expect(membership, 1000, requests.JOIN_GROUP).body.member_id == ("me" if keeps_id else "")


@pytest.mark.parametrize("lost", [15, 16, None])
def test_lost_coordinator_is_looked_up_and_member_stays(lost: int | None) -> None:
    membership = joined_member(T0)
    expect(membership, 1000, requests.HEARTBEAT)
    if lost is None:
        membership.failed(1000)
    else:
        membership.responded(1000, heartbeat_response(lost))
    assert membership.next_request(1099) is None
    expect(membership, 1100, requests.FIND_COORDINATOR)
    membership.responded(1100, found(NODES[1]))
    assert expect(membership, 2000, requests.HEARTBEAT).to == NODES[1]
    assert (membership.take_events(), membership.assignment) == ([], (T0,))


def test_join_without_response_is_retried_with_same_member_id() -> None:
    membership = joined_member(T0, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    expect(membership, 0, requests.JOIN_GROUP)
    membership.failed(50)
    expect(membership, 150, requests.FIND_COORDINATOR)
    membership.responded(150, found())
    assert expect(membership, 150, requests.JOIN_GROUP).body.member_id == "me"
    assert membership.assignment == (T0,)


@pytest.mark.parametrize(
    "error", [ErrorCode.coordinator_load_in_progress, ErrorCode.rebalance_in_progress, ErrorCode.unknown_server_error]
)
def test_retriable_join_error_is_retried_after_backoff(error: int) -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.responded(0, join_response(error))
    assert (membership.next_request(99), membership.wake_at_us) == (None, 100)
    expect(membership, 100, requests.JOIN_GROUP)


def test_sync_during_rebalance_rejoins() -> None:
    membership = joined_member(T0, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    membership.next_request(0)
    membership.responded(0, join_response(0, 2, COOPERATIVE[0], "leader", "me"))
    membership.next_request(0)
    membership.responded(0, sync_response(27))
    assert membership.generation == 1
    again = expect(membership, 100, requests.JOIN_GROUP).body
    assert decode_subscription(again.protocols[0].metadata).generation_id == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.invalid_group_id,
        ErrorCode.invalid_session_timeout,
        ErrorCode.group_authorization_failed,
        ErrorCode.group_max_size_reached,
        ErrorCode.fenced_instance_id,
    ],
)
def test_fatal_join_error_fails_member(error: int) -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.responded(0, join_response(error))
    assert membership.take_events() == [Failed(known_error(error))]
    assert membership.failure == known_error(error)
    assert membership.next_request(10**9) is None
    assert membership.wake_at_us is None


def test_fenced_static_member_loses_partitions_and_fails() -> None:
    membership = joined_member(T0, instance_id="i")
    expect(membership, 1000, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_response(82))
    assert membership.take_events() == [Lost((T0,), 1), Failed(ErrorCode.fenced_instance_id)]


def test_leave_revokes_partitions_and_sends_leave_group() -> None:
    membership = joined_member(T0)
    membership.leave()
    assert membership.take_events() == [Revoked((T0,), 1)]
    assert membership.next_request(0) is None
    membership.release()
    [left] = expect(membership, 0, requests.LEAVE_GROUP).body.members
    assert left.member_id == "me"
    membership.responded(0, leave_response())
    assert (membership.take_events(), membership.state) == ([Left(1)], MemberState.LEFT)


def test_static_member_leaves_without_leave_group() -> None:
    membership = joined_member(instance_id="i")
    membership.leave()
    assert membership.next_request(0) is None
    assert membership.take_events() == [Left(1)]


def test_leave_during_join_uses_assigned_member_id() -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.leave()
    membership.responded(0, join_response(0, 3, "range", "me", "me"))
    assert expect(membership, 0, requests.LEAVE_GROUP).body.members[0].member_id == "me"


def test_commit_error_applies_only_to_its_generation() -> None:
    membership = joined_member(T0)
    sent_as = membership.identity
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    membership.next_request(0)
    membership.release()
    follow(membership, 0, T1, generation=2)
    membership.take_events()
    membership.apply_error(0, ErrorCode.illegal_generation, sent_as)
    assert (membership.assignment, membership.take_events()) == ((T1,), [])
    membership.apply_error(0, ErrorCode.illegal_generation, membership.identity)
    assert membership.take_events() == [Lost((T1,), 2)]


def test_changed_subscription_rejoins() -> None:
    membership = joined_member(protocols=COOPERATIVE)
    membership.subscribe(("t", "u"))
    again = expect(membership, 0, requests.JOIN_GROUP).body
    assert decode_subscription(again.protocols[0].metadata).topics == ("t", "u")


@pytest.mark.parametrize("protocols", [("range",), ("roundrobin",), COOPERATIVE])
def test_every_partition_has_one_owner_as_members_join_and_leave(protocols: tuple[str, ...]) -> None:
    world = RebalanceWorld()
    counts = {"t": 7}
    for number in range(4):
        world.add(f"c{number}", GroupConfig("g", ("t",), protocols), counts)
        world.settle()
    assert sorted(len(each) for each in world.owned.values()) == [1, 2, 2, 2]
    world.members["c1"].leave()
    world.settle()
    crashed = world.members.pop("c2").member_id
    world.owned["c2"] = []
    world.group.remove(crashed)
    world.settle()
    owned = sorted(partition for partitions in world.owned.values() for partition in partitions)
    assert owned == [TopicPartition("t", number) for number in range(7)]
    assert sorted(len(each) for each in world.owned.values()) == [0, 0, 3, 4]
    assert world.shared == []


def test_cooperative_rebalance_revokes_only_moving_partitions() -> None:
    world = RebalanceWorld()
    for number in range(3):
        world.add(f"c{number}", GroupConfig("g", ("t",), COOPERATIVE), {"t": 9})
        world.settle()
    revoked = [event for events in world.events.values() for event in events if isinstance(event, Revoked)]
    assert sum(len(each.partitions) for each in revoked) == 4 + 3


def beat(membership: GroupMembership, now: int) -> int | None:
    request = membership.next_heartbeat(now)
    return request.api_key if request is not None else None


def test_heartbeats_continue_while_application_is_busy() -> None:
    membership = joined_member(T0)
    assert (beat(membership, 999), beat(membership, 1000)) == (None, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_response(27))
    assert beat(membership, 2000) == requests.HEARTBEAT
    membership.responded(2000, heartbeat_response(27))
    assert (membership.take_events(), membership.assignment) == ([], (T0,))
    membership.next_request(2000)
    assert membership.take_events() == [Revoked((T0,), 1)]


def test_poll_timeout_leaves_group_and_rejoins_as_new_member() -> None:
    membership = joined_member(T0)
    membership.step_out()
    assert membership.take_events() == [Lost((T0,), 1)]
    assert beat(membership, 0) == requests.LEAVE_GROUP
    membership.responded(0, leave_response())
    assert beat(membership, 9000) is None
    assert membership.next_request(9000) is None
    assert membership.wake_at_us is None
    assert membership.generation == -1
    assert membership.member_id == ""
    assert membership.take_events() == []
    membership.come_back()
    assert expect(membership, 9000, requests.JOIN_GROUP).body.member_id == ""


@pytest.mark.parametrize("responds", [True, False])
def test_member_returning_during_leave_joins_after_it(responds: bool) -> None:
    membership = joined_member(T0)
    membership.step_out()
    assert beat(membership, 0) == requests.LEAVE_GROUP
    membership.come_back()
    assert membership.next_request(0) is None
    if responds:
        membership.responded(0, leave_response())
    else:
        membership.failed(0)
        expect(membership, 100, requests.FIND_COORDINATOR)
        membership.responded(100, found())
    assert expect(membership, 100, requests.JOIN_GROUP).body.member_id == ""


def test_poll_timeout_during_join_leaves_with_assigned_member_id() -> None:
    membership = joined_member(T0)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    membership.next_request(0)
    membership.release()
    expect(membership, 0, requests.JOIN_GROUP)
    membership.step_out()
    assert beat(membership, 0) is None
    membership.responded(0, join_response(0, 2, "range", "leader", "me"))
    assert due(membership.next_heartbeat(0)).body.members[0].member_id == "me"


def test_poll_timeout_of_static_member_sends_no_leave_group() -> None:
    membership = joined_member(T0, instance_id="i")
    membership.step_out()
    assert (beat(membership, 0), membership.state) == (None, MemberState.OUT)


def test_leave_after_poll_timeout_ends_member() -> None:
    membership = joined_member(T0)
    membership.step_out()
    assert beat(membership, 0) == requests.LEAVE_GROUP
    membership.responded(0, leave_response())
    membership.leave()
    membership.take_events()
    membership.next_request(0)
    assert (membership.take_events(), membership.state) == ([Left(-1)], MemberState.LEFT)


@pytest.mark.parametrize("error", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_member_removed_while_leaving_during_rebalance_gets_sync_response(
    error: ErrorCode,
) -> None:
    membership = joined_member(T0, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    expect(membership, 0, requests.JOIN_GROUP)
    membership.responded(0, join_response(0, 2, COOPERATIVE[0], "leader", "me"))
    expect(membership, 0, requests.SYNC_GROUP)
    membership.leave()
    membership.apply_error(0, error, membership.identity)
    membership.responded(0, given(T0))
    membership.release()
    assert membership.take_events()[-1] == Lost((T0,), 1)
    membership.next_request(0)
    assert membership.state is MemberState.LEAVING or membership.is_over
