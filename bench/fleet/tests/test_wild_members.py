"""Wild members: they join, go on as zombies, and send each request of a group, sometimes with a false field."""

from collections import Counter
from random import Random
from typing import Any

from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32

from bench.fleet.behaviours.wild_members import COMMITTED_OFFSET, MAX_IDENTITIES, WildMembers, WildRequest, error_in
from reference_broker.client.tests.group_world import NOTHING, heartbeat_response, join_response
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def joined(request: WildRequest, number: int) -> Any:
    body: Any = request.body
    member_id = body.member_id or f"m-{number}"
    is_new = not body.member_id and body.group_instance_id is None
    return join_response(
        error=ErrorCode.member_id_required if is_new else ErrorCode.none,
        generation=-1 if is_new else number,
        protocol="range",
        leader=member_id,
        member_id=member_id,
        members=() if is_new else [(member_id, None, b"")],
    )


def played(count: int) -> list[WildRequest]:
    """Return the requests of one client whose joins succeed, and whose members stay."""
    members, requests = WildMembers("g", "hot", Random(1)), []
    for number in range(count):
        request = members.next_request()
        requests.append(request)
        if request.api_key is ApiKey.JOIN_GROUP:
            members.responded(request, joined(request, number))
    assert 0 < len(members._identities) <= MAX_IDENTITIES
    return requests


def test_first_request_joins_without_an_id() -> None:
    (request,) = played(1)
    body: Any = request.body
    assert (request.api_key, body.group_id, body.member_id) == (ApiKey.JOIN_GROUP, "g", "")


def test_each_request_of_a_group_is_sent_also_with_false_fields() -> None:
    requests = played(2000)
    keys = Counter(request.api_key for request in requests)
    assert all(
        keys[each] > 40
        for each in (
            *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT),
            ApiKey.LEAVE_GROUP,
        )
    )
    beats: list[Any] = [request.body for request in requests if request.api_key is ApiKey.HEARTBEAT]
    known = [request.identity for request in requests if request.api_key is ApiKey.HEARTBEAT]
    pairs = list(zip(beats, known, strict=True))
    assert any(body.member_id == "nobody" for body in beats)
    assert any(body.generation_id != identity.generation_id for body, identity in pairs)
    assert any(body.group_instance_id != identity.instance_id for body, identity in pairs)
    assert sum(body.member_id == identity.member_id for body, identity in pairs) > len(pairs) // 2


def test_all_commits_have_one_offset() -> None:
    bodies: list[Any] = [request.body for request in played(500) if request.api_key is ApiKey.OFFSET_COMMIT]
    offsets = {partition.committed_offset for body in bodies for topic in body.topics for partition in topic.partitions}
    assert offsets == {COMMITTED_OFFSET}
    assert any(body.generation_id_or_member_epoch < 0 for body in bodies)


def test_leader_assigns_to_the_members_of_its_generation() -> None:
    bodies: list[Any] = [request.body for request in played(500) if request.api_key is ApiKey.SYNC_GROUP]
    assert any(body.assignments and body.assignments[0].assignment for body in bodies)


def test_error_of_a_heartbeat_is_that_of_its_response() -> None:
    beat = next(request for request in played(50) if request.api_key is ApiKey.HEARTBEAT)
    assert error_in(beat, heartbeat_response(ErrorCode.rebalance_in_progress)) == ErrorCode.rebalance_in_progress


def test_error_of_a_commit_is_that_of_its_partitions() -> None:
    commit = next(request for request in played(200) if request.api_key is ApiKey.OFFSET_COMMIT)
    refused = OffsetCommitResponsePartition(partition_index=i32(0), error_code=ErrorCode.illegal_generation)
    topic = OffsetCommitResponseTopic(name=TopicName("hot"), partitions=(refused,))
    response = OffsetCommitResponse(throttle_time=NOTHING, topics=(topic,))
    assert error_in(commit, response) == ErrorCode.illegal_generation


def test_error_of_a_leave_is_that_of_its_member() -> None:
    leave = next(request for request in played(500) if request.api_key is ApiKey.LEAVE_GROUP)
    unknown = MemberResponse(member_id="m-1", group_instance_id=None, error_code=ErrorCode.unknown_member_id)
    response = LeaveGroupResponse(throttle_time=NOTHING, error_code=ErrorCode.none, members=(unknown,))
    assert error_in(leave, response) == ErrorCode.unknown_member_id
