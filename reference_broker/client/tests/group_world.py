"""A small coordinator for tests of the client: one group, whose members it drives, without delays.

Not Kafka's in its details (no timeouts): JoinGroup waits for the requests of all known members, SyncGroup until the
leader has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.leave_group.v5.response import LeaveGroupResponse
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i32Timedelta

from reference_broker.client import group_requests as requests
from reference_broker.client.group_membership import GroupConfig, GroupMembership, Lost, Revoked
from reference_broker.client.group_requests import GroupCoordinator, GroupRequest
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import ErrorCode

NOTHING = i32Timedelta.parse(timedelta(0))
NODE = NodeAddress(1, "one", 9092)
NODES = (NODE, NodeAddress(2, "two", 9092))


def found(node: NodeAddress = NODE, error: int = 0) -> FindCoordinatorResponse:
    coordinator = Coordinator(
        key="",
        node_id=BrokerId(node.node_id),
        host=node.host,
        port=i32(node.port),
        error_code=ErrorCode(error),
        error_message=None,
    )
    return FindCoordinatorResponse(throttle_time=NOTHING, coordinators=(coordinator,))


def join_response(
    error: int = 0,
    generation: int = -1,
    protocol: str | None = None,
    leader: str = "",
    member_id: str = "",
    members: Sequence[tuple[str, str | None, bytes]] = (),
    skip: bool = False,
) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=NOTHING,
        error_code=ErrorCode(error),
        generation_id=i32(generation),
        protocol_type="consumer",
        protocol_name=protocol,
        leader=leader,
        skip_assignment=skip,
        member_id=member_id,
        members=tuple(
            JoinGroupResponseMember(member_id=each, group_instance_id=instance, metadata=data)
            for each, instance, data in members
        ),
    )


def sync_response(error: int = 0, assignment: bytes = b"", protocol: str = "range") -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NOTHING,
        error_code=ErrorCode(error),
        protocol_type="consumer",
        protocol_name=protocol,
        assignment=assignment,
    )


def heartbeat_response(error: int = 0) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time=NOTHING, error_code=ErrorCode(error))


def leave_response(error: int = 0) -> LeaveGroupResponse:
    return LeaveGroupResponse(throttle_time=NOTHING, error_code=ErrorCode(error), members=())


def due(request: GroupRequest | None) -> Any:
    """Return the request, which must be there; its body is of whatever API it is for."""
    assert request is not None
    return request


@dataclass
class FakeGroup:
    """``parked``: joins and syncs without a response yet, by member. ``responses``: those to be delivered, each with
    the
    name of its member."""

    generation: int = 0
    state: str = "empty"
    members: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    joins: dict[str, object] = field(default_factory=dict)
    syncs: dict[str, object] = field(default_factory=dict)
    assignments: dict[str, bytes] = field(default_factory=dict)
    leader: str = ""
    responses: list[tuple[str, object]] = field(default_factory=list)
    issued: int = 0

    def send(self, who: str, request: GroupRequest) -> None:
        body: Any = request.body
        if request.api_key == requests.JOIN_GROUP:
            self._join(who, body)
        elif request.api_key == requests.SYNC_GROUP:
            self._sync(who, body)
        elif request.api_key == requests.HEARTBEAT:
            self.responses.append((who, heartbeat_response(self._check(body.member_id, body.generation_id))))
        elif request.api_key == requests.LEAVE_GROUP:
            self.remove(body.members[0].member_id)
            self.responses.append((who, leave_response()))

    def _check(self, member_id: str, generation: int) -> int:
        if member_id not in self.members:
            return 25
        if self.state == "preparing":
            return 27
        return 0 if generation == self.generation else 22

    def _join(self, who: str, body: JoinGroupRequest) -> None:
        member_id = body.member_id
        if not member_id:
            self.issued += 1
            member_id = f"m{self.issued}"
            self.members[member_id] = None
            self.responses.append((who, join_response(79, member_id=member_id)))
            return
        if member_id not in self.members:
            self.responses.append((who, join_response(25)))
            return
        self.members[member_id], self.names[member_id], self.joins[member_id] = body, who, body
        self._prepare()

    def _prepare(self) -> None:
        self.state = "preparing"
        for member_id in self.syncs:
            self.responses.append((self.names[member_id], sync_response(27)))
        self.syncs = {}
        known = [each for each, body in self.members.items() if body is not None]
        if known and all(each in self.joins for each in known):
            self._begin_generation(known)

    def _begin_generation(self, known: list[str]) -> None:
        self.generation += 1
        self.state = "completing"
        self.leader = self.leader if self.leader in known else known[0]
        protocol = self.members[known[0]].protocols[0].name
        rows = [(each, None, self.members[each].protocols[0].metadata) for each in known]
        for each in known:
            members = rows if each == self.leader else ()
            response = join_response(0, self.generation, protocol, self.leader, each, members)
            self.responses.append((self.names[each], response))
        self.joins = {}

    def _sync(self, who: str, body: SyncGroupRequest) -> None:
        error = self._check(body.member_id, body.generation_id)
        if error:
            self.responses.append((who, sync_response(error)))
            return
        if self.state == "stable":
            self.responses.append((who, sync_response(0, self.assignments[body.member_id])))
            return
        self.syncs[body.member_id] = body
        if body.member_id == self.leader:
            self.assignments = {assignment.member_id: assignment.assignment for assignment in body.assignments}
            self.state = "stable"
            for sync in self.syncs:
                self.responses.append((self.names[sync], sync_response(0, self.assignments[sync])))
            self.syncs = {}

    def remove(self, member_id: str) -> None:
        """Remove a member that left, or whose session ended."""
        self.joins.pop(member_id, None)
        self.syncs.pop(member_id, None)
        if self.members.pop(member_id, None) is not None:
            self._prepare()
            if not self.members:
                self.state = "empty"


class RebalanceWorld:
    """Members and their group; ``settle`` runs all that is due. ``owned``: the partitions that each member reads now,
    according to its events alone. ``shared``: partitions that two members read at once, which must stay empty."""

    def __init__(self) -> None:
        self.group = FakeGroup()
        self.members: dict[str, GroupMembership] = {}
        self.owned: dict[str, list[TopicPartition]] = {}
        self.events: dict[str, list[object]] = {}
        self.shared: list[TopicPartition] = []
        self.now = 0
        self.counts: dict[str, int] = {}
        self.lost_responses: set[str] = set()

    def add(self, name: str, config: GroupConfig, counts: dict[str, int]) -> GroupMembership:
        self.counts.update(counts)
        coordinator = GroupCoordinator(config.group_id, config.versions)
        member = self.members[name] = GroupMembership(config, coordinator)
        self.owned[name], self.events[name] = [], []
        member.learn_partitions(counts)
        return member

    def settle(self, rounds: int = 200) -> None:
        for _ in range(rounds):
            busy = False
            for name in list(self.members):
                busy = self._drive(name) or busy
            while self.group.responses:
                name, body = self.group.responses.pop(0)
                if name not in self.members:
                    continue
                if name in self.lost_responses:
                    self.lost_responses.discard(name)
                    self.members[name].failed(self.now)
                else:
                    self.members[name].responded(self.now, body)
                self._note(name)
                busy = True
            self.now += 200_000
            calm = self.group.state in ("stable", "empty") and not self.group.joins
            if not busy and calm and all(member.state.value in ("stable", "left") for member in self.members.values()):
                return

    def _drive(self, name: str) -> bool:
        member = self.members[name]
        request = member.next_request(self.now)
        self._note(name)
        if request is None:
            return False
        if request.api_key == requests.FIND_COORDINATOR:
            member.responded(self.now, found())
        else:
            self.group.send(name, request)
        return request.api_key != requests.HEARTBEAT

    def _note(self, name: str) -> None:
        member = self.members[name]
        for event in member.take_events():
            self.events[name].append(event)
            if isinstance(event, Lost):
                self.owned[name] = []
            elif isinstance(event, Revoked):
                self.owned[name] = [each for each in self.owned[name] if each not in event.partitions]
                member.release()
            elif hasattr(event, "partitions"):
                self.owned[name] += event.partitions
        taken = [each for owned in self.owned.values() for each in owned]
        self.shared += [each for each in taken if taken.count(each) > 1]
