"""Random histories of a group: members join, fall silent, restart and leave, writes fail, coordinators change.

In each history a generation has one leader, one protocol and one assignment, and every request gets at most one
response. Once the faults end, every member is assigned within the timeouts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_broker.groups.classic_requests import JoinResponse, Leaving, MemberProtocol, SyncResponse
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.rebalances import NEW_MEMBER_TIMEOUT_MS
from reference_broker.groups.tests.membership_world import BOTH, RANGE, FakePartition, Joining, MembershipWorld, Syncing
from reference_broker.ports.coroutines import Future
from reference_broker.wire.errors import Error, ErrorCode

SESSION_MS, REBALANCE_MS = 6000, 12_000


class LoggedPartition(FakePartition):
    """Keeps the last written record, as a log does."""

    def __init__(self, log: Group | None = None) -> None:
        super().__init__()
        self.log = log
        self.waiting: list[Callable[[Error], None]] = []
        """Writes that are not complete, oldest first."""

    def write_group(self, group: Group) -> Future[Error]:
        kept, result = copy_of(group), Future[Error]()

        def written(error: Error) -> None:
            if error is ErrorCode.none:
                self.log = kept
            result.set_result(error)

        if self.holds:
            self.waiting.append(written)
        else:
            written(self.fails)
        return result

    def settle(self, error: Error) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each(error)


def copy_of(group: Group) -> Group:
    """Return the group as it is read from its record."""
    members = tuple(
        Member(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            each.rebalance_timeout_ms,
            each.session_timeout_ms,
            (MemberProtocol(group.protocol or "", each.metadata(group.protocol)),),
            each.assignment,
        )
        for each in group.members.values()
    )
    return Group.loaded(
        group.group_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        group.state_since_ms,
        members,
    )


@dataclass
class Client:
    """A well-behaved consumer: joins, syncs, sends heartbeats, and rejoins when it must. A silent one does nothing."""

    world: MembershipWorld
    name: str
    instance: str | None
    received: "Received"
    version: int = 9
    member_id: str = ""
    generation: int = -1
    assignment: bytes | None = None
    waits: bool = False
    silent: bool = False
    fenced: bool = False
    request: int = 0

    def step(self) -> None:
        if self.silent or self.fenced or self.waits:
            return
        if self.generation < 0:
            self.join()
        elif self.world.store.partition is not None:
            error = self.world.group_manager.heartbeat("g", self.member_id, self.instance, self.generation)
            self.handle_error(error)

    def join(self) -> None:
        self.waits, self.request = True, self.request + 1
        self.world.join(
            self.member_id,
            instance=self.instance,
            client=self.name,
            protocols=self.protocols(),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            version=self.version,
            joining=Joining(Once(partial(self.joined, self.request))),
        )

    def protocols(self) -> tuple[MemberProtocol, ...]:
        return RANGE if int(self.name[1:]) % 2 else BOTH

    def joined(self, request: int, response: JoinResponse) -> None:
        if request != self.request:
            return
        self.waits = False
        if response.error is ErrorCode.member_id_required:
            self.member_id = response.member_id
        elif response.error is ErrorCode.none:
            self.member_id, self.generation, self.assignment = response.member_id, response.generation, None
            self.received.generation(response)
            self.sync(response)
        else:
            self.handle_error(response.error)

    def sync(self, joined: JoinResponse) -> None:
        self.waits, self.request = True, self.request + 1
        own = f"{joined.generation}:{self.member_id}:"
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        assignments = {each.member_id: (own + each.member_id).encode() for each in joined.members} if leads else {}
        self.world.sync(
            self.member_id,
            self.generation,
            assignments,
            instance=self.instance,
            protocol=joined.protocol,
            syncing=Syncing(Once(partial(self.synced, self.request))),
        )

    def synced(self, request: int, response: SyncResponse) -> None:
        if request != self.request:
            return
        self.waits = False
        if response.error is ErrorCode.none:
            self.assignment = response.assignment
            self.received.assignment(self.generation, self.member_id, response.assignment)
        else:
            self.handle_error(response.error)

    def handle_error(self, error: Error) -> None:
        if error is ErrorCode.fenced_instance_id:
            self.fenced = True
        elif error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self.member_id, self.generation, self.assignment = "", -1, None
        elif error is not ErrorCode.none:
            self.generation, self.assignment = -1, None


class Once(list[Any]):
    """A list that calls back when its response arrives, at once or later."""

    def __init__(self, arrived: Callable[[Any], None]) -> None:
        super().__init__()
        self.arrived = arrived

    def append(self, response: object) -> None:
        assert not self, "a second response"
        super().append(response)
        self.arrived(response)


@dataclass
class Received:
    """What members received, by load of the coordinator and generation."""

    life: int = 0
    leaders: dict[tuple[int, int], tuple[str, str | None]] = field(default_factory=dict)
    assigned_by: dict[int, str] = field(default_factory=dict)

    def generation(self, response: JoinResponse) -> None:
        if response.members and not response.skip_assignment:
            key = (self.life, response.generation)
            leading = (response.leader, response.protocol)
            assert self.leaders.setdefault(key, leading) == leading, f"two leaders: {leading} and {self.leaders[key]}"

    def assignment(self, generation: int, member_id: str, assignment: bytes) -> None:
        """Check the assignment, which names its author and its member (a static member may have got another ID
        since)."""
        if not assignment:
            return
        of, leader, _ = assignment.decode().split(":")
        assert int(of) == generation, f"{member_id} got an assignment of generation {of} in {generation}"
        assert self.assigned_by.setdefault(generation, leader) == leader, "two leaders assigned one generation"


class Storm(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = MembershipWorld(group_initial_rebalance_delay_ms=3000)
        self.world.store.partition = LoggedPartition()
        self.received = Received()
        self.clients: list[Client] = []
        self.count = 0

    @property
    def partition(self) -> LoggedPartition:
        partition = self.world.partition
        assert isinstance(partition, LoggedPartition)
        return partition

    @rule(instance=st.sampled_from([None, None, "one", "two"]), version=st.sampled_from([3, 8, 9]))
    def come(self, instance: str | None, version: int) -> None:
        if len(self.clients) < 6:
            self.count += 1
            self.clients.append(Client(self.world, f"c{self.count}", instance, self.received, version))

    @rule(index=st.integers(0, 5))
    def fall_silent(self, index: int) -> None:
        if index < len(self.clients):
            self.clients[index].silent = True

    @rule(index=st.integers(0, 5))
    def leave(self, index: int) -> None:
        if index < len(self.clients):
            client = self.clients.pop(index)
            client.silent = True
            if client.member_id:
                self.world.group_manager.leave_group("g", (Leaving(client.member_id, client.instance),))

    @rule(index=st.integers(0, 5))
    def start_again(self, index: int) -> None:
        if index < len(self.clients):
            old = self.clients.pop(index)
            old.silent = True
            self.count += 1
            self.clients.append(Client(self.world, f"c{self.count}", old.instance, self.received, old.version))

    @rule(duration_ms=st.sampled_from([0, 500, 1000, 3000, 7000]))
    def live(self, duration_ms: int) -> None:
        for _ in range(max(duration_ms // 1000, 1)):
            for client in tuple(self.clients):
                client.step()
            self.world.pass_ms(min(duration_ms, 1000))

    @rule(holds=st.booleans(), fails=st.booleans())
    def writes(self, holds: bool, fails: bool) -> None:
        self.partition.holds = holds
        self.partition.fails = ErrorCode.coordinator_not_available if fails else ErrorCode.none

    @rule(fails=st.booleans())
    def settle_writes(self, fails: bool) -> None:
        self.partition.settle(ErrorCode.coordinator_not_available if fails else ErrorCode.none)

    @rule()
    def another_coordinator(self) -> None:
        lost = self.world.lose()
        assert isinstance(lost, LoggedPartition)
        taken = LoggedPartition(log=lost.log)
        if lost.log is not None:
            taken.add_group(copy_of(lost.log))
        self.world.store.partition = taken
        self.received.life += 1
        self.world.group_manager.loaded(taken)
        lost.settle(ErrorCode.not_coordinator)

    @invariant()
    def one_of_each(self) -> None:
        self.world.group_manager.validate()

    def teardown(self) -> None:
        """After the faults end, every member is assigned within two sessions and two rebalances."""
        self.partition.holds, self.partition.fails = False, ErrorCode.none
        self.partition.settle(ErrorCode.not_coordinator)
        owners: dict[str, Client] = {}
        for client in self.clients:
            client.silent = client.silent or client.fenced
            if client.instance is not None and not client.silent:
                owners.setdefault(client.instance, client)
                client.silent = owners[client.instance] is not client
        alive = [each for each in self.clients if not each.silent]
        self.calm_ms(2 * SESSION_MS + 2 * REBALANCE_MS + NEW_MEMBER_TIMEOUT_MS)
        alive = [each for each in alive if not each.fenced]
        group = self.world.partition.groups.get("g")
        if alive:
            assert group is not None
            assert group.state is GroupState.STABLE
            assert sorted(group.members) == sorted(each.member_id for each in alive)
            assert all(each.assignment is not None and each.generation == group.generation for each in alive)
        elif group is not None:
            assert (group.state, len(group.members)) == (GroupState.EMPTY, 0)

    def calm_ms(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 2000):
            for client in self.clients:
                client.step()
            self.world.pass_ms(2000)


TestStorm = pytest.mark.thorough(Storm.TestCase)
TestStorm.settings = settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)
