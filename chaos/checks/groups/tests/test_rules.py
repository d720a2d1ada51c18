"""Rules of classic groups: errors of requests, and legal moves."""

from collections.abc import Sequence

import pytest
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

from chaos.checks.groups.rules import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    GroupView,
    MemberView,
    commit_error,
    heartbeat_error,
    join_error,
    leave_errors,
    member_error,
    sync_error,
    wrong_choice,
    wrong_settings,
    wrong_steps,
)
from chaos.checks.groups.tests.classic_group import A, B
from chaos.checks.tests.kafka_messages import heartbeat_request as heartbeat
from chaos.checks.tests.kafka_messages import join_group_request as joining
from chaos.checks.tests.kafka_messages import leaving_member, txn_offset_commit_request
from chaos.checks.tests.kafka_messages import offset_commit_request as committing
from chaos.checks.tests.kafka_messages import sync_group_request as syncing
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.clause("X-14")
STABLE_GROUP = GroupView(STABLE, 3, "consumer", "range", A, {A: MemberView(), B: MemberView(instance="i")}, ("p-1",))
FULL_GROUP = STABLE_GROUP._replace(members={**STABLE_GROUP.members, "c": MemberView()})
JOINS: dict[str, tuple[GroupView | None, JoinGroupRequest, ErrorCode]] = {
    "a new member gets its ID first": (STABLE_GROUP, joining(), ErrorCode.member_id_required),
    "a new static member joins at once": (STABLE_GROUP, joining(instance="j"), ErrorCode.none),
    "a static member returns": (STABLE_GROUP, joining(instance="i"), ErrorCode.none),
    "an ID that was assigned": (STABLE_GROUP, joining("p-1"), ErrorCode.none),
    "a member": (STABLE_GROUP, joining(A), ErrorCode.none),
    "nobody knows it": (STABLE_GROUP, joining("c-1"), ErrorCode.unknown_member_id),
    "the instance has another ID": (STABLE_GROUP, joining("b-0", "i"), ErrorCode.fenced_instance_id),
    "the instance is unknown": (STABLE_GROUP, joining(A, "j"), ErrorCode.unknown_member_id),
    "no common protocol": (STABLE_GROUP, joining(A, protocols={"sticky": b"m"}), ErrorCode.inconsistent_group_protocol),
    "another type": (STABLE_GROUP, joining(A, protocol_type="connect"), ErrorCode.inconsistent_group_protocol),
    "no protocol": (GroupView(), joining(protocols={}), ErrorCode.inconsistent_group_protocol),
    "no group": (None, joining(A), ErrorCode.unknown_member_id),
    "a new group": (None, joining(), ErrorCode.member_id_required),
    "it is full": (
        FULL_GROUP,
        joining(),
        ErrorCode.group_max_size_reached,
    ),
    "a member of a full group": (
        FULL_GROUP,
        joining(A),
        ErrorCode.none,
    ),
}


@pytest.mark.parametrize("situation", list(JOINS))
def test_join_group_gets_the_error_of_its_situation(situation: str) -> None:
    group, body, error = JOINS[situation]
    assert join_error(group, body, 9, 3) == error


def test_old_clients_get_no_id_first_and_joined_members_fill_a_rebalancing_group() -> None:
    assert join_error(STABLE_GROUP, joining(), 3, 3) == ErrorCode.none
    rebalancing = STABLE_GROUP._replace(state=PREPARING)
    assert join_error(rebalancing, joining(A), 9, 2) == ErrorCode.none
    members = {key: MemberView(awaits_join=True) for key in ("c", "d")}
    full = rebalancing._replace(members={**rebalancing.members, **members})
    assert join_error(full, joining(A), 9, 2) == ErrorCode.group_max_size_reached
    assert join_error(full, joining("c"), 9, 2) == ErrorCode.none


def test_sync_group_gets_the_error_of_its_group_and_member() -> None:
    assert sync_error(STABLE_GROUP, syncing(), 5) == ErrorCode.none
    assert sync_error(STABLE_GROUP._replace(state=COMPLETING), syncing(), 5) == ErrorCode.none
    assert sync_error(STABLE_GROUP._replace(state=PREPARING), syncing(), 5) == ErrorCode.rebalance_in_progress
    assert sync_error(STABLE_GROUP, syncing(generation=2), 5) == ErrorCode.illegal_generation
    assert sync_error(STABLE_GROUP, syncing("c-1"), 5) == ErrorCode.unknown_member_id
    assert sync_error(STABLE_GROUP, syncing("b-0", instance="i"), 5) == ErrorCode.fenced_instance_id
    assert sync_error(STABLE_GROUP, syncing(protocol="sticky"), 5) == ErrorCode.inconsistent_group_protocol
    assert sync_error(STABLE_GROUP, syncing(protocol=None), 5) == ErrorCode.inconsistent_group_protocol
    assert sync_error(STABLE_GROUP, syncing(protocol=None), 4) == ErrorCode.none
    assert sync_error(None, syncing(), 5) == sync_error(GroupView(), syncing(), 5) == ErrorCode.unknown_member_id


def test_heartbeat_gets_the_error_of_its_group_and_member() -> None:
    assert heartbeat_error(STABLE_GROUP, heartbeat()) == ErrorCode.none
    assert heartbeat_error(STABLE_GROUP._replace(state=COMPLETING), heartbeat()) == ErrorCode.none
    assert heartbeat_error(STABLE_GROUP._replace(state=PREPARING), heartbeat()) == ErrorCode.rebalance_in_progress
    assert heartbeat_error(STABLE_GROUP, heartbeat(generation=4)) == ErrorCode.illegal_generation
    assert (
        heartbeat_error(STABLE_GROUP, heartbeat("c-1"))
        == heartbeat_error(None, heartbeat())
        == ErrorCode.unknown_member_id
    )
    assert member_error(STABLE_GROUP, B, "i") == ErrorCode.none
    assert member_error(STABLE_GROUP, A, "i") == ErrorCode.fenced_instance_id


def test_errors_of_leave_group_come_one_after_the_other() -> None:
    leaving = [
        leaving_member(A),
        leaving_member(A),
        leaving_member("", "i"),
        leaving_member("", "i"),
        leaving_member("p-1"),
        leaving_member("b-0", "i"),
        leaving_member(""),
    ]
    assert [*leave_errors(STABLE_GROUP, leaving)] == [
        (ErrorCode.none, A),
        (ErrorCode.unknown_member_id, ""),
        (ErrorCode.none, B),
        (ErrorCode.unknown_member_id, ""),
        (ErrorCode.none, "p-1"),
        (ErrorCode.unknown_member_id, ""),
        (ErrorCode.unknown_member_id, ""),
    ]
    assert [*leave_errors(STABLE_GROUP, [leaving_member("b-0", "i")])] == [(ErrorCode.fenced_instance_id, "")]
    assert [*leave_errors(None, [leaving_member(A)])] == [(ErrorCode.unknown_member_id, "")]


def test_commit_gets_the_error_of_its_group_and_member() -> None:
    def error(group: GroupView | None, body: OffsetCommitRequest, version: int = 9) -> int:
        return commit_error(group, body, version, transactional=False)

    simple = committing("", -1)
    assert error(STABLE_GROUP, committing()) == ErrorCode.none
    assert error(STABLE_GROUP._replace(state=PREPARING), committing()) == ErrorCode.none
    assert error(STABLE_GROUP._replace(state=COMPLETING), committing()) == ErrorCode.rebalance_in_progress
    assert error(STABLE_GROUP, committing(generation=2)) == ErrorCode.illegal_generation
    assert error(STABLE_GROUP, committing("c-1")) == ErrorCode.unknown_member_id
    assert error(STABLE_GROUP, committing("b-0", 3, "i")) == ErrorCode.fenced_instance_id
    assert error(STABLE_GROUP, simple) == ErrorCode.unknown_member_id
    assert error(GroupView(), simple) == error(None, simple) == ErrorCode.none
    assert error(None, committing()) == ErrorCode.group_id_not_found
    assert error(None, committing(), 8) == error(None, committing(), 1001) == ErrorCode.illegal_generation


def test_commit_in_a_transaction_gets_the_error_of_its_group_and_member() -> None:
    def error(group: GroupView | None, body: TxnOffsetCommitRequest) -> int:
        return commit_error(group, body, 5, transactional=True)

    assert error(STABLE_GROUP._replace(state=COMPLETING), txn_offset_commit_request()) == ErrorCode.none
    assert error(STABLE_GROUP, txn_offset_commit_request(generation=2)) == ErrorCode.illegal_generation
    assert error(STABLE_GROUP, txn_offset_commit_request("", -1)) == ErrorCode.none


def test_states_and_generations_follow_kafkas_table() -> None:
    def wrong(state: str, steps: Sequence[tuple[str, int]], after: tuple[str, int]) -> str:
        return wrong_steps(
            STABLE_GROUP._replace(state=state), steps, STABLE_GROUP._replace(state=after[0], generation=after[1])
        )

    joins = [(PREPARING, 3), (COMPLETING, 4)]
    assert not wrong(STABLE, joins, (COMPLETING, 4))
    assert not wrong(EMPTY, [*joins, (STABLE, 4)], (STABLE, 4))
    assert not wrong(PREPARING, [(EMPTY, 4)], (EMPTY, 4))
    assert not wrong_steps(
        STABLE_GROUP._replace(state=PREPARING, generation=2**31 - 1), [(EMPTY, 1)], GroupView(EMPTY, 1)
    )
    assert "no transition" in wrong(STABLE, [(COMPLETING, 4)], (COMPLETING, 4))
    assert "no transition" in wrong(DEAD, [(PREPARING, 3)], (PREPARING, 3))
    assert "to CompletingRebalance in generation 3" in wrong(PREPARING, [(COMPLETING, 3)], (COMPLETING, 3))
    assert "in generation 5" in wrong(PREPARING, [(COMPLETING, 5)], (COMPLETING, 5))
    assert "in generation 4" in wrong(COMPLETING, [(STABLE, 4)], (STABLE, 4))
    assert "no transition leads there" in wrong(STABLE, [], (STABLE, 4))
    assert "no transition leads there" in wrong(STABLE, [], (PREPARING, 3))


def test_leader_has_joined_and_the_protocol_has_the_most_votes() -> None:
    both = (("range", b""), ("sticky", b""))
    voters = {A: MemberView(protocols=both), B: MemberView(protocols=both), "c": MemberView(protocols=both[::-1])}
    after = GroupView(COMPLETING, 4, "consumer", "range", A, voters)
    everyone = [*voters]
    assert not wrong_choice(after, everyone, after)
    assert not wrong_choice(after, [B], after._replace(leader=B, members={B: voters[B]}))
    assert not wrong_choice(after, [], GroupView(EMPTY, 4))
    for wrong, joined, explanation in (
        (after._replace(leader="d"), everyone, "is no member"),
        (after._replace(leader=B), everyone, "has joined, and b-1 leads"),
        (after, [B, "c"], "a-1 has not joined"),
        (after._replace(protocol="sticky"), everyone, "the votes are"),
        (after._replace(protocol="roundrobin"), everyone, "all members support"),
        (after, [A, B], "['c'] have not joined"),
        (GroupView(EMPTY, 4, protocol="range"), [], "no members and protocol"),
    ):
        assert explanation in wrong_choice(after, joined, wrong)


def test_settings_change_only_with_a_join() -> None:
    other = STABLE_GROUP._replace(members={**STABLE_GROUP.members, A: MemberView(session_ms=1)})
    assert not wrong_settings(STABLE_GROUP, STABLE_GROUP, "")
    assert not wrong_settings(STABLE_GROUP, other, A)
    assert "the settings of a-1 changed" in wrong_settings(STABLE_GROUP, other, B)
