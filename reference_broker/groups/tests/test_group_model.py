"""A group compared with a naive model that keeps only the list of members and recomputes the rest each time."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reference_broker.groups.classic_requests import JoinResponse, MemberProtocol
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.tests.test_group import ignore_response
from reference_broker.wire.errors import Error, ErrorCode

NAMES = ("range", "roundrobin", "sticky")
PROTOCOLS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
MEMBERS = [f"m{index}" for index in range(6)]
INSTANCES = ["i0", "i1"]


@dataclass
class NaiveMember:
    member_id: str
    instance: str | None
    protocols: list[str]
    rebalance_ms: int
    joined: bool = False


@dataclass
class NaiveGroup:
    """Members in order, the ID of the leader, and the IDs of pending joins."""

    state: str = "Empty"
    generation: int = 0
    leader: str | None = None
    protocol: str | None = None
    members: list[NaiveMember] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def member(self, member_id: str) -> NaiveMember | None:
        return next((each for each in self.members if each.member_id == member_id), None)

    def shared(self) -> list[str]:
        return [name for name in NAMES if all(name in each.protocols for each in self.members)]

    def selectable(self) -> list[str]:
        """Return all protocols with the most votes."""
        votes = [next(name for name in each.protocols if name in self.shared()) for each in self.members]
        return [name for name in NAMES if votes.count(name) == max(map(votes.count, votes))]

    def check(self, member_id: str, instance: str | None) -> Error:
        if instance is not None:
            owner = next((each.member_id for each in self.members if each.instance == instance), None)
            if owner is None:
                return ErrorCode.unknown_member_id
            if owner != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.unknown_member_id if self.member(member_id) is None else ErrorCode.none


class GroupBesideNaive(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = Group("g", 0)
        self.naive = NaiveGroup()
        self.now_ms = 0
        self.count = 0

    def respond(self, member_id: str) -> None:
        self.group.respond_to_join(member_id, JoinResponse(ErrorCode.none))

    def fresh_id(self) -> str:
        self.count += 1
        return f"new{self.count}"

    @rule(names=PROTOCOLS, instance=st.sampled_from([None, *INSTANCES]), rebalance_ms=st.integers(0, 9))
    def join_new(self, names: list[str], instance: str | None, rebalance_ms: int) -> None:
        taken = any(each.instance == instance is not None for each in self.naive.members)
        fits = not self.naive.members or bool(set(names) & set(self.naive.shared()))
        protocols = tuple(MemberProtocol(each, each.encode()) for each in names)
        self.group.protocol_type = "consumer"
        if self.group.state is not GroupState.EMPTY:
            assert self.group.supports("consumer", protocols) is fits
        if taken or not fits or self.naive.state == "Dead":
            return
        member_id = self.naive.pending.pop() if self.naive.pending and instance is None else self.fresh_id()
        self.group.add(Member(member_id, instance, "c", "h", rebalance_ms, 1, protocols))
        self.group.park_join(member_id, ignore_response)
        self.naive.members.append(NaiveMember(member_id, instance, names, rebalance_ms, joined=True))
        if self.naive.leader is None:
            self.naive.leader = member_id

    @rule()
    def give_id(self) -> None:
        member_id = self.fresh_id()
        self.group.add_pending_member(member_id)
        self.naive.pending.append(member_id)

    @precondition(lambda self: self.naive.members)
    @rule(data=st.data(), names=PROTOCOLS, rebalance_ms=st.integers(0, 9))
    def join_again(self, data: st.DataObject, names: list[str], rebalance_ms: int) -> None:
        naive = data.draw(st.sampled_from(self.naive.members))
        others = [each for each in self.naive.members if each is not naive]
        if not any(all(name in each.protocols for each in others) for name in names):
            return
        member = self.group.members[naive.member_id]
        self.group.update(member, tuple(MemberProtocol(each, b"") for each in names), rebalance_ms, 1)
        self.group.park_join(naive.member_id, ignore_response)
        naive.protocols, naive.rebalance_ms, naive.joined = names, rebalance_ms, True

    @precondition(lambda self: self.naive.members)
    @rule(data=st.data())
    def complete_join(self, data: st.DataObject) -> None:
        naive = data.draw(st.sampled_from(self.naive.members))
        self.respond(naive.member_id)
        naive.joined = False

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        known = [each.member_id for each in self.naive.members] + self.naive.pending + ["stranger"]
        member_id = data.draw(st.sampled_from(known))
        self.respond(member_id)
        removed = self.group.remove(member_id)
        assert (removed is not None) is (self.naive.member(member_id) is not None)
        self.naive.members = [each for each in self.naive.members if each.member_id != member_id]
        self.naive.pending = [each for each in self.naive.pending if each != member_id]
        if self.naive.leader == member_id:
            self.naive.leader = self.naive.members[0].member_id if self.naive.members else None

    @precondition(lambda self: any(each.instance for each in self.naive.members))
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        naive = data.draw(st.sampled_from([each for each in self.naive.members if each.instance]))
        member_id = self.fresh_id()
        assert naive.instance is not None
        self.respond(naive.member_id)
        self.group.replace_static(naive.instance, member_id)
        if self.naive.leader == naive.member_id:
            self.naive.leader = member_id
        naive.member_id, naive.joined = member_id, False

    @precondition(lambda self: self.naive.state in ("Empty", "CompletingRebalance", "Stable"))
    @rule()
    def begin_rebalance(self) -> None:
        self.now_ms += 1
        self.group.begin_rebalance(self.now_ms)
        self.naive.state = "PreparingRebalance"

    @precondition(lambda self: self.naive.state == "PreparingRebalance")
    @rule()
    def begin_generation(self) -> None:
        self.now_ms += 1
        joined = [each.member_id for each in self.naive.members if each.joined]
        assert self.group.maybe_elect_new_joined_leader() is bool(joined)
        if joined and self.naive.leader not in joined:
            self.naive.leader = joined[0]
        choices = self.naive.selectable() if self.naive.members else [None]
        self.group.init_next_generation(self.now_ms)
        assert self.group.protocol in choices
        self.naive.protocol = self.group.protocol
        self.naive.generation += 1
        self.naive.state = "CompletingRebalance" if self.naive.members else "Empty"

    @precondition(lambda self: self.naive.state == "CompletingRebalance")
    @rule()
    def stabilise(self) -> None:
        self.now_ms += 1
        self.group.become_stable(self.now_ms)
        self.naive.state = "Stable"

    @rule(data=st.data(), instance=st.sampled_from([None, *INSTANCES]), generation=st.integers(-1, 3))
    def commit(self, data: st.DataObject, instance: str | None, generation: int) -> None:
        member_id = data.draw(st.sampled_from([each.member_id for each in self.naive.members] + ["", "stranger"]))
        assert self.group.check_member(member_id, instance) is self.naive.check(member_id, instance)
        expected = self.naive.check(member_id, instance)
        if expected is ErrorCode.none and generation != self.naive.generation:
            expected = ErrorCode.illegal_generation
        if expected is ErrorCode.none and self.naive.state == "CompletingRebalance":
            expected = ErrorCode.rebalance_in_progress
        if self.naive.state == "Empty" and generation < 0:
            expected = ErrorCode.none
        assert self.group.check_commit(member_id, instance, generation) is expected

    @invariant()
    def same(self) -> None:
        group, naive = self.group, self.naive
        group.validate()
        assert group.state.value == naive.state
        assert (group.generation, group.leader, group.protocol) == (naive.generation, naive.leader, naive.protocol)
        assert list(group.members) == [each.member_id for each in naive.members]
        assert list(group.pending_joins) == naive.pending
        assert len(group.parked_joins) == sum(each.joined for each in naive.members)
        assert group.has_all_members_joined is (all(each.joined for each in naive.members) and not naive.pending)
        assert group.static_members == {each.instance: each.member_id for each in naive.members if each.instance}
        assert group.rebalance_timeout_ms == max([each.rebalance_ms for each in naive.members], default=0)
        for each in naive.members:
            known = group.members[each.member_id]
            assert known.member_id == each.member_id
            assert group.has_joined(each.member_id) is each.joined
        if naive.state == "PreparingRebalance":
            for size in range(4):
                assert group.accepts("x", size) is (len(group.parked_joins) < size)


TestGroupBesideNaive = pytest.mark.thorough(GroupBesideNaive.TestCase)
TestGroupBesideNaive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
