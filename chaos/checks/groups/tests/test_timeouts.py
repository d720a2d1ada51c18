"""Sessions of members, and the times to join and to sync, each with near misses."""

import pytest

from chaos.checks.groups.responses import HEARTBEAT, JOIN, LEAVE
from chaos.checks.groups.tests.classic_group import (
    A,
    B,
    Coordinator,
    expire,
    heartbeat_reply,
    join_group_error_reply,
    member,
    reply,
    stable_group,
)
from chaos.checks.groups.timeouts import SLACK_US
from chaos.checks.tests.kafka_messages import heartbeat_request as heartbeat
from chaos.checks.tests.kafka_messages import join_group_request as joining
from chaos.checks.tests.kafka_messages import leave_group_request, leave_group_response, leaving_member
from reference_broker.core.events import Note
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.clause("X-14")


def test_initial_delay_is_kept() -> None:
    world = Coordinator()
    world.load()
    world.group.protocol_type = "consumer"
    world.add_joining(member(A, "i", is_new=True))
    world.request(JOIN, joining(instance="i"), world.begin())
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=1), after_us=299_000)
    assert "first generation begins 299000 us after" in world.explanations[0]


def test_member_is_removed_when_its_session_is_over_and_not_earlier() -> None:
    world = stable_group(member(A), member(B))
    world.request(HEARTBEAT, heartbeat(A), heartbeat_reply(ErrorCode.none), after_us=600_000)
    expire(world, B, after_us=400_000)
    assert world.explanations == []
    world = stable_group(member(A), member(B))
    world.request(HEARTBEAT, heartbeat(B), heartbeat_reply(ErrorCode.none), after_us=600_000)
    expire(world, B, after_us=999_000)
    assert "b-1 is removed from generation 3 (Stable), and its session ends in 1000 us" in world.explanations[0]


def test_unremoved_member_is_found_by_other_heartbeat_or_thorough_check() -> None:
    world = stable_group(member(A), member(B))
    world.request(HEARTBEAT, heartbeat(A), heartbeat_reply(ErrorCode.none), after_us=1_000_000 + SLACK_US)
    assert world.explanations == []
    world.inspect_later(1)
    assert "b-1 is there after its session has ended" in world.explanations[0]


def test_session_of_a_member_whose_request_is_parked_does_not_end() -> None:
    world = stable_group(member(A), member(B))
    world.park_join(A)
    world.request(JOIN, joining(A), world.begin())
    world.request(HEARTBEAT, heartbeat(B), heartbeat_reply(ErrorCode.rebalance_in_progress), after_us=900_000)
    world.request(HEARTBEAT, heartbeat(B), heartbeat_reply(ErrorCode.rebalance_in_progress), after_us=900_000)
    assert world.explanations == []
    world.remove(A)
    world.handle_timer(
        Note("group_member", (("group", "g"),)),
        join_group_error_reply(ErrorCode.unknown_member_id, A),
    )
    assert (
        "a-1 is removed from generation 3 (PreparingRebalance), and a request of it is parked" in world.explanations[-1]
    )


def rebalanced_without_b(after_us: int) -> Coordinator:
    """B sends heartbeats, and does not join again."""
    world = stable_group(member(A), member(B))
    world.park_join(A)
    world.request(JOIN, joining(A), world.begin())
    number = world.number
    for _ in range(4):
        world.request(HEARTBEAT, heartbeat(B), heartbeat_reply(ErrorCode.rebalance_in_progress), after_us=after_us // 5)
    world.remove(B)
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=number), after_us=after_us // 5)
    return world


def test_rebalance_ends_with_the_rebalance_timeout() -> None:
    assert rebalanced_without_b(2_000_000).explanations == []
    assert "b-1 is removed" in rebalanced_without_b(1_990_000).explanations[0]
    late = rebalanced_without_b(2_000_000 + 2 * SLACK_US).explanations
    assert not late  # It is judged while it lasts.
    world = stable_group(member(A), member(B))
    world.park_join(A)
    world.request(JOIN, joining(A), world.begin())
    for _ in range(6):
        world.request(HEARTBEAT, heartbeat(B), heartbeat_reply(ErrorCode.rebalance_in_progress), after_us=500_000)
    assert "generation 4 has not started" in world.explanations[0]


def test_all_have_joined_and_no_generation_begins() -> None:
    world = stable_group(member(A))
    world.park_join(A)
    world.request(JOIN, joining(A), world.begin())
    assert "all of ['a-1'] have joined, and no generation begins" in world.explanations[0]


def test_generation_that_leaves_a_static_member_out_of_the_wait() -> None:
    world = stable_group(member(A), member(B, "i"))
    world.park_join(A)
    notes = [world.begin()]
    world.request(JOIN, joining(A), *notes)
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=1))
    assert "generation 4 begins without ['b-1']" in world.explanations[0]


def test_member_that_does_not_sync_is_removed_in_time() -> None:
    def late(after_us: int) -> Coordinator:
        world = stable_group(member(A))
        world.park_join(A)
        notes = [world.begin(), world.generation()]
        world.request(JOIN, joining(A), *notes, world.joined(A))
        for _ in range(4):
            world.request(HEARTBEAT, heartbeat(generation=4), heartbeat_reply(ErrorCode.none), after_us=after_us // 5)
        return world

    world = late(2_000_000)
    world.remove(A)
    world.handle_timer(world.begin(), world.generation(), after_us=400_000)
    assert world.explanations == []
    world = late(1_500_000)
    world.remove(A)
    world.handle_timer(world.begin(), world.generation(), after_us=300_000)
    assert "a-1 is removed" in world.explanations[0]
    world = late(2_500_000)
    world.request(HEARTBEAT, heartbeat(generation=4), heartbeat_reply(ErrorCode.none), after_us=600_000)
    assert "['a-1'] have not synced" in world.explanations[0]


def test_static_member_without_rejoin_is_awaited_again() -> None:
    def waited(after_us: int) -> Coordinator:
        """A leaves, and static B joins again when its time to join is over."""
        world = stable_group(member(A), member(B, "i"))
        world.remove(A)
        left = reply(LEAVE, leave_group_response(ErrorCode.none))
        world.request(LEAVE, leave_group_request(leaving_member(A)), world.begin(), left)
        for _ in range(5):
            world.request(
                HEARTBEAT,
                heartbeat(B, instance="i"),
                heartbeat_reply(ErrorCode.rebalance_in_progress),
                after_us=500_000,
            )
        world.add_joining(member("c", "j", is_new=True))
        world.request(JOIN, joining(instance="j"))
        number = world.number
        for _ in range(3):
            world.request(
                HEARTBEAT,
                heartbeat(B, instance="i"),
                heartbeat_reply(ErrorCode.rebalance_in_progress),
                after_us=after_us // 4,
            )
        generation = world.generation()
        generated = world.joined("c", members=())._replace(connection=number)
        world.group.leader = "c"
        world.handle_timer(generation, generated, after_us=after_us // 4)
        return world

    assert not any("begins without" in explanation for explanation in waited(1_600_000).explanations)
    assert any("generation 4 begins without ['b-1']" in explanation for explanation in waited(1_400_000).explanations)


@pytest.mark.parametrize("is_alone", [True, False])
def test_time_to_join_of_a_group_without_members_is_over_at_once(is_alone: bool) -> None:
    """All members that have not synced are gone, and one that joins next does not wait for an ID without a member."""
    world = stable_group(member(A)) if is_alone else stable_group(member(A), member(B, "i"))
    for member_id in world.group.members:
        world.park_join(member_id)
    world.request(JOIN, joining(A), world.begin(), world.generation(), world.joined(A))
    world.group.add_pending_member("p")
    world.request(JOIN, joining(), join_group_error_reply(ErrorCode.member_id_required, "p"))
    world.remove(A)
    world.handle_timer(world.begin(), after_us=2_000_000)
    world.add_joining(member("c", "j", is_new=True))
    world.request(JOIN, joining(instance="j"))
    generated = world.step(lambda: world.group.init_next_generation(0))
    world.handle_timer(generated)
    assert any("begins without" in explanation for explanation in world.explanations) is not is_alone


@pytest.mark.parametrize(("late_us", "is_early"), [(SLACK_US // 2, False), (SLACK_US * 3, True)])
def test_timer_of_the_time_to_join_may_fire_late(late_us: int, is_early: bool) -> None:
    """Static B has not joined when the time to join is over. C joins just before the late timer fires, or much later,
    when the time to join has begun again."""
    world = stable_group(member(A), member(B, "i"))
    world.remove(A)
    left = reply(LEAVE, leave_group_response(ErrorCode.none))
    world.request(LEAVE, leave_group_request(leaving_member(A)), world.begin(), left)
    world.add_joining(member("c", "j", is_new=True))
    world.request(JOIN, joining(instance="j"), after_us=2_000_000 + late_us - 1000)
    world.group.leader = "c"
    world.handle_timer(world.generation())
    assert any("begins without ['b-1']" in explanation for explanation in world.explanations) is is_early
