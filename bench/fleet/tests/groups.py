"""Three nodes with consumer groups for behaviours: one coordinator, a naive classic protocol, committed offsets,
metadata epochs, and nodes whose idea of the cluster is old."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kio.schema.api_versions.v4.response import ApiVersionsResponse, SupportedFeatureKey
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.leave_group.v5.response import LeaveGroupResponse
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.sync_group.v5.response import SyncGroupResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i64

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Behaviour, Disconnected, Request, ResponseReceived, TimedOut, TopicPartition
from bench.fleet.tests.conftest import ADDRESS, TICK_US, FakeBroker, FakeLog, FleetWorld
from reference_broker.client.api_versions import NEEDED_DRAFTS
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import (
    MetadataBroker1000,
    MetadataPartition1001,
    MetadataResponse1001,
    MetadataTopic1001,
    OffsetCommitResponse1000,
    OffsetCommitResponsePartition1000,
    OffsetCommitResponseTopic1000,
    OffsetFetchResponse1001,
    OffsetFetchResponsePartition1001,
    OffsetFetchResponseTopic1001,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse

NO_WAIT = bodies.milliseconds(0)
FIRST_DRAFT_VERSION = 1000
INVALID_METADATA_EPOCH = 10003
REBALANCE_US = 1_000_000
"""Time for which a rebalance waits for known members."""


FETCH_WAITS_US = 20_000
"""Time for which an empty fetch waits."""


@dataclass
class FakeMember:
    """``join`` and ``sync``: its request that waits for the others, with who sent it."""

    static: str | None = None
    metadata: bytes = b""
    join: tuple[Behaviour, Request, int] | None = None
    sync: tuple[Behaviour, Request] | None = None


@dataclass
class FakeGroup:
    members: dict[str, FakeMember] = field(default_factory=dict)
    generation: int = 0
    leader: str = ""
    rebalancing: bool = False
    assignments: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)
    """(offset, leader epoch, metadata epoch)"""
    numbered: int = 0


@dataclass
class OldView:
    """The outdated view of an isolated node: the leaders that it knows, and its own logs."""

    epoch: int
    leaders: dict[TopicPartition, int]
    logs: dict[TopicPartition, FakeLog] = field(default_factory=dict)


class GroupsBroker(FakeBroker):
    """``epoch``: of the metadata. ``old``: nodes with an older idea. ``drafts``: nodes that announce the drafts.
    ``unstable``: groups of whose offsets an open transaction has some."""

    def __init__(self, topics: dict[str, int]) -> None:
        super().__init__(topics)
        self.nodes = {0, 1, 2}
        self.coordinator = 0
        self.coordinators: dict[str, int] = {}
        """of groups that have another one"""
        self.unstable: set[str] = set()
        self.epoch = 0
        self.old: dict[int, OldView] = {}
        self.drafts = {0, 1, 2}
        self.groups: dict[str, FakeGroup] = {}
        self.member_error = 0

    def grow_old(self, node: int) -> None:
        """Let the node learn nothing from now on. What it leads stays as it is."""
        logs = {partition: self._copy(partition) for partition, leader in self.leaders.items() if leader == node}
        self.old[node] = OldView(self.epoch, dict(self.leaders), logs)

    def _copy(self, partition: TopicPartition) -> FakeLog:
        log = self.logs[partition]
        return FakeLog(list(log.batches), log.end, log.start)

    def handle_at(self, node: int, request: Request) -> object:
        if request.api_key == ApiKey.API_VERSIONS:
            return self.api_versions(node)
        view = self.old.get(node)
        if view is None:
            return self._with_epoch(request, super().handle_at(node, request), self.epoch)
        leaders, logs = self.leaders, self.logs
        if request.api_key == ApiKey.PRODUCE:  # No replica of its own era acknowledges anything.
            self.leaders = dict.fromkeys(leaders, -1)
        else:
            self.leaders, self.logs = dict(view.leaders), {**logs, **view.logs}
        try:
            return self._with_epoch(request, super().handle_at(node, request), view.epoch)
        finally:
            self.leaders, self.logs = leaders, logs

    def api_versions(self, node: int) -> ApiVersionsResponse:
        known = tuple(
            SupportedFeatureKey(name=draft, min_version=i16(0), max_version=i16(1))
            for draft in (NEEDED_DRAFTS if node in self.drafts else ())
        )
        return ApiVersionsResponse(
            error_code=ErrorCode.none, api_keys=(), throttle_time=NO_WAIT, supported_features=known
        )

    def _with_epoch(self, request: Request, response: Any, epoch: int) -> object:
        if request.api_key != ApiKey.METADATA or request.api_version < FIRST_DRAFT_VERSION:
            return response
        return MetadataResponse1001(
            brokers=tuple(
                MetadataBroker1000(node_id=broker.node_id, host=broker.host, port=broker.port)
                for broker in response.brokers
            ),
            controller_id=response.controller_id,
            metadata_epoch=epoch,
            topics=tuple(
                MetadataTopic1001(
                    name=topic.name,
                    partitions=tuple(
                        MetadataPartition1001(partition_index=partition.partition_index, leader_id=partition.leader_id)
                        for partition in topic.partitions
                    ),
                )
                for topic in response.topics
            ),
        )


class GroupWorld(FleetWorld):
    """JoinGroup and SyncGroup wait here until the group is complete."""

    def __init__(self, broker: GroupsBroker) -> None:
        super().__init__(broker)
        self.fake = broker
        self.commits_take_us = 0
        self.commits: list[tuple[int, str, TopicPartition, int, int]] = []
        """(time, member ID, partition, offset, metadata epoch), as accepted"""

    def send(self, behaviour: Behaviour, request: Request) -> None:
        kinds: dict[int, Callable[[Behaviour, int, Request], object]] = {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave,
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
        }
        kind = kinds.get(request.api_key)
        node, channel = self.at_node[behaviour.process, request.channel], request.channel
        if kind is None:
            super().send(behaviour, request)
        elif node in self.down:
            self.at(self.now_us + TICK_US, behaviour, Disconnected("closed", channel))
        elif self.fault(request) == "lose_request":
            self.at(self.now_us + request.timeout_us, behaviour, TimedOut(channel))
        else:
            self.fake.requests.append(request)
            body = kind(behaviour, node, request)
            if body is not None and request.api_key == ApiKey.OFFSET_COMMIT and self.commits_take_us:
                self.at(self.now_us + self.commits_take_us, behaviour, ResponseReceived(body, 10, 20, channel))
            elif body is not None:
                self.respond(behaviour, body, channel)

    def respond(self, behaviour: Behaviour, body: object, channel: int = 0) -> None:
        if isinstance(body, FetchResponse) and not any(
            partition.records or partition.error_code for topic in body.responses for partition in topic.partitions
        ):
            self.at(self.now_us + FETCH_WAITS_US, behaviour, ResponseReceived(body, 10, 20, channel))
        else:
            super().respond(behaviour, body, channel)

    def run(self, seconds: float) -> None:
        """Run the members in small steps, between which rebalances may end."""
        end_us = self.now_us + int(seconds * 1_000_000)
        while self.now_us < end_us:
            super().run(min(0.02, (end_us - self.now_us) / 1e6))
            for group in self.fake.groups.values():
                self._end_rebalance(group)

    def find(self, _behaviour: Behaviour, _node: int, request: Request) -> FindCoordinatorResponse:
        body: Any = request.body
        found = tuple(
            Coordinator(
                key=key,
                node_id=BrokerId(at),
                host=f"node-{at}",
                port=i32(ADDRESS.port),
                error_code=ErrorCode.none,
                error_message=None,
            )
            for key in body.coordinator_keys
            for at in (self.fake.coordinators.get(key, self.fake.coordinator),)
        )
        return FindCoordinatorResponse(throttle_time=NO_WAIT, coordinators=found)

    def _group(self, name: str) -> FakeGroup:
        return self.fake.groups.setdefault(name, FakeGroup())

    def _refusal(self, node: int, body: Any, member_id: str, generation: int) -> ErrorCode:
        if node != self.fake.coordinator:
            return ErrorCode.not_coordinator
        group = self._group(body.group_id)
        if member_id and member_id not in group.members:
            return ErrorCode.unknown_member_id
        if member_id and generation != group.generation:
            return ErrorCode.illegal_generation
        return ErrorCode.none

    def join(self, behaviour: Behaviour, node: int, request: Request) -> JoinGroupResponse | None:
        body: Any = request.body
        group = self._group(body.group_id)
        if node != self.fake.coordinator:
            return self._join_response(ErrorCode.not_coordinator, "")
        member_id = body.member_id
        if not member_id:
            group.numbered += 1
            member_id = f"{behaviour.process}-{group.numbered}"
            if body.group_instance_id is None:
                group.members[member_id] = FakeMember()
                return self._join_response(ErrorCode.member_id_required, member_id)
        member = group.members.setdefault(member_id, FakeMember())
        member.static, member.metadata = body.group_instance_id, body.protocols[0].metadata
        member.join, member.sync = (behaviour, request, self.now_us), None
        if not group.rebalancing:
            group.rebalancing = True
        return None

    def _join_response(self, error: ErrorCode, member_id: str) -> JoinGroupResponse:
        return JoinGroupResponse(
            throttle_time=NO_WAIT, error_code=error, protocol_name=None, leader="", member_id=member_id, members=()
        )

    def _end_rebalance(self, group: FakeGroup) -> None:
        waiting = {each: member for each, member in group.members.items() if member.join is not None}
        if not group.rebalancing or not waiting:
            return
        joins = {each: member.join for each, member in waiting.items() if member.join is not None}
        late = self.now_us - min(since_us for _, _, since_us in joins.values()) >= REBALANCE_US
        if len(waiting) < len(group.members) and not late:
            return
        group.members = waiting
        group.generation += 1
        group.rebalancing, group.assignments = False, {}
        group.leader = group.leader if group.leader in waiting else next(iter(waiting))
        everybody = tuple(
            JoinGroupResponseMember(member_id=each, group_instance_id=member.static, metadata=member.metadata)
            for each, member in waiting.items()
        )
        for each, member in waiting.items():
            behaviour, request, _ = joins[each]
            body: Any = request.body
            member.join = None
            response = JoinGroupResponse(
                throttle_time=NO_WAIT,
                error_code=ErrorCode.none,
                generation_id=i32(group.generation),
                protocol_type="consumer",
                protocol_name=body.protocols[0].name,
                leader=group.leader,
                member_id=each,
                members=everybody if each == group.leader else (),
            )
            self.respond(behaviour, response, request.channel)

    def sync(self, behaviour: Behaviour, node: int, request: Request) -> SyncGroupResponse | None:
        body: Any = request.body
        error = self._refusal(node, body, body.member_id, body.generation_id)
        group = self._group(body.group_id)
        if error is ErrorCode.none and group.rebalancing:
            error = ErrorCode.rebalance_in_progress
        if error is not ErrorCode.none:
            return SyncGroupResponse(throttle_time=NO_WAIT, error_code=error, assignment=b"")
        group.members[body.member_id].sync = (behaviour, request)
        if body.member_id == group.leader:
            group.assignments = {assignment.member_id: assignment.assignment for assignment in body.assignments}
        if group.assignments:
            for each, member in group.members.items():
                if member.sync is not None:
                    (whose, request), member.sync = member.sync, None
                    response = SyncGroupResponse(
                        throttle_time=NO_WAIT, error_code=ErrorCode.none, assignment=group.assignments[each]
                    )
                    self.respond(whose, response, request.channel)
        return None

    def heartbeat(self, _behaviour: Behaviour, node: int, request: Request) -> HeartbeatResponse:
        body: Any = request.body
        error = self._refusal(node, body, body.member_id, body.generation_id)
        if error is ErrorCode.none and self._group(body.group_id).rebalancing:
            error = ErrorCode.rebalance_in_progress
        return HeartbeatResponse(throttle_time=NO_WAIT, error_code=error)

    def leave(self, _behaviour: Behaviour, _node: int, request: Request) -> LeaveGroupResponse:
        body: Any = request.body
        group = self._group(body.group_id)
        for member in body.members:
            group.members.pop(member.member_id, None)
        group.rebalancing = bool(group.members)
        return LeaveGroupResponse(throttle_time=NO_WAIT, error_code=ErrorCode.none, members=())

    def commit(
        self, _behaviour: Behaviour, node: int, request: Request
    ) -> OffsetCommitResponse | OffsetCommitResponse1000:
        body: Any = request.body
        draft = request.api_version >= FIRST_DRAFT_VERSION
        refused = self._refusal(node, body, body.member_id, body.generation_id_or_member_epoch)
        codes: dict[TopicPartition, int] = {}
        for topic in body.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                codes[where] = refused.value or self._write(body, where, partition, draft)
        if draft:
            return OffsetCommitResponse1000(
                topics=tuple(
                    OffsetCommitResponseTopic1000(
                        name=topic_partition.topic,
                        partitions=(
                            OffsetCommitResponsePartition1000(
                                partition_index=topic_partition.partition, error_code=code
                            ),
                        ),
                    )
                    for topic_partition, code in codes.items()
                )
            )
        return OffsetCommitResponse(
            throttle_time=NO_WAIT,
            topics=tuple(
                OffsetCommitResponseTopic(
                    name=TopicName(topic_partition.topic),
                    partitions=(
                        OffsetCommitResponsePartition(
                            partition_index=i32(topic_partition.partition), error_code=ErrorCode(code)
                        ),
                    ),
                )
                for topic_partition, code in codes.items()
            ),
        )

    def _write(self, body: Any, topic_partition: TopicPartition, partition: Any, draft: bool) -> int:
        offsets = self._group(body.group_id).offsets
        epoch = partition.metadata_epoch if draft else -1
        if draft and epoch < offsets.get(topic_partition, (0, 0, -1))[2]:
            return INVALID_METADATA_EPOCH
        offsets[topic_partition] = (partition.committed_offset, getattr(partition, "committed_leader_epoch", -1), epoch)
        self.commits.append((self.now_us, body.member_id, topic_partition, partition.committed_offset, epoch))
        return 0

    def offset_fetch(
        self, _behaviour: Behaviour, _node: int, request: Request
    ) -> OffsetFetchResponse | OffsetFetchResponse1001:
        draft = request.api_version >= FIRST_DRAFT_VERSION
        body: Any = request.body
        wanted = body if draft else body.groups[0]
        offsets = self._group(wanted.group_id).offsets
        found = {
            TopicPartition(topic.name, index): offsets.get(TopicPartition(topic.name, index), (-1, -1, -1))
            for topic in wanted.topics
            for index in topic.partition_indexes
        }
        if draft:
            return OffsetFetchResponse1001(
                topics=tuple(
                    OffsetFetchResponseTopic1001(
                        name=partition.topic,
                        partitions=(
                            OffsetFetchResponsePartition1001(
                                partition_index=partition.partition,
                                committed_offset=offset,
                                committed_leader_epoch=leader_epoch,
                                metadata_epoch=epoch,
                            ),
                        ),
                    )
                    for partition, (offset, leader_epoch, epoch) in found.items()
                )
            )
        error = ErrorCode.unstable_offset_commit if wanted.group_id in self.fake.unstable else ErrorCode.none
        topics = tuple(
            OffsetFetchResponseTopics(
                name=TopicName(partition.topic),
                partitions=(
                    OffsetFetchResponsePartitions(
                        partition_index=i32(partition.partition),
                        committed_offset=i64(offset),
                        committed_leader_epoch=i32(leader_epoch),
                        metadata="",
                        error_code=error,
                    ),
                ),
            )
            for partition, (offset, leader_epoch, _) in found.items()
        )
        group = OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics)
        return OffsetFetchResponse(throttle_time=NO_WAIT, groups=(group,))
