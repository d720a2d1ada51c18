"""One member of a consumer group in the classic protocol. There is no I/O here.

A driver runs this loop, with times of one monotonic clock in microseconds:

    membership = GroupMembership(GroupConfig("g", ("t",)), GroupCoordinator("g"))
    loop:
        membership.learn_partitions({"t": 6})     # whenever metadata has come; the leader assigns by it
        request = membership.next_request(now)     # None: nothing to send now; look again at membership.wake_at_us,
                                                   # after a response, or after release / learn_partitions
        ... send it to request.to (None: any node) on a connection of the membership's own ...
        membership.responded(now, body)             # or membership.failed(now): no response came
        for event in membership.take_events():
            Revoked: stop reading them, commit, then membership.release()
            Lost: stop reading them
            Assigned: fetch committed offsets, then read

One request is in flight at a time. The shared ``coordinator`` sends FindCoordinator as needed. While ``wanted_topics``
is not empty the leader waits for ``learn_partitions``. ``offset_commits.CommittedOffsets`` commits offsets with
``identity``; the driver passes errors in its responses that concern the membership to ``apply_error``.

Behaviour follows Apache Kafka's AbstractCoordinator and ConsumerCoordinator (4.1). Eager members give everything up
before they join again. Cooperative ones (KIP-429) keep what they own, release what an assignment no longer names, and
then join once more. After UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION all that was owned is lost. A static member sends
nothing when it leaves. While the application is busy elsewhere the driver calls ``next_heartbeat`` instead of
``next_request``. That keeps the membership and begins no rebalance. If the application stays away for too long, the
driver calls ``step_out``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from reference_broker.client import group_requests as requests
from reference_broker.client.consumer_protocol import Subscription, decode_assignment, encode_subscription
from reference_broker.client.group_leader import GroupLeader
from reference_broker.client.group_requests import (
    NO_GENERATION,
    GroupCoordinator,
    GroupRequest,
    GroupVersions,
    MemberIdentity,
    error_of,
)
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode, ProtocolError

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.response import HeartbeatResponse
    from kio.schema.sync_group.v5.response import SyncGroupResponse


EAGER_PROTOCOLS: Final = ("range", "roundrobin")
COOPERATIVE_PROTOCOLS: Final = ("cooperative-sticky",)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The configuration of one member of a group. Durations are microseconds."""

    group_id: str
    topics: tuple[str, ...]
    protocols: tuple[str, ...] = EAGER_PROTOCOLS
    """The names of assignors, the most wanted first. They are all eager or all cooperative (KIP-429)."""
    instance_id: str | None = None
    """``group.instance.id``, which makes it a static member (KIP-345). Such a member sends no LeaveGroup."""
    session_timeout_us: int = 45_000_000
    """The coordinator removes the member if no heartbeat comes for this long."""
    rebalance_timeout_us: int = 300_000_000
    """Time for which the group waits in a rebalance for the member to rejoin."""
    heartbeat_interval_us: int = 3_000_000
    backoff_us: int = 100_000
    request_timeout_us: int = 5_000_000
    """Timeout of a response. For JoinGroup the rebalance timeout is added."""
    versions: GroupVersions = field(default_factory=GroupVersions)

    @property
    def cooperative(self) -> bool:
        """Whether partitions are released only once they are assigned to another member."""
        return all(protocol in COOPERATIVE_PROTOCOLS for protocol in self.protocols)


class MemberState(Enum):
    """The state of a member. In RELEASING it waits until ``release`` confirms that revoked partitions are released."""

    OUT = "out"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    STABLE = "stable"
    RELEASING = "releasing"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Joined:
    """A generation began for this member, because it has the response to its SyncGroup."""

    generation: int
    member_id: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions that are new to the member (maybe none). Fetch their committed offsets before reading them."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The partitions to release. Commit what was read of them, then call ``release``."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The partitions that may have another owner already. Stop reading them and commit nothing."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Left:
    """The member has left the group, as far as it can know."""

    generation: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The member met a fatal error (fenced, no protocol in common, group full, ...) and cannot stay in the group."""

    error: Error | int


GroupEvent: TypeAlias = Joined | Assigned | Revoked | Lost | Left | Failed


_JOIN_GRACE_US: Final = 5_000_000
"""The response to JoinGroup is waited for this much longer than the rebalance timeout, as in Kafka's client."""
_GENERATION_BYTES: Final = 4

COORDINATOR_MOVED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
MEMBERSHIP_LOST: Final = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)
AGAIN: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.rebalance_in_progress,
    ErrorCode.unknown_server_error,
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
)
"""After one of these errors the member joins again, after the backoff."""


@dataclass(slots=True)
class GroupMembership:
    """One member of a group."""

    config: GroupConfig
    coordinator: GroupCoordinator
    state: MemberState = MemberState.OUT
    generation: int = NO_GENERATION
    """The generation of the last SyncGroup, -1 outside a group."""
    member_id: str = ""
    """The member ID of the last SyncGroup, empty outside a group."""
    assignment: tuple[TopicPartition, ...] = ()
    """The partitions that the member owns, in the coordinator's order."""
    is_leader: bool = False
    failure: Error | int | None = None
    """The error for which it cannot be a member, or None."""
    _in_flight: int | None = None
    _sent_to: NodeAddress | None = None
    _events: list[GroupEvent] = field(default_factory=list)
    _rejoin: bool = True
    _retry_at_us: int = 0
    _heartbeat_at_us: int = 0
    _joined: requests.Joined | None = None
    _leader: GroupLeader = field(default_factory=GroupLeader)
    _leaving: bool = False
    _away: bool = False

    # -- requests and events for the driver ---------------------------------------------------------------------

    @property
    def identity(self) -> MemberIdentity:
        """The identity with which offsets are committed now."""
        return MemberIdentity(self.config.group_id, self.generation, self.member_id, self.config.instance_id)

    @property
    def wanted_topics(self) -> tuple[str, ...]:
        """The topics whose numbers of partitions this member, as the leader, must learn before it can assign."""
        return self._leader.wanted_topics

    @property
    def watched_topics(self) -> tuple[str, ...]:
        """The topics whose numbers of partitions the leader must keep up to date: its ``wanted_topics`` and those of
        its last assignment. It may not subscribe to all of them itself."""
        assigned = self._leader.assigned_by if self.is_leader else {}
        return tuple(dict.fromkeys((*self.wanted_topics, *assigned)))

    @property
    def is_over(self) -> bool:
        """Whether the member has left or cannot be a member."""
        return self.state in (MemberState.LEFT, MemberState.FAILED)

    @property
    def wake_at_us(self) -> int | None:
        """The time at which ``next_request`` will return something even if nothing else happens before. None means that
        it waits for something other than time."""
        if self._in_flight is not None or self.is_over or self._is_dormant:
            return None
        if self.coordinator.node is None:
            return None if self.coordinator.is_requesting else self.coordinator.retry_at_us
        if self.state is MemberState.ASSIGNING:
            return None
        if self.state is MemberState.STABLE and not self._rejoin:
            return max(self._heartbeat_at_us, self._retry_at_us)
        if self.state is MemberState.RELEASING:
            return max(self._heartbeat_at_us, self._retry_at_us) if self.generation != NO_GENERATION else None
        return self._retry_at_us

    @property
    def is_away(self) -> bool:
        """Whether the member has stepped out and was not called back since (``come_back``)."""
        return self._away

    @property
    def _is_dormant(self) -> bool:
        """Whether the member has stepped out and sends nothing more, because it has left the group."""
        return self._away and self.state is MemberState.OUT

    def take_events(self) -> list[GroupEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    # -- calls of the driver ------------------------------------------------------------------------------------

    def learn_partitions(self, counts: Mapping[str, int]) -> None:
        """Learn the numbers of partitions by topic from metadata. A wanted topic that is missing does not exist. The
        leader begins a rebalance if the numbers have changed since it assigned."""
        self._leader.learn(counts)
        if self.state is MemberState.STABLE and self.is_leader and self._leader.is_outdated:
            self._rejoin = True

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Change the subscription. The member joins again with the new topics."""
        if topics != self.config.topics:
            self.config = replace(self.config, topics=topics)
            self._rejoin = True

    def release(self) -> None:
        """Continue after a revocation. By now the caller has committed the offsets of the revoked partitions, or has
        given that up."""
        if self.state is MemberState.RELEASING:
            self.state = MemberState.LEAVING if self._leaving else MemberState.OUT
            if not self.config.cooperative or self._leaving:
                self.assignment = ()

    def leave(self) -> None:
        """Leave the group. The event Revoked comes first. Then LeaveGroup is sent, except by a static member. Then the
        event Left comes."""
        if self.is_over or self._leaving:
            return
        self._leaving = True
        if self.state is not MemberState.RELEASING:
            self._give_up(self.assignment, MemberState.LEAVING)

    def step_out(self) -> None:
        """Step out of the group, because the application does not poll in time. What the member owns is lost.
        LeaveGroup is sent, except by a static member. Nothing more is sent before ``come_back``."""
        if self.is_over or self._leaving or self._away:
            return
        if self.assignment:
            self._events.append(Lost(self.assignment, self.generation))
        self.assignment = ()
        self._away, self.state = True, MemberState.LEAVING

    def come_back(self) -> None:
        """Join as a new member, because the application polls again."""
        self._away, self._rejoin = False, True

    def apply_error(self, now_us: int, error: Error | int, sent_as: MemberIdentity) -> None:
        """Apply an error of OffsetCommit or OffsetFetch that concerns the membership. ``sent_as`` is the identity in
        the request. An error for an earlier generation is ignored."""
        if error in COORDINATOR_MOVED:
            self.coordinator.lose(now_us)
        elif self.state not in (MemberState.STABLE, MemberState.RELEASING) or sent_as != self.identity:
            return
        elif error is ErrorCode.rebalance_in_progress:
            self._rejoin = True
        elif error in MEMBERSHIP_LOST:
            self._lose(error)
        elif error is ErrorCode.fenced_instance_id:
            self._fail(error)

    # -- requests -----------------------------------------------------------------------------------------------

    def next_request(self, now_us: int) -> GroupRequest | None:
        """Return what to send now, if anything. Exactly one of ``responded`` and ``failed`` must follow it."""
        if self._in_flight is not None or self.is_over or self._is_dormant:
            return None
        if self.coordinator.node is None:
            return self._find_coordinator(now_us)
        if now_us < self._retry_at_us:
            return None
        self._begin_rebalance()
        if self.state is MemberState.LEAVING:
            return self._leave()
        if self.state is MemberState.OUT:
            return self._join()
        if self.state in (MemberState.ASSIGNING, MemberState.SYNCING):
            return self._sync()
        if self.state is MemberState.STABLE or self.generation != NO_GENERATION:
            return self._heartbeat(now_us)
        return None

    def next_heartbeat(self, now_us: int) -> GroupRequest | None:
        """As ``next_request``, but returns only requests that keep the membership or end it."""
        is_member = self.state in (MemberState.STABLE, MemberState.RELEASING) and self.generation != NO_GENERATION
        if self._in_flight is not None or not (is_member or self.state is MemberState.LEAVING):
            return None
        if self.coordinator.node is None:
            return self._find_coordinator(now_us)
        if now_us < self._retry_at_us:
            return None
        return self._leave() if self.state is MemberState.LEAVING else self._heartbeat(now_us)

    def _find_coordinator(self, now_us: int) -> GroupRequest | None:
        if self.state is MemberState.LEAVING:
            self._leave_silently()
            return None
        if self.coordinator.failure is not None:
            self._fail(self.coordinator.failure)
            return None
        request = self.coordinator.next_request(now_us)
        if request is not None:
            self._in_flight = requests.FIND_COORDINATOR
        return request

    def _begin_rebalance(self) -> None:
        """Begin a rebalance from STABLE. An eager member gives everything up first."""
        if self.state is MemberState.STABLE and self._rejoin:
            self._give_up(() if self.config.cooperative else self.assignment, MemberState.OUT)

    def _give_up(self, partitions: tuple[TopicPartition, ...], then: MemberState) -> None:
        if partitions:
            self._events.append(Revoked(partitions, self.generation))
            self.state = MemberState.RELEASING
        else:
            self.state = then

    def _request(self, api_key: int, version: int, body: object, more_us: int = 0) -> GroupRequest:
        self._in_flight = api_key
        self._sent_to = self.coordinator.node
        return GroupRequest(api_key, version, body, self.config.request_timeout_us + more_us, self.coordinator.node)

    def _join(self) -> GroupRequest:
        self._rejoin = False
        self.state = MemberState.JOINING
        generation = self.generation if self.assignment else NO_GENERATION
        user_data = generation.to_bytes(_GENERATION_BYTES, "big", signed=True) if self.config.cooperative else None
        subscription = encode_subscription(
            Subscription(self.config.topics, tuple(sorted(self.assignment)), generation, user_data)
        )
        body = requests.join(
            self.identity,
            dict.fromkeys(self.config.protocols, subscription),
            self.config.session_timeout_us,
            self.config.rebalance_timeout_us,
        )
        more_us = self.config.rebalance_timeout_us + _JOIN_GRACE_US - self.config.request_timeout_us
        return self._request(requests.JOIN_GROUP, self.config.versions.join_group, body, max(more_us, 0))

    def _sync(self) -> GroupRequest | None:
        joined = self._joined
        assert joined is not None, "SyncGroup before JoinGroup"
        if self.wanted_topics:
            return None
        assignments: dict[str, bytes] = {}
        if self.state is MemberState.ASSIGNING:
            assignments = self._leader.assignments(joined)
        self.state = MemberState.SYNCING
        identity = replace(self.identity, generation_id=joined.generation_id)
        body = requests.sync(identity, joined.protocol or "", assignments)
        more_us = self.config.rebalance_timeout_us
        return self._request(requests.SYNC_GROUP, self.config.versions.sync_group, body, more_us)

    def _heartbeat(self, now_us: int) -> GroupRequest | None:
        if now_us < self._heartbeat_at_us:
            return None
        self._heartbeat_at_us = now_us + self.config.heartbeat_interval_us
        body = requests.heartbeat(self.identity)
        return self._request(requests.HEARTBEAT, self.config.versions.heartbeat, body)

    def _leave(self) -> GroupRequest | None:
        if not self.member_id or self.config.instance_id is not None:
            self._leave_silently()
            return None
        body = requests.leave(self.identity, "the consumer is being closed")
        return self._request(requests.LEAVE_GROUP, self.config.versions.leave_group, body)

    # -- responses -----------------------------------------------------------------------------------------------

    def responded(self, now_us: int, body: object) -> None:
        """Apply the response to the request in flight."""
        api_key, self._in_flight = self._in_flight, None
        if api_key == requests.FIND_COORDINATOR:
            self.coordinator.responded(now_us, body)
        elif self.is_over:
            pass  # The membership has ended meanwhile, by an error in a response to OffsetCommit or OffsetFetch.
        elif api_key == requests.JOIN_GROUP:
            self._join_responded(now_us, requests.joined(body))
        elif api_key == requests.SYNC_GROUP:
            self._sync_responded(now_us, body)
        elif api_key == requests.HEARTBEAT:
            self._heartbeat_responded(now_us, error_of(cast("HeartbeatResponse", body).error_code))
        elif api_key == requests.LEAVE_GROUP:
            self._leave_silently()
        else:
            raise AssertionError("a response to no request")

    def failed(self, now_us: int) -> None:
        """Record that the request in flight got no response (timeout, lost connection, no connection at all)."""
        api_key, self._in_flight = self._in_flight, None
        if api_key == requests.FIND_COORDINATOR:
            self.coordinator.failed(now_us)
            return
        self.coordinator.lose(now_us, self._sent_to)
        if self.is_over:
            return
        if api_key == requests.LEAVE_GROUP:
            self._leave_silently()
        elif api_key != requests.HEARTBEAT:
            self._again(now_us)

    def _join_responded(self, now_us: int, joined: requests.Joined) -> None:
        if not joined.error or joined.error is ErrorCode.member_id_required:
            self.member_id = joined.member_id
        if self._leaving or self.state is MemberState.LEAVING:
            return
        if joined.error is ErrorCode.member_id_required:
            self._back_out()
            return
        if joined.error:
            self._refused(now_us, joined.error)
            return
        if joined.protocol not in self.config.protocols:
            self._fail(ErrorCode.inconsistent_group_protocol)
            return
        self._joined, self.is_leader = joined, joined.is_leader
        self.state = MemberState.SYNCING
        if joined.is_leader and not joined.skip_assignment:
            self.state = MemberState.ASSIGNING
            try:
                self._leader.begin(joined)
            except ProtocolError:
                self._fail(ErrorCode.inconsistent_group_protocol)

    def _sync_responded(self, now_us: int, body: object) -> None:
        response = cast("SyncGroupResponse", body)
        error = error_of(response.error_code)
        if self._leaving or self.state is MemberState.LEAVING:
            return
        joined = self._joined
        assert joined is not None, "a response to no SyncGroup"
        if error:
            self._refused(now_us, error)
            return
        try:
            assigned = decode_assignment(response.assignment).partitions
        except ProtocolError:
            self._fail(ErrorCode.inconsistent_group_protocol)
            return
        self.generation = joined.generation_id
        self._heartbeat_at_us = now_us + self.config.heartbeat_interval_us
        self._events.append(Joined(self.generation, self.member_id, self.is_leader))
        self._take_over(assigned)

    def _take_over(self, assigned: tuple[TopicPartition, ...]) -> None:
        owned = dict.fromkeys(self.assignment)
        wanted = dict.fromkeys(assigned)
        revoked = tuple(each for each in owned if each not in wanted)
        added = tuple(each for each in wanted if each not in owned)
        self.assignment = tuple(wanted)
        self.state = MemberState.STABLE
        if revoked:
            self._events.append(Revoked(revoked, self.generation))
            self.state = MemberState.RELEASING
        self._events.append(Assigned(added, self.generation))

    def _heartbeat_responded(self, now_us: int, error: Error | int) -> None:
        if not error:
            return
        if error in COORDINATOR_MOVED:
            self.coordinator.lose(now_us, self._sent_to)
        elif error is ErrorCode.rebalance_in_progress:
            self._rejoin = True
        elif error in MEMBERSHIP_LOST:
            self._lose(error)
        elif error is ErrorCode.coordinator_load_in_progress:
            self._retry_at_us = now_us + self.config.backoff_us
        else:
            self._fail(error)

    # -- what errors do -----------------------------------------------------------------------------------------

    def _refused(self, now_us: int, error: Error | int) -> None:
        """Handle an error of JoinGroup or SyncGroup."""
        if error in COORDINATOR_MOVED:
            self.coordinator.lose(now_us, self._sent_to)
            self._again(now_us)
        elif error in MEMBERSHIP_LOST:
            self._lose(error)
        elif error in AGAIN:
            self._again(now_us)
        else:
            self._fail(error)

    def _again(self, now_us: int) -> None:
        self._back_out()
        self._retry_at_us = now_us + self.config.backoff_us

    def _back_out(self) -> None:
        """Return to the state before JoinGroup."""
        self._joined = None
        self._leader.wanted_topics = ()
        if self.state is MemberState.LEAVING:
            return
        if self.state is not MemberState.RELEASING or not self.assignment:
            self.state = MemberState.LEAVING if self._leaving else MemberState.OUT

    def _lose(self, error: Error | int) -> None:
        """Lose everything, because the coordinator does not know this member or its generation is over."""
        if self.assignment:
            self._events.append(Lost(self.assignment, self.generation))
        self.assignment = ()
        self.generation = NO_GENERATION
        if error is ErrorCode.unknown_member_id:
            self.member_id = ""
        self._back_out()

    def _fail(self, error: Error | int) -> None:
        if self.assignment:
            self._events.append(Lost(self.assignment, self.generation))
        self._events.append(Failed(error))
        self.failure = error
        self.assignment = ()
        self.generation = NO_GENERATION
        self.state = MemberState.FAILED

    def _leave_silently(self) -> None:
        """Leave without LeaveGroup, for good or until the application is back."""
        if self._leaving:
            self._events.append(Left(self.generation))
        self.generation, self.member_id, self.assignment = NO_GENERATION, "", ()
        self.state = MemberState.LEFT if self._leaving else MemberState.OUT
