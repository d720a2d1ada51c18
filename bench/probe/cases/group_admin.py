"""Administration of groups: DescribeGroups, ListGroups, DeleteGroups and OffsetDelete."""

import struct
from typing import Any

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.cases.group_offsets import OFFSET, SIMPLE, commits, expect_offset
from bench.probe.cases.groups import NEEDS, PROTOCOL
from bench.probe.context import ByKey, ProbeContext, Topic, single
from bench.probe.member import CONSUMER, DESCRIBE, ProbeMember, settled
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

LIST, DELETE, FORGET = int(ApiKey.LIST_GROUPS), int(ApiKey.DELETE_GROUPS), int(ApiKey.OFFSET_DELETE)
DELETES = {**SIMPLE, DELETE: ANY}
FORGETS = {**SIMPLE, FORGET: ANY}
FORGETS_OF_MEMBERS = {**NEEDS, **FORGETS}
LISTS = {**NEEDS, LIST: ANY}
BY_STATE = {**NEEDS, LIST: since_version(4)}
BY_TYPE = {**NEEDS, LIST: since_version(5)}


# DescribeGroups


@case("groups/describe/unknown", "KIP-1043", {DESCRIBE: since_version(6)}, since="4.0")
def describe_unknown(at: ProbeContext) -> None:
    """From version 6 on, a group that does not exist is Dead with GROUP_ID_NOT_FOUND."""
    result = ProbeMember(at, at.group()).described()
    at.expect("state", result.group_state, "Dead")
    at.expect_error(result, ErrorCode.group_id_not_found)


@case("groups/describe/unknown-before-6", PROTOCOL, {DESCRIBE: (0, 5)}, since="0.9")
def describe_unknown_before_6(at: ProbeContext) -> None:
    """Before version 6, a group that does not exist is Dead without an error."""
    result = ProbeMember(at, at.group()).described()
    at.expect_no_error(result)
    at.expect("state", result.group_state, "Dead")


@case("groups/describe/states", PROTOCOL, NEEDS, since="0.9")
def states(at: ProbeContext) -> None:
    """DescribeGroups returns the states CompletingRebalance, Stable, PreparingRebalance and Empty."""
    member = ProbeMember(at, at.group())
    member.enter()
    member.until_state("CompletingRebalance")
    member.sync({member.member_id: b""})
    member.until_state("Stable")
    other = ProbeMember(at, member.group_id)
    waiting = other.send_entry()
    member.until_rebalance()
    member.until_state("PreparingRebalance")
    member.joined(member.send_join())
    other.joined(waiting)
    other.leave()
    member.leave()
    member.until_state("Empty")


@case("groups/describe/members", PROTOCOL, NEEDS, since="0.9")
def members(at: ProbeContext) -> None:
    """A stable group is described with its protocol, and each member with its metadata, assignment and client ID."""
    member = settled(at, protocols={"range": b"what I say", "other": b"not chosen"})
    result = member.described()
    at.expect("protocol type and name", (result.protocol_type, result.protocol_data), ("probe", "range"))
    one = single(result, "members")
    at.expect("it is the member", str(one.member_id) == member.member_id, True)
    at.expect("client ID", one.client_id, "crucible-probe")
    at.expect("metadata", bytes(one.member_metadata), b"what I say")
    at.expect("assignment", bytes(one.member_assignment), b"mine")


@case("groups/describe/simple", PROTOCOL, SIMPLE, since="0.9")
def describe_simple(at: ProbeContext) -> None:
    """A group that has offsets and never had a member is Empty, without a protocol type."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic)
    result = client.described()
    at.expect("state", result.group_state, "Empty")
    at.expect("protocol type", result.protocol_type, "")


@case("groups/describe/operations", "KIP-430", {**NEEDS, DESCRIBE: since_version(3)}, since="2.3", level=SHOULD)
def describe_operations(at: ProbeContext) -> None:
    """The response has the allowed operations only if the request wants them."""
    member = settled(at)
    at.expect("operations", member.described().authorized_operations, -0x80000000)
    request = {"groups": [member.group_id], "include_authorized_operations": True}
    result = single(at.call(DESCRIBE, request, on=member.on), "groups")
    allowed = int(result.authorized_operations)
    at.expect_that("operations that were requested", allowed, allowed > 0, "above 0")


# ListGroups


def _listed(member: ProbeMember, **filters: object) -> Any:
    """The listing of the member's group; None if it is not among the groups."""
    response = member.at.call(LIST, filters, on=member.on)
    member.at.expect_no_error(response)
    return next((group for group in response.groups if str(group.group_id) == member.group_id), None)


@case("groups/list/there", PROTOCOL, LISTS, since="0.9")
def list_there(at: ProbeContext) -> None:
    """A group is listed with its protocol type."""
    results = _listed(settled(at))
    at.expect("the group is among them", results is not None, True)
    at.expect("protocol type", results.protocol_type, "probe")


@case("groups/list/state", "KIP-518", BY_STATE, since="2.6")
def list_state(at: ProbeContext) -> None:
    """The state of a group is listed as it changes."""
    member = settled(at)
    results = _listed(member)
    at.expect("state", getattr(results, "group_state", "not there"), "Stable")
    member.leave()
    at.expect("state without a member", getattr(_listed(member), "group_state", "not there"), "Empty")


@case("groups/list/by-state", "KIP-518", BY_STATE, since="2.6")
def list_by_state(at: ProbeContext) -> None:
    """Only groups in the requested states are listed."""
    member = settled(at)
    at.expect("it is among the stable ones", _listed(member, states_filter=["Stable"]) is not None, True)
    at.expect("it is among those of two states", _listed(member, states_filter=["Empty", "Stable"]) is not None, True)
    at.expect("it is among the empty ones", _listed(member, states_filter=["Empty"]) is not None, False)


@case("groups/list/unknown-state", "KIP-518", BY_STATE, since="2.6")
def list_unknown_state(at: ProbeContext) -> None:
    """No group is in a state that does not exist, which is no error."""
    response = at.call(LIST, {"states_filter": ["NoSuchState"]}, on=settled(at).on)
    at.expect_no_error(response)
    at.expect("number of groups", len(response.groups), 0)


@case("groups/list/state-in-other-case", "KIP-848", BY_TYPE, since="3.7", level=SHOULD)
def list_state_in_other_case(at: ProbeContext) -> None:
    """States may be requested in lower case."""
    at.expect("it is among them", _listed(settled(at), states_filter=["stable"]) is not None, True)


@case("groups/list/by-type", "KIP-848", BY_TYPE, since="3.7")
def list_by_type(at: ProbeContext) -> None:
    """A group whose members join by JoinGroup is of the type classic."""
    member = settled(at)
    results = _listed(member, types_filter=["classic"])
    at.expect("it is among the classic ones", results is not None, True)
    at.expect("type", str(results.group_type).lower(), "classic")
    at.expect("it is among those of the other type", _listed(member, types_filter=["consumer"]) is not None, False)


# DeleteGroups


def _deleted(member: ProbeMember, *more: str) -> list[int]:
    """The error codes for the member's group and for more."""
    group_ids = [member.group_id, *more]
    results = member.at.call(DELETE, {"groups_names": group_ids}, on=member.on).results
    codes = ByKey({str(result.group_id): int(result.error_code) for result in results})
    return [codes[group_id] for group_id in group_ids]


@case("groups/delete/with-offsets", "KIP-229", DELETES, since="1.1")
def delete_with_offsets(at: ProbeContext) -> None:
    """A group without members is deleted with its offsets."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic)
    at.expect("error code", _deleted(client)[0], ErrorCode.none)
    expect_offset(client, topic, -1)
    at.expect("state", client.described().group_state, "Dead")


@case("groups/delete/non-empty", "KIP-229", {**NEEDS, **DELETES}, since="1.1")
def delete_non_empty(at: ProbeContext) -> None:
    """A group with members is not deleted: NON_EMPTY_GROUP."""
    member = settled(at)
    at.expect("error code", _deleted(member)[0], ErrorCode.non_empty_group)
    at.expect("error code of a heartbeat", member.heartbeat(), ErrorCode.none)


@case("groups/delete/unknown", "KIP-229", DELETES, since="1.1")
def delete_unknown(at: ProbeContext) -> None:
    """A group that does not exist gets GROUP_ID_NOT_FOUND, and the others are deleted all the same."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic)
    known, unknown = _deleted(client, at.group_beside(client.group_id))
    at.expect("error code of the other", known, ErrorCode.none)
    at.expect("error code", unknown, ErrorCode.group_id_not_found)


# OffsetDelete


def _forget(member: ProbeMember, topic: str, partition: int = 0) -> Any:
    request = {"topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}
    return member.at.call(FORGET, {"group_id": member.group_id, **request}, on=member.on)


def _forgotten(member: ProbeMember, topic: str, partition: int = 0) -> int:
    """The error code of the partition. The request itself must succeed."""
    response = _forget(member, topic, partition)
    member.at.expect("error code of the request", response.error_code, ErrorCode.none)
    result = single(response, "topics", "partitions")
    return int(result.error_code)


def _subscription(*topics: str) -> bytes:
    """The metadata of a consumer that subscribes to these topics, in version 0."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def _subscribed(at: ProbeContext, topic: Topic) -> ProbeMember:
    """A consumer that subscribes to the topic, in a stable group."""
    return settled(at, protocol_type=CONSUMER, protocols={"range": _subscription(topic.name)})


@case("groups/offset-delete/one", "KIP-496", FORGETS, since="2.4")
def forget_one(at: ProbeContext) -> None:
    """The offset of one partition is deleted, and the others stay."""
    topic, client = at.topic(2), ProbeMember(at, at.group())
    for partition in (0, 1):
        commits(client, topic, partition=partition)
    at.expect("error code", _forgotten(client, topic.name, 0), ErrorCode.none)
    expect_offset(client, topic, -1, 0)
    expect_offset(client, topic, OFFSET, 1)


@case("groups/offset-delete/nothing-there", "KIP-496", FORGETS, since="2.4")
def forget_nothing(at: ProbeContext) -> None:
    """To delete an offset that is not there is no error."""
    topic, client = at.topic(2), ProbeMember(at, at.group())
    commits(client, topic)
    at.expect("error code", _forgotten(client, topic.name, 1), ErrorCode.none)


@case("groups/offset-delete/unknown-group", "KIP-496", FORGETS, since="2.4")
def forget_of_unknown(at: ProbeContext) -> None:
    """A group that does not exist gets GROUP_ID_NOT_FOUND."""
    response = _forget(ProbeMember(at, at.group()), at.topic().name)
    at.expect_error(response, ErrorCode.group_id_not_found)


@case("groups/offset-delete/unknown-partition", "KIP-496", FORGETS, since="2.4")
def forget_unknown_partition(at: ProbeContext) -> None:
    """A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic)
    at.expect("error code", _forgotten(client, topic.name, 9), ErrorCode.unknown_topic_or_partition)


@case("groups/offset-delete/subscribed", "KIP-496", FORGETS_OF_MEMBERS, since="2.4")
def forget_subscribed(at: ProbeContext) -> None:
    """Offsets of a topic to which a consumer of the group subscribes stay: GROUP_SUBSCRIBED_TO_TOPIC."""
    topic = at.topic()
    member = _subscribed(at, topic)
    commits(member, topic)
    at.expect("error code", _forgotten(member, topic.name), ErrorCode.group_subscribed_to_topic)
    expect_offset(member, topic, OFFSET)


@case("groups/offset-delete/no-longer-subscribed", "KIP-496", FORGETS_OF_MEMBERS, since="2.4")
def forget_not_subscribed(at: ProbeContext) -> None:
    """Offsets of a topic to which no consumer of the group subscribes are deleted while the group has members."""
    topic, other = at.topic(), at.topic()
    member = _subscribed(at, topic)
    commits(member, other)
    at.expect("error code", _forgotten(member, other.name), ErrorCode.none)
    expect_offset(member, other, -1)


@case("groups/offset-delete/other-protocol-type", "KIP-496", FORGETS_OF_MEMBERS, since="2.4")
def forget_of_others(at: ProbeContext) -> None:
    """While a group has members that are no consumers, no offset is deleted: NON_EMPTY_GROUP."""
    topic, member = at.topic(), settled(at)
    commits(member, topic)
    at.expect_error(_forget(member, topic.name), ErrorCode.non_empty_group)
    expect_offset(member, topic, OFFSET)
