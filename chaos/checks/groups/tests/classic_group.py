"""A coordinator of one classic group, and the check of its moves."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.checks.groups.responses import COMMIT, HEARTBEAT, JOIN, SYNC
from chaos.checks.groups.state_changes import GroupMoves
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import (
    heartbeat_response,
    join_group_response,
    offset_commit_response,
    sync_group_response,
)
from chaos.checks.tests.kafka_messages import join_group_request as joining
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubGroupCoordinatorShard,
    StubImages,
    StubNode,
    image_of,
    topic_image,
)
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Effect, Event, Note, Reply, Request, TimerFired
from reference_broker.groups.classic_requests import JoinResponse, MemberProtocol, SyncResponse
from reference_broker.groups.group import Group, Member
from reference_broker.ports.node_ports import Now
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

A, B = "a-1", "b-1"


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
    """Node 1, which coordinates group ``g`` as a test requires."""

    group: Group = field(default_factory=lambda: Group("g", 0))
    now_us: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        self.check = GroupMoves(check_context())
        self.partition = StubGroupCoordinatorShard(groups={"g": self.group})
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
        replies = [effect._replace(connection=self.number) if type(effect) is Reply else effect for effect in effects]
        self.handle(request, *replies, after_us=after_us)
        return request

    def step(self, change: Callable[[], None]) -> Note:
        change()
        return Note(
            "group_state",
            (("group", "g"), ("state", self.group.state.value), ("generation", self.group.generation)),
        )

    def add_joining(self, new: Member) -> None:
        """Add a member whose JoinGroup is parked."""
        self.group.add(new)
        self.park_join(new.member_id)

    def park_join(self, member_id: str) -> None:
        self.group.park_join(member_id, lambda _: None)

    def respond_to_join(self, member_id: str) -> None:
        self.group.respond_to_join(member_id, JoinResponse(ErrorCode.none))

    def park_sync(self, member_id: str) -> None:
        self.group.park_sync(member_id, lambda _: None)

    def respond_to_sync(self, member_id: str) -> None:
        self.group.respond_to_sync(member_id, SyncResponse(ErrorCode.none))

    def remove(self, member_id: str) -> None:
        """Remove a member, whose parked JoinGroup gets its response."""
        self.respond_to_join(member_id)
        self.group.remove(member_id)

    def begin(self) -> Note:
        return self.step(lambda: self.group.begin_rebalance(0))

    def generation(self) -> Note:
        def change() -> None:
            self.group.init_next_generation(0)
            for member_id, each in self.group.members.items():
                self.respond_to_join(member_id)
                each.is_new = False

        return self.step(change)

    def stabilise(self) -> Note:
        return self.step(lambda: self.group.become_stable(0))

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
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


def reply(api_key: int, body: object, connection: int = 0) -> Reply:
    return Reply(connection, 1, api_key, 9, body, Tag(api_key, 9, "client", 0, -1))


def join_group_error_reply(code: ErrorCode, member_id: str = "") -> Reply:
    return reply(JOIN, join_group_response(member_id, error=code))


def heartbeat_reply(code: ErrorCode) -> Reply:
    """Return the response to a heartbeat."""
    return reply(HEARTBEAT, heartbeat_response(code))


def sync_group_reply(assignment: bytes) -> Reply:
    return reply(SYNC, sync_group_response(assignment))


def stable_group(*members: Member) -> Coordinator:
    """Return a coordinator that has just loaded the group in generation 3."""
    world = Coordinator(Group.loaded("g", 3, "consumer", "range", members[0].member_id, 0, members))
    world.load()
    return world


def first_generation(world: Coordinator) -> None:
    """A joins a new group, gets generation 1, and assigns."""
    world.load()
    world.group.add_pending_member(A)
    world.request(JOIN, joining(), join_group_error_reply(ErrorCode.member_id_required, A))
    world.group.pending_joins.clear()
    world.group.protocol_type = "consumer"
    new = member(A, is_new=True)
    world.add_joining(new)
    world.request(JOIN, joining(A), world.begin())
    number = world.number
    world.handle_timer(world.generation(), world.joined(A)._replace(connection=number), after_us=300_000)


def offset_commit_reply(*codes: ErrorCode, connection: int = 0) -> Reply:
    return reply(COMMIT, offset_commit_response(*codes), connection)


def expire(world: Coordinator, member_id: str, *, after_us: int) -> None:
    world.remove(member_id)
    world.handle_timer(world.begin(), after_us=after_us)
