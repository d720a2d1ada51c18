"""Members of a group: SyncGroup, Heartbeat, LeaveGroup, silence, and static membership (KIP-345).

A static member that starts again takes its old place, and its older self is fenced.
"""

import time
from typing import Any

from bench.probe.case import ANY, SHOULD, NotAdvertised, Versions, case, since_version
from bench.probe.cases.group_offsets import COMMIT, commit
from bench.probe.cases.groups import NEEDS, PROTOCOL
from bench.probe.context import ByKey, ProbeContext, single, sole
from bench.probe.conversation import Silent
from bench.probe.member import AGAIN_AFTER_S, DESCRIBE, HEARTBEAT, JOIN, LEAVE, SYNC, ProbeMember, pair, settled
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

NAMES_PROTOCOL = {**NEEDS, SYNC: since_version(5)}
LEAVES_TOGETHER = {**NEEDS, LEAVE: since_version(3)}
CONFIGS = int(ApiKey.DESCRIBE_CONFIGS)
OF_BROKER = 4
MIN_SESSION = "group.min.session.timeout.ms"
MIN_SESSION_MS = 6_000
"""The default of Apache Kafka."""
SHORTEST_MS = 2_000
"""No session of a case is shorter, so that a slow machine does not end it."""
LONGEST_MS = 8_000
SLOW_S = 40.0
"""Limit of the cases in which a session ends."""
LATE_S = 8.0
"""The time by which a session may end late."""


# SyncGroup


@case("groups/sync/delivered", PROTOCOL, NEEDS, since="0.9")
def delivered(at: ProbeContext) -> None:
    """Each member gets the assignment that the leader has for it. A sync before the leader's waits for that."""
    leader, follower = pair(at)
    request = follower.send_sync()
    try:
        follower.on.receive_frame(0.3)
        at.expect("the follower waits", False, True)
    except Silent:
        pass
    response = leader.sync({leader.member_id: b"for the leader", follower.member_id: b"for the follower"})
    at.expect("assignment of the leader", bytes(response.assignment), b"for the leader")
    at.expect("assignment of the follower", bytes(follower.on.receive(request).assignment), b"for the follower")


@case("groups/sync/again", PROTOCOL, NEEDS, since="0.9")
def sync_again(at: ProbeContext) -> None:
    """A member of a stable group that syncs again gets its assignment again."""
    response = settled(at).sync()
    at.expect_no_error(response)
    at.expect("assignment", bytes(response.assignment), b"mine")


@case("groups/sync/without-assignment", PROTOCOL, NEEDS, since="0.9")
def without_assignment(at: ProbeContext) -> None:
    """A member that the leader omits gets an empty assignment."""
    leader, follower = pair(at)
    leader.sync({leader.member_id: b"all"})
    response = follower.sync()
    at.expect_no_error(response)
    at.expect("assignment", bytes(response.assignment), b"")


@case("groups/sync/wrong-generation", PROTOCOL, NEEDS, since="0.9")
def sync_wrong_generation(at: ProbeContext) -> None:
    """Another generation than the group's is refused with ILLEGAL_GENERATION."""
    member = settled(at)
    for generation in (member.generation - 1, member.generation + 1):
        code = member.sync(generation_id=generation).error_code
        at.expect("error code", code, ErrorCode.illegal_generation)


@case("groups/sync/unknown-member", PROTOCOL, NEEDS, since="0.9")
def sync_unknown_member(at: ProbeContext) -> None:
    """A member ID that the group does not know is refused with UNKNOWN_MEMBER_ID."""
    code = settled(at).sync(member_id="a-stranger").error_code
    at.expect("error code", code, ErrorCode.unknown_member_id)


@case("groups/sync/unknown-group", PROTOCOL, NEEDS, since="0.9")
def sync_unknown_group(at: ProbeContext) -> None:
    """A group that does not exist has no members: UNKNOWN_MEMBER_ID."""
    stranger = ProbeMember(at, at.group(), member_id="a-stranger", generation=1, protocol="range")
    at.expect_error(stranger.sync(), ErrorCode.unknown_member_id)


@case("groups/sync/rebalance", PROTOCOL, NEEDS, since="0.9")
def sync_in_rebalance(at: ProbeContext) -> None:
    """While the group waits for its members to join again, a sync gets REBALANCE_IN_PROGRESS."""
    first = settled(at)
    ProbeMember(at, first.group_id).send_entry()
    first.until_rebalance()
    at.expect_error(first.sync(), ErrorCode.rebalance_in_progress)


@case("groups/sync/other-protocol-type", "KIP-559", NAMES_PROTOCOL, since="2.5")
def sync_other_protocol_type(at: ProbeContext) -> None:
    """A protocol type that is not the group's is refused with INCONSISTENT_GROUP_PROTOCOL."""
    code = settled(at).sync(protocol_type="connect").error_code
    at.expect("error code", code, ErrorCode.inconsistent_group_protocol)


@case("groups/sync/other-protocol", "KIP-559", NAMES_PROTOCOL, since="2.5")
def sync_other_protocol(at: ProbeContext) -> None:
    """A protocol that is not the group's is refused with INCONSISTENT_GROUP_PROTOCOL."""
    code = settled(at).sync(protocol_name="sticky").error_code
    at.expect("error code", code, ErrorCode.inconsistent_group_protocol)


@case("groups/sync/no-protocol", "KIP-559", NAMES_PROTOCOL, since="2.5")
def sync_no_protocol(at: ProbeContext) -> None:
    """From version 5 on protocol type and name must be there, else it is INCONSISTENT_GROUP_PROTOCOL."""
    code = settled(at).sync(protocol_type=None, protocol_name=None).error_code
    at.expect("error code", code, ErrorCode.inconsistent_group_protocol)


@case("groups/sync/protocol-returned", "KIP-559", NAMES_PROTOCOL, since="2.5")
def sync_protocol(at: ProbeContext) -> None:
    """The response has the protocol and its type, so that the member can check them."""
    response = settled(at).sync()
    at.expect("protocol type and name", (response.protocol_type, response.protocol_name), ("probe", "range"))


# Heartbeat


@case("groups/heartbeat/wrong-generation", PROTOCOL, NEEDS, since="0.9")
def heartbeat_wrong_generation(at: ProbeContext) -> None:
    """Another generation than the group's is refused with ILLEGAL_GENERATION, the right one not."""
    member = settled(at)
    at.expect("error code in the right one", member.heartbeat(), ErrorCode.none)
    for generation in (member.generation - 1, member.generation + 1):
        at.expect("error code", member.heartbeat(generation_id=generation), ErrorCode.illegal_generation)


@case("groups/heartbeat/unknown-member", PROTOCOL, NEEDS, since="0.9")
def heartbeat_unknown_member(at: ProbeContext) -> None:
    """A member ID that the group does not know is refused with UNKNOWN_MEMBER_ID."""
    code = settled(at).heartbeat(member_id="a-stranger")
    at.expect("error code", code, ErrorCode.unknown_member_id)


@case("groups/heartbeat/unknown-group", PROTOCOL, NEEDS, since="0.9")
def heartbeat_unknown_group(at: ProbeContext) -> None:
    """A group that does not exist has no members: UNKNOWN_MEMBER_ID."""
    stranger = ProbeMember(at, at.group(), member_id="a-stranger", generation=1)
    at.expect("error code", stranger.heartbeat(), ErrorCode.unknown_member_id)


@case("groups/heartbeat/empty-group-id", PROTOCOL, NEEDS, since="0.9", level=SHOULD)
def heartbeat_empty_group_id(at: ProbeContext) -> None:
    """The empty group ID is refused with INVALID_GROUP_ID."""
    code = ProbeMember(at, at.group(), member_id="a-stranger", generation=1).heartbeat(group_id="")
    at.expect("error code", code, ErrorCode.invalid_group_id)


@case("groups/heartbeat/rebalance", PROTOCOL, NEEDS, since="0.9")
def heartbeat_in_rebalance(at: ProbeContext) -> None:
    """When another member joins, heartbeats get REBALANCE_IN_PROGRESS until the member joins again."""
    first = settled(at)
    ProbeMember(at, first.group_id).send_entry()
    first.until_rebalance()
    first.joined(first.send_join())
    at.expect("error code in the new generation", first.heartbeat(), ErrorCode.none)


# LeaveGroup


def _leave(at: ProbeContext, member: ProbeMember, *leaving: str) -> list[Any]:
    """Return the response's part of each member."""
    request = {"group_id": member.group_id, "members": [{"member_id": each} for each in leaving]}
    response = at.call(LEAVE, request, on=member.on)
    at.expect("error code of the group", response.error_code, ErrorCode.none)
    return list(response.members)


@case("groups/leave/alone", PROTOCOL, NEEDS, since="0.9")
def leave_alone(at: ProbeContext) -> None:
    """When its only member leaves, a group is Empty, and the member is unknown."""
    member = settled(at)
    member.leave()
    result = member.described()
    at.expect("state", result.group_state, "Empty")
    at.expect("number of members", len(result.members), 0)
    at.expect("error code of a heartbeat", member.heartbeat(), ErrorCode.unknown_member_id)


@case("groups/leave/rebalance", PROTOCOL, NEEDS, since="0.9")
def leave_others(at: ProbeContext) -> None:
    """When a member leaves, the others rebalance, and the next generation is without it."""
    leader, follower = pair(at)
    leader.sync({leader.member_id: b"", follower.member_id: b""})
    follower.leave()
    leader.until_rebalance()
    response = leader.joined(leader.send_join())
    at.expect("number of members", len(response.members), 1)


@case("groups/leave/several", "KIP-345", LEAVES_TOGETHER, since="2.4")
def leave_several(at: ProbeContext) -> None:
    """One request may remove several members. Each has a result of its own."""
    leader, follower = pair(at)
    results = _leave(at, leader, leader.member_id, "a-stranger", follower.member_id)
    codes = ByKey({str(result.member_id): int(result.error_code) for result in results})
    at.expect("error code of the first", codes[leader.member_id], ErrorCode.none)
    at.expect("error code of a stranger", codes["a-stranger"], ErrorCode.unknown_member_id)
    at.expect("error code of the last", codes[follower.member_id], ErrorCode.none)
    at.expect("state", leader.described().group_state, "Empty")


@case("groups/leave/unknown-group", "KIP-345", LEAVES_TOGETHER, since="2.4", level=SHOULD)
def leave_unknown_group(at: ProbeContext) -> None:
    """A group that does not exist has no members: UNKNOWN_MEMBER_ID for each."""
    result = sole(_leave(at, ProbeMember(at, at.group()), "a-stranger"), "members")
    at.expect("error code of the member", result.error_code, ErrorCode.unknown_member_id)


@case("groups/leave/unknown-before-3", PROTOCOL, {**NEEDS, LEAVE: (0, 2)}, since="0.9")
def leave_before_3(at: ProbeContext) -> None:
    """Before version 3 a request names one member, and the error is that of the response: UNKNOWN_MEMBER_ID."""
    member = settled(at)
    request = {"group_id": member.group_id, "members": [{"member_id": "a-stranger"}]}
    at.expect_error(at.call(LEAVE, request, on=member.on), ErrorCode.unknown_member_id)
    request = {"group_id": member.group_id, "members": [{"member_id": member.member_id}]}
    at.expect("error code of a member", at.call(LEAVE, request, on=member.on).error_code, ErrorCode.none)


@case("groups/leave/id-not-joined", "KIP-394", {**NEEDS, JOIN: since_version(4)}, since="2.2")
def leave_without_joining(at: ProbeContext) -> None:
    """A client that got a member ID and has not joined can leave with it. The others then do not wait for it."""
    leader = settled(at)
    waited_for = ProbeMember(at, leader.group_id)
    waited_for.member_id = str(waited_for.join().member_id)
    request = leader.send_join()
    waited_for.leave()
    at.expect("number of members", len(leader.joined(request).members), 1)


# Sessions


def shortest_session_ms(at: ProbeContext) -> int:
    """Raise NotAdvertised if the broker's shortest session is too long to wait for."""
    least_ms = MIN_SESSION_MS
    if CONFIGS in at.broker.versions:
        wanted = {"resource_type": OF_BROKER, "resource_name": str(at.broker.node_id)}
        wanted["configuration_keys"] = [MIN_SESSION]
        result = single(at.call_unseen(CONFIGS, {"resources": [wanted]}, at.main), "results")
        least_ms = next((int(config.value) for config in result.configs if config.value), MIN_SESSION_MS)
    if least_ms > LONGEST_MS:
        raise NotAdvertised(f"a session lasts {least_ms} ms at least ({MIN_SESSION}), which is too long to wait for")
    return max(least_ms, SHORTEST_MS)


@case("groups/session/ends", PROTOCOL, NEEDS, since="0.9", limit_s=SLOW_S)
def session_ends(at: ProbeContext) -> None:
    """A member that is silent for longer than its session timeout is removed, and not before."""
    session_ms = shortest_session_ms(at)
    member = ProbeMember(at, at.group(), session_ms=session_ms)
    member.enter()
    sent_s = time.monotonic()
    member.sync({member.member_id: b"mine"})
    responded_s = time.monotonic()
    while member.described(unseen=True).members and time.monotonic() < responded_s + session_ms / 1000 + LATE_S:
        time.sleep(4 * AGAIN_AFTER_S)
    lasted_ms = (time.monotonic() - sent_s) * 1000
    at.expect("number of members", len(member.described().members), 0)
    at.expect("it was there for its whole session", lasted_ms >= session_ms, True)
    at.expect("error code of a heartbeat", member.heartbeat(), ErrorCode.unknown_member_id)


@case("groups/session/kept", PROTOCOL, NEEDS, since="0.9", limit_s=SLOW_S)
def session_kept(at: ProbeContext) -> None:
    """Heartbeats keep a member. The others get REBALANCE_IN_PROGRESS when the session of one ends."""
    session_ms = shortest_session_ms(at)
    options = {"session_ms": session_ms}
    leader, follower = pair(at, options, **options)
    leader.sync({leader.member_id: b"", follower.member_id: b""})
    began_s = time.monotonic()
    at.expect("error code of the last heartbeat", follower.heartbeat(), ErrorCode.none)
    leader.until_rebalance(session_ms / 1000 + LATE_S)
    lasted_ms = (time.monotonic() - began_s) * 1000
    at.expect("the silent one was there for its whole session", lasted_ms >= session_ms, True)
    response = leader.joined(leader.send_join())
    left = [str(member.member_id) for member in response.members]
    at.expect("only the one that was heard of is left", left == [leader.member_id], True)


STATIC: dict[int, Versions] = {
    **NEEDS,
    JOIN: since_version(5),
    SYNC: since_version(3),
    HEARTBEAT: since_version(3),
    LEAVE: since_version(3),
    DESCRIBE: since_version(4),
}
COMMITS = {**STATIC, COMMIT: since_version(7), ApiKey.CREATE_TOPICS: ANY}
SOURCE = "KIP-345"
INSTANCE = "an-instance"


def _replaced(at: ProbeContext) -> tuple[ProbeMember, ProbeMember]:
    """A static member of a stable group, and the one that took its place."""
    old = settled(at, instance=INSTANCE)
    new = ProbeMember(at, old.group_id, instance=INSTANCE)
    new.joined(new.send_join())
    return old, new


@case("groups/static/joins-at-once", SOURCE, STATIC, since="2.3")
def joins_at_once(at: ProbeContext) -> None:
    """A static member joins without a member ID and gets one. MEMBER_ID_REQUIRED is for the others."""
    member = ProbeMember(at, at.group(), instance=INSTANCE)
    member.joined(member.send_join())
    at.expect("a member ID is returned", bool(member.member_id), True)


@case("groups/static/leader-gets-instance-ids", SOURCE, STATIC, since="2.3")
def leader_gets_instances(at: ProbeContext) -> None:
    """The leader gets the instance IDs of the members."""
    response = ProbeMember(at, at.group(), instance=INSTANCE).enter()
    at.expect("instance IDs", [member.group_instance_id for member in response.members], [INSTANCE])


@case("groups/static/described", SOURCE, STATIC, since="2.4")
def instance_described(at: ProbeContext) -> None:
    """DescribeGroups returns the instance IDs of the members."""
    result = settled(at, instance=INSTANCE).described()
    at.expect("instance IDs", [member.group_instance_id for member in result.members], [INSTANCE])


@case("groups/static/takes-place", SOURCE, STATIC, since="2.3")
def takes_place(at: ProbeContext) -> None:
    """An instance that starts again gets another member ID and the same assignment, without a rebalance."""
    old, new = _replaced(at)
    at.expect("it has another member ID", new.member_id != old.member_id, True)
    at.expect("the generation stays", new.generation == old.generation, True)
    at.expect("assignment", bytes(new.sync().assignment), b"mine")
    at.expect("number of members", len(new.described().members), 1)


@case("groups/static/leader-need-not-assign", "KIP-814", {**STATIC, JOIN: since_version(9)}, since="3.2")
def need_not_assign(at: ProbeContext) -> None:
    """A leader that restarts learns from the response that it leads, who the members are, and that it need not
    assign."""
    old = settled(at, instance=INSTANCE)
    new = ProbeMember(at, old.group_id, instance=INSTANCE)
    response = new.joined(new.send_join())
    at.expect("it leads", new.leads, True)
    at.expect("skips the assignment", bool(response.skip_assignment), True)
    at.expect("number of members", len(response.members), 1)


@case("groups/static/fenced-heartbeat", SOURCE, STATIC, since="2.3")
def fenced_heartbeat(at: ProbeContext) -> None:
    """A heartbeat of the older self is refused with FENCED_INSTANCE_ID, that of the newer one not."""
    old, new = _replaced(at)
    at.expect("error code of the older", old.heartbeat(), ErrorCode.fenced_instance_id)
    at.expect("error code of the newer", new.heartbeat(), ErrorCode.none)


@case("groups/static/fenced-sync", SOURCE, STATIC, since="2.3")
def fenced_sync(at: ProbeContext) -> None:
    """A SyncGroup of the older self is refused with FENCED_INSTANCE_ID."""
    old, _ = _replaced(at)
    at.expect_error(old.sync(), ErrorCode.fenced_instance_id)


@case("groups/static/fenced-join", SOURCE, STATIC, since="2.3")
def fenced_join(at: ProbeContext) -> None:
    """A JoinGroup of the older self with its old member ID is refused with FENCED_INSTANCE_ID."""
    old, _ = _replaced(at)
    at.expect_error(old.join(), ErrorCode.fenced_instance_id)


@case("groups/static/fenced-commit", SOURCE, COMMITS, since="2.3")
def fenced_commit(at: ProbeContext) -> None:
    """A commit of the older self is refused with FENCED_INSTANCE_ID."""
    topic = at.topic()
    old, new = _replaced(at)
    at.expect("error code of the older", commit(old, topic.name), ErrorCode.fenced_instance_id)
    at.expect("error code of the newer", commit(new, topic.name), ErrorCode.none)


@case("groups/static/fenced-leave", SOURCE, STATIC, since="2.4")
def fenced_leave(at: ProbeContext) -> None:
    """The older self cannot take out the newer one: FENCED_INSTANCE_ID."""
    old, new = _replaced(at)
    leaving = {"member_id": old.member_id, "group_instance_id": INSTANCE}
    result = single(at.call(LEAVE, {"group_id": old.group_id, "members": [leaving]}, on=old.on), "members")
    at.expect("error code of the member", result.error_code, ErrorCode.fenced_instance_id)
    at.expect("error code of the newer's heartbeat", new.heartbeat(), ErrorCode.none)


@case("groups/static/fenced-while-joining", SOURCE, STATIC, since="2.3")
def fenced_while_joining(at: ProbeContext) -> None:
    """An instance that starts again while the JoinGroup of its older self waits fences that one."""
    leader = settled(at)
    old = ProbeMember(at, leader.group_id, instance=INSTANCE)
    request = old.send_join()
    leader.until_rebalance()
    ProbeMember(at, leader.group_id, instance=INSTANCE).send_join()
    at.expect("error code of the older", old.on.receive(request).error_code, ErrorCode.fenced_instance_id)


@case("groups/static/unknown-instance", SOURCE, STATIC, since="2.3")
def unknown_instance(at: ProbeContext) -> None:
    """An instance ID that the group does not know is refused with UNKNOWN_MEMBER_ID."""
    member = settled(at, instance=INSTANCE)
    code = member.heartbeat(group_instance_id="another-instance")
    at.expect("error code", code, ErrorCode.unknown_member_id)


@case("groups/static/removed-by-instance", SOURCE, STATIC, since="2.4")
def removed_by_instance(at: ProbeContext) -> None:
    """An administrator takes out a static member by its instance ID alone."""
    member = settled(at, instance=INSTANCE)
    leaving = [{"member_id": "", "group_instance_id": each} for each in (INSTANCE, "another-instance")]
    results = at.call(LEAVE, {"group_id": member.group_id, "members": leaving}, on=member.on).members
    codes = ByKey({str(result.group_instance_id): int(result.error_code) for result in results})
    at.expect("error code of the member", codes[INSTANCE], ErrorCode.none)
    at.expect("error code of an unknown instance", codes["another-instance"], ErrorCode.unknown_member_id)
    at.expect("number of members", len(member.described().members), 0)


@case(
    "groups/static/new-timeouts",
    "Apache Kafka's GroupMetadataManager",
    STATIC,
    since="2.3",
    level=SHOULD,
    limit_s=SLOW_S,
)
def new_timeouts(at: ProbeContext) -> None:
    """An instance that starts again with another session timeout is removed after that, if it is silent after its first
    heartbeat."""
    session_ms = shortest_session_ms(at)
    old = settled(at, instance=INSTANCE)
    new = ProbeMember(at, old.group_id, instance=INSTANCE, session_ms=session_ms)
    new.joined(new.send_join())
    at.expect("error code of the heartbeat", new.heartbeat(), ErrorCode.none)
    responded_s = time.monotonic()
    while new.described(unseen=True).members and time.monotonic() < responded_s + session_ms / 1000 + LATE_S:
        time.sleep(4 * AGAIN_AFTER_S)
    at.expect("number of members", len(new.described().members), 0)
