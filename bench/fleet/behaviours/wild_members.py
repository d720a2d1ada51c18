"""Requests of consumer groups that Kafka's clients do not send, or send in a rare race only.

The members of a wild group join under several identities, with other protocols, subscriptions and timeouts each time,
and by two versions. They send heartbeats, assignments and commits of old generations and of unknown members.
They go away without LeaveGroup, give up a JoinGroup or SyncGroup that is parked, and share the IDs of static members,
so that they fence each other. A broker must respond to each such request by the state of the group, so a group of wild
members reaches each of its states and errors. The clients also read the offsets of all groups.

All commits have the same offset: what the group has committed shows nothing about its members.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from bench.fleet.behaviours.protocol import Chance
from reference_broker.client import group_requests
from reference_broker.client.consumer_protocol import Subscription, encode_subscription
from reference_broker.client.group_requests import MemberIdentity, error_of
from reference_broker.client.transaction_requests import added
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.retired_fields import OffsetCommitRequest

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
    from kio.schema.heartbeat.v4.response import HeartbeatResponse
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse
    from kio.schema.offset_fetch.v9.response import OffsetFetchResponse

COMMITTED_OFFSET: Final = 7
MAX_IDENTITIES: Final = 4
INSTANCES: Final = ("wild-a", "wild-b")
"""The static members, which all clients share."""
PROTOCOLS: Final = (
    ("range", "sticky"),
    ("range", "sticky"),
    ("sticky", "range"),
    ("range",),
    ("odd", "range"),
    ("odd",),
)
SESSIONS_MS: Final = (1_000, 1_500, 3_000)
REBALANCES_MS: Final = (300, 1_000, 2_500)
OPERATIONS: Final = (
    *("join",) * 6,
    *("sync",) * 6,
    *("heartbeat",) * 6,
    *("commit",) * 3,
    *("fetch",) * 6,
    *("simple_commit", "leave"),
)
HASTY_US: Final = (1_000, 5_000, 30_000)
"""After this time a hasty client gives up a request, and sends the next one."""
CHANGED_PERCENT: Final = 15
"""Share of requests that have a false generation, member or instance."""
OLD_JOIN, JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH = 8, 9, 5, 4, 5, 9, 9
"""Versions. With the old one a static leader that returns cannot skip the assignment (KIP-814)."""


@dataclass(frozen=True, slots=True)
class WildRequest:
    """One request."""

    api_key: ApiKey
    api_version: int
    body: object
    identity: MemberIdentity
    """the identity whose request it is"""
    waits_us: int = 0
    of: str = ""
    """the transactional ID to whose coordinator it goes; if empty it goes to that of the group"""
    patience_us: int = 0
    """after this time it is given up; 0 for the client's own timeout"""
    then: "WildRequest | None" = None
    """the request that is sent next, without a pause, whatever comes of this one"""


def fetch_offsets(group_id: str, *, require_stable: bool) -> WildRequest:
    """Return a request of all offsets of a group."""
    group = OffsetFetchRequestGroup(group_id=GroupId(group_id), topics=None)
    body = OffsetFetchRequest(groups=(group,), require_stable=require_stable)
    return WildRequest(ApiKey.OFFSET_FETCH, FETCH, body, MemberIdentity(group_id))


class WildMembers:
    """The identities of one client in a wild group, and its requests."""

    def __init__(self, group_id: str, topic: str, random: Chance, watched: Sequence[str] = ()) -> None:
        self.group_id = group_id
        self._topic = topic
        self._watched = watched
        """groups whose offsets it reads"""
        self._random = random
        self._identities: list[MemberIdentity] = []
        self._members: dict[str, list[str]] = {}
        """by identity that leads: the members of its generation"""
        self._protocols: dict[str, str] = {}
        self._new_leader: MemberIdentity | None = None
        """the identity that has joined last, if it leads and has not synced"""

    def next_request(self) -> WildRequest:
        """Return the next request, mostly of a member that knows its generation."""
        known, new_leader, self._new_leader = self._identities, self._new_leader, None
        if new_leader is not None and self._random.randrange(3):
            return self._sync(new_leader, new_leader)
        identity = self._random.choice(known) if known else MemberIdentity(self.group_id)
        operation = self._random.choice(OPERATIONS) if known else "join"
        if operation == "join":
            return self._join(identity)
        if operation == "fetch":
            group_id = self._random.choice((self.group_id, *self._watched))
            return fetch_offsets(group_id, require_stable=self._random.randrange(2) > 0)
        if operation == "simple_commit":
            return self._commit(MemberIdentity(self.group_id))
        named = self._changed(identity) if self._random.randrange(100) < CHANGED_PERCENT else identity
        if operation == "sync":
            return self._sync(identity, named)
        if operation == "heartbeat":
            return WildRequest(ApiKey.HEARTBEAT, HEARTBEAT, group_requests.heartbeat(named), identity)
        if operation == "leave":
            return WildRequest(ApiKey.LEAVE_GROUP, LEAVE, group_requests.leave(named), identity)
        return self._commit(named)

    def responded(self, request: WildRequest, body: object) -> None:
        """Handle a response. A refused identity is kept for a while, and continues as a zombie."""
        if request.api_key is ApiKey.JOIN_GROUP:
            self._joined(request, body)
        elif request.api_key is ApiKey.LEAVE_GROUP and not group_requests.leave_error(body):
            self._forget(request.identity)

    # -- requests -----------------------------------------------------------------------------------------------

    def _join(self, identity: MemberIdentity) -> WildRequest:
        draw = self._random.randrange(10)
        if draw < 3:
            identity = MemberIdentity(self.group_id)
        elif draw < 5:
            identity = MemberIdentity(self.group_id, instance_id=self._random.choice(INSTANCES))
        elif draw == 5:
            identity = self._changed(identity)
        is_old = self._random.randrange(5) == 0
        topics = (self._topic, *(["others"] if self._random.randrange(2) else []))
        subscription = encode_subscription(Subscription(topics))
        body = group_requests.join(
            identity,
            dict.fromkeys(self._random.choice(PROTOCOLS), subscription),
            self._random.choice(SESSIONS_MS) * 1000,
            self._random.choice(REBALANCES_MS) * 1000,
        )
        waits_us = self._random.choice((0, 500_000, 2_500_000))
        return WildRequest(ApiKey.JOIN_GROUP, OLD_JOIN if is_old else JOIN, body, identity, waits_us)

    def _sync(self, identity: MemberIdentity, named: MemberIdentity) -> WildRequest:
        members = self._members.get(identity.member_id, [])
        assigned = {member: bytes([self._random.randrange(256)]) for member in members if self._random.randrange(8)}
        body = group_requests.sync(named, self._protocols.get(identity.member_id, "range"), assigned)
        waits_us = self._random.choice((0, 1_000_000))
        sync = WildRequest(ApiKey.SYNC_GROUP, SYNC, body, identity, waits_us)
        if self._random.randrange(3):
            return sync
        return replace(sync, patience_us=self._random.choice(HASTY_US), then=self._rejoin(identity))

    def _rejoin(self, identity: MemberIdentity) -> WildRequest:
        """Return the JoinGroup of a member that begins again, as after an error, with all that it had."""
        protocols = dict.fromkeys(("range", "sticky"), encode_subscription(Subscription((self._topic,))))
        body = group_requests.join(identity, protocols, SESSIONS_MS[-1] * 1000, REBALANCES_MS[0] * 1000)
        return WildRequest(ApiKey.JOIN_GROUP, JOIN, body, identity)

    def _commit(self, identity: MemberIdentity) -> WildRequest:
        one = OffsetCommitRequestPartition(
            partition_index=i32(0),
            committed_offset=i64(COMMITTED_OFFSET),
            committed_leader_epoch=i32(-1),
            committed_metadata=f"wild {self._random.randrange(100)}",
        )
        body = OffsetCommitRequest(
            group_id=GroupId(identity.group_id),
            generation_id_or_member_epoch=i32(identity.generation_id),
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=(OffsetCommitRequestTopic(name=TopicName(self._topic), partitions=(one,)),),
        )
        return WildRequest(ApiKey.OFFSET_COMMIT, COMMIT, body, identity)

    def _changed(self, identity: MemberIdentity) -> MemberIdentity:
        """Return the identity with one false field."""
        change = self._random.randrange(4)
        if change < 2:
            return replace(identity, generation_id=max(identity.generation_id + 2 * change - 1, 0))
        if change == 2:
            return replace(identity, member_id="nobody")
        return replace(identity, instance_id=self._random.choice(INSTANCES))

    # -- responses ----------------------------------------------------------------------------------------------

    def _joined(self, request: WildRequest, body: object) -> None:
        response = group_requests.joined(body)
        if response.error == ErrorCode.member_id_required:
            self._know(replace(request.identity, member_id=response.member_id, generation_id=-1))
        elif not response.error:
            of_old = cast("str | None", getattr(request.body, "group_instance_id", None))
            identity = MemberIdentity(self.group_id, response.generation_id, response.member_id, of_old)
            self._forget(request.identity)
            self._know(identity)
            self._members[identity.member_id] = list(response.members)
            self._protocols[identity.member_id] = response.protocol or ""
            self._new_leader = identity if response.is_leader else None
        elif self._random.randrange(2):
            self._forget(request.identity)

    def _know(self, identity: MemberIdentity) -> None:
        self._identities = [
            member_identity for member_identity in self._identities if member_identity.member_id != identity.member_id
        ]
        self._identities.append(identity)
        del self._identities[:-MAX_IDENTITIES]

    def _forget(self, identity: MemberIdentity) -> None:
        self._identities = [
            member_identity for member_identity in self._identities if member_identity.member_id != identity.member_id
        ]
        self._members.pop(identity.member_id, None)
        self._protocols.pop(identity.member_id, None)


def error_in(request: WildRequest, body: object) -> int:
    """Return the error code of a response."""
    key = request.api_key
    if key is ApiKey.LEAVE_GROUP:
        return int(group_requests.leave_error(body))
    if key in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT):
        topics = cast("OffsetCommitResponse", body).topics
        return next((int(partition.error_code) for topic in topics for partition in topic.partitions), 0)
    if key is ApiKey.OFFSET_FETCH:
        return int(cast("OffsetFetchResponse", body).groups[0].error_code)
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:
        return next((int(each) for each in added(body).values()), 0)
    if key is ApiKey.DESCRIBE_TRANSACTIONS:
        return int(cast("DescribeTransactionsResponse", body).transaction_states[0].error_code)
    return int(error_of(cast("HeartbeatResponse", body).error_code))
