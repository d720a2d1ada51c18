"""Requests of members to their coordinator, and how it is found.

The bodies and readers are pure functions. ``GroupVersions`` has the API versions to use. Durations are microseconds and
are sent as milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.leave_group.v5.request import MemberIdentity as LeavingMember
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId
from kio.static.primitive import i8, i32, i32Timedelta

from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.wire.apis import WITH_LEADER_EPOCHS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode, error_name, known_error

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v6.response import FindCoordinatorResponse
    from kio.schema.join_group.v9.response import JoinGroupResponse
    from kio.schema.leave_group.v5.response import LeaveGroupResponse


CONSUMER: Final = "consumer"
"""The protocol type of consumer groups."""
PAGE_VERSION: Final = 1000
"""KIP-232's drafts as its page has them, without leader epochs and instance IDs."""
DRAFT_VERSION: Final = WITH_LEADER_EPOCHS
"""KIP-232's drafts for clients that use those, too."""
NO_GENERATION: Final = -1
GROUP_KEY_TYPE: Final = 0
"""The key type with which FindCoordinator names a group."""


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """The API versions that a member speaks."""

    find_coordinator: int = 6
    join_group: int = 9
    sync_group: int = 5
    heartbeat: int = 4
    leave_group: int = 5
    offset_commit: int = 9
    """May be a draft."""
    offset_fetch: int = 9
    """May be a draft."""

    def with_metadata_epoch(self, version: int = DRAFT_VERSION) -> "GroupVersions":
        """Return the same versions, but with the drafts that carry the metadata epoch."""
        return replace(self, offset_commit=version, offset_fetch=version)


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A request that the driver has to send."""

    api_key: int
    api_version: int
    body: object
    timeout_us: int
    """Time for which the driver waits for the response."""
    to: NodeAddress | None = None
    """The node to send it to, or None for any node."""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The identity in a member's requests. A simple consumer, which is no member, has generation -1 and no ID."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


def error_of(value: object) -> Error | int:
    """Return the error of a code as ``wire`` decodes it: a number, kio's ErrorCode or a DraftError. An unknown code
    stays a number."""
    code = int(cast(Any, value))
    error = known_error(code)
    return error if int(error) == code else code


def name_of(error: Error | int) -> str:
    """The error's name for people and histories."""
    return error_name(int(error))


def _milliseconds(duration_us: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=duration_us // 1000))


def find_coordinator(key: str, key_type: int = GROUP_KEY_TYPE) -> FindCoordinatorRequest:
    """Make the request for one group, or for one ID of another type."""
    return FindCoordinatorRequest(key_type=i8(key_type), coordinator_keys=(key,))


def coordinator_of(body: object, group_id: str) -> NodeAddress | Error | int:
    """The coordinator's address, or the error that explains why it is not known."""
    for coordinator in cast("FindCoordinatorResponse", body).coordinators:
        if coordinator.key in (group_id, ""):
            error = error_of(coordinator.error_code)
            return error if error else NodeAddress(int(coordinator.node_id), coordinator.host, int(coordinator.port))
    return ErrorCode.coordinator_not_available


def join(
    identity: MemberIdentity,
    protocols: Mapping[str, bytes],
    session_timeout_us: int,
    rebalance_timeout_us: int,
) -> JoinGroupRequest:
    """``protocols`` maps assignors' names to subscription bytes, the most wanted first."""
    return JoinGroupRequest(
        group_id=GroupId(identity.group_id),
        session_timeout=_milliseconds(session_timeout_us),
        rebalance_timeout=_milliseconds(rebalance_timeout_us),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=CONSUMER,
        protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()),
        reason=None,
    )


@dataclass(frozen=True, slots=True)
class Joined:
    """A response to JoinGroup."""

    error: Error | int
    generation_id: int
    protocol: str | None
    member_id: str
    is_leader: bool
    skip_assignment: bool
    members: Mapping[str, bytes]
    """Subscription bytes by member ID, for the leader only."""
    instance_ids: Mapping[str, str]
    """Instance IDs by member ID, of the static members."""


def joined(body: object) -> Joined:
    """Read JoinGroup's response."""
    response = cast("JoinGroupResponse", body)
    return Joined(
        error=error_of(response.error_code),
        generation_id=int(response.generation_id),
        protocol=response.protocol_name,
        member_id=response.member_id,
        is_leader=response.leader == response.member_id,
        skip_assignment=bool(response.skip_assignment),
        members={member.member_id: member.metadata for member in response.members},
        instance_ids={
            member.member_id: member.group_instance_id
            for member in response.members
            if member.group_instance_id is not None
        },
    )


def sync(identity: MemberIdentity, protocol: str, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
    """``assignments`` maps member IDs to assignment bytes. Only the leader sends them."""
    return SyncGroupRequest(
        group_id=GroupId(identity.group_id),
        generation_id=i32(identity.generation_id),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=CONSUMER,
        protocol_name=protocol,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=data) for member_id, data in assignments.items()
        ),
    )


def heartbeat(identity: MemberIdentity) -> HeartbeatRequest:
    """One heartbeat."""
    return HeartbeatRequest(
        group_id=GroupId(identity.group_id),
        generation_id=i32(identity.generation_id),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
    )


def leave(identity: MemberIdentity, reason: str | None = None) -> LeaveGroupRequest:
    """The member itself leaves."""
    member = LeavingMember(member_id=identity.member_id, group_instance_id=identity.instance_id, reason=reason)
    return LeaveGroupRequest(group_id=GroupId(identity.group_id), members=(member,))


def leave_error(body: object) -> Error | int:
    """Return the error of the whole response, or else the member's own."""
    response = cast("LeaveGroupResponse", body)
    own = [error_of(member.error_code) for member in response.members]
    return error_of(response.error_code) or next((each for each in own if each), ErrorCode.none)


FIND_COORDINATOR: Final = int(ApiKey.FIND_COORDINATOR)
JOIN_GROUP: Final = int(ApiKey.JOIN_GROUP)
SYNC_GROUP: Final = int(ApiKey.SYNC_GROUP)
HEARTBEAT: Final = int(ApiKey.HEARTBEAT)
LEAVE_GROUP: Final = int(ApiKey.LEAVE_GROUP)
OFFSET_COMMIT: Final = int(ApiKey.OFFSET_COMMIT)
OFFSET_FETCH: Final = int(ApiKey.OFFSET_FETCH)


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_server_error,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    }
)


@dataclass(slots=True)
class GroupCoordinator:
    """The coordinator of one group, or of a transactional ID. All parts of a member that send to it share one. No I/O.

    One FindCoordinator is in flight at a time. Times are microseconds of one monotonic clock.
    """

    group_id: str
    """The group ID, or the transactional ID."""
    versions: GroupVersions = field(default_factory=GroupVersions)
    backoff_us: int = 100_000
    request_timeout_us: int = 3_000_000
    node: NodeAddress | None = None
    """None while the coordinator is not known; a sender then calls ``next_request`` first."""
    failure: Error | int | None = None
    """An error that a retry does not cure (INVALID_GROUP_ID, no authorisation), or None."""
    retry_at_us: int = 0
    is_requesting: bool = False
    key_type: int = GROUP_KEY_TYPE
    """The type of the key in ``group_id``."""

    def next_request(self, now_us: int) -> GroupRequest | None:
        """Return FindCoordinator if the coordinator is unknown, none is in flight and the backoff is over."""
        if self.node is not None or self.is_requesting or self.failure is not None or now_us < self.retry_at_us:
            return None
        self.is_requesting = True
        version = self.versions.find_coordinator
        return GroupRequest(
            FIND_COORDINATOR, version, find_coordinator(self.group_id, self.key_type), self.request_timeout_us
        )

    def responded(self, now_us: int, body: object) -> None:
        """Apply the response to the request in flight."""
        self.is_requesting = False
        found = coordinator_of(body, self.group_id)
        if isinstance(found, NodeAddress):
            self.node = found
        elif found in _RETRIABLE:
            self.retry_at_us = now_us + self.backoff_us
        else:
            self.failure = found

    def failed(self, now_us: int) -> None:
        """Record that the request in flight got no response."""
        self.is_requesting = False
        self.retry_at_us = now_us + self.backoff_us

    def lose(self, now_us: int, node: NodeAddress | None = None) -> None:
        """Forget the coordinator, because it no longer coordinates the group or did not respond. ``node`` is the node
        that got the request. If another coordinator is known by now, nothing changes."""
        if self.node is None or (node is not None and node != self.node):
            return
        self.node = None
        self.retry_at_us = max(self.retry_at_us, now_us + self.backoff_us)
