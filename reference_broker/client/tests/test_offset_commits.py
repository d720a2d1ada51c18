"""Committing and fetching offsets: bodies in released and draft versions, retries and errors."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.client import group_requests as requests
from reference_broker.client.group_requests import (
    DRAFT_VERSION,
    PAGE_VERSION,
    GroupCoordinator,
    GroupVersions,
    MemberIdentity,
)
from reference_broker.client.offset_commits import (
    Committed,
    CommittedOffset,
    CommittedOffsets,
    Fetched,
    OffsetToCommit,
    commit_request,
    fetch_request,
    fetched_offsets,
    may_consume,
)
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.tests.group_world import NODE, NODES, due, found
from reference_broker.wire.drafts import (
    OffsetCommitResponse1000,
    OffsetCommitResponsePartition1000,
    OffsetCommitResponseTopic1000,
    OffsetFetchResponse1001,
    OffsetFetchResponsePartition1001,
    OffsetFetchResponseTopic1001,
)
from reference_broker.wire.errors import DraftError, ErrorCode, known_error
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, encode_request

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = MemberIdentity("g", 3, "me", "i")
ZERO = i32Timedelta.parse(timedelta(0))
OFFSETS = {T0: OffsetToCommit(17, 2, 5, "note"), T1: OffsetToCommit(4)}


def committed(*errors: int, draft: bool = False) -> OffsetCommitResponse | OffsetCommitResponse1000:
    if draft:
        rows = tuple(
            OffsetCommitResponsePartition1000(partition_index=each, error_code=error)
            for each, error in enumerate(errors)
        )
        return OffsetCommitResponse1000(topics=(OffsetCommitResponseTopic1000(name="t", partitions=rows),))
    released = tuple(
        OffsetCommitResponsePartition(partition_index=i32(each), error_code=ErrorCode(error))
        for each, error in enumerate(errors)
    )
    topic = OffsetCommitResponseTopic(name=TopicName("t"), partitions=released)
    return OffsetCommitResponse(throttle_time=ZERO, topics=(topic,))


def fetched(*offsets: int, error: int = 0, partition_error: int = 0) -> OffsetFetchResponse:
    rows = tuple(
        OffsetFetchResponsePartitions(
            partition_index=i32(each),
            committed_offset=i64(offset),
            committed_leader_epoch=i32(7),
            metadata="",
            error_code=ErrorCode(partition_error),
        )
        for each, offset in enumerate(offsets)
    )
    topic = OffsetFetchResponseTopics(name=TopicName("t"), partitions=rows)
    group = OffsetFetchResponseGroup(group_id=GroupId("g"), topics=(topic,), error_code=ErrorCode(error))
    return OffsetFetchResponse(throttle_time=ZERO, groups=(group,))


def sent_over(api_key: int, version: int, body: object) -> Any:
    """Return the body as the broker decodes it."""
    frame = b"".join(encode_request(api_key, version, 1, "c", body))[4:]
    return decode_request(api_key, version, memoryview(frame), read_request_header(frame)[1])


def ended(offsets: CommittedOffsets) -> Any:
    """Return the result of a commit or a fetch, which must be complete."""
    result = offsets.take_result()
    assert result is not None
    return result


@pytest.fixture
def offsets() -> CommittedOffsets:
    found_one = GroupCoordinator("g", backoff_us=100)
    found_one.node = NODE
    return CommittedOffsets(found_one)


@pytest.mark.clause("M-6")
def test_only_draft_has_metadata_epoch_of_each_partition() -> None:
    draft = sent_over(8, DRAFT_VERSION, commit_request(OFFSETS, ME, DRAFT_VERSION))
    [topic] = draft.topics
    assert [(partition.committed_offset, partition.metadata_epoch) for partition in topic.partitions] == [
        (17, 5),
        (4, -1),
    ]
    assert [partition.committed_leader_epoch for partition in topic.partitions] == [2, -1]  # KIP-320 still applies,
    assert draft.group_instance_id == "i"  # and so does the fencing of static members (KIP-345).
    assert (draft.group_id, draft.generation_id_or_member_epoch, draft.member_id) == ("g", 3, "me")
    page = sent_over(8, PAGE_VERSION, commit_request(OFFSETS, ME, PAGE_VERSION))
    assert [(partition.committed_offset, partition.metadata_epoch) for partition in page.topics[0].partitions] == [
        (17, 5),
        (4, -1),
    ]
    released = sent_over(8, 9, commit_request(OFFSETS, ME, 9))
    [topic] = released.topics
    assert [(partition.committed_offset, partition.committed_leader_epoch) for partition in topic.partitions] == [
        (17, 2),
        (4, -1),
    ]
    assert released.group_instance_id == "i"


@pytest.mark.clause("M-9", "M-11")
def test_fetched_offsets_have_metadata_epoch_only_in_draft() -> None:
    sent = sent_over(9, DRAFT_VERSION, fetch_request([T0, T1], ME, DRAFT_VERSION))
    assert (sent.topics[0].partition_indexes, sent.require_stable) == ((0, 1), True)
    page = sent_over(9, PAGE_VERSION, fetch_request([T0, T1], ME, PAGE_VERSION))
    assert page.topics[0].partition_indexes == (0, 1)
    rows = (
        OffsetFetchResponsePartition1001(
            partition_index=0, committed_offset=17, committed_leader_epoch=2, metadata_epoch=5, metadata="x"
        ),
        OffsetFetchResponsePartition1001(partition_index=1),
    )
    draft = OffsetFetchResponse1001(topics=(OffsetFetchResponseTopic1001(name="t", partitions=rows),))
    assert fetched_offsets(draft) == {T0: CommittedOffset(17, 2, 5, "x"), T1: CommittedOffset(-1)}
    assert sent_over(9, 9, fetch_request([T0], ME, 9)).groups[0].topics[0].partition_indexes == (0,)
    assert fetched_offsets(fetched(17)) == {T0: CommittedOffset(17, 7, -1)}


@pytest.mark.clause("M-7")
@pytest.mark.parametrize("versions", [GroupVersions().with_metadata_epoch()])
def test_invalid_metadata_epoch_fails_its_partition_without_retry(
    offsets: CommittedOffsets, versions: GroupVersions
) -> None:
    offsets.coordinator.versions = versions
    offsets.commit(OFFSETS, ME, 10_000)
    assert due(offsets.next_request(0)).api_version == DRAFT_VERSION
    offsets.responded(0, committed(int(DraftError.INVALID_METADATA_EPOCH), 0, draft=True))
    result = ended(offsets)
    assert result == Committed(
        OFFSETS, {T0: DraftError.INVALID_METADATA_EPOCH, T1: ErrorCode.none}, ME, ErrorCode.none, DRAFT_VERSION
    )
    assert (result.refused, result.succeeded) == ((T0,), False)
    assert offsets.busy is False
    assert offsets.next_request(10**6) is None
    assert offsets.take_result() is None


@pytest.mark.parametrize(
    "error", [ErrorCode.coordinator_load_in_progress, ErrorCode.request_timed_out, ErrorCode.not_enough_replicas]
)
def test_commit_is_retried_for_partitions_with_retriable_error(offsets: CommittedOffsets, error: int) -> None:
    offsets.commit(OFFSETS, ME, 10_000)
    offsets.next_request(0)
    offsets.responded(0, committed(0, error))
    assert (offsets.next_request(99), offsets.wake_at_us) == (None, 100)
    [topic] = due(offsets.next_request(100)).body.topics
    assert [partition.partition_index for partition in topic.partitions] == [1]
    offsets.responded(100, committed(0, 0))
    assert ended(offsets).succeeded


@pytest.mark.parametrize("lost", [15, 16, None])
def test_commit_is_resent_to_new_coordinator(offsets: CommittedOffsets, lost: int | None) -> None:
    offsets.commit(OFFSETS, ME, 10_000)
    assert due(offsets.next_request(0)).to == NODE
    if lost is None:
        offsets.failed(0)
    else:
        offsets.responded(0, committed(lost, lost))
    assert due(offsets.next_request(100)).api_key == requests.FIND_COORDINATOR
    offsets.responded(100, found(NODES[1]))
    again = offsets.next_request(100)
    assert (due(again).to, len(due(again).body.topics[0].partitions)) == (NODES[1], 2)


def test_commit_outcome_is_unknown_at_deadline(offsets: CommittedOffsets) -> None:
    offsets.commit(OFFSETS, ME, 500)
    offsets.next_request(0)
    offsets.failed(400)
    assert offsets.next_request(500) is None
    assert ended(offsets).errors == {T0: ErrorCode.request_timed_out, T1: ErrorCode.request_timed_out}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.fenced_instance_id,
    ],
)
def test_group_error_fails_commit(offsets: CommittedOffsets, error: int) -> None:
    offsets.commit(OFFSETS, ME, 10_000)
    offsets.next_request(0)
    offsets.responded(0, committed(error, error))
    result = ended(offsets)
    assert (result.group_error, result.succeeded, result.sent_as) == (known_error(error), False, ME)


def test_empty_commit_and_fetch_complete_at_once(offsets: CommittedOffsets) -> None:
    offsets.commit({}, ME, 10)
    assert ended(offsets).succeeded
    offsets.fetch([], ME, 10)
    assert offsets.take_result() == Fetched({}, ErrorCode.none, ME)


def test_fetch_returns_partitions_without_offset(offsets: CommittedOffsets) -> None:
    offsets.fetch([T0, T1], ME, 10_000)
    assert due(offsets.next_request(0)).body.require_stable
    offsets.responded(0, fetched(17))
    result = offsets.take_result()
    assert result == Fetched({T0: CommittedOffset(17, 7), T1: CommittedOffset(-1)}, ErrorCode.none, ME, 9)


@pytest.mark.parametrize(
    ("error", "partition_error"),
    [(ErrorCode.coordinator_load_in_progress, 0), (ErrorCode.not_coordinator, 0), (ErrorCode.none, 88)],
)
def test_fetch_is_retried_while_coordinator_loads_or_offsets_are_unstable(
    offsets: CommittedOffsets, error: int, partition_error: int
) -> None:
    offsets.fetch([T0], ME, 10_000)
    offsets.next_request(0)
    offsets.responded(0, fetched(1, error=error, partition_error=partition_error))
    assert offsets.take_result() is None
    assert offsets.next_request(100) is not None


def test_one_find_coordinator_serves_all_pending_operations() -> None:
    shared = GroupCoordinator("g")
    first, second = CommittedOffsets(shared), CommittedOffsets(shared)
    first.commit(OFFSETS, ME, 10_000)
    second.fetch([T0], ME, 10_000)
    assert due(first.next_request(0)).api_key == requests.FIND_COORDINATOR
    assert second.next_request(0) is None
    first.responded(0, found())
    assert due(second.next_request(0)).api_key == requests.OFFSET_FETCH


def test_group_authorization_error_fails_operation(offsets: CommittedOffsets) -> None:
    offsets.coordinator.node = None
    offsets.commit(OFFSETS, ME, 10_000)
    offsets.next_request(0)
    offsets.responded(0, found(error=ErrorCode.group_authorization_failed))
    offsets.next_request(0)
    assert ended(offsets).group_error is ErrorCode.group_authorization_failed


@pytest.mark.clause("M-10", "M-11")
def test_required_epoch_is_newest_of_all_partitions() -> None:
    old, new = CommittedOffset(1, metadata_epoch=-1), CommittedOffset(1, metadata_epoch=5)
    assert may_consume(-1, [old, old])
    assert not may_consume(4, [old, new])
    assert may_consume(5, [old, new])
    assert may_consume(-1, [])


def test_group_identities_differ_by_generation() -> None:
    assert replace(ME, generation_id=4) != ME
