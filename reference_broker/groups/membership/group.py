"""A group of the classic protocol: its members, generation, leader and state. Pure: no timers, no answers, no log.

The rules are Kafka's ClassicGroup's. Who drives it (``groups.membership.membership``) parks requests, sets timers and
writes the group; here is what is true of it in between. Everything costs O(1) or O(the member's protocols), except what
begins or ends a generation, or replaces a static member: that looks at each member once.
"""

from dataclasses import dataclass, field

from reference_broker.groups.membership.member import Member, MemberProtocol
from reference_broker.groups.membership.protocol_selection import SupportedProtocols
from reference_broker.groups.membership.subscription import subscribed_topics
from reference_broker.groups.membership.transitions import GroupState, may_follow
from reference_broker.wire.errors import Error

CONSUMER = "consumer"
"""The protocol type of groups whose members subscribe to topics: their metadata can be read here."""


@dataclass(slots=True)
class Group:
    """``Group(group_id, state_since_ms=now)`` is a new empty one; ``Group.loaded`` one from the log.

    Only the methods below and ``coordinator`` change it; ``members`` is read freely. ``state_since_ms``: Unix time of
    the last transition; -1 where the record is too old to say.
    """

    group_id: str
    state_since_ms: int
    generation: int = 0
    protocol_type: str | None = None
    """None: no member ever joined, offsets are committed by consumers that assign themselves."""
    protocol: str | None = None
    leader: str | None = None
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    members: dict[str, Member] = field(default_factory=dict)
    """By member ID, longest member first."""
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ID by group.instance.id."""
    pending_joins: dict[str, None] = field(default_factory=dict)
    """IDs that were given out (MEMBER_ID_REQUIRED) and have not joined yet."""
    pending_syncs: dict[str, None] = field(default_factory=dict)
    """Members whose SyncGroup for this generation has not come."""
    new_member_added: bool = False
    """One came during the initial delay, which is extended for it."""
    _joined: int = 0
    _supported: SupportedProtocols = field(default_factory=SupportedProtocols)
    _topics: tuple[int, dict[str, None] | None] | None = None

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
        """As a GroupMetadata record says: Stable with members, Empty without. Of each member's protocols the record
        has the selected one only. Records without members may keep the leader; there is none."""
        group = Group(group_id, state_since_ms, generation, protocol_type or None, protocol)
        for member in members:
            group.add(member, awaits_join=False)
        group.leader = leader if leader in group.members else next(iter(group.members), None)
        group.state = GroupState.STABLE if members else GroupState.EMPTY
        return group

    # --- members ----------------------------------------------------------------------------------------------------

    def add(self, member: Member, *, awaits_join: bool) -> None:
        """A new member; the first one leads. The group's protocol type is the caller's to set."""
        assert member.member_id not in self.members, f"{member.member_id} is a member of {self.group_id} already"
        instance = member.group_instance_id
        if instance is not None:
            assert instance not in self.static_members, f"{instance} is a member of {self.group_id} already"
            self.static_members[instance] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._supported.add(member.protocols)
        self.await_join(member, awaits_join)
        self.pending_joins.pop(member.member_id, None)
        self._topics = None

    def remove(self, member_id: str) -> Member | None:
        """Removes a member or a pending one; the longest member of the others leads where it did."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._supported.remove(member.protocols)
            self.await_join(member, False)
            member.awaits_sync = False
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
            self._topics = None
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        return member

    def update(
        self,
        member: Member,
        protocols: tuple[MemberProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """What a member that joins again says now."""
        self._supported.remove(member.protocols)
        self._supported.add(protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._topics = None

    def replace_static(self, group_instance_id: str, new_member_id: str) -> Member:
        """The instance started again: the same member under another ID, in its old place."""
        old_member_id = self.static_members[group_instance_id]
        member = self.members[old_member_id]
        self.await_join(member, False)
        member.awaits_sync = False
        self.pending_syncs.pop(old_member_id, None)
        member.member_id = new_member_id
        self.members = {each.member_id: each for each in self.members.values()}
        self.static_members[group_instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def await_join(self, member: Member, awaits_join: bool) -> None:
        """Whether a JoinGroup of the member waits."""
        self._joined += awaits_join - member.awaits_join
        member.awaits_join = awaits_join

    # --- what is asked ----------------------------------------------------------------------------------------------

    @property
    def joined(self) -> int:
        """Members that wait for the next generation."""
        return self._joined

    @property
    def all_joined(self) -> bool:
        return self._joined == len(self.members) and not self.pending_joins

    @property
    def can_rebalance(self) -> bool:
        return may_follow(self.state, GroupState.PREPARING_REBALANCE)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of its members'."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Whether one with these may join: of the group's type, with one protocol that all members know."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        return any(self._supported.known_by(each.name) == len(self.members) for each in protocols)

    def accepts(self, member_id: str, max_size: int) -> bool:
        """Whether there is room. While joining those count that wait: the last to rejoin are turned away."""
        member = self.members.get(member_id)
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.awaits_join) or self._joined < max_size
        return member is not None or len(self.members) < max_size

    def select_protocol(self) -> str:
        """The one with the most votes of those that all members know."""
        return self._supported.select(self.members.values())

    def check_member(self, member_id: str, group_instance_id: str | None) -> Error:
        """NONE, FENCED_INSTANCE_ID (the instance has another ID by now) or UNKNOWN_MEMBER_ID."""
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is not None and known != member_id:
                return Error.FENCED_INSTANCE_ID
            if known is None:
                return Error.UNKNOWN_MEMBER_ID
        return Error.NONE if member_id in self.members else Error.UNKNOWN_MEMBER_ID

    def check_commit(self, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """Whether offsets may be committed. Generation -1 (consumers that assign themselves, tools): only while
        the group is Empty. REBALANCE_IN_PROGRESS: the generation is right, its assignment is not known yet."""
        if self.state is GroupState.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return Error.NONE
        if generation < 0 and not member_id and group_instance_id is None:
            return Error.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, group_instance_id)
        if error is not Error.NONE:
            return error
        if generation != self.generation:
            return Error.ILLEGAL_GENERATION
        return Error.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING_REBALANCE else Error.NONE

    def check_delete(self) -> Error:
        """Whether DeleteGroups may remove it: NONE, NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        if self.state is GroupState.DEAD:
            return Error.GROUP_ID_NOT_FOUND
        return Error.NONE if self.state is GroupState.EMPTY else Error.NON_EMPTY_GROUP

    def check_offset_delete(self) -> Error:
        """Whether OffsetDelete may look at single topics: NONE, NON_EMPTY_GROUP (members of another protocol type,
        whose topics are not known) or GROUP_ID_NOT_FOUND. Then ``is_subscribed_to`` says GROUP_SUBSCRIBED_TO_TOPIC."""
        if self.state is GroupState.DEAD:
            return Error.GROUP_ID_NOT_FOUND
        refused = self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER
        return Error.NON_EMPTY_GROUP if refused else Error.NONE

    def subscribed_topics(self) -> tuple[str, ...] | None:
        """All topics of its members, each once; None: not a consumer group, or their metadata cannot be read."""
        topics = self._known_topics()
        return None if topics is None else tuple(topics)

    def _known_topics(self) -> dict[str, None] | None:
        """Asked for each offset of a group, so in one look."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return {}
        if self.protocol is None:
            return None
        if self._topics is None or self._topics[0] != self.generation:
            found = subscribed_topics(each.metadata(self.protocol) for each in self.members.values())
            self._topics = (self.generation, None if found is None else dict.fromkeys(found))
        return self._topics[1]

    def is_subscribed_to(self, topic: str) -> bool:
        """Where the topics cannot be read, a consumer group counts as subscribed to all."""
        topics = self._known_topics()
        return self.protocol_type == CONSUMER if topics is None else topic in topics

    def expires_from_ms(self, commit_timestamp_ms: int) -> int | None:
        """Unix time from which ``offsets.retention.minutes`` count for an offset committed then (KIP-211): when the
        group became empty, or the commit where nobody ever joined or the group is stable and its topics are known
        (only topics that nobody subscribes to expire then). None: not while the group is as it is."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is GroupState.EMPTY:
            return commit_timestamp_ms if self.state_since_ms < 0 else self.state_since_ms
        if self.state is GroupState.STABLE and self._known_topics() is not None:
            return commit_timestamp_ms
        return None

    # --- transitions ------------------------------------------------------------------------------------------------

    def begin_rebalance(self, now_ms: int) -> None:
        self.pending_syncs.clear()
        self._enter(GroupState.PREPARING_REBALANCE, now_ms)

    def elect_joined_leader(self) -> bool:
        """Keeps the leader if it has joined, else the first that has leads; False: nobody has."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaits_join:
            return True
        joined = next((each.member_id for each in self.members.values() if each.awaits_join), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def begin_generation(self, now_ms: int) -> None:
        """The next generation, of its present members: CompletingRebalance, or Empty without any."""
        self.generation = self.generation % 0x7FFFFFFF + 1
        self.pending_syncs.clear()
        self.new_member_added = False
        if self.members:
            self.protocol = self.select_protocol()
            self._enter(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self._enter(GroupState.EMPTY, now_ms)

    def stabilise(self, now_ms: int) -> None:
        """The leader's assignment is written."""
        self._enter(GroupState.STABLE, now_ms)

    def die(self, now_ms: int) -> None:
        self._enter(GroupState.DEAD, now_ms)

    def _enter(self, state: GroupState, now_ms: int) -> None:
        before = self.state
        assert may_follow(before, state), f"group {self.group_id} is {before.value} and cannot become {state.value}"
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms
