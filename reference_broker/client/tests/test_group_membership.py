"""One member's conversation with its coordinator: what is sent, and what answers do."""

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
    World,
    due,
    found,
    heartbeat_answer,
    join_answer,
    leave_answer,
    sync_answer,
)
from reference_broker.wire.errors import ErrorCode, known_error

T0, T1, T2 = (TopicPartition("t", each) for each in range(3))
COOPERATIVE = ("cooperative-sticky",)


def member(**more: Any) -> GroupMembership:
    config = GroupConfig("g", ("t",), heartbeat_interval_us=1000, backoff_us=100, **more)
    return GroupMembership(config, GroupCoordinator("g", backoff_us=100))


def ask(membership: GroupMembership, now: int, api_key: int) -> Any:
    request = due(membership.next_request(now))
    assert request.api_key == api_key
    return request


def given(*partitions: TopicPartition) -> SyncGroupResponse:
    return sync_answer(0, encode_assignment(Assignment(partitions)))


def follow(
    membership: GroupMembership, now: int, *partitions: TopicPartition, generation: int = 1, protocol: str = "range"
) -> None:
    """A generation in which somebody else leads."""
    ask(membership, now, requests.JOIN_GROUP)
    membership.responded(now, join_answer(0, generation, protocol, "leader", "me"))
    ask(membership, now, requests.SYNC_GROUP)
    membership.responded(now, given(*partitions))


def joined_member(*partitions: TopicPartition, now: int = 0, **more: Any) -> GroupMembership:
    membership = member(**more)
    ask(membership, now, requests.FIND_COORDINATOR)
    membership.responded(now, found())
    follow(membership, now, *partitions, protocol=membership.config.protocols[0])
    membership.take_events()
    return membership


def test_a_new_member_finds_its_coordinator_gets_an_id_joins_syncs_and_beats() -> None:
    membership = member()
    assert ask(membership, 0, requests.FIND_COORDINATOR).to is None
    membership.responded(0, found())
    first = ask(membership, 0, requests.JOIN_GROUP)
    assert (first.to, first.body.member_id) == (NODE, "")
    membership.responded(0, join_answer(79, member_id="me"))
    assert ask(membership, 0, requests.JOIN_GROUP).body.member_id == "me"
    membership.responded(0, join_answer(0, 5, "range", "leader", "me"))
    sync = ask(membership, 0, requests.SYNC_GROUP).body
    assert (sync.generation_id, sync.member_id, sync.protocol_name, sync.assignments) == (5, "me", "range", ())
    membership.responded(0, given(T0))
    assert membership.take_events() == [Joined(5, "me", False), Assigned((T0,), 5)]
    assert (membership.next_request(999), membership.wake_at_us) == (None, 1000)
    assert ask(membership, 1000, requests.HEARTBEAT).body.generation_id == 5


def test_the_leader_requests_topics_that_it_does_not_know_and_assigns() -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    rows = [(each, None, encode_subscription(Subscription(("t", "u")))) for each in ("a", "me")]
    membership.responded(0, join_answer(0, 1, "range", "me", "me", rows))
    assert membership.wanted_topics == ("t", "u")
    assert (membership.next_request(0), membership.wake_at_us) == (None, None)
    membership.learn_partitions({"t": 3})
    sent = {each.member_id: each.assignment for each in ask(membership, 0, requests.SYNC_GROUP).body.assignments}
    assert sent == {"a": encode_assignment(Assignment((T0, T1))), "me": encode_assignment(Assignment((T2,)))}


def test_the_leader_rejoins_when_a_topic_grows_and_nobody_else_does() -> None:
    membership = member()
    membership.learn_partitions({"t": 1})
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    row = ("me", None, encode_subscription(Subscription(("t",))))
    membership.responded(0, join_answer(0, 1, "range", "me", "me", [row]))
    membership.next_request(0)
    membership.responded(0, given(T0))
    membership.learn_partitions({"t": 1})
    assert membership.next_request(0) is None
    membership.learn_partitions({"t": 2})
    assert membership.next_request(0) is None  # First it gives up what it has.
    assert membership.state is MemberState.RELEASING

    other = joined_member(T0)
    other.learn_partitions({"t": 5})
    assert other.next_request(0) is None
    assert other.state is MemberState.STABLE


def test_a_leader_reported_to_skip_assigns_nothing() -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    row = ("me", "i", encode_subscription(Subscription(("t",))))
    membership.responded(0, join_answer(0, 1, "range", "me", "me", [row], skip=True))
    assert ask(membership, 0, requests.SYNC_GROUP).body.assignments == ()


def test_an_eager_member_gives_all_up_and_waits_for_release_before_it_joins_again() -> None:
    membership = joined_member(T0, T1)
    ask(membership, 1000, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_answer(27))
    assert membership.next_request(1000) is None
    assert membership.take_events() == [Revoked((T0, T1), 1)]
    assert ask(membership, 2000, requests.HEARTBEAT)  # It lives while the application commits.
    membership.responded(2000, heartbeat_answer(27))
    membership.release()
    again = ask(membership, 2000, requests.JOIN_GROUP).body
    assert again.member_id == "me"
    assert decode_subscription(again.protocols[0].metadata).owned == ()


def test_a_cooperative_member_keeps_what_it_owns_and_joins_once_more_after_giving_something_up() -> None:
    membership = joined_member(T0, T1, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    again = ask(membership, 0, requests.JOIN_GROUP).body
    said = decode_subscription(again.protocols[0].metadata)
    assert (said.owned, said.generation_id, said.user_data) == ((T0, T1), 1, b"\0\0\0\1")
    membership.responded(0, join_answer(0, 2, COOPERATIVE[0], "leader", "me"))
    membership.next_request(0)
    membership.responded(0, given(T1, T2))
    assert membership.take_events() == [Joined(2, "me", False), Revoked((T0,), 2), Assigned((T2,), 2)]
    assert membership.next_request(0) is None
    membership.release()
    assert decode_subscription(ask(membership, 0, requests.JOIN_GROUP).body.protocols[0].metadata).owned == (T1, T2)


@pytest.mark.parametrize(("error", "keeps_id"), [(25, False), (22, True)])
def test_a_member_that_is_unknown_or_late_loses_its_partitions(error: int, keeps_id: bool) -> None:
    membership = joined_member(T0)
    ask(membership, 1000, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_answer(error))
    assert membership.take_events() == [Lost((T0,), 1)]
    assert (membership.generation, membership.assignment) == (-1, ())
    assert ask(membership, 1000, requests.JOIN_GROUP).body.member_id == ("me" if keeps_id else "")


@pytest.mark.parametrize("lost", [15, 16, None])
def test_a_coordinator_that_moved_or_fell_silent_is_looked_for_and_the_member_stays(lost: int | None) -> None:
    membership = joined_member(T0)
    ask(membership, 1000, requests.HEARTBEAT)
    if lost is None:
        membership.failed(1000)
    else:
        membership.responded(1000, heartbeat_answer(lost))
    assert membership.next_request(1099) is None
    ask(membership, 1100, requests.FIND_COORDINATOR)
    membership.responded(1100, found(NODES[1]))
    assert ask(membership, 2000, requests.HEARTBEAT).to == NODES[1]
    assert (membership.take_events(), membership.assignment) == ([], (T0,))


def test_a_join_without_a_response_is_begun_again_with_the_same_id() -> None:
    membership = joined_member(T0, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    ask(membership, 0, requests.JOIN_GROUP)
    membership.failed(50)
    ask(membership, 150, requests.FIND_COORDINATOR)
    membership.responded(150, found())
    assert ask(membership, 150, requests.JOIN_GROUP).body.member_id == "me"
    assert membership.assignment == (T0,)


@pytest.mark.parametrize("error", [14, 27, -1])
def test_joining_goes_on_after_a_backoff(error: int) -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.responded(0, join_answer(error))
    assert (membership.next_request(99), membership.wake_at_us) == (None, 100)
    ask(membership, 100, requests.JOIN_GROUP)


def test_a_sync_that_comes_too_late_joins_again() -> None:
    membership = joined_member(T0, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    membership.next_request(0)
    membership.responded(0, join_answer(0, 2, COOPERATIVE[0], "leader", "me"))
    membership.next_request(0)
    membership.responded(0, sync_answer(27))
    assert membership.generation == 1
    again = ask(membership, 100, requests.JOIN_GROUP).body
    assert decode_subscription(again.protocols[0].metadata).generation_id == 1


@pytest.mark.parametrize("error", [23, 24, 26, 30, 81, 82])
def test_errors_that_no_retry_cures_end_it(error: int) -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.responded(0, join_answer(error))
    assert membership.take_events() == [Failed(known_error(error))]
    assert (membership.failure, membership.next_request(10**9), membership.wake_at_us) == (
        known_error(error),
        None,
        None,
    )


def test_a_fenced_static_member_loses_all() -> None:
    membership = joined_member(T0, instance_id="i")
    ask(membership, 1000, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_answer(82))
    assert membership.take_events() == [Lost((T0,), 1), Failed(ErrorCode.fenced_instance_id)]


def test_leaving_gives_up_says_so_and_ends() -> None:
    membership = joined_member(T0)
    membership.leave()
    assert membership.take_events() == [Revoked((T0,), 1)]
    assert membership.next_request(0) is None
    membership.release()
    [left] = ask(membership, 0, requests.LEAVE_GROUP).body.members
    assert left.member_id == "me"
    membership.responded(0, leave_answer())
    assert (membership.take_events(), membership.state) == ([Left(1)], MemberState.LEFT)


def test_a_static_member_leaves_without_a_word() -> None:
    membership = joined_member(instance_id="i")
    membership.leave()
    assert membership.next_request(0) is None
    assert membership.take_events() == [Left(1)]


def test_who_leaves_while_joining_leaves_with_the_id_it_is_given() -> None:
    membership = member()
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.leave()
    membership.responded(0, join_answer(0, 3, "range", "me", "me"))
    assert ask(membership, 0, requests.LEAVE_GROUP).body.members[0].member_id == "me"


def test_what_a_commit_says_counts_only_for_the_generation_that_it_named() -> None:
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


def test_another_subscription_joins_again() -> None:
    membership = joined_member(protocols=COOPERATIVE)
    membership.subscribe(("t", "u"))
    again = ask(membership, 0, requests.JOIN_GROUP).body
    assert decode_subscription(again.protocols[0].metadata).topics == ("t", "u")


@pytest.mark.parametrize("protocols", [("range",), ("roundrobin",), COOPERATIVE])
def test_members_come_and_go_and_every_partition_has_one_owner(protocols: tuple[str, ...]) -> None:
    world = World()
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
    owned = sorted(each for partitions in world.owned.values() for each in partitions)
    assert owned == [TopicPartition("t", number) for number in range(7)]
    assert sorted(len(each) for each in world.owned.values()) == [0, 0, 3, 4]
    assert world.shared == []


def test_in_a_cooperative_rebalance_nobody_gives_up_more_than_moves() -> None:
    world = World()
    for number in range(3):
        world.add(f"c{number}", GroupConfig("g", ("t",), COOPERATIVE), {"t": 9})
        world.settle()
    revoked = [each for events in world.events.values() for each in events if isinstance(each, Revoked)]
    assert sum(len(each.partitions) for each in revoked) == 4 + 3


def beat(membership: GroupMembership, now: int) -> int | None:
    request = membership.next_heartbeat(now)
    return request.api_key if request is not None else None


def test_while_the_application_is_busy_heartbeats_go_on_and_no_rebalance_begins() -> None:
    membership = joined_member(T0)
    assert (beat(membership, 999), beat(membership, 1000)) == (None, requests.HEARTBEAT)
    membership.responded(1000, heartbeat_answer(27))
    assert beat(membership, 2000) == requests.HEARTBEAT
    membership.responded(2000, heartbeat_answer(27))
    assert (membership.take_events(), membership.assignment) == ([], (T0,))
    membership.next_request(2000)
    assert membership.take_events() == [Revoked((T0,), 1)]


def test_a_member_that_steps_out_loses_all_leaves_and_joins_again_as_another() -> None:
    membership = joined_member(T0)
    membership.step_out()
    assert membership.take_events() == [Lost((T0,), 1)]
    assert beat(membership, 0) == requests.LEAVE_GROUP
    membership.responded(0, leave_answer())
    assert (beat(membership, 9000), membership.next_request(9000), membership.wake_at_us) == (None, None, None)
    assert (membership.generation, membership.member_id, membership.take_events()) == (-1, "", [])
    membership.come_back()
    assert ask(membership, 9000, requests.JOIN_GROUP).body.member_id == ""


@pytest.mark.parametrize("answered", [True, False])
def test_a_member_that_comes_back_while_it_leaves_joins_after_that(answered: bool) -> None:
    membership = joined_member(T0)
    membership.step_out()
    assert beat(membership, 0) == requests.LEAVE_GROUP
    membership.come_back()
    assert membership.next_request(0) is None
    if answered:
        membership.responded(0, leave_answer())
    else:
        membership.failed(0)
        ask(membership, 100, requests.FIND_COORDINATOR)
        membership.responded(100, found())
    assert ask(membership, 100, requests.JOIN_GROUP).body.member_id == ""


def test_a_member_that_steps_out_while_it_joins_leaves_with_the_id_that_it_gets() -> None:
    membership = joined_member(T0)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    membership.next_request(0)
    membership.release()
    ask(membership, 0, requests.JOIN_GROUP)
    membership.step_out()
    assert beat(membership, 0) is None
    membership.responded(0, join_answer(0, 2, "range", "leader", "me"))
    assert due(membership.next_heartbeat(0)).body.members[0].member_id == "me"


def test_a_static_member_steps_out_in_silence() -> None:
    membership = joined_member(T0, instance_id="i")
    membership.step_out()
    assert (beat(membership, 0), membership.state) == (None, MemberState.OUT)


def test_a_member_that_has_stepped_out_can_leave_for_good() -> None:
    membership = joined_member(T0)
    membership.step_out()
    assert beat(membership, 0) == requests.LEAVE_GROUP
    membership.responded(0, leave_answer())
    membership.leave()
    membership.take_events()
    membership.next_request(0)
    assert (membership.take_events(), membership.state) == ([Left(-1)], MemberState.LEFT)


@pytest.mark.parametrize("error", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_a_member_that_is_thrown_out_while_it_leaves_in_the_midst_of_a_rebalance_hears_its_response(
    error: ErrorCode,
) -> None:
    membership = joined_member(T0, protocols=COOPERATIVE)
    membership.apply_error(0, ErrorCode.rebalance_in_progress, membership.identity)
    ask(membership, 0, requests.JOIN_GROUP)
    membership.responded(0, join_answer(0, 2, COOPERATIVE[0], "leader", "me"))
    ask(membership, 0, requests.SYNC_GROUP)
    membership.leave()
    membership.apply_error(0, error, membership.identity)
    membership.responded(0, given(T0))
    membership.release()
    assert membership.take_events()[-1] == Lost((T0,), 1)
    membership.next_request(0)
    assert membership.state is MemberState.LEAVING or membership.is_over
