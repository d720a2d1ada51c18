"""Moves of a group: none is a violation while a coordinator follows Kafka's rules, and each other step is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

from chaos.checks.group_moves import GroupMoves
from chaos.checks.group_responses import COMMIT, HEARTBEAT, JOIN, LEAVE, SYNC
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
from chaos.checks.group_times import NEW_MEMBER_US, SLACK_US
from chaos.tests.check_context import check_context
from chaos.tests.kafka_messages import heartbeat_request as heartbeat
from chaos.tests.kafka_messages import (
    heartbeat_response,
    join_group_response,
    leave_group_request,
    leave_group_response,
    leaving_member,
    offset_commit_response,
    sync_group_response,
    txn_offset_commit_request,
)
from chaos.tests.kafka_messages import join_group_request as joining
from chaos.tests.kafka_messages import offset_commit_request as committing
from chaos.tests.kafka_messages import sync_group_request as syncing
from chaos.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubImages,
    StubNode,
    StubOffsetsPartition,
    image_of,
    topic_image,
)
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Close, Closed, Effect, Event, Note, Reply, Request, TimerFired
from reference_broker.groups.group import Group, GroupState, Member, MemberProtocol
from reference_broker.ports.node_ports import Now
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

pytestmark = pytest.mark.clause("X-14")
A, B = "a-1", "b-1"
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
def test_error_of_join_group(situation: str) -> None:
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


def test_error_of_sync_group() -> None:
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


def test_error_of_heartbeat_and_named_member() -> None:
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


def test_error_of_a_commit() -> None:
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


def test_error_of_a_commit_in_a_transaction() -> None:
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
    other = STABLE_GROUP._replace(members={**STABLE_GROUP.members, A: MemberView(session_ms=1)})
    assert not wrong_settings(STABLE_GROUP, STABLE_GROUP, "")
    assert not wrong_settings(STABLE_GROUP, other, A)
    assert "the settings of a-1 changed" in wrong_settings(STABLE_GROUP, other, B)


# --- a coordinator ----------------------------------------------------------------------------------------------------

CONFIG = replace(
    BrokerConfig(),
    group_min_session_timeout_ms=100,
    group_max_session_timeout_ms=60_000,
    group_max_size=5,
    group_initial_rebalance_delay_ms=300,
)
COORDINATOR_ID = 1


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
        self.partition = StubOffsetsPartition(groups={"g": self.group})
        broker = StubBroker(
            COORDINATOR_ID,
            config=CONFIG,
            controller=StubImages(image_of(topic_image("__consumer_offsets"))),
            groups=StubCoordinator([self.partition]),
        )
        self.node = StubNode(broker)

    def handle(self, event: Event, *effects: Effect, after_us: int = 1000) -> None:
        """Let the coordinator handle the event, and show it to the check."""
        self.now_us += after_us
        self.node.broker.now = Now(self.now_us, 0)
        self.check.acted(self.now_us, self.node.as_node(), event, effects)

    def handle_timer(self, *effects: Effect, after_us: int = 1000) -> None:
        """Let the coordinator act in an event that is no request."""
        self.handle(TimerFired(1), *effects, after_us=after_us)

    def inspect(self) -> None:
        """Let the check compare everything."""
        self.check.inspect(self.now_us, 0, self.node.as_node(), None, thorough=True)

    def inspect_later(self, after_us: int) -> None:
        self.node.broker.now = Now(self.now_us + after_us, 0)
        self.inspect()

    def load(self) -> None:
        self.handle_timer(Note("coordinator_loaded", (("partition", 0),)))

    def unload(self, *effects: Effect) -> None:
        self.handle_timer(Note("coordinator_unloaded", (("partition", 0),)), *effects)

    def request(self, api_key: int, body: Any, *effects: Effect, version: int = 9, after_us: int = 1000) -> Request:
        self.number += 1
        request = Request(self.number, 1, api_key, version, "client", body, Tag(api_key, version, "client", 0, -1))
        replies = [each._replace(connection=self.number) if type(each) is Reply else each for each in effects]
        self.handle(request, *replies, after_us=after_us)
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

    def joined(self, key: str, **fields: Any) -> Reply:
        """Return the response to the JoinGroup of a member, as it follows from the group, but with these fields."""
        group = self.group
        members = [
            (member_id, each.group_instance_id, each.metadata("range")) for member_id, each in group.members.items()
        ]
        response = join_group_response(
            key,
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader or "",
            members=members if key == group.leader else (),
        )
        return reply(JOIN, replace(response, **fields))

    @property
    def stories(self) -> list[str]:
        return [each.story for each in self.check.violations]


def reply(api_key: int, body: object, connection: int = 0) -> Reply:
    return Reply(connection, 1, api_key, 9, body, Tag(api_key, 9, "client", 0, -1))


def join_refused(code: ErrorCode, member_id: str = "") -> Reply:
    return reply(JOIN, join_group_response(member_id, error=code))


def beaten(code: ErrorCode) -> Reply:
    """Return the response to a heartbeat."""
    return reply(HEARTBEAT, heartbeat_response(code))


def assigned(assignment: bytes) -> Reply:
    return reply(SYNC, sync_group_response(assignment))


def stable(*members: Member) -> Coordinator:
    """Return a coordinator that has just loaded the group in generation 3."""
    world = Coordinator(Group.loaded("g", 3, "consumer", "range", members[0].member_id, 0, members))
    world.load()
    return world


def first_generation(world: Coordinator) -> None:
    """A joins a new group, gets generation 1, and assigns."""
    world.load()
    world.group.add_pending_member(A)
    world.request(JOIN, joining(), join_refused(ErrorCode.member_id_required, A))
    world.group.pending_joins.clear()
    world.group.protocol_type = "consumer"
    new = member(A, is_new=True)
    world.group.add(new, awaits_join=True)
    world.request(JOIN, joining(A), world.begin())
    number = world.number
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=number), after_us=300_000)


def test_first_generation_is_clean() -> None:
    world = Coordinator()
    first_generation(world)
    world.group.await_sync(A, True)
    world.request(SYNC, syncing(generation=1, assignments={A: b"all"}))
    number = world.number
    world.group.await_sync(A, False)
    world.handle_timer(world.stabilise(), assigned(b"all")._replace(connection=number))
    world.request(HEARTBEAT, heartbeat(generation=1), beaten(ErrorCode.none))
    assert world.stories == []
    assert world.check.evidence > 4


def test_initial_delay_is_kept() -> None:
    world = Coordinator()
    world.load()
    world.group.protocol_type = "consumer"
    world.group.add(member(A, "i", is_new=True), awaits_join=True)
    world.request(JOIN, joining(instance="i"), world.begin())
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=1), after_us=299_000)
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
    body = joining(A, protocols={"range": b"new"})
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
    world.handle(joins, *notes, *joined)
    world.group.await_sync(B, True)
    world.request(SYNC, syncing(B, generation=4))
    parked = world.number
    world.group.await_sync(B, False)
    sent = {A: b"1", B: b"2"}
    world.number += 1
    body, tag = syncing(A, generation=4, assignments=sent), Tag(SYNC, 9, "client", 0, -1)
    replies = assigned(given)._replace(connection=parked), assigned(b"1")._replace(connection=world.number)
    world.handle(Request(world.number, 1, SYNC, 9, "client", body, tag), world.stabilise(), *replies)
    if is_right:
        assert world.stories == []
    else:
        assert len(world.stories) == 1
        assert f"got assignment {given!r}, and the leader sent" in world.stories[0]


@pytest.mark.parametrize(
    ("api_key", "body", "response", "story"),
    [
        (HEARTBEAT, heartbeat(generation=2), beaten(ErrorCode.none), "got NONE, and ILLEGAL_GENERATION is due"),
        (HEARTBEAT, heartbeat(), beaten(ErrorCode.unknown_member_id), "got UNKNOWN_MEMBER_ID, for no reason"),
        (SYNC, syncing("x"), assigned(b""), "got NONE, and UNKNOWN_MEMBER_ID is due"),
        (
            JOIN,
            joining("x"),
            join_refused(ErrorCode.illegal_generation, "x"),
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
    return reply(COMMIT, offset_commit_response(*codes), connection)


def test_delayed_commit_response_is_fenced() -> None:
    world = stable(member(A))
    world.request(COMMIT, committing(), committed(ErrorCode.none))
    world.request(COMMIT, committing(generation=2), committed(ErrorCode.illegal_generation))
    world.request(COMMIT, committing("", -1), committed(ErrorCode.unknown_member_id))
    assert world.stories == []
    world.request(COMMIT, committing("", -1))
    world.handle_timer(committed(ErrorCode.none, connection=world.number))
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
    world.handle_timer(committed(ErrorCode.none, connection=number))
    assert world.stories == []


def expire(world: Coordinator, member_id: str, *, after_us: int) -> None:
    world.group.remove(member_id)
    world.handle_timer(world.begin(), after_us=after_us)


def test_member_is_removed_when_its_session_is_over_and_not_earlier() -> None:
    world = stable(member(A), member(B))
    world.request(HEARTBEAT, heartbeat(A), beaten(ErrorCode.none), after_us=600_000)
    expire(world, B, after_us=400_000)
    assert world.stories == []
    world = stable(member(A), member(B))
    world.request(HEARTBEAT, heartbeat(B), beaten(ErrorCode.none), after_us=600_000)
    expire(world, B, after_us=999_000)
    assert "b-1 is removed from generation 3 (Stable), and its session ends in 1000 us" in world.stories[0]


def test_unremoved_member_is_found_by_other_heartbeat_or_thorough_check() -> None:
    world = stable(member(A), member(B))
    world.request(HEARTBEAT, heartbeat(A), beaten(ErrorCode.none), after_us=1_000_000 + SLACK_US)
    assert world.stories == []
    world.inspect_later(1)
    assert "b-1 is there after its session has ended" in world.stories[0]


def test_session_of_a_member_whose_request_is_parked_does_not_end() -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    world.request(HEARTBEAT, heartbeat(B), beaten(ErrorCode.rebalance_in_progress), after_us=900_000)
    world.request(HEARTBEAT, heartbeat(B), beaten(ErrorCode.rebalance_in_progress), after_us=900_000)
    assert world.stories == []
    world.group.remove(A)
    world.handle_timer(
        Note("group_member", (("group", "g"),)),
        join_refused(ErrorCode.unknown_member_id, A),
    )
    assert "a-1 is removed from generation 3 (PreparingRebalance), and a request of it is parked" in world.stories[-1]


def rebalanced_without_b(after_us: int) -> Coordinator:
    """B sends heartbeats, and does not join again."""
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    number = world.number
    for _ in range(4):
        world.request(HEARTBEAT, heartbeat(B), beaten(ErrorCode.rebalance_in_progress), after_us=after_us // 5)
    world.group.remove(B)
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=number), after_us=after_us // 5)
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
        world.request(HEARTBEAT, heartbeat(B), beaten(ErrorCode.rebalance_in_progress), after_us=500_000)
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
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=1))
    assert "generation 4 begins without ['b-1']" in world.stories[0]


def test_member_that_does_not_sync_is_removed_in_time() -> None:
    def late(after_us: int) -> Coordinator:
        world = stable(member(A))
        world.group.await_join(world.group.members[A], True)
        notes = [world.begin(), world.generation()]
        world.request(JOIN, joining(A), *notes, world.joined(A))
        for _ in range(4):
            world.request(HEARTBEAT, heartbeat(generation=4), beaten(ErrorCode.none), after_us=after_us // 5)
        return world

    world = late(2_000_000)
    world.group.remove(A)
    world.handle_timer(world.begin(), world.generation(), after_us=400_000)
    assert world.stories == []
    world = late(1_500_000)
    world.group.remove(A)
    world.handle_timer(world.begin(), world.generation(), after_us=300_000)
    assert "a-1 is removed" in world.stories[0]
    world = late(2_500_000)
    world.request(HEARTBEAT, heartbeat(generation=4), beaten(ErrorCode.none), after_us=600_000)
    assert "['a-1'] have not synced" in world.stories[0]


def test_static_member_that_returns_has_another_id() -> None:
    world = stable(member(B, "i", assignment=b"2"))
    world.group.replace_static("i", "b-2")
    world.group.await_join(world.group.members["b-2"], True)
    world.request(JOIN, joining(instance="i"))
    number = world.number
    world.group.await_join(world.group.members["b-2"], False)
    world.handle_timer(world.joined("b-2", members=(), leader=B)._replace(connection=number))
    world.request(SYNC, syncing("b-2", instance="i"), assigned(b"2"))
    world.request(HEARTBEAT, heartbeat(B, instance="i"), beaten(ErrorCode.fenced_instance_id))
    assert world.stories == []
    world.request(HEARTBEAT, heartbeat(B, instance="i"), beaten(ErrorCode.none))
    assert "got NONE, and FENCED_INSTANCE_ID is due" in world.stories[0]


def test_generation_without_assignment_is_not_stable() -> None:
    world = Coordinator()
    first_generation(world)
    world.handle_timer(world.stabilise())
    assert "generation 1 is Stable, and its leader has assigned nothing" in world.stories[0]
    world = stable(member(A), member(B))
    world.handle_timer(world.begin(), after_us=1)
    for each in (A, B):
        world.group.await_join(world.group.members[each], True)
    world.handle_timer(world.generation())
    world.request(SYNC, syncing(B, generation=4), world.stabilise(), assigned(b""))
    assert "generation 4 is Stable, and its leader has assigned nothing" in "".join(world.stories)


def test_parked_requests_end_with_the_coordinator() -> None:
    for responds in (True, False):
        world = stable(member(A), member(B))
        world.group.await_join(world.group.members[A], True)
        world.request(JOIN, joining(A), world.begin())
        number = world.number
        world.request(JOIN, joining("x"), join_refused(ErrorCode.unknown_member_id, "x"))
        world.node.broker.groups.shards = [StubOffsetsPartition(index=7)]
        replies = [join_refused(ErrorCode.not_coordinator)._replace(connection=number)] if responds else []
        world.unload(*replies)
        world.inspect_later(3_000_000)
        assert bool(world.stories) is not responds
    assert "left JoinGroup of client to group g without a response" in world.stories[0]


def test_request_whose_connection_is_closed_needs_no_response() -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    world.unload()
    world.handle(Closed(world.number))
    world.inspect_later(3_000_000)
    assert world.stories == []


def test_parked_request_without_any_response_is_found() -> None:
    world = stable(member(A), member(B))
    world.group.await_join(world.group.members[A], True)
    world.request(JOIN, joining(A), world.begin())
    world.group.await_join(world.group.members[A], False)
    world.request(HEARTBEAT, heartbeat(B), beaten(ErrorCode.rebalance_in_progress))
    assert "JoinGroup of client wait" in world.stories[0]


def test_group_with_members_is_not_deleted_and_no_state_changes_in_silence() -> None:
    world = stable(member(A))
    world.group.state = GroupState.PREPARING_REBALANCE
    world.inspect()
    assert "when it moved last" in world.stories[0]
    world = stable(member(A))
    world.partition.groups.clear()
    world.request(HEARTBEAT, heartbeat(), beaten(ErrorCode.unknown_member_id))
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
        world.group.remove(A)
        left = reply(LEAVE, leave_group_response(ErrorCode.none))
        world.request(LEAVE, leave_group_request(leaving_member(A)), world.begin(), left)
        for _ in range(5):
            world.request(
                HEARTBEAT, heartbeat(B, instance="i"), beaten(ErrorCode.rebalance_in_progress), after_us=500_000
            )
        world.group.add(member("c", "j", is_new=True), awaits_join=True)
        world.request(JOIN, joining(instance="j"))
        number = world.number
        for _ in range(3):
            world.request(
                HEARTBEAT,
                heartbeat(B, instance="i"),
                beaten(ErrorCode.rebalance_in_progress),
                after_us=after_us // 4,
            )
        generation = world.generation()
        generated = world.joined("c", members=())._replace(connection=number)
        world.group.leader = "c"
        world.handle_timer(generation, generated, after_us=after_us // 4)
        return world

    assert not any("begins without" in each for each in waited(1_600_000).stories)
    assert any("generation 4 begins without ['b-1']" in each for each in waited(1_400_000).stories)


@pytest.mark.parametrize("is_alone", [True, False])
def test_time_to_join_of_a_group_without_members_is_over_at_once(is_alone: bool) -> None:
    """All members that have not synced are gone, and one that joins next does not wait for an ID without a member."""
    world = stable(member(A)) if is_alone else stable(member(A), member(B, "i"))
    for each in world.group.members.values():
        world.group.await_join(each, True)
    world.request(JOIN, joining(A), world.begin(), world.generation(), world.joined(A))
    world.group.add_pending_member("p")
    world.request(JOIN, joining(), join_refused(ErrorCode.member_id_required, "p"))
    world.group.remove(A)
    world.handle_timer(world.begin(), after_us=2_000_000)
    world.group.add(member("c", "j", is_new=True), awaits_join=True)
    world.request(JOIN, joining(instance="j"))
    generated = world.step(lambda: world.group.begin_generation(0))
    world.handle_timer(generated)
    assert any("begins without" in each for each in world.stories) is not is_alone


@pytest.mark.parametrize(("late_us", "is_early"), [(SLACK_US // 2, False), (SLACK_US * 3, True)])
def test_timer_of_the_time_to_join_may_fire_late(late_us: int, is_early: bool) -> None:
    """Static B has not joined when the time to join is over. C joins just before the late timer fires, or much later,
    when the time to join has begun again."""
    world = stable(member(A), member(B, "i"))
    world.group.remove(A)
    left = reply(LEAVE, leave_group_response(ErrorCode.none))
    world.request(LEAVE, leave_group_request(leaving_member(A)), world.begin(), left)
    world.group.add(member("c", "j", is_new=True), awaits_join=True)
    world.request(JOIN, joining(instance="j"), after_us=2_000_000 + late_us - 1000)
    world.group.leader = "c"
    world.handle_timer(world.generation())
    assert any("begins without ['b-1']" in each for each in world.stories) is is_early
