"""The checks of a group's moves: silent while a coordinator follows Kafka's rules, a violation at each other step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.group_moves import COMMIT, HEARTBEAT, JOIN, LEAVE, NEW_MEMBER_US, SLACK_US, SYNC, GroupMoves
from chaos.checks.group_rules import (
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
from chaos.tests.check_context import check_context
from reference_broker.core.events import Close, Closed, Effect, Note, Reply, Request
from reference_broker.groups.group import Group, GroupState, Member, MemberProtocol
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

pytestmark = pytest.mark.clause("X-14")

A, B = "a-1", "b-1"
ONE = GroupView(STABLE, 3, "consumer", "range", A, {A: MemberView(), B: MemberView(instance="i")}, ("p-1",))


def joining(member_id: str = "", instance: str | None = None, **more: Any) -> Any:
    protocols = [SimpleNamespace(name=each, metadata=b"m") for each in more.pop("names", ("range",))]
    return SimpleNamespace(
        **{
            "group_id": "g",
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": protocols,
            "session_timeout": timedelta(milliseconds=1000),
            "rebalance_timeout": timedelta(milliseconds=2000),
            **more,
        }
    )


JOINS: dict[str, tuple[GroupView | None, Any, ErrorCode]] = {
    "a new member gets its ID first": (ONE, joining(), ErrorCode.member_id_required),
    "a new static member joins at once": (ONE, joining(instance="j"), ErrorCode.none),
    "a static member returns": (ONE, joining(instance="i"), ErrorCode.none),
    "an ID that was assigned": (ONE, joining("p-1"), ErrorCode.none),
    "a member": (ONE, joining(A), ErrorCode.none),
    "nobody knows it": (ONE, joining("c-1"), ErrorCode.unknown_member_id),
    "the instance has another ID": (ONE, joining("b-0", "i"), ErrorCode.fenced_instance_id),
    "the instance is unknown": (ONE, joining(A, "j"), ErrorCode.unknown_member_id),
    "no common protocol": (ONE, joining(A, names=("sticky",)), ErrorCode.inconsistent_group_protocol),
    "another type": (ONE, joining(A, protocol_type="connect"), ErrorCode.inconsistent_group_protocol),
    "no protocol": (GroupView(), joining(names=()), ErrorCode.inconsistent_group_protocol),
    "no group": (None, joining(A), ErrorCode.unknown_member_id),
    "a new group": (None, joining(), ErrorCode.member_id_required),
    "it is full": (
        ONE._replace(members={**ONE.members, "c": MemberView()}),
        joining(),
        ErrorCode.group_max_size_reached,
    ),
    "a member of a full group": (ONE._replace(members={**ONE.members, "c": MemberView()}), joining(A), ErrorCode.none),
}


@pytest.mark.parametrize("what", list(JOINS))
def test_error_of_join_group(what: str) -> None:
    group, body, error = JOINS[what]
    assert join_error(group, body, 9, 3) == error


def test_old_clients_get_no_id_first_and_joined_members_fill_a_rebalancing_group() -> None:
    assert join_error(ONE, joining(), 3, 3) == ErrorCode.none
    rebalancing = ONE._replace(state=PREPARING)
    assert join_error(rebalancing, joining(A), 9, 2) == ErrorCode.none
    members = {key: MemberView(awaits_join=True) for key in ("c", "d")}
    full = rebalancing._replace(members={**rebalancing.members, **members})
    assert join_error(full, joining(A), 9, 2) == ErrorCode.group_max_size_reached
    assert join_error(full, joining("c"), 9, 2) == ErrorCode.none


def syncing(member_id: str = A, generation: int = 3, instance: str | None = None, **more: Any) -> Any:
    given = {"protocol_type": "consumer", "protocol_name": "range", "assignments": ()}
    return SimpleNamespace(
        group_id="g", member_id=member_id, generation_id=generation, group_instance_id=instance, **{**given, **more}
    )


def test_error_of_sync_group() -> None:
    assert sync_error(ONE, syncing(), 5) == ErrorCode.none
    assert sync_error(ONE._replace(state=COMPLETING), syncing(), 5) == ErrorCode.none
    assert sync_error(ONE._replace(state=PREPARING), syncing(), 5) == ErrorCode.rebalance_in_progress
    assert sync_error(ONE, syncing(generation=2), 5) == ErrorCode.illegal_generation
    assert sync_error(ONE, syncing("c-1"), 5) == ErrorCode.unknown_member_id
    assert sync_error(ONE, syncing("b-0", instance="i"), 5) == ErrorCode.fenced_instance_id
    assert sync_error(ONE, syncing(protocol_name="sticky"), 5) == ErrorCode.inconsistent_group_protocol
    assert sync_error(ONE, syncing(protocol_name=None), 5) == ErrorCode.inconsistent_group_protocol
    assert sync_error(ONE, syncing(protocol_name=None), 4) == ErrorCode.none
    assert sync_error(None, syncing(), 5) == sync_error(GroupView(), syncing(), 5) == ErrorCode.unknown_member_id


def test_error_of_heartbeat_and_named_member() -> None:
    assert heartbeat_error(ONE, syncing()) == ErrorCode.none
    assert heartbeat_error(ONE._replace(state=COMPLETING), syncing()) == ErrorCode.none
    assert heartbeat_error(ONE._replace(state=PREPARING), syncing()) == ErrorCode.rebalance_in_progress
    assert heartbeat_error(ONE, syncing(generation=4)) == ErrorCode.illegal_generation
    assert heartbeat_error(ONE, syncing("c-1")) == heartbeat_error(None, syncing()) == ErrorCode.unknown_member_id
    assert member_error(ONE, B, "i") == ErrorCode.none
    assert member_error(ONE, A, "i") == ErrorCode.fenced_instance_id


def test_errors_of_leave_group_come_one_after_the_other() -> None:
    def named(member_id: str, instance: str | None = None) -> Any:
        return SimpleNamespace(member_id=member_id, group_instance_id=instance)

    leaving = [named(A), named(A), named("", "i"), named("", "i"), named("p-1"), named("b-0", "i"), named("")]
    assert [*leave_errors(ONE, leaving)] == [
        (ErrorCode.none, A),
        (ErrorCode.unknown_member_id, ""),
        (ErrorCode.none, B),
        (ErrorCode.unknown_member_id, ""),
        (ErrorCode.none, "p-1"),
        (ErrorCode.unknown_member_id, ""),
        (ErrorCode.unknown_member_id, ""),
    ]
    assert [*leave_errors(ONE, [named("b-0", "i")])] == [(ErrorCode.fenced_instance_id, "")]
    assert [*leave_errors(None, [named(A)])] == [(ErrorCode.unknown_member_id, "")]


def committing(member_id: str = A, generation: int = 3, instance: str | None = None) -> Any:
    return SimpleNamespace(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=generation,
        generation_id=generation,
        group_instance_id=instance,
        topics=(),
    )


def test_error_of_a_commit() -> None:
    def error(group: GroupView | None, body: Any, version: int = 9, *, transactional: bool = False) -> int:
        return commit_error(group, body, version, transactional=transactional)

    simple = committing("", -1)
    assert error(ONE, committing()) == ErrorCode.none
    assert error(ONE._replace(state=PREPARING), committing()) == ErrorCode.none
    assert error(ONE._replace(state=COMPLETING), committing()) == ErrorCode.rebalance_in_progress
    assert error(ONE._replace(state=COMPLETING), committing(), transactional=True) == ErrorCode.none
    assert (
        error(ONE, committing(generation=2))
        == error(ONE, committing(generation=2), transactional=True)
        == ErrorCode.illegal_generation
    )
    assert error(ONE, committing("c-1")) == ErrorCode.unknown_member_id
    assert error(ONE, committing("b-0", 3, "i")) == ErrorCode.fenced_instance_id
    assert error(ONE, simple) == ErrorCode.unknown_member_id
    assert error(ONE, simple, transactional=True) == ErrorCode.none
    assert error(GroupView(), simple) == error(None, simple) == ErrorCode.none
    assert error(None, committing()) == ErrorCode.group_id_not_found
    assert error(None, committing(), 8) == error(None, committing(), 1001) == ErrorCode.illegal_generation


def test_states_and_generations_follow_kafkas_table() -> None:
    def wrong(state: str, steps: Sequence[tuple[str, int]], after: tuple[str, int]) -> str:
        return wrong_steps(ONE._replace(state=state), steps, ONE._replace(state=after[0], generation=after[1]))

    joins = [(PREPARING, 3), (COMPLETING, 4)]
    assert not wrong(STABLE, joins, (COMPLETING, 4))
    assert not wrong(EMPTY, [*joins, (STABLE, 4)], (STABLE, 4))
    assert not wrong(PREPARING, [(EMPTY, 4)], (EMPTY, 4))
    assert not wrong_steps(ONE._replace(state=PREPARING, generation=2**31 - 1), [(EMPTY, 1)], GroupView(EMPTY, 1))
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
    for wrong, joined, story in (
        (after._replace(leader="d"), everyone, "is no member"),
        (after._replace(leader=B), everyone, "has joined, and b-1 leads"),
        (after, [B, "c"], "a-1 has not joined"),
        (after._replace(protocol="sticky"), everyone, "the votes are"),
        (after._replace(protocol="roundrobin"), everyone, "all members support"),
        (after, [A, B], "['c'] have not joined"),
        (GroupView(EMPTY, 4, protocol="range"), [], "no members and protocol"),
    ):
        assert story in wrong_choice(after, joined, wrong)


def test_settings_change_only_with_a_join() -> None:
    other = ONE._replace(members={**ONE.members, A: MemberView(session_ms=1)})
    assert not wrong_settings(ONE, ONE, "")
    assert not wrong_settings(ONE, other, A)
    assert "the settings of a-1 changed" in wrong_settings(ONE, other, B)


# --- a coordinator ----------------------------------------------------------------------------------------------------

CONFIG = SimpleNamespace(
    group_min_session_timeout_ms=100,
    group_max_session_timeout_ms=60_000,
    group_max_size=5,
    group_initial_rebalance_delay_ms=300,
)


def member(member_id: str, instance: str | None = None, **more: Any) -> Member:
    return Member(member_id, instance, "client", "host", 2000, 1000, (MemberProtocol("range", b"m"),), **more)


@dataclass
class Coordinator:
    """Node 1, which coordinates group ``g`` as the test says."""

    group: Group = field(default_factory=lambda: Group("g", 0))
    now_us: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        self.check = GroupMoves(check_context())
        self.partition = SimpleNamespace(index=0, groups={"g": self.group})
        topics = {"__consumer_offsets": SimpleNamespace(partitions=[0])}
        self.node: Any = SimpleNamespace(
            broker=SimpleNamespace(
                node_id=1,
                config=CONFIG,
                now=SimpleNamespace(mono_us=0),
                groups=SimpleNamespace(active=lambda: [self.partition] if self.partition else []),
                quorum_node=SimpleNamespace(loader=SimpleNamespace(image=SimpleNamespace(topics=topics))),
            )
        )

    def happens(self, event: Any, *effects: Effect, after_us: int = 1000) -> None:
        self.now_us += after_us
        self.node.broker.now.mono_us = self.now_us
        self.check.acted(self.now_us, self.node, event, effects)

    def load(self) -> None:
        self.happens(SimpleNamespace(), Note("coordinator_loaded", (("partition", 0),)))

    def request(self, api_key: int, body: Any, *effects: Effect, version: int = 9, after_us: int = 1000) -> Request:
        self.number += 1
        request = Request(self.number, 1, api_key, version, "client", body, Tag(api_key, version, "client", 0, -1))
        replies = [each._replace(connection=self.number) if type(each) is Reply else each for each in effects]
        self.happens(request, *replies, after_us=after_us)
        return request

    def step(self, change: Callable[[], None]) -> Note:
        change()
        return Note(
            "group_state",
            (("group", "g"), ("state", self.group.state.value), ("generation", self.group.generation)),
        )

    def begin(self) -> Note:
        return self.step(lambda: self.group.begin_rebalance(0))

    def generation(self) -> Note:
        def change() -> None:
            self.group.begin_generation(0)
            for each in self.group.members.values():
                self.group.await_join(each, False)
                each.is_new = False

        return self.step(change)

    def stabilise(self) -> Note:
        return self.step(lambda: self.group.stabilise(0))

    def joined(self, key: str, **more: Any) -> Reply:
        group = self.group
        members = [
            SimpleNamespace(member_id=one, group_instance_id=each.group_instance_id, metadata=each.metadata("range"))
            for one, each in group.members.items()
        ]
        given = {
            "error_code": ErrorCode.none,
            "member_id": key,
            "generation_id": group.generation,
            "protocol_type": "consumer",
            "protocol_name": group.protocol,
            "leader": group.leader,
            "members": members if key == group.leader else (),
        }
        return reply(JOIN, SimpleNamespace(**{**given, **more}))

    @property
    def stories(self) -> list[str]:
        return [each.story for each in self.check.violations]


def reply(api_key: int, body: Any, connection: int = 0) -> Reply:
    return Reply(connection, 1, api_key, 9, body, Tag(api_key, 9, "client", 0, -1))


def error(api_key: int, code: ErrorCode, **more: Any) -> Reply:
    return reply(api_key, SimpleNamespace(error_code=code, **more))


def assigned(assignment: bytes) -> Reply:
    body = SimpleNamespace(
        error_code=ErrorCode.none, protocol_type="consumer", protocol_name="range", assignment=assignment
    )
    return reply(SYNC, body)


def stable(*members: Member) -> Coordinator:
    """Return a coordinator that has just loaded the group in generation 3."""
    world = Coordinator(Group.loaded("g", 3, "consumer", "range", members[0].member_id, 0, members))
    world.load()
    return world


def first_generation(world: Coordinator) -> None:
    """A joins a new group, gets generation 1, and assigns."""
    world.load()
    world.group.add_pending_member(A)
    world.request(JOIN, joining(), error(JOIN, ErrorCode.member_id_required, member_id=A))
    world.group.pending_joins.clear()
    world.group.protocol_type = "consumer"
    new = member(A, is_new=True)
    world.group.add(new, awaits_join=True)
    world.request(JOIN, joining(A), world.begin())
    number = world.number
    world.happens(SimpleNamespace(), world.generation(), world.joined(A)._replace(connection=number), after_us=300_000)


def test_first_generation_is_clean() -> None:
    world = Coordinator()
    first_generation(world)
    world.group.await_sync(A, True)
    world.request(SYNC, syncing(generation=1, assignments=[SimpleNamespace(member_id=A, assignment=b"all")]))
    number = world.number
    world.group.await_sync(A, False)
    world.happens(SimpleNamespace(), world.stabilise(), assigned(b"all")._replace(connection=number))
    world.request(HEARTBEAT, syncing(generation=1), error(HEARTBEAT, ErrorCode.none))
    assert world.stories == []
    assert world.check.evidence > 4


def test_initial_delay_is_kept() -> None:
    world = Coordinator()
    world.load()
    world.group.protocol_type = "consumer"
    world.group.add(member(A, "i", is_new=True), awaits_join=True)
    world.request(JOIN, joining(instance="i"), world.begin())
    world.happens(SimpleNamespace(), world.generation(), world.joined(A)._replace(connection=1), after_us=299_000)
    assert "first generation begins 299000 us after" in world.stories[0]


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"generation_id": 2}, "got generation, type and protocol (2,"),
        ({"protocol_name": "sticky"}, "'sticky'"),
        ({"members": ()}, "leads and got members {}"),
        ({"leader": "x"}, "got leader x"),
        ({"member_id": "x"}, "joined as x, which is no member"),
    ],
)
def test_response_of_join_group_that_differs_from_the_group(change: dict[str, Any], story: str) -> None:
    world = stable(member(A))
    world.group.await_join(world.group.members[A], True)
    notes = [world.begin(), world.generation()]
    world.request(JOIN, joining(A), *notes, world.joined(A, **change))
    assert story in world.stories[0]


def test_metadata_that_is_not_replaced() -> None:
    world = stable(member(A))
    body = joining(A)
    body.protocols[0].metadata = b"new"
    notes = [world.begin(), world.generation()]
    world.request(JOIN, body, *notes, world.joined(A))
    assert "joins with" in world.stories[0]


def test_follower_gets_no_members_and_each_member_what_the_leader_sent() -> None:
    world = stable(member(A, assignment=b"1"), member(B, assignment=b"2"))
    world.request(SYNC, syncing(B), assigned(b"2"))
    world.request(SYNC, syncing(A), assigned(b"1"))
    assert world.stories == []
    world.request(SYNC, syncing(B), assigned(b"1"))
    assert "got assignment b'1'" in world.stories[0]


@pytest.mark.parametrize(("given", "is_right"), [(b"2", True), (b"1", False), (b"", False)])
def test_parked_members_get_what_the_leader_sends_in_the_same_event(given: bytes, is_right: bool) -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[B], True)
    world.request(JOIN, joining(B), world.begin())
    number = world.number
    world.group.await_join(world.group.members[A], True)
    notes = [world.generation()]
    world.number += 1
    joins = Request(world.number, 1, JOIN, 9, "client", joining(A), Tag(JOIN, 9, "client", 0, -1))
    joined = [world.joined(key)._replace(connection=of) for key, of in ((A, world.number), (B, number))]
    world.happens(joins, *notes, *joined)
    world.group.await_sync(B, True)
    world.request(SYNC, syncing(B, generation=4))
    parked = world.number
    world.group.await_sync(B, False)
    sent = [SimpleNamespace(member_id=key, assignment=data) for key, data in ((A, b"1"), (B, b"2"))]
    world.number += 1
    body, tag = syncing(A, generation=4, assignments=sent), Tag(SYNC, 9, "client", 0, -1)
    replies = assigned(given)._replace(connection=parked), assigned(b"1")._replace(connection=world.number)
    world.happens(Request(world.number, 1, SYNC, 9, "client", body, tag), world.stabilise(), *replies)
    if is_right:
        assert world.stories == []
    else:
        assert len(world.stories) == 1
        assert f"got assignment {given!r}, and the leader sent" in world.stories[0]


@pytest.mark.parametrize(
    ("api_key", "body", "response", "story"),
    [
        (HEARTBEAT, syncing(generation=2), error(HEARTBEAT, ErrorCode.none), "got NONE, and ILLEGAL_GENERATION is due"),
        (HEARTBEAT, syncing(), error(HEARTBEAT, ErrorCode.unknown_member_id), "got UNKNOWN_MEMBER_ID, for no reason"),
        (SYNC, syncing("x"), assigned(b""), "got NONE, and UNKNOWN_MEMBER_ID is due"),
        (
            JOIN,
            joining("x"),
            error(JOIN, ErrorCode.illegal_generation, member_id="x"),
            "got ILLEGAL_GENERATION, and UNKNOWN_MEMBER_ID is due",
        ),
        (JOIN, joining("x"), None, "is parked, and UNKNOWN_MEMBER_ID is due"),
        (
            LEAVE,
            SimpleNamespace(group_id="g", members=[SimpleNamespace(member_id="x", group_instance_id=None)]),
            reply(
                LEAVE, SimpleNamespace(error_code=ErrorCode.none, members=[SimpleNamespace(error_code=ErrorCode.none)])
            ),
            "got ['NONE'], and ['UNKNOWN_MEMBER_ID'] are due",
        ),
    ],
)
def test_response_that_is_not_due(api_key: int, body: Any, response: Reply | None, story: str) -> None:
    world = stable(member(A))
    world.request(api_key, body, *([] if response is None else [response]))
    assert story in world.stories[0]


@pytest.mark.parametrize(("connection", "is_red"), [(1, False), (2, True)])
def test_no_response_is_due_on_a_connection_that_the_node_closes(connection: int, is_red: bool) -> None:
    world = stable(member(A))
    world.request(JOIN, joining("x"), Close(connection, "the node is shutting down"))
    assert bool(world.stories) is is_red


def committed(*codes: ErrorCode, connection: int = 0) -> Reply:
    partitions = [SimpleNamespace(error_code=each) for each in codes]
    return reply(COMMIT, SimpleNamespace(topics=[SimpleNamespace(partitions=partitions)]), connection)


def test_delayed_commit_response_is_fenced() -> None:
    world = stable(member(A))
    world.request(COMMIT, committing(), committed(ErrorCode.none))
    world.request(COMMIT, committing(generation=2), committed(ErrorCode.illegal_generation))
    world.request(COMMIT, committing("", -1), committed(ErrorCode.unknown_member_id))
    assert world.stories == []
    world.request(COMMIT, committing("", -1))
    world.happens(SimpleNamespace(), committed(ErrorCode.none, connection=world.number))
    assert "is acknowledged, and UNKNOWN_MEMBER_ID is due" in world.stories[0]
    world.request(COMMIT, committing(), committed(ErrorCode.illegal_generation))
    assert "got ILLEGAL_GENERATION, and NONE is due" in world.stories[1]


def test_commit_whose_member_came_and_went_meanwhile_is_not_judged() -> None:
    world = stable(member(A))
    world.request(COMMIT, committing(generation=4))
    number = world.number
    world.group.await_join(world.group.members[A], True)
    notes = [world.begin(), world.generation()]
    world.request(JOIN, joining(A), *notes, world.joined(A))
    world.happens(SimpleNamespace(), committed(ErrorCode.none, connection=number))
    assert world.stories == []


def expire(world: Coordinator, member_id: str, *, after_us: int) -> None:
    world.group.remove(member_id)
    world.happens(SimpleNamespace(), world.begin(), after_us=after_us)


def test_member_is_removed_when_its_session_is_over_and_not_earlier() -> None:
    world = stable(member(A), member(B))
    world.request(HEARTBEAT, syncing(A), error(HEARTBEAT, ErrorCode.none), after_us=600_000)
    expire(world, B, after_us=400_000)
    assert world.stories == []
    world = stable(member(A), member(B))
    world.request(HEARTBEAT, syncing(B), error(HEARTBEAT, ErrorCode.none), after_us=600_000)
    expire(world, B, after_us=999_000)
    assert "b-1 is removed from generation 3 (Stable), and its session ends in 1000 us" in world.stories[0]


def test_unremoved_member_is_found_by_other_heartbeat_or_thorough_check() -> None:
    world = stable(member(A), member(B))
    world.request(HEARTBEAT, syncing(A), error(HEARTBEAT, ErrorCode.none), after_us=1_000_000 + SLACK_US)
    assert world.stories == []
    world.node.broker.now.mono_us = world.now_us + 1
    world.check.inspect(world.now_us, 0, world.node, None, thorough=True)
    assert "b-1 is there after its session has ended" in world.stories[0]


def test_session_of_a_member_whose_request_is_parked_does_not_end() -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    world.request(HEARTBEAT, syncing(B), error(HEARTBEAT, ErrorCode.rebalance_in_progress), after_us=900_000)
    world.request(HEARTBEAT, syncing(B), error(HEARTBEAT, ErrorCode.rebalance_in_progress), after_us=900_000)
    assert world.stories == []
    world.group.remove(A)
    world.happens(
        SimpleNamespace(),
        Note("group_member", (("group", "g"),)),
        error(JOIN, ErrorCode.unknown_member_id, member_id=A),
    )
    assert "a-1 is removed from generation 3 (PreparingRebalance), and a request of it is parked" in world.stories[-1]


def rebalanced_without_b(after_us: int) -> Coordinator:
    """B sends heartbeats, and does not join again."""
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    number = world.number
    for _ in range(4):
        world.request(HEARTBEAT, syncing(B), error(HEARTBEAT, ErrorCode.rebalance_in_progress), after_us=after_us // 5)
    world.group.remove(B)
    world.happens(
        SimpleNamespace(), world.generation(), world.joined(A)._replace(connection=number), after_us=after_us // 5
    )
    return world


def test_rebalance_ends_with_the_rebalance_timeout() -> None:
    assert rebalanced_without_b(2_000_000).stories == []
    assert "b-1 is removed" in rebalanced_without_b(1_990_000).stories[0]
    late = rebalanced_without_b(2_000_000 + 2 * SLACK_US).stories
    assert not late  # It is judged while it lasts.
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    for _ in range(6):
        world.request(HEARTBEAT, syncing(B), error(HEARTBEAT, ErrorCode.rebalance_in_progress), after_us=500_000)
    assert "generation 4 has not started" in world.stories[0]


def test_all_have_joined_and_no_generation_begins() -> None:
    world = stable(member(A))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    assert "all of ['a-1'] have joined, and no generation begins" in world.stories[0]


def test_generation_that_leaves_a_static_member_out_of_the_wait() -> None:
    world = stable(member(A), member(B, "i"))
    world.group.await_join(world.group.members[A], True)
    notes = [world.begin()]
    world.request(JOIN, joining(A), *notes)
    world.happens(SimpleNamespace(), world.generation(), world.joined(A)._replace(connection=1))
    assert "generation 4 begins without ['b-1']" in world.stories[0]


def test_member_that_does_not_sync_is_removed_in_time() -> None:
    def late(after_us: int) -> Coordinator:
        world = stable(member(A))
        world.group.await_join(world.group.members[A], True)
        notes = [world.begin(), world.generation()]
        world.request(JOIN, joining(A), *notes, world.joined(A))
        for _ in range(4):
            world.request(HEARTBEAT, syncing(generation=4), error(HEARTBEAT, ErrorCode.none), after_us=after_us // 5)
        return world

    world = late(2_000_000)
    world.group.remove(A)
    world.happens(SimpleNamespace(), world.begin(), world.generation(), after_us=400_000)
    assert world.stories == []
    world = late(1_500_000)
    world.group.remove(A)
    world.happens(SimpleNamespace(), world.begin(), world.generation(), after_us=300_000)
    assert "a-1 is removed" in world.stories[0]
    world = late(2_500_000)
    world.request(HEARTBEAT, syncing(generation=4), error(HEARTBEAT, ErrorCode.none), after_us=600_000)
    assert "['a-1'] have not synced" in world.stories[0]


def test_static_member_that_returns_has_another_id() -> None:
    world = stable(member(B, "i", assignment=b"2"))
    world.group.replace_static("i", "b-2")
    world.group.await_join(world.group.members["b-2"], True)
    world.request(JOIN, joining(instance="i"))
    number = world.number
    world.group.await_join(world.group.members["b-2"], False)
    world.happens(SimpleNamespace(), world.joined("b-2", members=(), leader=B)._replace(connection=number))
    world.request(SYNC, syncing("b-2", instance="i"), assigned(b"2"))
    world.request(HEARTBEAT, syncing(B, instance="i"), error(HEARTBEAT, ErrorCode.fenced_instance_id))
    assert world.stories == []
    world.request(HEARTBEAT, syncing(B, instance="i"), error(HEARTBEAT, ErrorCode.none))
    assert "got NONE, and FENCED_INSTANCE_ID is due" in world.stories[0]


def test_generation_without_assignment_is_not_stable() -> None:
    world = Coordinator()
    first_generation(world)
    world.happens(SimpleNamespace(), world.stabilise())
    assert "generation 1 is Stable, and its leader has assigned nothing" in world.stories[0]
    world = stable(member(A), member(B))
    world.happens(SimpleNamespace(), world.begin(), after_us=1)
    for each in (A, B):
        world.group.await_join(world.group.members[each], True)
    world.happens(SimpleNamespace(), world.generation())
    world.request(SYNC, syncing(B, generation=4), world.stabilise(), assigned(b""))
    assert "generation 4 is Stable, and its leader has assigned nothing" in "".join(world.stories)


def test_parked_requests_end_with_the_coordinator() -> None:
    for responds in (True, False):
        world = stable(member(A), member(B))
        world.group.await_join(world.group.members[A], True)
        world.request(JOIN, joining(A), world.begin())
        number = world.number
        world.request(JOIN, joining("x"), error(JOIN, ErrorCode.unknown_member_id, member_id="x"))
        world.partition = SimpleNamespace(index=7, groups={})
        replies = [error(JOIN, ErrorCode.not_coordinator)._replace(connection=number)] if responds else []
        world.happens(SimpleNamespace(), Note("coordinator_unloaded", (("partition", 0),)), *replies)
        world.node.broker.now.mono_us += 3_000_000
        world.check.inspect(world.now_us, 0, world.node, None, thorough=True)
        assert bool(world.stories) is not responds
    assert "left JoinGroup of client to group g without a response" in world.stories[0]


def test_request_whose_connection_is_closed_needs_no_response() -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    world.happens(SimpleNamespace(), Note("coordinator_unloaded", (("partition", 0),)))
    world.happens(Closed(world.number))
    world.node.broker.now.mono_us += 3_000_000
    world.check.inspect(world.now_us, 0, world.node, None, thorough=True)
    assert world.stories == []


def test_parked_request_without_any_response_is_found() -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    world.group.await_join(world.group.members[A], False)
    world.request(HEARTBEAT, syncing(B), error(HEARTBEAT, ErrorCode.rebalance_in_progress))
    assert "JoinGroup of client wait" in world.stories[0]


def test_group_with_members_is_not_deleted_and_no_state_changes_in_silence() -> None:
    world = stable(member(A))
    world.group.state = GroupState.PREPARING_REBALANCE
    world.check.inspect(world.now_us, 0, world.node, None, thorough=True)
    assert "when it moved last" in world.stories[0]
    world = stable(member(A))
    world.partition.groups.clear()
    world.request(HEARTBEAT, syncing(), error(HEARTBEAT, ErrorCode.unknown_member_id))
    assert "it is gone, and was Stable" in "\n".join(world.stories)


def test_first_join_of_a_member_may_be_parked_for_five_minutes() -> None:
    world = stable(member(A))
    world.group.add(member(B, is_new=True), awaits_join=True)
    world.request(JOIN, joining(instance=None), world.begin(), version=3)
    assert world.check._groups[1]["g"].sessions[B] == (world.now_us + NEW_MEMBER_US,) * 2


def test_static_member_without_rejoin_is_awaited_again() -> None:
    def waited(after_us: int) -> Coordinator:
        """A leaves, and static B joins again when its time to join is over."""
        world = stable(member(A), member(B, "i"))
        leaving = SimpleNamespace(group_id="g", members=[SimpleNamespace(member_id=A, group_instance_id=None)])
        world.group.remove(A)
        left = reply(
            LEAVE, SimpleNamespace(error_code=ErrorCode.none, members=[SimpleNamespace(error_code=ErrorCode.none)])
        )
        world.request(LEAVE, leaving, world.begin(), left)
        for _ in range(5):
            world.request(
                HEARTBEAT, syncing(B, instance="i"), error(HEARTBEAT, ErrorCode.rebalance_in_progress), after_us=500_000
            )
        world.group.add(member("c", "j", is_new=True), awaits_join=True)
        world.request(JOIN, joining(instance="j"))
        number = world.number
        for _ in range(3):
            world.request(
                HEARTBEAT,
                syncing(B, instance="i"),
                error(HEARTBEAT, ErrorCode.rebalance_in_progress),
                after_us=after_us // 4,
            )
        generation = world.generation()
        generated = world.joined("c", members=())._replace(connection=number)
        world.group.leader = "c"
        world.happens(SimpleNamespace(), generation, generated, after_us=after_us // 4)
        return world

    assert not any("begins without" in each for each in waited(1_600_000).stories)
    assert any("generation 4 begins without ['b-1']" in each for each in waited(1_400_000).stories)
