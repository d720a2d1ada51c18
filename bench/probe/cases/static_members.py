"""Static members (KIP-345): an instance that starts again takes its old place, and its older self is fenced."""

import time

from bench.probe.case import ANY, SHOULD, Versions, case, since_version
from bench.probe.cases.group_members import LATE_S, SLOW_S, shortest_session_ms
from bench.probe.cases.group_offsets import COMMIT, commit
from bench.probe.cases.groups import NEEDS
from bench.probe.context import ByKey, ProbeContext, single
from bench.probe.member import AGAIN_AFTER_S, DESCRIBE, HEARTBEAT, JOIN, LEAVE, SYNC, Member, settled
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

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


def _replaced(at: ProbeContext) -> tuple[Member, Member]:
    """A static member of a stable group, and the one that took its place."""
    old = settled(at, instance=INSTANCE)
    new = Member(at, old.group_id, instance=INSTANCE)
    new.joined(new.send_join())
    return old, new


@case("groups/static/joins-at-once", SOURCE, STATIC, since="2.3")
def joins_at_once(at: ProbeContext) -> None:
    """A static member joins without a member ID and is told one. MEMBER_ID_REQUIRED is for the others."""
    member = Member(at, at.group(), instance=INSTANCE)
    member.joined(member.send_join())
    at.expect("a member ID is told", bool(member.member_id), True)


@case("groups/static/leader-told", SOURCE, STATIC, since="2.3")
def leader_told(at: ProbeContext) -> None:
    """The leader is told the instance IDs of the members."""
    answer = Member(at, at.group(), instance=INSTANCE).enter()
    at.expect("instance IDs", [each.group_instance_id for each in answer.members], [INSTANCE])


@case("groups/static/described", SOURCE, STATIC, since="2.4")
def instance_described(at: ProbeContext) -> None:
    """DescribeGroups tells the instance IDs of the members."""
    told = settled(at, instance=INSTANCE).described()
    at.expect("instance IDs", [each.group_instance_id for each in told.members], [INSTANCE])


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
    """A leader that starts again is told that it leads, who the members are, and that it need not assign."""
    old = settled(at, instance=INSTANCE)
    new = Member(at, old.group_id, instance=INSTANCE)
    answer = new.joined(new.send_join())
    at.expect("it leads", new.leads, True)
    at.expect("skips the assignment", bool(answer.skip_assignment), True)
    at.expect("number of members", len(answer.members), 1)


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
    at.expect("error code", old.sync().error_code, ErrorCode.fenced_instance_id)


@case("groups/static/fenced-join", SOURCE, STATIC, since="2.3")
def fenced_join(at: ProbeContext) -> None:
    """A JoinGroup of the older self with its old member ID is refused with FENCED_INSTANCE_ID."""
    old, _ = _replaced(at)
    at.expect("error code", old.join().error_code, ErrorCode.fenced_instance_id)


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
    told = single(at.ask(LEAVE, {"group_id": old.group_id, "members": [leaving]}, on=old.on), "members")
    at.expect("error code of the member", told.error_code, ErrorCode.fenced_instance_id)
    at.expect("error code of the newer's heartbeat", new.heartbeat(), ErrorCode.none)


@case("groups/static/fenced-while-joining", SOURCE, STATIC, since="2.3")
def fenced_while_joining(at: ProbeContext) -> None:
    """An instance that starts again while the JoinGroup of its older self waits fences that one."""
    leader = settled(at)
    old = Member(at, leader.group_id, instance=INSTANCE)
    asked = old.send_join()
    leader.until_rebalance()
    Member(at, leader.group_id, instance=INSTANCE).send_join()
    at.expect("error code of the older", old.on.receive(asked).error_code, ErrorCode.fenced_instance_id)


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
    told = at.ask(LEAVE, {"group_id": member.group_id, "members": leaving}, on=member.on).members
    codes = ByKey({str(each.group_instance_id): int(each.error_code) for each in told})
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
    new = Member(at, old.group_id, instance=INSTANCE, session_ms=session_ms)
    new.joined(new.send_join())
    at.expect("error code of the heartbeat", new.heartbeat(), ErrorCode.none)
    heard_s = time.monotonic()
    while new.described(unseen=True).members and time.monotonic() < heard_s + session_ms / 1000 + LATE_S:
        time.sleep(4 * AGAIN_AFTER_S)
    at.expect("number of members", len(new.described().members), 0)
