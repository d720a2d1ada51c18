"""Rules of classic groups as pure functions: which error each request gets, and which moves of a group are legal.

They are pure functions of views, so a test states a case in one line. ``state_changes`` applies them to coordinators.

Sources: Kafka's documentation of JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit, the states of
ClassicGroup, KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-389
(group.max.size), KIP-394 (MEMBER_ID_REQUIRED), KIP-447 (transactional commits), KIP-559 and KIP-814.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"
NONE = 0
UNKNOWN_SERVER_ERROR = -1
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 15, 16
ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID = 22, 23, 25
INVALID_SESSION_TIMEOUT, REBALANCE_IN_PROGRESS, INVALID_REQUEST = 26, 27, 42
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69
MEMBER_ID_REQUIRED, GROUP_MAX_SIZE_REACHED, FENCED_INSTANCE_ID = 79, 81, 82
NOT_WRITTEN = (UNKNOWN_SERVER_ERROR, 14, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
"""The errors of a record of the group that could not be written or replicated."""
OF_MEMBERS = (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND, FENCED_INSTANCE_ID)
"""The errors by which a commit is refused because of who commits."""
LAST_GENERATION = 2**31 - 1
MEMBER_ID_FROM = 4
"""The version of JoinGroup from which a dynamic member gets its ID first (KIP-394)."""
PROTOCOL_FROM = 5
"""The version of SyncGroup from which it names the protocol (KIP-559)."""
MISSING_GROUP_FROM = 9
"""The version of OffsetCommit from which GROUP_ID_NOT_FOUND is returned."""

NEXT = {
    EMPTY: (PREPARING, DEAD),
    PREPARING: (COMPLETING, EMPTY, DEAD),
    COMPLETING: (STABLE, PREPARING, DEAD),
    STABLE: (PREPARING, DEAD),
    DEAD: (),
}
"""Kafka's transitions of a classic group."""


class MemberView(NamedTuple):
    """A member as its coordinator has it."""

    instance: str | None = None
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    protocols: tuple[tuple[str, bytes], ...] = (("range", b""),)
    awaits_join: bool = False
    """Its JoinGroup is parked."""
    awaits_sync: bool = False
    """Its SyncGroup is parked."""
    is_new: bool = False
    """Its first JoinGroup has no response yet."""

    @property
    def is_excused(self) -> bool:
        """Whether it cannot send heartbeats because a request of it is parked (KIP-62)."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    @property
    def settings(self) -> tuple[object, ...]:
        return self.instance, self.session_ms, self.rebalance_ms, self.protocols


class GroupView(NamedTuple):
    """A group as its coordinator has it."""

    state: str = EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, MemberView] = {}
    pending: tuple[str, ...] = ()
    """IDs that were assigned and have not joined (KIP-394)."""

    def of_instance(self, instance: str | None) -> str | None:
        """Return the ID of the static member."""
        if instance is None:
            return None
        return next((key for key, each in self.members.items() if each.instance == instance), None)

    @property
    def joined(self) -> list[str]:
        return [key for key, each in self.members.items() if each.awaits_join]

    @property
    def rebalance_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    @property
    def common(self) -> list[str]:
        """Return the protocols that all members support."""
        names = [{name for name, _ in member.protocols} for member in self.members.values()]
        return sorted(set.intersection(*names)) if names else []


def view_of(group: Any) -> GroupView:
    """Return what the coordinator has of a group now."""
    members = {
        key: MemberView(
            *(each.group_instance_id, each.session_timeout_ms, each.rebalance_timeout_ms),
            tuple((protocol.name, protocol.metadata) for protocol in each.protocols),
            *(key in group.parked_joins, key in group.parked_syncs, each.is_new),
        )
        for key, each in group.members.items()
    }
    pending = tuple(group.pending_joins)
    return GroupView(
        *(group.state.value, group.generation, group.protocol_type, group.protocol, group.leader), members, pending
    )


# --- responses --------------------------------------------------------------------------------------------------------


def member_error(group: GroupView, member_id: str, instance: str | None) -> int:
    """Return the error of a request that names a member: it is unknown, or fenced by its successor (KIP-345)."""
    if instance is not None:
        known = group.of_instance(instance)
        if known is None:
            return UNKNOWN_MEMBER_ID
        return NONE if known == member_id else FENCED_INSTANCE_ID
    return NONE if member_id in group.members else UNKNOWN_MEMBER_ID


def join_error(group: GroupView | None, body: Any, version: int, max_size: int) -> int:
    """Return the error of JoinGroup, or NONE if the member joins. It does not cover the bounds of the timeouts."""
    member_id, instance = str(body.member_id), body.group_instance_id
    names = {str(protocol.name) for protocol in body.protocols}
    if group is None:
        if member_id:
            return UNKNOWN_MEMBER_ID
        group = GroupView()
    if not _has_room(group, member_id, max_size):
        return GROUP_MAX_SIZE_REACHED
    if group.state == EMPTY:
        fits = bool(body.protocol_type) and bool(names)
    else:
        sets = [{name for name, _ in member.protocols} for member in group.members.values()]
        fits = body.protocol_type == group.protocol_type and bool(names.intersection(*sets))
    if not fits:
        return INCONSISTENT_GROUP_PROTOCOL
    if not member_id:
        return MEMBER_ID_REQUIRED if instance is None and version >= MEMBER_ID_FROM else NONE
    if member_id in group.pending and instance is None:
        return NONE
    return member_error(group, member_id, instance)


def _has_room(group: GroupView, member_id: str, max_size: int) -> bool:
    """KIP-389: while members join, those that have joined are counted."""
    if group.state == EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state == PREPARING:
        return (member is not None and member.awaits_join) or len(group.joined) < max_size
    return member is not None or len(group.members) < max_size


def sync_error(group: GroupView | None, body: Any, version: int) -> int:
    """Return the error of SyncGroup, or NONE if the member gets an assignment, at once or later."""
    if version >= PROTOCOL_FROM and (body.protocol_type is None or body.protocol_name is None):
        return INCONSISTENT_GROUP_PROTOCOL
    if group is None or group.state == EMPTY:
        return UNKNOWN_MEMBER_ID
    error = member_error(group, str(body.member_id), body.group_instance_id)
    if error:
        return error
    if int(body.generation_id) != group.generation:
        return ILLEGAL_GENERATION
    for named, known in ((body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol)):
        if named is not None and known is not None and named != known:
            return INCONSISTENT_GROUP_PROTOCOL
    return REBALANCE_IN_PROGRESS if group.state == PREPARING else NONE


def heartbeat_error(group: GroupView | None, body: Any) -> int:
    """Return the error of Heartbeat."""
    if group is None:
        return UNKNOWN_MEMBER_ID
    error = member_error(group, str(body.member_id), body.group_instance_id)
    if error:
        return error
    if int(body.generation_id) != group.generation:
        return ILLEGAL_GENERATION
    return REBALANCE_IN_PROGRESS if group.state == PREPARING else NONE


def leave_errors(group: GroupView | None, leaving: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yield the error of each member of a LeaveGroup, and the ID that leaves, if any."""
    members = {} if group is None else dict(group.members)
    pending = [] if group is None else list(group.pending)
    for each in leaving:
        present = GroupView(members=members)
        member_id, instance = str(each.member_id), each.group_instance_id
        if not member_id:
            member_id = present.of_instance(instance) or ""
            error = NONE if member_id else UNKNOWN_MEMBER_ID
        elif member_id in pending:
            error = NONE
        else:
            error = member_error(present, member_id, instance)
        if not error:
            members.pop(member_id, None)
            pending = [pending_id for pending_id in pending if pending_id != member_id]
        yield error, "" if error else member_id


def commit_error(group: GroupView | None, body: Any, version: int, *, transactional: bool) -> int:
    """Return the error by which a commit is refused as a whole, or NONE. Generation -1 without a member is a simple
    consumer, which commits only to an Empty group; in a transaction it is an old client (KIP-447)."""
    generation = int(body.generation_id if transactional else body.generation_id_or_member_epoch)
    member_id, instance = str(body.member_id), getattr(body, "group_instance_id", None)
    if group is None:
        if generation < 0:
            return NONE
        return GROUP_ID_NOT_FOUND if not transactional and MISSING_GROUP_FROM <= version < 1000 else ILLEGAL_GENERATION
    if generation < 0 and group.state == EMPTY:
        return NONE
    if generation < 0 and not member_id and instance is None:
        return NONE if transactional else UNKNOWN_MEMBER_ID
    error = member_error(group, member_id, instance)
    if error:
        return error
    if generation != group.generation:
        return ILLEGAL_GENERATION
    return REBALANCE_IN_PROGRESS if group.state == COMPLETING and not transactional else NONE


# --- moves ------------------------------------------------------------------------------------------------------------


def wrong_steps(before: GroupView, steps: Sequence[tuple[str, int]], after: GroupView) -> str:
    """Return what is wrong with the states and generations through which a group went in one event, or nothing."""
    state, generation = before.state, before.generation
    for next_state, next_generation in steps:
        if next_state not in NEXT[state]:
            return f"it went from {state} to {next_state}, which is no transition of Kafka's"
        begins = state == PREPARING and next_state in (COMPLETING, EMPTY)
        due = generation % LAST_GENERATION + 1 if begins else generation
        if next_generation != due:
            return f"it went from {state} in generation {generation} to {next_state} in generation {next_generation}"
        state, generation = next_state, next_generation
    if (after.state, after.generation) != (state, generation):
        return (
            f"it is {after.state} in generation {after.generation} after it was {state} in generation {generation}, "
            "and no transition leads there"
        )
    return ""


def wrong_choice(before: GroupView, joined: Sequence[str], after: GroupView) -> str:
    """Return what is wrong with the leader and the protocol of a generation that has started, or nothing."""
    if not after.members:
        return "" if after.protocol is None else f"it has no members and protocol {after.protocol}"
    if after.leader not in after.members:
        return f"its leader {after.leader} is no member"
    if after.leader not in joined:
        return f"its leader {after.leader} has not joined"
    if before.leader in joined and before.leader in after.members and after.leader != before.leader:
        return f"its leader {before.leader} has joined, and {after.leader} leads"
    common = after.common
    if after.protocol not in common:
        return f"its protocol is {after.protocol}, and all members support {common}"
    votes: dict[str, int] = {}
    for each in after.members.values():
        choice = next(name for name, _ in each.protocols if name in common)
        votes[choice] = votes.get(choice, 0) + 1
    if votes.get(str(after.protocol), 0) < max(votes.values()):
        return f"its protocol is {after.protocol}, and the votes are {votes}"
    dynamic = [key for key, each in after.members.items() if each.instance is None and key not in joined]
    return f"{dynamic} have not joined, and are members" if dynamic else ""


def wrong_settings(before: GroupView, after: GroupView, joining: str) -> str:
    """Return whose settings changed without a JoinGroup of its own, or nothing."""
    for key, each in after.members.items():
        known = before.members.get(key)
        if known is not None and key != joining and known.settings != each.settings:
            return f"the settings of {key} changed from {known.settings} to {each.settings}, and it has not joined"
    return ""
