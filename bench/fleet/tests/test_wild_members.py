"""Wild members: they join, go on as zombies, and send each request of a group, sometimes with a false field."""

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

from bench.fleet.behaviours.wild_members import COMMITTED_OFFSET, MOST_IDENTITIES, WildMembers, WildRequest, error_in
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def joined(request: WildRequest, number: int) -> Any:
    body: Any = request.body
    member_id = body.member_id or f"m-{number}"
    is_new = not body.member_id and body.group_instance_id is None
    members = [SimpleNamespace(member_id=member_id, group_instance_id=None, metadata=b"")]
    return SimpleNamespace(
        error_code=79 if is_new else 0,
        generation_id=-1 if is_new else number,
        protocol_name="range",
        member_id=member_id,
        leader=member_id,
        skip_assignment=False,
        members=() if is_new else members,
    )


def played(count: int) -> list[WildRequest]:
    """Return the requests of one client whose joins succeed, and whose members stay."""
    members, requests = WildMembers("g", "hot", Random(1)), []
    for number in range(count):
        request = members.next_request()
        requests.append(request)
        if request.api_key is ApiKey.JOIN_GROUP:
            members.responded(request, joined(request, number))
    assert 0 < len(members._identities) <= MOST_IDENTITIES
    return requests


def test_first_request_joins_without_an_id() -> None:
    (request,) = played(1)
    body: Any = request.body
    assert (request.api_key, body.group_id, body.member_id) == (ApiKey.JOIN_GROUP, "g", "")


def test_each_request_of_a_group_is_sent_also_with_false_fields() -> None:
    requests = played(2000)
    keys = Counter(each.api_key for each in requests)
    assert all(
        keys[each] > 40
        for each in (
            *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT),
            ApiKey.LEAVE_GROUP,
        )
    )
    beats: list[Any] = [each.body for each in requests if each.api_key is ApiKey.HEARTBEAT]
    known = [each.identity for each in requests if each.api_key is ApiKey.HEARTBEAT]
    pairs = list(zip(beats, known, strict=True))
    assert any(body.member_id == "nobody" for body in beats)
    assert any(body.generation_id != identity.generation_id for body, identity in pairs)
    assert any(body.group_instance_id != identity.instance_id for body, identity in pairs)
    assert sum(body.member_id == identity.member_id for body, identity in pairs) > len(pairs) // 2


def test_all_commits_have_one_offset() -> None:
    bodies: list[Any] = [each.body for each in played(500) if each.api_key is ApiKey.OFFSET_COMMIT]
    offsets = {one.committed_offset for body in bodies for topic in body.topics for one in topic.partitions}
    assert offsets == {COMMITTED_OFFSET}
    assert any(body.generation_id_or_member_epoch < 0 for body in bodies)


def test_leader_assigns_to_the_members_of_its_generation() -> None:
    bodies: list[Any] = [each.body for each in played(500) if each.api_key is ApiKey.SYNC_GROUP]
    assert any(body.assignments and body.assignments[0].assignment for body in bodies)


def test_error_of_each_response() -> None:
    one = next(each for each in played(50) if each.api_key is ApiKey.HEARTBEAT)
    assert error_in(one, SimpleNamespace(error_code=ErrorCode.rebalance_in_progress)) == ErrorCode.rebalance_in_progress
    commit = next(each for each in played(200) if each.api_key is ApiKey.OFFSET_COMMIT)
    partitions = [SimpleNamespace(error_code=ErrorCode.illegal_generation)]
    assert (
        error_in(commit, SimpleNamespace(topics=[SimpleNamespace(partitions=partitions)]))
        == ErrorCode.illegal_generation
    )
    leave = next(each for each in played(500) if each.api_key is ApiKey.LEAVE_GROUP)
    members = [SimpleNamespace(error_code=ErrorCode.unknown_member_id)]
    assert error_in(leave, SimpleNamespace(error_code=0, members=members)) == ErrorCode.unknown_member_id
