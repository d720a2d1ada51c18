"""Committed offsets: OffsetCommit and OffsetFetch."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.probe.case import ANY, SHOULD, NotAdvertised, Versions, case, since_version
from bench.probe.cases.groups import FIND, NEEDS
from bench.probe.context import ByKey, ProbeContext, Topic, single
from bench.probe.member import DESCRIBE, ProbeMember, pair, settled
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

COMMIT, FETCH = int(ApiKey.OFFSET_COMMIT), int(ApiKey.OFFSET_FETCH)
SIMPLE: dict[int, Versions] = {
    COMMIT: ANY,
    FETCH: since_version(1),
    FIND: ANY,
    DESCRIBE: ANY,
    ApiKey.CREATE_TOPICS: ANY,
}
BY_MEMBERS: dict[int, Versions] = {**NEEDS, **SIMPLE}
ALL_OFFSETS: dict[int, Versions] = {**SIMPLE, FETCH: since_version(2)}
OFFSET = 7
PROTOCOL = "Kafka protocol guide: OffsetCommit, OffsetFetch"
LONG = "m" * 30_000
"""Longer than a commit's metadata may be by default (offset.metadata.max.bytes)."""


def commit(
    member: ProbeMember, topic: str, partition: int = 0, by: Mapping[str, object] | None = None, **more: Any
) -> int:
    """Commit as ``member`` is and return the error code of the partition. A ProbeMember that has not joined commits as
    a consumer that assigns itself. ``by``: other values for the committer. ``more``: fields of the partition."""
    identity = dict(member.identity)
    identity["generation_id_or_member_epoch"] = identity.pop("generation_id")
    fields = {"committed_offset": OFFSET, "committed_metadata": "", **more}
    topics = [{"name": topic, "partitions": [{"partition_index": partition, **fields}]}]
    request: dict[str, object] = {**identity, **(by or {}), "topics": topics}
    response = single(member.at.call(COMMIT, request, on=member.on), "topics", "partitions")
    return int(response.error_code)


def commits(member: ProbeMember, topic: Topic, partition: int = 0, **more: Any) -> None:
    """Commit what must be taken."""
    member.at.expect("error code of a commit", commit(member, topic.name, partition, **more), ErrorCode.none)


def fetched_group(
    member: ProbeMember, topics: Sequence[tuple[str, Sequence[int]]] | None, version: int | None = None, **more: object
) -> Any:
    """Return the member's group from the response of OffsetFetch. None means all topics."""
    wanted = None if topics is None else [{"name": name, "partition_indexes": list(each)} for name, each in topics]
    groups = [{"group_id": member.group_id, "topics": wanted}]
    result = single(member.at.call(FETCH, {"groups": groups, **more}, version, member.on), "groups")
    member.at.expect("error code of the group", result.error_code, ErrorCode.none)
    return result


def fetched(member: ProbeMember, topic: str, partition: int = 0, **more: Any) -> Any:
    """Return one partition from the response of OffsetFetch, which must be no error."""
    result = single(fetched_group(member, [(topic, [partition])], **more), "topics", "partitions")
    member.at.expect("error code of the partition", result.error_code, ErrorCode.none)
    return result


def expect_offset(member: ProbeMember, topic: Topic, offset: int, partition: int = 0) -> None:
    member.at.expect("committed offset", fetched(member, topic.name, partition).committed_offset, offset)


# Commits without membership


@case("groups/commit/simple", PROTOCOL, SIMPLE, since="0.9")
def simple(at: ProbeContext) -> None:
    """A consumer that assigns itself commits without being a member. The group need not exist before."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic)
    expect_offset(client, topic, OFFSET)


@case("groups/commit/back", PROTOCOL, SIMPLE, since="0.9")
def back(at: ProbeContext) -> None:
    """The last commit counts, also one that goes back."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic, committed_offset=OFFSET)
    commits(client, topic, committed_offset=3)
    expect_offset(client, topic, 3)


@case("groups/commit/metadata", PROTOCOL, SIMPLE, since="0.9")
def metadata(at: ProbeContext) -> None:
    """The text of a commit is kept, also beyond ASCII."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic, committed_metadata="où j'en suis")
    at.expect("metadata", fetched(client, topic.name).metadata, "où j'en suis")


@case("groups/commit/null-metadata", PROTOCOL, SIMPLE, since="0.9", level=SHOULD)
def null_metadata(at: ProbeContext) -> None:
    """A commit without a text is fetched with an empty one."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic, committed_metadata=None)
    at.expect("metadata", fetched(client, topic.name).metadata, "")


@case("groups/commit/metadata-too-large", PROTOCOL, SIMPLE, since="0.9", level=SHOULD)
def metadata_too_large(at: ProbeContext) -> None:
    """A text that is too long is refused with OFFSET_METADATA_TOO_LARGE, and the offset is not committed."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    code = commit(client, topic.name, committed_metadata=LONG)
    at.expect("error code", code, ErrorCode.offset_metadata_too_large)
    expect_offset(client, topic, -1)


@case("groups/commit/others-go-on", PROTOCOL, SIMPLE, since="0.9")
def others_go_on(at: ProbeContext) -> None:
    """Each partition of a commit is judged by itself: the others are committed all the same."""
    topic, client = at.topic(2), ProbeMember(at, at.group())
    bad = {"partition_index": 0, "committed_offset": OFFSET, "committed_metadata": LONG}
    good = {"partition_index": 1, "committed_offset": OFFSET, "committed_metadata": ""}
    request = {"group_id": client.group_id, "topics": [{"name": topic.name, "partitions": [bad, good]}]}
    results = single(at.call(COMMIT, request, on=client.on), "topics").partitions
    codes = ByKey({int(result.partition_index): int(result.error_code) for result in results})
    if codes[0] == ErrorCode.none:
        raise NotAdvertised("a text of any length is taken, so that no partition is refused")
    at.expect("error code of the one", codes[0], ErrorCode.offset_metadata_too_large)
    at.expect("error code of the other", codes[1], ErrorCode.none)
    expect_offset(client, topic, OFFSET, 1)


@case(
    "groups/commit/leader-epoch", "KIP-320", {**SIMPLE, COMMIT: since_version(6), FETCH: since_version(5)}, since="2.1"
)
def leader_epoch(at: ProbeContext) -> None:
    """The leader epoch of a commit is kept."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic, committed_leader_epoch=3)
    at.expect("leader epoch", fetched(client, topic.name).committed_leader_epoch, 3)


@case("groups/commit/unknown-topic", PROTOCOL, SIMPLE, since="0.9")
def commit_unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist is refused with UNKNOWN_TOPIC_OR_PARTITION."""
    code = commit(ProbeMember(at, at.group()), at.topic_name())
    at.expect("error code", code, ErrorCode.unknown_topic_or_partition)


@case("groups/commit/unknown-partition", PROTOCOL, SIMPLE, since="0.9")
def commit_unknown_partition(at: ProbeContext) -> None:
    """A partition that does not exist is refused with UNKNOWN_TOPIC_OR_PARTITION."""
    code = commit(ProbeMember(at, at.group()), at.topic().name, 9)
    at.expect("error code", code, ErrorCode.unknown_topic_or_partition)


@case("groups/commit/group-not-found", "KIP-848", {**SIMPLE, COMMIT: since_version(9)}, since="4.0")
def group_not_found(at: ProbeContext) -> None:
    """From version 9 on, a commit with a generation for a group that does not exist is GROUP_ID_NOT_FOUND."""
    topic, client = at.topic(), ProbeMember(at, at.group(), member_id="a-stranger", generation=1)
    at.expect("error code", commit(client, topic.name), ErrorCode.group_id_not_found)


@case("groups/commit/group-not-found-before-9", "KIP-848", {**SIMPLE, COMMIT: (2, 8)}, since="0.9")
def group_not_found_before_9(at: ProbeContext) -> None:
    """Before version 9, a commit with a generation for a group that does not exist is ILLEGAL_GENERATION."""
    topic, client = at.topic(), ProbeMember(at, at.group(), member_id="a-stranger", generation=1)
    at.expect("error code", commit(client, topic.name), ErrorCode.illegal_generation)


# Commits of members


@case("groups/commit/member", PROTOCOL, BY_MEMBERS, since="0.9")
def commit_of_member(at: ProbeContext) -> None:
    """A member of a stable group commits."""
    topic, member = at.topic(), settled(at)
    commits(member, topic)
    expect_offset(member, topic, OFFSET)


@case("groups/commit/wrong-generation", PROTOCOL, BY_MEMBERS, since="0.9")
def commit_wrong_generation(at: ProbeContext) -> None:
    """A member of another generation is refused with ILLEGAL_GENERATION, and nothing is committed."""
    topic, member = at.topic(), settled(at)
    for generation in (member.generation - 1, member.generation + 1):
        code = commit(member, topic.name, by={"generation_id_or_member_epoch": generation})
        at.expect("error code", code, ErrorCode.illegal_generation)
    expect_offset(member, topic, -1)


@case("groups/commit/unknown-member", PROTOCOL, BY_MEMBERS, since="0.9")
def commit_unknown_member(at: ProbeContext) -> None:
    """A member ID that the group does not know is refused with UNKNOWN_MEMBER_ID."""
    topic, member = at.topic(), settled(at)
    at.expect("error code", commit(member, topic.name, by={"member_id": "a-stranger"}), ErrorCode.unknown_member_id)
    expect_offset(member, topic, -1)


@case("groups/commit/no-member-in-active-group", PROTOCOL, BY_MEMBERS, since="0.9")
def commit_without_membership(at: ProbeContext) -> None:
    """While a group has members, no other client may commit: UNKNOWN_MEMBER_ID."""
    topic, member = at.topic(), settled(at)
    code = commit(ProbeMember(at, member.group_id), topic.name)
    at.expect("error code", code, ErrorCode.unknown_member_id)


@case("groups/commit/before-assignment", PROTOCOL, BY_MEMBERS, since="0.9")
def commit_before_assignment(at: ProbeContext) -> None:
    """A member that has joined commits nothing before the leader assigns: REBALANCE_IN_PROGRESS."""
    topic = at.topic()
    leader, _ = pair(at)
    at.expect("error code", commit(leader, topic.name), ErrorCode.rebalance_in_progress)


@case("groups/commit/while-rebalancing", "KIP-62", BY_MEMBERS, since="0.10.1")
def commit_while_rebalancing(at: ProbeContext) -> None:
    """When a rebalance begins, a member may still commit what it has done, before it joins again."""
    topic, member = at.topic(), settled(at)
    ProbeMember(at, member.group_id).send_entry()
    member.until_rebalance()
    commits(member, topic)


@case("groups/commit/kept-when-empty", "KIP-211", BY_MEMBERS, since="2.1")
def kept_when_empty(at: ProbeContext) -> None:
    """The offsets of a group stay when its last member has left."""
    topic, member = at.topic(), settled(at)
    commits(member, topic)
    member.leave()
    expect_offset(member, topic, OFFSET)


# OffsetFetch


@case("groups/fetch/nothing", PROTOCOL, SIMPLE, since="0.9")
def fetch_nothing(at: ProbeContext) -> None:
    """Where nothing is committed the offset is -1, without an error: also for a group that does not exist."""
    topic, client = at.topic(2), ProbeMember(at, at.group())
    expect_offset(client, topic, -1)
    commits(client, topic)
    result = fetched(client, topic.name, 1)
    at.expect("committed offset", result.committed_offset, -1)
    at.expect("metadata", result.metadata, "", None)


@case("groups/fetch/unknown-topic", PROTOCOL, SIMPLE, since="0.9")
def fetch_unknown_topic(at: ProbeContext) -> None:
    """For a topic that does not exist the offset is -1, without an error."""
    result = fetched(ProbeMember(at, at.group()), at.topic_name())
    at.expect("committed offset", result.committed_offset, -1)


@case("groups/fetch/all", "KIP-88", ALL_OFFSETS, since="0.10.2")
def fetch_all(at: ProbeContext) -> None:
    """Null for the topics means all that the group has committed."""
    one, other, client = at.topic(2), at.topic(), ProbeMember(at, at.group())
    commits(client, one, partition=1, committed_offset=1)
    commits(client, other, committed_offset=2)
    result = fetched_group(client, None)
    found = {
        (str(row.name), int(partition.partition_index)): int(partition.committed_offset)
        for row in result.topics
        for partition in row.partitions
    }
    at.expect("the offsets are those that were committed", found == {(one.name, 1): 1, (other.name, 0): 2}, True)


@case("groups/fetch/all-of-unknown", "KIP-88", ALL_OFFSETS, since="0.10.2")
def fetch_all_of_unknown(at: ProbeContext) -> None:
    """A group that does not exist has no offsets, which is no error."""
    at.expect("number of topics", len(fetched_group(ProbeMember(at, at.group()), None).topics), 0)


@case("groups/fetch/several-groups", "KIP-709", {**SIMPLE, FETCH: since_version(8)}, since="3.0")
def fetch_several_groups(at: ProbeContext) -> None:
    """One request may fetch the offsets of several groups, each with its own."""
    topic, first = at.topic(), ProbeMember(at, at.group())
    clients = (first, ProbeMember(at, at.group_beside(first.group_id)))
    for number, client in enumerate(clients):
        commits(client, topic, committed_offset=number + 1)
    topics = [{"name": topic.name, "partition_indexes": [0]}]
    request = {"groups": [{"group_id": each.group_id, "topics": topics} for each in clients]}
    results = at.call(FETCH, request, on=first.on).groups
    found = {str(result.group_id): int(single(result, "topics", "partitions").committed_offset) for result in results}
    at.expect("offsets", [found.get(each.group_id) for each in clients], [1, 2])


@case("groups/fetch/stable", "KIP-447", {**SIMPLE, FETCH: since_version(7)}, since="2.5")
def fetch_stable(at: ProbeContext) -> None:
    """Where no transaction is open, a client that requires stable offsets gets what is committed."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic)
    result = fetched(client, topic.name, require_stable=True)
    at.expect("committed offset", result.committed_offset, OFFSET)


@case("groups/fetch/every-version", PROTOCOL, SIMPLE, since="0.9")
def fetch_every_version(at: ProbeContext) -> None:
    """All versions return the same offset and text."""
    topic, client = at.topic(), ProbeMember(at, at.group())
    commits(client, topic, committed_metadata="text")
    results = {}
    for version in at.broker.common_versions(FETCH):
        if version >= 1:
            each = fetched(client, topic.name, version=version)
            results[version] = (int(each.committed_offset), str(each.metadata))
    at.expect("versions with another", [result for result in results if results[result] != (OFFSET, "text")], [])


@case("groups/fetch/of-members", PROTOCOL, BY_MEMBERS, since="0.9", level=SHOULD)
def fetch_of_members(at: ProbeContext) -> None:
    """Anybody may look at the offsets of a group that has members."""
    topic, member = at.topic(), settled(at)
    commits(member, topic)
    expect_offset(ProbeMember(at, member.group_id), topic, OFFSET)


@case("groups/fetch/error-in-version-1", "OffsetFetchResponse.json", {**SIMPLE, FETCH: (1, 1)}, since="0.9")
def fetch_error_in_version_1(at: ProbeContext) -> None:
    """Version 1 has no error code for the group: another node than the coordinator refuses at each partition, with
    NOT_COORDINATOR."""
    topic, client = at.topic(2), ProbeMember(at, at.group())
    other = next((node for node in at.broker.nodes.values() if node != client.on.address), None)
    if other is None or len(at.broker.nodes) == 1:
        raise NotAdvertised("the cluster has one node, which coordinates all groups")
    topics = [{"name": topic.name, "partition_indexes": [0, 1]}]
    request = {"groups": [{"group_id": client.group_id, "topics": topics}]}
    results = single(at.call(FETCH, request, 1, at.connect(other)), "groups", "topics").partitions
    at.expect("error codes", [int(result.error_code) for result in results], [int(ErrorCode.not_coordinator)] * 2)
    at.expect("offsets", [int(result.committed_offset) for result in results], [-1, -1])
