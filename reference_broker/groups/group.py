"""A group of the classic protocol: its members, generation, leader, state and parked requests (Kafka's ClassicGroup).

A group without members is Empty. Whatever changes the set of members begins a rebalance: every member has to join again
(PreparingRebalance). When all have joined, or the rebalance timeout is over, a generation begins. Its leader decides
which member gets which partitions (CompletingRebalance). Once that assignment is stored the group is Stable, until the
next rebalance. ``VALID_PREVIOUS_STATES`` has all transitions; any other is a bug of ours.

A group has neither timers nor a log. ``served_group`` has those while the group is coordinated here. A method costs
O(1) or O(protocols of the member). The exceptions look at each member once: they begin or end a generation, or replace
a static member.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from reference_broker.groups.classic_requests import (
    JoinCallback,
    JoinResponse,
    MemberProtocol,
    SyncCallback,
    SyncResponse,
)
from reference_broker.wire.errors import Error, ErrorCode


class GroupState(Enum):
    """The value is the name in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    """The group has no members. It may have committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members have to join again. A generation begins when all have, or when the rebalance timeout is over."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation has begun. Its leader has not sent the assignment yet."""
    STABLE = "Stable"
    """Every member can fetch its part of the assignment."""
    DEAD = "Dead"
    """The group is deleted, or another node coordinates it now. This state is final."""


VALID_PREVIOUS_STATES: Final[Mapping[GroupState, tuple[GroupState, ...]]] = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
    GroupState.PREPARING_REBALANCE: (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.DEAD: tuple(GroupState),
}
"""The states from which a group may go to each state (Kafka's ClassicGroupState)."""


@dataclass(slots=True)
class Member:
    """One member, dynamic or static. The group that has it may change its ID (``Group.replace_static``)."""

    member_id: str
    group_instance_id: str | None
    """The ID of a static member (KIP-345), which stays the same when the member starts again."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """The protocols in the order of the member's preference."""
    assignment: bytes = b""
    """Bytes that only clients can read. They are empty where the member has no assignment."""
    is_new: bool = False
    """Its first JoinGroup has no response yet, so it does not know its ID and can send no heartbeats."""

    def note_first_response(self) -> None:
        """Note that its JoinGroup gets a response, from which it knows its ID."""
        self.is_new = False

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol. It is empty for a protocol that the member does not support."""
        for each in self.protocols:
            if each.name == protocol:
                return each.metadata
        return b""

    def vote(self, candidates: dict[str, int]) -> str:
        """Return the first of its protocols that is a candidate. Every member supports every candidate."""
        return next(each.name for each in self.protocols if each.name in candidates)


@dataclass(slots=True)
class SupportedProtocols:
    """The number of members that support each protocol. The counts are kept up to date, so that a join need not walk
    over all members. A member that names a protocol twice is counted once."""

    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, protocols: tuple[MemberProtocol, ...]) -> None:
        for name in {each.name: None for each in protocols}:
            self._counts[name] = self._counts.get(name, 0) + 1

    def remove(self, protocols: tuple[MemberProtocol, ...]) -> None:
        for name in {each.name: None for each in protocols}:
            remaining = self._counts[name] - 1
            if remaining:
                self._counts[name] = remaining
            else:
                del self._counts[name]

    def count(self, name: str) -> int:
        """Return how many members support this protocol."""
        return self._counts.get(name, 0)

    def select(self, members: Iterable[Member]) -> str:
        """Return the protocol of a generation. Each member votes for the first of its own protocols that all members
        support. The one with the most votes wins; of equals it is the one that was voted for first."""
        voters = list(members)
        candidates = {name: count for name, count in self._counts.items() if count == len(voters)}
        assert candidates, "a protocol is selected where members share none"
        votes: dict[str, int] = {}
        for member in voters:
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])


def subscribed_topics(metadatas: Iterable[bytes]) -> dict[str, None] | None:
    """Return all topics, each once, in the order of first mention. Returns None if the metadata of one member cannot
    be read."""
    topics: dict[str, None] = {}
    for metadata in metadatas:
        own_topics = _topics_of(metadata)
        if own_topics is None:
            return None
        topics.update(dict.fromkeys(own_topics))
    return topics


def _topics_of(metadata: bytes) -> list[str] | None:
    """The layout is the version (int16), then an array of topic names whose lengths are not compact."""
    if len(metadata) < 6 or _int(metadata, 0, 2) < 0:
        return None
    count, at = _int(metadata, 2, 4), 6
    if not 0 <= count <= len(metadata):
        return None
    topics: list[str] = []
    for _ in range(count):
        length = _int(metadata, at, 2)
        at += 2
        if length < 0 or at + length > len(metadata):
            return None
        try:
            topics.append(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return topics


def _int(data: bytes, at: int, size: int) -> int:
    """Read a big-endian number. Where the bytes end before it, the result is -1, which no caller accepts."""
    if at + size > len(data):
        return -1
    return int.from_bytes(data[at : at + size], "big", signed=True)


CONSUMER = "consumer"
"""The protocol type of groups whose members subscribe to topics. Only their metadata can be read here."""
LAST_GENERATION = 0x7FFFFFFF
"""After it the generations begin at 1 again."""


@dataclass(slots=True)
class Group:
    """``Group(group_id, state_since_ms=now)`` is a new empty group, ``Group.loaded`` is one from the log.

    Others read the fields. They change them through the methods only.
    """

    group_id: str
    state_since_ms: int
    """Unix time of the last transition, -1 where the record is too old to have it."""
    generation: int = 0
    protocol_type: str | None = None
    """None means that no member ever joined: the offsets belong to consumers that assign themselves."""
    protocol: str | None = None
    leader: str | None = None
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    members: dict[str, Member] = field(default_factory=dict)
    """By member ID. The member that has been there longest comes first."""
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ID by group.instance.id."""
    pending_joins: dict[str, None] = field(default_factory=dict)
    """The IDs that were assigned (MEMBER_ID_REQUIRED) and have not joined yet."""
    pending_syncs: dict[str, None] = field(default_factory=dict)
    """The members whose SyncGroup for this generation has not come."""
    parked_joins: dict[str, JoinCallback] = field(default_factory=dict)
    """The JoinGroups that are parked until the next generation begins, by member ID, in the order of their arrival."""
    parked_syncs: dict[str, SyncCallback] = field(default_factory=dict)
    """The SyncGroups that are parked until the assignment is written, by member ID, in the order of their arrival."""
    new_member_added: bool = False
    """A member joined during the initial delay, which is prolonged for it."""
    _supported: SupportedProtocols = field(default_factory=SupportedProtocols)
    _topics: tuple[int, dict[str, None] | None] | None = None
    """The topics of the members' subscriptions, with the generation for which they were read."""

    @staticmethod
    def loaded(
        group_id: str,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        leader: str | None,
        state_since_ms: int,
        members: tuple[Member, ...],
    ) -> "Group":
        """Return the group that a GroupMetadata record describes. It is Stable if it has members, else Empty. The
        record has only the selected one of each member's protocols. A record without members may still name a leader,
        which is ignored."""
        group = Group(group_id, state_since_ms, generation, protocol_type or None, protocol)
        for member in members:
            group.add(member)
        group.leader = leader if leader in group.members else next(iter(group.members), None)
        group.state = GroupState.STABLE if members else GroupState.EMPTY
        return group

    # --- members ------------------------------------------------------------------------------------------------------

    def begin_protocol_type(self, protocol_type: str) -> None:
        """Set the protocol type, which is that of the first member to join."""
        assert not self.members, f"the members of {self.group_id} have protocol type {self.protocol_type}"
        self.protocol_type = protocol_type

    def prolong_initial_delay(self) -> None:
        """Note that a member is new, if the initial delay is going on."""
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self.new_member_added = True

    def restart_initial_delay(self) -> None:
        """Note that one more initial delay begins, in which no member is new yet."""
        self.new_member_added = False

    def add(self, member: Member) -> None:
        """Add a new member. The first member leads. ``begin_protocol_type`` comes before it."""
        assert member.member_id not in self.members, f"{member.member_id} is a member of {self.group_id} already"
        instance = member.group_instance_id
        if instance is not None:
            assert instance not in self.static_members, f"{instance} is a member of {self.group_id} already"
            self.static_members[instance] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._supported.add(member.protocols)
        self.pending_joins.pop(member.member_id, None)
        self._topics = None
        self._assert_leader()

    def remove(self, member_id: str) -> Member | None:
        """Remove a member, or an ID that has not joined. If the leader is removed, the oldest member leads. The parked
        requests of the member have got their responses before."""
        self._assert_nothing_parked(member_id)
        member = self.members.get(member_id)
        if member is not None:
            self._supported.remove(member.protocols)
            del self.members[member_id]
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
            self._topics = None
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        self._assert_leader()
        return member

    def update(
        self,
        member: Member,
        protocols: tuple[MemberProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Update a member that joins again."""
        assert self.members.get(member.member_id) is member, f"{member.member_id} is no member of {self.group_id}"
        self._supported.remove(member.protocols)
        self._supported.add(protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._topics = None

    def replace_static(self, group_instance_id: str, new_member_id: str) -> Member:
        """Give the member of this instance another ID, because the instance restarted. It keeps its place. The parked
        requests with the old ID have got their responses before."""
        assert new_member_id not in self.members, f"{new_member_id} is a member of {self.group_id} already"
        old_member_id = self.static_members[group_instance_id]
        self._assert_nothing_parked(old_member_id)
        member = self.members[old_member_id]
        self.pending_syncs.pop(old_member_id, None)
        member.member_id = new_member_id
        self.members = {each.member_id: each for each in self.members.values()}
        self.static_members[group_instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id
        self._assert_leader()
        return member

    def add_pending_member(self, member_id: str) -> None:
        """Record a member ID with which a client has to join (KIP-394)."""
        assert member_id not in self.members, f"{member_id} is a member of {self.group_id} already"
        self.pending_joins[member_id] = None

    def remove_pending_sync_member(self, member_id: str) -> None:
        """Record that the SyncGroup of this member for this generation has come."""
        self.pending_syncs.pop(member_id, None)

    def _assert_leader(self) -> None:
        leads = self.leader in self.members if self.members else self.leader is None
        assert leads, f"{self.leader} leads {self.group_id}, whose members are {list(self.members)}"

    # --- parked requests ----------------------------------------------------------------------------------------------

    def park_join(self, member_id: str, respond: JoinCallback) -> None:
        """Park a JoinGroup until the next generation begins. An earlier one of the same member gets
        REBALANCE_IN_PROGRESS, since its connection may be lost."""
        assert member_id in self.members, f"{member_id} is no member of {self.group_id}"
        self.respond_to_join(member_id, JoinResponse(ErrorCode.rebalance_in_progress, member_id))
        self.parked_joins[member_id] = respond

    def respond_to_join(self, member_id: str, response: JoinResponse) -> None:
        """Respond to the parked JoinGroup of the member, if there is one."""
        respond = self.parked_joins.pop(member_id, None)
        if respond is not None:
            respond(response)

    def park_sync(self, member_id: str, respond: SyncCallback) -> None:
        """Park a SyncGroup until the assignment is written. An earlier one of the same member gets
        REBALANCE_IN_PROGRESS."""
        assert member_id in self.members, f"{member_id} is no member of {self.group_id}"
        self.respond_to_sync(member_id, SyncResponse(ErrorCode.rebalance_in_progress))
        self.parked_syncs[member_id] = respond

    def respond_to_sync(self, member_id: str, response: SyncResponse) -> None:
        """Respond to the parked SyncGroup of the member, if there is one."""
        respond = self.parked_syncs.pop(member_id, None)
        if respond is not None:
            respond(response)

    def fail_parked(self, error: Error) -> None:
        """Respond to all parked requests with this error."""
        for member_id in tuple(self.parked_joins):
            self.respond_to_join(member_id, JoinResponse(error, member_id))
        for member_id in tuple(self.parked_syncs):
            self.respond_to_sync(member_id, SyncResponse(error))

    def has_joined(self, member_id: str) -> bool:
        """Return whether the member waits for the next generation: its JoinGroup is parked."""
        return member_id in self.parked_joins

    def is_excused(self, member: Member) -> bool:
        """Return whether a request of the member is parked, so that it sends no heartbeats (Kafka's
        hasSatisfiedHeartbeat). A new member is never excused: nothing else would show that its client is gone, and its
        JoinGroup would stay parked for ever."""
        is_parked = member.member_id in self.parked_joins or member.member_id in self.parked_syncs
        return is_parked and not member.is_new

    def _assert_nothing_parked(self, member_id: str) -> None:
        is_parked = member_id in self.parked_joins or member_id in self.parked_syncs
        assert not is_parked, f"{member_id} leaves {self.group_id}, and a request of it is parked"

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def has_all_members_joined(self) -> bool:
        """Whether the JoinGroups of all members are parked, and no client has yet to join with its assigned ID."""
        return len(self.parked_joins) == len(self.members) and not self.pending_joins

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin: the group is neither in one nor Dead."""
        return self.state in VALID_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Return whether a member with these protocols may join. They must be of the group's type, and all members must
        support one of them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        return any(self._supported.count(each.name) == len(self.members) for each in protocols)

    def accepts(self, member_id: str, max_size: int) -> bool:
        """Return whether the group has room for the member. During a rebalance only members that have joined count, so
        that the last ones to join again are refused."""
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            return self.has_joined(member_id) or len(self.parked_joins) < max_size
        return member_id in self.members or len(self.members) < max_size

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support."""
        return self._supported.select(self.members.values())

    def check_member(self, member_id: str, group_instance_id: str | None) -> Error:
        """NONE, FENCED_INSTANCE_ID (the instance has another member ID by now) or UNKNOWN_MEMBER_ID."""
        if group_instance_id is not None:
            current_id = self.static_members.get(group_instance_id)
            if current_id is not None and current_id != member_id:  # Decision static-member-fenced
                return ErrorCode.fenced_instance_id
            if current_id is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def check_commit(self, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """Return whether offsets may be committed. Generation -1 is that of tools and consumers that assign themselves.
        They may commit only while the group is Empty. REBALANCE_IN_PROGRESS means that the generation is right, but its
        assignment is not known yet."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.none
        if generation < 0 and not member_id and group_instance_id is None:
            return ErrorCode.unknown_member_id
        error = self.check_member(member_id, group_instance_id)
        if error:
            return error
        if generation != self.generation:  # Decision offset-commit-generation
            return ErrorCode.illegal_generation
        # Decision offset-commit-in-rebalance
        return ErrorCode.rebalance_in_progress if self.state is GroupState.COMPLETING_REBALANCE else ErrorCode.none

    def check_transactional_commit(self, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """As ``check_commit``, for offsets that a transaction commits. Clients that name no member may always commit,
        since old ones cannot name one (KIP-447). A generation whose assignment is not known yet may, too."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and (self.state is GroupState.EMPTY or not (member_id or group_instance_id is not None)):
            return ErrorCode.none
        error = self.check_member(member_id, group_instance_id)
        if error:
            return error
        # Decision transactional-offset-commit-generation
        return ErrorCode.none if generation == self.generation else ErrorCode.illegal_generation

    def check_delete(self) -> Error:
        """Return whether DeleteGroups may remove the group: NONE, NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        if self.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if self.state is GroupState.EMPTY else ErrorCode.non_empty_group

    def check_offset_delete(self) -> Error:
        """Return whether OffsetDelete may check single topics: NONE, GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP where the
        members are of another protocol type, whose topics are not known. If it may, ``is_subscribed_to`` decides for
        each topic."""
        if self.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        refused = self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER
        return ErrorCode.non_empty_group if refused else ErrorCode.none

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def is_subscribed_to(self, topic: str) -> bool:
        """A consumer group whose topics cannot be read counts as subscribed to all topics."""
        topics = self.subscribed_topics()
        return self.protocol_type == CONSUMER if topics is None else topic in topics

    def expires_from_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return the Unix time from which ``offsets.retention.minutes`` count for an offset that was committed at the
        given time (KIP-211).

        They count from the commit where no member ever joined, or where the group is Stable and its topics are known:
        then only offsets of topics without a subscriber expire. Otherwise they count from when the group became Empty.
        None means that nothing expires in the group's current state."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is GroupState.EMPTY:
            return commit_timestamp_ms if self.state_since_ms < 0 else self.state_since_ms
        if self.state is GroupState.STABLE and self.subscribed_topics() is not None:
            return commit_timestamp_ms
        return None

    def subscribed_topics(self) -> Collection[str] | None:
        """Return all topics of the members, each once. Returns None where it is not a consumer group, or where the
        metadata of its members cannot be read.

        This is called for each offset of a group, so the result is cached for the generation."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return ()
        if self.protocol is None:
            return None
        if self._topics is None or self._topics[0] != self.generation:
            topics = subscribed_topics(each.metadata(self.protocol) for each in self.members.values())
            self._topics = (self.generation, topics)
        return self._topics[1]

    # --- transitions --------------------------------------------------------------------------------------------------

    def begin_rebalance(self, now_ms: int) -> None:
        """Go to PreparingRebalance."""
        self._transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        self.pending_syncs.clear()

    def maybe_elect_new_joined_leader(self) -> bool:
        """Keep the leader if it has joined. Otherwise the first member that has joined leads. Return False if no member
        has joined."""
        if self.leader is None:
            return False
        if self.has_joined(self.leader):
            return True
        joined = next((member_id for member_id in self.members if self.has_joined(member_id)), None)
        if joined is None:  # Decision group-leader-elected
            return False
        self.leader = joined
        return True

    def init_next_generation(self, now_ms: int) -> None:
        """Begin the next generation with the present members, all of which have to sync (CompletingRebalance), or
        without members (Empty)."""
        # Decision group-generation-begins
        self._transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.generation = self.generation % LAST_GENERATION + 1
        self.new_member_added = False
        self.pending_syncs = dict.fromkeys(self.members)
        self.protocol = self.select_protocol() if self.members else None

    def become_stable(self, now_ms: int) -> None:
        """Go to Stable, because the leader's assignment is stored."""
        self._transition_to(GroupState.STABLE, now_ms)

    def die(self, now_ms: int) -> None:
        """Go to Dead, because the group is deleted, or another node coordinates it."""
        self._transition_to(GroupState.DEAD, now_ms)

    def _transition_to(self, state: GroupState, now_ms: int) -> None:
        is_valid = self.state in VALID_PREVIOUS_STATES[state]
        assert is_valid, f"group {self.group_id} is {self.state.value} and cannot become {state.value}"
        self.previous_state, self.state, self.state_since_ms = self.state, state, now_ms

    # --- invariants ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert the invariants. This costs O(members), so only tests and the simulator call it."""
        name, members = f"group {self.group_id}", self.members
        self._assert_leader()
        assert all(each.member_id == key for key, each in members.items()), (
            f"{name}: a member is listed under another ID"
        )
        instances = {each.group_instance_id: key for key, each in members.items() if each.group_instance_id is not None}
        assert self.static_members == instances, f"{name}: static members {self.static_members}, not {instances}"
        parked = self.parked_joins.keys() | self.parked_syncs.keys()
        assert parked <= members.keys(), f"{name}: a request is parked for an ID that is no member"
        assert not self.pending_joins.keys() & members.keys(), f"{name}: a member's ID still has to join"
        assert self.pending_syncs.keys() <= members.keys(), (
            f"{name}: a SyncGroup is pending for an ID that is no member"
        )
        supported = SupportedProtocols()
        for each in members.values():
            supported.add(each.protocols)
        assert self._supported == supported, f"{name}: {self._supported} is not what the members know"
