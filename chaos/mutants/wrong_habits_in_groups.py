"""Brokers with one wrong habit each, in what they tell of groups and ask of their members. See ``wrong_habits``."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chaos.mutants.changing import ANSWERS, REQUESTS, Change, answered, asked, changed, fixed
from chaos.mutants.mutant import Function, mutant
from reference_broker.groups import membership
from reference_broker.groups.group import GroupState
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode

OF_GROUPS = frozenset(
    (
        *(ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP),
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE),
        *(ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS),
    )
)
ON_THE_WAY = frozenset(
    (
        *(ErrorCode.coordinator_not_available, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress),
        *(ErrorCode.member_id_required, ErrorCode.rebalance_in_progress),
    )
)
"""Errors that each member meets on its way into a group."""
JOINING = frozenset((ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.DESCRIBE_GROUPS))


# Answers


@mutant(ANSWERS)
def group_errors_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """No answer about groups tells an error, apart from those that members meet on their way into a group."""

    def hide(name: str, value: Any) -> Any:
        if name != "error_code" or (api_key in JOINING and value in ON_THE_WAY):
            return value
        return ErrorCode.none

    change: Change = hide if api_key in OF_GROUPS else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def rebalances_untold(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Heartbeats never tell that a rebalance is in progress."""
    change = fixed(error_code=ErrorCode.none) if api_key == ApiKey.HEARTBEAT else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def coordinators_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """FindCoordinator tells nodes that do not exist, another one in each version, and no names of groups."""
    change = fixed(node_id=77 + version, key="") if api_key == ApiKey.FIND_COORDINATOR else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def members_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """What members said and are assigned is not told, nor their instances and protocol types."""
    given = {"metadata": b"", "assignment": b"", "member_assignment": b"", "group_instance_id": None}
    told = {**given, "protocol_type": "other", "skip_assignment": False}
    of_members = api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS)
    return answered(
        original, api_key, version, correlation_id, body, fixed(**told) if of_members else lambda _, same: same
    )


@mutant(ANSWERS)
def states_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each group is told to be Stable and of another protocol type."""
    of_states = api_key in (ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS)
    change = fixed(group_state="Stable", protocol_type="other") if of_states else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def commits_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """OffsetFetch tells offsets one too high, epoch 7, and texts of its own."""

    def garble(name: str, value: Any) -> Any:
        if name == "committed_offset":
            return type(value)(value + 1)
        return {"metadata": "garbled", "committed_leader_epoch": 7}.get(name, value)

    change: Change = garble if api_key == ApiKey.OFFSET_FETCH else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def nothing_is_an_error(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """OffsetFetch refuses groups without offsets, and OffsetDelete all that it has done."""
    if api_key == ApiKey.OFFSET_DELETE:
        topics = changed(body.topics, fixed(error_code=ErrorCode.unknown_topic_or_partition))
        body = replace(body, topics=topics)
    if api_key == ApiKey.OFFSET_FETCH:
        missing = ErrorCode.group_id_not_found
        groups = [each if each.topics else replace(each, error_code=missing) for each in body.groups]
        body = replace(body, groups=tuple(groups))
    return original(api_key, version, correlation_id, body)


# Requests


@mutant(REQUESTS)
def filters_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """ListGroups lists all groups, whatever is asked for."""
    body = original(api_key, version, frame, offset)
    return asked(body, api_key, ApiKey.LIST_GROUPS, fixed(states_filter=(), types_filter=()))


# Members


@mutant("reference_broker.groups.membership:_give_id")
def ids_never_required(original: Function, served: Any, request: Any, member_id: str, answer: Any) -> None:
    """A client without a member ID is a member at once."""
    membership._add(served, request, member_id, answer)


@mutant("reference_broker.groups.membership:_join_without_id")
def ids_always_required(original: Function, served: Any, request: Any, answer: Any) -> None:
    """Old clients and static members have to ask for a member ID, too."""
    plain = replace(request, group_instance_id=None, needs_member_id=True)
    original(served, plain, answer)


@mutant("reference_broker.groups.rebalances:assignment_answer")
def assignments_shared(original: Function, group: Any, member: Any) -> Any:
    """Each member is told the assignment of the leader."""
    return original(group, group.members[group.leader])


@mutant("reference_broker.groups.membership:_leave")
def leaving_ignored(original: Function, served: Any, leaving: Any) -> Error:
    """A member that leaves stays until its session ends."""
    return ErrorCode.none


@mutant("reference_broker.groups.rebalances:expired")
def sessions_endless(original: Function, served: Any, member_id: str) -> None:
    """Members that fall silent stay."""


@mutant("reference_broker.groups.group:Group.check_commit")
def commits_refused_in_rebalance(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """From the beginning of a rebalance on, members may not commit what they have done."""
    if self.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    error: Error = original(self, member_id, group_instance_id, generation)
    return error


PLAYED: Mapping[str, tuple[str, ...]] = {
    "group_errors_hidden": ("groups",),
    "rebalances_untold": ("groups/heartbeat", "groups/leave", "groups/session"),
    "coordinators_garbled": ("groups/find", "transactions/find"),
    "members_garbled": ("groups/join", "groups/sync", "groups/static", "groups/describe"),
    "states_garbled": ("groups/leave", "groups/describe", "groups/list", "groups/delete"),
    "commits_garbled": ("groups/commit", "groups/fetch", "groups/offset-delete"),
    "nothing_is_an_error": ("groups/fetch", "groups/offset-delete"),
    "filters_ignored": ("groups/list",),
    "ids_never_required": ("groups/join", "groups/leave"),
    "ids_always_required": ("groups/join", "groups/static"),
    "assignments_shared": ("groups/sync",),
    "leaving_ignored": ("groups/leave",),
    "sessions_endless": ("groups/session",),
    "commits_refused_in_rebalance": ("groups/commit",),
    "generation_not_advanced": ("groups/join",),
    "generation_not_checked": ("groups/commit",),
}
"""As the table of ``wrong_habits``."""
