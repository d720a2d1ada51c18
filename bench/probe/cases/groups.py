"""Find a group's coordinator and join the group: FindCoordinator and JoinGroup."""

from typing import Any

from bench.probe.case import ANY, SHOULD, NotAdvertised, case, since_version
from bench.probe.context import ProbeContext, sole
from bench.probe.member import (
    CONSUMER,
    DESCRIBE,
    HEARTBEAT,
    IDS_SINCE,
    JOIN,
    LEAVE,
    SYNC,
    ProbeMember,
    beside,
    pair,
    settled,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

FIND = int(ApiKey.FIND_COORDINATOR)
GROUP, SHARE = 0, 2
NEEDS = {JOIN: ANY, SYNC: ANY, HEARTBEAT: ANY, LEAVE: ANY, DESCRIBE: ANY, FIND: ANY}
WITH_IDS = {**NEEDS, JOIN: since_version(4)}
PROTOCOL = "Kafka protocol guide: group membership"
HUNDRED_TOPICS = bytes((0, 0, 0, 0, 0, 100))
"""The beginning of a consumer's subscription to a hundred topics, without the topics."""
RESPONSE_LIMIT_S = 6.0
"""A group may wait for more members for three seconds."""


# FindCoordinator


def _found(at: ProbeContext, *keys: str, version: int | None = None, key_type: int = GROUP) -> Any:
    return at.call(FIND, {"key_type": key_type, "coordinator_keys": list(keys)}, version).coordinators


@case("groups/find/group", PROTOCOL, {FIND: ANY, DESCRIBE: ANY}, since="0.8.2")
def find(at: ProbeContext) -> None:
    """The coordinator of a group is one of the brokers."""
    group_id = at.group()
    at.coordinator(group_id)
    node = sole(_found(at, group_id), "coordinators")
    at.expect_no_error(node)
    at.expect("it is among the brokers", int(node.node_id) in at.broker.nodes, True)


@case("groups/find/every-version", PROTOCOL, {FIND: ANY, DESCRIBE: ANY}, since="0.8.2")
def find_every_version(at: ProbeContext) -> None:
    """All versions return the same coordinator."""
    group_id = at.group()
    at.coordinator(group_id)
    results = {
        version: sole(_found(at, group_id, version=version), "coordinators")
        for version in at.broker.common_versions(FIND)
    }
    nodes = {version: (int(result.node_id), str(result.host), int(result.port)) for version, result in results.items()}
    at.expect("error codes", sorted({int(result.error_code) for result in results.values()}), [0])
    newest = nodes[max(nodes)]
    at.expect("versions with another", [each for each, node in nodes.items() if node != newest], [])


@case("groups/find/several", "KIP-699", {FIND: since_version(4), DESCRIBE: ANY}, since="3.0")
def find_several(at: ProbeContext) -> None:
    """One request may look up several groups. Each has a result with its name."""
    group_ids = [at.group() for _ in range(3)]
    at.coordinator(group_ids[0])
    nodes = _found(at, *group_ids)
    at.expect(
        "groups in the response are those that were named", {str(node.key) for node in nodes} == {*group_ids}, True
    )
    at.expect("error codes", sorted({int(node.error_code) for node in nodes}), [0])


@case(
    "groups/find/unknown-type", "KIP-98: the coordinator's types", {FIND: since_version(1)}, since="0.11", level=SHOULD
)
def find_unknown_type(at: ProbeContext) -> None:
    """A type of key that does not exist is refused with INVALID_REQUEST."""
    node = sole(_found(at, at.group(), key_type=99), "coordinators")
    at.expect_error(node, ErrorCode.invalid_request)


@case("groups/find/share-too-early", "KIP-932", {FIND: (1, 5)}, since="4.0", level=SHOULD)
def find_share_too_early(at: ProbeContext) -> None:
    """Coordinators of share groups' state can be looked up from version 6 on. Before, the error is INVALID_REQUEST."""
    node = sole(_found(at, f"{at.group()}:AAAAAAAAAAAAAAAAAAAAAA:0", key_type=SHARE), "coordinators")
    at.expect_error(node, ErrorCode.invalid_request)


# JoinGroup: one member


@case("groups/join/id-required", "KIP-394", WITH_IDS, since="2.2")
def id_required(at: ProbeContext) -> None:
    """A client without a member ID gets one with MEMBER_ID_REQUIRED, and joins with it."""
    member = ProbeMember(at, at.group())
    response = member.join()
    at.expect_error(response, ErrorCode.member_id_required)
    member.member_id = str(response.member_id)
    at.expect("a member ID is returned", bool(member.member_id), True)
    again = member.joined(member.send_join())
    at.expect("the member ID stays", str(again.member_id) == str(response.member_id), True)


@case("groups/join/id-not-member", "KIP-394", WITH_IDS, since="2.2")
def id_is_no_member(at: ProbeContext) -> None:
    """A client that got an ID and has not joined with it is no member yet."""
    member = settled(at)
    code = ProbeMember(at, member.group_id).join().error_code
    at.expect("error code of the first join", code, ErrorCode.member_id_required)
    at.expect("number of members", len(member.described().members), 1)


@case("groups/join/id-at-once", "KIP-394", {**NEEDS, JOIN: (0, 3)}, since="0.9")
def id_at_once(at: ProbeContext) -> None:
    """Before version 4, a client without a member ID joins at once and gets its ID."""
    member = ProbeMember(at, at.group())
    member.joined(member.send_join())
    at.expect("a member ID is returned", bool(member.member_id), True)


@case("groups/join/alone", PROTOCOL, NEEDS, since="0.9")
def join_alone(at: ProbeContext) -> None:
    """The only member leads, and gets itself with its metadata, the protocol and a generation."""
    member = ProbeMember(at, at.group(), {"range": b"of mine"})
    response = member.enter()
    at.expect("it leads", member.leads, True)
    at.expect("protocol", response.protocol_name, "range")
    at.expect_that("generation", member.generation, member.generation >= 0, "0 or more")
    at.expect("metadata of the members", [bytes(each.metadata) for each in response.members], [b"of mine"])


@case("groups/join/protocol-type-returned", "KIP-559", {**NEEDS, JOIN: since_version(7)}, since="2.5")
def protocol_type_in_response(at: ProbeContext) -> None:
    """From version 7 on the response has the type of the group's protocol."""
    response = ProbeMember(at, at.group(), protocol_type="connect").enter()
    at.expect("protocol type", response.protocol_type, "connect")


@case("groups/join/empty-group-id", PROTOCOL, NEEDS, since="0.9")
def empty_group_id(at: ProbeContext) -> None:
    """A group needs an ID: the empty one is refused with INVALID_GROUP_ID."""
    response = ProbeMember(at, at.group()).knock(group_id="")
    at.expect_error(response, ErrorCode.invalid_group_id)


@case("groups/join/session-too-short", PROTOCOL, NEEDS, since="0.9")
def session_too_short(at: ProbeContext) -> None:
    """A session of 0 ms is shorter than any broker allows: INVALID_SESSION_TIMEOUT."""
    response = ProbeMember(at, at.group()).knock(session_timeout=0)
    at.expect_error(response, ErrorCode.invalid_session_timeout)


@case("groups/join/session-too-long", "group.max.session.timeout.ms", NEEDS, since="0.9", level=SHOULD)
def session_too_long(at: ProbeContext) -> None:
    """A session of 24 days is longer than a broker allows by default: INVALID_SESSION_TIMEOUT."""
    response = ProbeMember(at, at.group()).knock(session_timeout=0x7FFFFFFF)
    at.expect_error(response, ErrorCode.invalid_session_timeout)


@case("groups/join/unknown-member", PROTOCOL, NEEDS, since="0.9")
def unknown_member(at: ProbeContext) -> None:
    """A member ID that the group does not know is refused with UNKNOWN_MEMBER_ID."""
    stranger = ProbeMember(at, settled(at).group_id, member_id="a-stranger")
    at.expect_error(stranger.join(), ErrorCode.unknown_member_id)


@case("groups/join/unknown-member-and-group", PROTOCOL, NEEDS, since="0.9")
def unknown_member_and_group(at: ProbeContext) -> None:
    """A client that comes with a member ID makes no group: UNKNOWN_MEMBER_ID."""
    response = ProbeMember(at, at.group(), member_id="a-stranger").join()
    at.expect_error(response, ErrorCode.unknown_member_id)


@case("groups/join/no-protocols", PROTOCOL, NEEDS, since="0.9")
def no_protocols(at: ProbeContext) -> None:
    """A member without any protocol is refused with INCONSISTENT_GROUP_PROTOCOL."""
    response = ProbeMember(at, at.group(), {}).knock()
    at.expect_error(response, ErrorCode.inconsistent_group_protocol)


@case("groups/join/no-protocol-type", PROTOCOL, NEEDS, since="0.9")
def no_protocol_type(at: ProbeContext) -> None:
    """A member without a protocol type is refused with INCONSISTENT_GROUP_PROTOCOL."""
    response = ProbeMember(at, at.group(), protocol_type="").knock()
    at.expect_error(response, ErrorCode.inconsistent_group_protocol)


# JoinGroup: several members


@case("groups/join/other-protocol-type", PROTOCOL, NEEDS, since="0.9")
def other_protocol_type(at: ProbeContext) -> None:
    """A member of another protocol type is refused with INCONSISTENT_GROUP_PROTOCOL."""
    first = settled(at)
    response = ProbeMember(at, first.group_id, protocol_type="connect").knock()
    at.expect_error(response, ErrorCode.inconsistent_group_protocol)


@case("groups/join/no-common-protocol", PROTOCOL, NEEDS, since="0.9")
def no_common_protocol(at: ProbeContext) -> None:
    """A member that has no protocol in common with the others is refused with INCONSISTENT_GROUP_PROTOCOL."""
    first = settled(at)
    response = ProbeMember(at, first.group_id, {"sticky": b""}).knock()
    at.expect_error(response, ErrorCode.inconsistent_group_protocol)


@case("groups/join/common-protocol", PROTOCOL, NEEDS, since="0.9")
def common_protocol(at: ProbeContext) -> None:
    """The group gets a protocol that all members have, and the leader that protocol's metadata."""
    first = settled(at, protocols={"one": b"one of A", "both": b"both of A"})
    _, *responses = beside(first, protocols={"other": b"other of B", "both": b"both of B"})
    at.expect("protocols", [response.protocol_name for response in responses], ["both", "both"])
    found = sorted(bytes(member.metadata) for response in responses for member in response.members)
    at.expect("metadata", found, [b"both of A", b"both of B"])


@case("groups/join/leader-gets-members", PROTOCOL, NEEDS, since="0.9")
def leader_gets_members(at: ProbeContext) -> None:
    """All members get the same leader, and only the leader gets the members with their metadata."""
    first = settled(at, protocols={"range": b"of A"})
    second, *responses = beside(first, protocols={"range": b"of B"})
    at.expect("both get the same leader", first.leader == second.leader, True)
    of_leader, of_other = responses if first.leads else reversed(responses)
    results = {str(member.member_id): bytes(member.metadata) for member in of_leader.members}
    wanted = {first.member_id: b"of A", second.member_id: b"of B"}
    at.expect("the leader gets both with their metadata", results == wanted, True)
    at.expect("members that the other gets", len(of_other.members), 0)


@case("groups/join/same-generation", PROTOCOL, NEEDS, since="0.9")
def same_generation(at: ProbeContext) -> None:
    """A new member begins a generation, which is higher than the one before and the same for all."""
    first = settled(at)
    before = first.generation
    second, _, _ = beside(first)
    at.expect("both get the same generation", first.generation == second.generation, True)
    at.expect_that("generation", first.generation, first.generation > before, f"above {before}")


@case("groups/join/leader-again", PROTOCOL, NEEDS, since="0.9")
def leader_again(at: ProbeContext) -> None:
    """A leader that joins a stable group again begins a generation: the topics that it sees may have changed."""
    leader = settled(at)
    before = leader.generation
    leader.joined(leader.send_join())
    at.expect_that("generation", leader.generation, leader.generation > before, f"above {before}")


@case("groups/join/follower-again", "ClassicGroup", NEEDS, since="0.9", level=SHOULD)
def follower_again(at: ProbeContext) -> None:
    """A follower that joins a stable group again with nothing new gets the current generation."""
    leader, follower = pair(at)
    leader.sync({leader.member_id: b"", follower.member_id: b""})
    before = follower.generation
    follower.joined(follower.send_join())
    at.expect("the generation stays", follower.generation == before, True)
    at.expect("error code of the leader's heartbeat", leader.heartbeat(), ErrorCode.none)


@case("groups/join/new-metadata", PROTOCOL, NEEDS, since="0.9")
def new_metadata(at: ProbeContext) -> None:
    """A follower that joins again with other metadata begins a rebalance, and the leader gets the metadata."""
    leader, follower = pair(at)
    leader.sync({leader.member_id: b"", follower.member_id: b""})
    follower.protocols = {"range": b"something new"}
    request = follower.send_join()
    leader.until_rebalance()
    results = leader.joined(leader.send_join()).members
    follower.joined(request)
    found = {str(result.member_id): bytes(result.metadata) for result in results}.get(follower.member_id)
    at.expect("metadata of the follower", found, b"something new")


@case("groups/join/unreadable-subscription", "ClassicGroup", NEEDS, since="0.9", level=SHOULD, hostile=True)
def unreadable_subscription(at: ProbeContext) -> None:
    """The broker does not interpret a consumer's metadata: one that cannot be decoded keeps no group waiting."""
    member = ProbeMember(at, at.group(), {"range": HUNDRED_TOPICS}, protocol_type=CONSUMER)
    member.joined(member.send_entry(), RESPONSE_LIMIT_S)
    at.expect("it leads", member.leads, True)


@case("groups/join/mixed-versions", PROTOCOL, WITH_IDS, since="2.2")
def mixed_versions(at: ProbeContext) -> None:
    """Members that join in different versions share a generation, one without a member ID of its own (KIP-394)."""
    lowest = at.broker.common_versions(JOIN)[0]
    if lowest >= IDS_SINCE:
        raise NotAdvertised(f"JoinGroup is served from version {lowest} on only")
    newer = settled(at)
    older = ProbeMember(at, newer.group_id)
    request = older.send_join(lowest)
    newer.until_rebalance()
    newer.joined(newer.send_join())
    older.joined(request)
    at.expect("the generation is the same", older.generation == newer.generation, True)
    at.expect("the leader is the same", older.leader == newer.leader, True)
    at.expect("number of members", len(newer.described().members), 2)
    assignments = {newer.member_id: b"newer", older.member_id: b"older"}
    first, second = (newer, older) if newer.leads else (older, newer)
    pending = second.send_sync()
    first.sync(assignments)
    at.expect("assignment of the other", bytes(second.on.receive(pending).assignment), assignments[second.member_id])
