"""Responses to members of classic groups, by ``rules``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.groups.rules import (
    FENCED_INSTANCE_ID,
    INVALID_REQUEST,
    INVALID_SESSION_TIMEOUT,
    NONE,
    NOT_COORDINATOR,
    NOT_WRITTEN,
    OF_MEMBERS,
    PREPARING,
    REBALANCE_IN_PROGRESS,
    STABLE,
    UNKNOWN_MEMBER_ID,
    GroupView,
    commit_error,
    heartbeat_error,
    join_error,
    leave_errors,
    sync_error,
)
from reference_broker.core.events import Reply, Request
from reference_broker.wire.errors import error_name

if TYPE_CHECKING:
    from reference_broker.core.node import Node

COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, TXN_COMMIT, DELETE = 8, 11, 12, 13, 14, 28, 42
NAMES = {
    COMMIT: "OffsetCommit",
    JOIN: "JoinGroup",
    HEARTBEAT: "Heartbeat",
    LEAVE: "LeaveGroup",
    SYNC: "SyncGroup",
    TXN_COMMIT: "TxnOffsetCommit",
}


class Call(NamedTuple):
    """A request of a group that has no response yet."""

    request: Request
    group_id: str
    at_us: int
    before: GroupView | None
    """the group when the request came"""
    is_judged: bool
    """whether the node coordinated the group then"""

    @property
    def named(self) -> str:
        member_id = getattr(self.request.body, "member_id", "")
        client = f"{self.request.client_id} ({member_id})" if member_id else self.request.client_id
        return f"{NAMES[self.request.api_key]} of {client}"


def error_in(reply: Reply) -> int:
    body: Any = reply.body
    return int(body.error_code)


def milliseconds(time: Any) -> int:
    return int(time.total_seconds() * 1000)


def wrong_responses(
    node: "Node",
    before: GroupView | None,
    assignments: Sequence[Mapping[str, bytes]],
    call: Call | None,
    replied: Sequence[tuple[Call, Reply]],
    parked: Sequence[Call],
    after: GroupView | None,
) -> Iterator[str]:
    """Yield what is wrong with the responses of one event, and with the requests that are parked after it.

    ``before`` and ``after`` are the group around the event, or None without one. ``call`` is the request of the event.
    ``assignments`` are those that the leader sent in this generation.
    """
    if call is not None and call.is_judged and all(other is not call for other, _ in replied):
        expected = _expected_error(node, before, call)
        if call.request.api_key in (JOIN, SYNC) and expected not in (None, NONE):
            yield f"{call.named} is parked, and {error_name(expected or 0)} is due"
    for other, reply in replied:
        if other.is_judged:
            yield from _wrong_response(node, before, assignments, other, other is call, reply, after)
    if after is not None:
        syncing = [member_id for member_id, member in after.members.items() if member.awaits_sync]
        for api_key, members in ((JOIN, after.joined), (SYNC, syncing)):
            waiting = [other for other in parked if other.request.api_key == api_key]
            if len(waiting) > len(members):
                names = ", ".join(other.request.client_id for other in waiting)
                yield f"{NAMES[api_key]} of {names} wait, and nobody but {members} will get a response"


def _expected_error(node: "Node", group: GroupView | None, call: Call) -> int | None:
    """Return the error that a request gets in this state, or None where it is not known."""
    request, config = call.request, node.broker.config
    body: Any = request.body
    if request.api_key == JOIN:
        session_ms = milliseconds(body.session_timeout)
        if not config.group_min_session_timeout_ms <= session_ms <= config.group_max_session_timeout_ms:
            return INVALID_SESSION_TIMEOUT
        return join_error(group, body, request.api_version, config.group_max_size)
    if request.api_key == SYNC:
        return sync_error(group, body, request.api_version)
    if request.api_key == HEARTBEAT:
        return heartbeat_error(group, body)
    if request.api_key in (COMMIT, TXN_COMMIT):
        return commit_error(group, body, request.api_version, transactional=request.api_key == TXN_COMMIT)
    return None


def _wrong_response(
    node: "Node",
    before: GroupView | None,
    assignments: Sequence[Mapping[str, bytes]],
    call: Call,
    is_at_once: bool,
    reply: Reply,
    after: GroupView | None,
) -> Iterator[str]:
    """Yield what is wrong with one response. ``is_at_once``: it was sent in the event of its request."""
    body: Any = reply.body
    api_key = reply.api_key
    if api_key == LEAVE:
        yield from _wrong_leave(call, body, before)
        return
    if api_key in (COMMIT, TXN_COMMIT):
        yield from _wrong_commit(node, call, is_at_once, body, before, after)
        return
    error = int(body.error_code)
    if api_key == JOIN and error == INVALID_REQUEST:
        return  # A text is longer than records can hold.
    expected = _expected_error(node, before, call) if is_at_once else NONE
    if expected != NONE:
        if error != expected:
            yield f"{call.named} got {error_name(error)}, and {error_name(expected or 0)} is due"
    elif error:
        if api_key == HEARTBEAT or not _may_fail(api_key, error, is_at_once, call, before, after):
            yield f"{call.named} got {error_name(error)}, for no reason"
    elif after is not None and before is not None and api_key == JOIN:
        yield from _wrong_join(call, body, after)
    elif after is not None and before is not None and api_key == SYNC:
        yield from _wrong_sync(assignments, call, body, after)


def _may_fail(
    api_key: int,
    error: int,
    is_at_once: bool,
    call: Call,
    before: GroupView | None,
    after: GroupView | None,
) -> bool:
    """Return whether a request that was accepted may fail with this error, as the group is now."""
    body: Any = call.request.body
    member_id = str(body.member_id)
    if error in NOT_WRITTEN:
        is_static = body.group_instance_id is not None
        return api_key == SYNC or is_static or (error == NOT_COORDINATOR and not is_at_once)
    if after is None or is_at_once:
        return error == REBALANCE_IN_PROGRESS and api_key == SYNC and after is not None and after.state == PREPARING
    if error == UNKNOWN_MEMBER_ID:
        return not member_id or member_id not in after.members
    if error == FENCED_INSTANCE_ID:
        known = after.of_instance(body.group_instance_id)
        return known is not None and known != member_id
    if error == REBALANCE_IN_PROGRESS:
        # Another JoinGroup or SyncGroup of the same member takes the place of this one, or a rebalance begins.
        member = after.members.get(member_id)
        is_repeated = member is not None and (member.awaits_join if api_key == JOIN else member.awaits_sync)
        is_over = before is not None and (after.state, after.generation) != (before.state, before.generation)
        return is_repeated or is_over or (before is not None and api_key == SYNC and after.state == PREPARING)
    return False


def _wrong_join(call: Call, response: Any, after: GroupView) -> Iterator[str]:
    member_id = str(response.member_id)
    if member_id not in after.members:
        yield f"{call.named} joined as {member_id}, which is no member"
        return
    sent = int(response.generation_id), response.protocol_type, response.protocol_name or None
    expected = after.generation, after.protocol_type, after.protocol or None
    if sent != expected:
        yield f"{call.named} got generation, type and protocol {sent}, and the group has {expected}"
    members = {str(member.member_id): (member.group_instance_id, bytes(member.metadata)) for member in response.members}
    leads = member_id == after.leader
    body: Any = call.request.body
    is_returning_static = not body.member_id and body.group_instance_id is not None
    if members and not leads:
        yield f"{call.named} got the members, and {after.leader} leads"
    elif leads and (members or not is_returning_static):
        all_members = {
            other_id: (member.instance, next((data for name, data in member.protocols if name == after.protocol), b""))
            for other_id, member in after.members.items()
        }
        if members != all_members:
            yield f"{call.named} leads and got members {members}, and the group has {all_members}"
    if str(response.leader) != after.leader and not is_returning_static:
        yield f"{call.named} got leader {response.leader}, and {after.leader} leads"


def _wrong_sync(
    assignments: Sequence[Mapping[str, bytes]], call: Call, response: Any, after: GroupView
) -> Iterator[str]:
    body: Any = call.request.body
    member_id, assignment = str(body.member_id), bytes(response.assignment)
    if after.state != STABLE:
        yield f"{call.named} got an assignment, and the group is {after.state}"
    if not any(by_member.get(member_id, b"") == assignment for by_member in assignments):
        yield f"{call.named} got assignment {assignment!r}, and the leader sent {assignments}"
    if (response.protocol_type or None, response.protocol_name or None) != (after.protocol_type, after.protocol):
        yield f"{call.named} got protocol {response.protocol_name}, and the group has {after.protocol}"


def _wrong_leave(call: Call, response: Any, before: GroupView | None) -> Iterator[str]:
    if int(response.error_code):
        yield f"{call.named} got {error_name(response.error_code)}, for no reason"
        return
    body: Any = call.request.body
    expected = [error for error, _ in leave_errors(before, body.members)]
    sent = [int(member.error_code) for member in response.members]
    if sent != expected:
        yield f"{call.named} got {[*map(error_name, sent)]}, and {[*map(error_name, expected)]} are due"


def _wrong_commit(
    node: "Node",
    call: Call,
    is_at_once: bool,
    response: Any,
    before: GroupView | None,
    after: GroupView | None,
) -> Iterator[str]:
    """A commit is judged when it is written, possibly some events later. So it counts what was due both when it came
    and when it got its response."""
    codes = {int(partition.error_code): None for topic in response.topics for partition in topic.partitions}
    expected = _expected_error(node, call.before, call)
    if not is_at_once and expected != _expected_error(node, before, call):
        return
    if expected and NONE in codes:
        yield f"{call.named} is acknowledged, and {error_name(expected)} is due"
    wrong = [code for code in codes if code in OF_MEMBERS and code != expected]
    if wrong and (is_at_once or expected == _expected_error(node, after, call)):
        yield f"{call.named} got {error_name(wrong[0])}, and {error_name(expected or 0)} is due"
