"""A group metadata manager alone: virtual time, one partition of the offsets topic whose writes a test completes,
clients as calls."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from types import SimpleNamespace
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.classic_requests import (
    JoinRequest,
    JoinResponse,
    Leaving,
    MemberProtocol,
    SyncRequest,
    SyncResponse,
)
from reference_broker.groups.group import Group, GroupState
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard, OffsetsRetention, OffsetsWrite
from reference_broker.groups.group_metadata_manager import GroupMetadataManager
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.coroutines import Future, completed
from reference_broker.ports.node_ports import Now
from reference_broker.wire.errors import Error, ErrorCode

WALL_MS = 1_700_000_000_000
RANGE = (MemberProtocol("range", b"range"),)
BOTH = (MemberProtocol("range", b"range"), MemberProtocol("roundrobin", b"roundrobin"))


class FakePorts:
    """Ports whose timers fire when ``pass_ms`` reaches them. Notes are kept."""

    def __init__(self) -> None:
        self.mono_us = 0
        self.notes: list[tuple[str, dict[str, int | str]]] = []
        self.timers_set = 0
        self._heap: list[tuple[int, int]] = []
        self._armed: dict[int, Callable[[], None]] = {}

    def now(self) -> Now:
        return Now(self.mono_us, WALL_MS + self.mono_us // 1000)

    def at_end(self, step: Callable[[], None]) -> None:
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.timers_set += 1
        self._armed[self.timers_set] = fire
        heappush(self._heap, (deadline_us, self.timers_set))
        return self.timers_set

    def cancel_timer(self, timer: int) -> None:
        self._armed.pop(timer, None)

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self.notes.append((what, dict(fields)))

    @property
    def armed(self) -> int:
        return len(self._armed)

    def pass_ms(self, duration_ms: int) -> None:
        end_us = self.mono_us + duration_ms * 1000
        while self._heap and self._heap[0][0] <= end_us:
            deadline_us, timer = heappop(self._heap)
            fire = self._armed.pop(timer, None)
            if fire is not None:
                self.mono_us = max(self.mono_us, deadline_us)
                fire()
        self.mono_us = end_us


@dataclass
class Write:
    """A record written for the group. ``state`` and later fields: of the group when it was written."""

    group_id: str
    state: GroupState
    generation: int
    assignments: dict[str, bytes]
    written: Callable[[Error], None]
    """Completes the write."""


class FakePartition(GroupCoordinatorShard):
    """A loaded partition without a log. If it ``holds``, records wait in ``writes`` until the test completes them.
    Otherwise all writes end at once with ``fails``."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.holds = False
        self.fails = ErrorCode.none
        led = SimpleNamespace(index=0, unwatch=lambda _: None)
        log: Any = SimpleNamespace(led=led)
        super().__init__(FakePorts(), log, OffsetsRetention(1), GroupMetrics(Metrics()))  # type: ignore[arg-type]
        self.is_loaded = True

    def write_group(self, group: Group) -> Future[Error]:
        assignments = {each.member_id: each.assignment for each in group.members.values()}
        result = self._result()
        self.writes.append(Write(group.group_id, group.state, group.generation, assignments, result.set_result))
        return result

    def remove_group(self, group_id: str) -> OffsetsWrite:
        """Remove the group. An error that is returned at once means that nothing is written."""
        result = self._result()
        self.writes.append(Write(group_id, GroupState.DEAD, self.groups[group_id].generation, {}, result.set_result))
        return OffsetsWrite(self.holds or self.fails is ErrorCode.none, result)

    def _result(self) -> Future[Error]:
        return Future() if self.holds else completed(self.fails)


class FakeStore:
    def __init__(self) -> None:
        self.partition: FakePartition | None = FakePartition()
        self.is_loading = False

    def find(self, group_id: str) -> FakePartition | Error:  # noqa: ARG002 - one partition has all
        if self.is_loading:
            return ErrorCode.coordinator_load_in_progress
        return self.partition or ErrorCode.not_coordinator

    def active(self) -> Iterable[FakePartition]:
        return [] if self.partition is None or self.is_loading else [self.partition]

    def loading(self) -> bool:
        return self.is_loading


@dataclass
class Joining:
    """A JoinGroup request; ``responses`` has at most one."""

    responses: list[JoinResponse] = field(default_factory=list)

    @property
    def response(self) -> JoinResponse:
        (response,) = self.responses
        return response

    @property
    def error(self) -> Error:
        return self.response.error


@dataclass
class Syncing:
    responses: list[SyncResponse] = field(default_factory=list)

    @property
    def response(self) -> SyncResponse:
        (response,) = self.responses
        return response

    @property
    def error(self) -> Error:
        return self.response.error


class MembershipWorld:
    """A node's group metadata manager. Defaults: sessions of 10 s, rebalances of 60 s, no initial delay."""

    def __init__(self, **settings: object) -> None:
        values: dict[str, object] = {"group_initial_rebalance_delay_ms": 0, **settings}
        self.config = BrokerConfig(**values)  # type: ignore[arg-type]
        self.ports = FakePorts()
        self.store = FakeStore()
        self.metrics = GroupMetrics(Metrics())
        self.group_manager = GroupMetadataManager(self.ports, self.config, self.store.find, self.metrics, Random(7))  # type: ignore[arg-type]

    @property
    def partition(self) -> FakePartition:
        assert self.store.partition is not None
        return self.store.partition

    @property
    def group(self) -> Group:
        return self.partition.groups["g"]

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        client: str = "c",
        protocols: tuple[MemberProtocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        group: str = "g",
        reason: str = "",
        joining: Joining | None = None,
    ) -> Joining:
        joining = joining or Joining()
        request = JoinRequest(
            group,
            member_id,
            instance,
            client,
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            reason,
            needs_member_id=version >= 4,
            skips_assignment=version >= 9,
        )
        self.group_manager.join_group(request, joining.responses.append)
        return joining

    def new(self, **how: object) -> tuple[str, Joining]:
        """Join as a dynamic member: get an ID, and join with it."""
        first = self.join(**how)  # type: ignore[arg-type]
        assert first.error is ErrorCode.member_id_required
        return first.response.member_id, self.join(first.response.member_id, **how)  # type: ignore[arg-type]

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
        group: str = "g",
        syncing: Syncing | None = None,
    ) -> Syncing:
        syncing = syncing or Syncing()
        number = self.group.generation if generation is None else generation
        request = SyncRequest(group, number, member_id, instance, protocol_type, protocol, assignments or {})
        self.group_manager.sync_group(request, syncing.responses.append)
        return syncing

    def heartbeat(
        self, member_id: str, generation: int | None = None, *, instance: str | None = None, group: str = "g"
    ) -> Error:
        number = self.group.generation if generation is None else generation
        return self.group_manager.heartbeat(group, member_id, instance, number)

    def leave(self, *members: tuple[str, str | None] | str) -> tuple[Error, ...]:
        leaving = tuple(Leaving(each, None) if isinstance(each, str) else Leaving(*each) for each in members)
        error, errors = self.group_manager.leave_group("g", leaving)
        assert error is ErrorCode.none
        return errors

    def pass_ms(self, duration_ms: int) -> None:
        self.ports.pass_ms(duration_ms)
        self.group_manager.validate()

    def lose(self) -> FakePartition:
        """Make another node the coordinator."""
        lost, self.store.partition = self.partition, None
        lost.close()
        self.group_manager.unloaded(lost)
        return lost

    def in_state(self, state: GroupState) -> int:
        """Return the number of groups that are counted in this state."""
        return self.metrics.by_state[state].value

    def alive_ms(self, duration_ms: int, *members: str) -> None:
        """Let time pass while these members send heartbeats each second."""
        for _ in range(duration_ms // 1000):
            self.pass_ms(1000)
            for member_id in members:
                self.heartbeat(member_id)

    def stable(self, *instances: str | None, **how: object) -> list[str]:
        """Return the members of a stable group, the leader first. An instance of None is a dynamic member."""
        joins: list[tuple[str, Joining]] = []
        for instance in instances:
            member = self.new(**how) if instance is None else ("", self.join(instance=instance, **how))  # type: ignore[arg-type]
            joins.append(member)
        self.pass_ms(self.config.group_initial_rebalance_delay_ms)
        ids = [joining.response.member_id for _, joining in joins]
        leader = self.group.leader
        assert leader is not None
        assignments = {member_id: member_id.encode() for member_id in ids}
        for member_id in sorted(ids, key=lambda each: each != leader):
            assert self.sync(member_id, assignments=assignments).error is ErrorCode.none
        assert self.group.state is GroupState.STABLE
        return sorted(ids, key=lambda each: each != leader)

    def states(self) -> list[str]:
        """Return the states that the group went through."""
        return [str(fields["state"]) for what, fields in self.ports.notes if what == "group_state"]

    def members(self, what: str) -> list[str]:
        """Return the members of the notes of this kind."""
        return [
            str(fields["member_id"])
            for name, fields in self.ports.notes
            if name == "group_member" and fields["what"] == what
        ]
