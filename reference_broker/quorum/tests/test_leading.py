"""Contact of a leader with its followers, and retries of vote requests (KafkaRaftClientTest, LeaderStateTest)."""

import pytest

from reference_broker.quorum.messages import RaftResponse, build_begin_quorum_epoch_response, build_fetch_request
from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests import quorum_roles as roles
from reference_broker.quorum.tests.quorum_alone import CLUSTER, Alone, granted
from reference_broker.quorum.values import NotLeader, OffsetAndEpoch
from reference_broker.records.batch import validate
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest, PartitionData
from reference_broker.wire.frames import RequestHeader, write_request_header
from reference_broker.wire.messages import decode_request, encode_request


def leading(voters: int = 3) -> Alone:
    return Alone(voters).started().elect(*range(1, voters))


# Contact


@pytest.mark.clause(
    "KafkaRaftClientTest.testBeginQuorumEpochHeartbeat",
    "LeaderStateTest.testFollowerAcknowledgement",
    "LeaderStateTest.testBeginQuorumEpochTimer",
)
def test_leader_sends_begin_quorum_epoch_to_silent_voters_at_half_fetch_timeout() -> None:
    node = leading()
    for request in node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH):
        request.replied(build_begin_quorum_epoch_response(RaftResponse(ErrorCode.none, 0, 1)))
    node.pass_ms(500)
    node.fetch(1, 1, 1)
    node.quorum.note_contact(2)
    node.pass_ms(499)
    assert not node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH)
    node.pass_ms(1)
    assert not node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH), "both have responded"
    node.fetch(2, 1, 1)
    node.pass_ms(1000)
    (again,) = node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH)[:1]
    assert again.peer == 1
    again.replied(build_begin_quorum_epoch_response(RaftResponse(ErrorCode.none, 0, 1)))
    node.pass_ms(1000)
    assert 1 in {request.peer for request in node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH)}, "again and again"


@pytest.mark.clause("KafkaRaftClientTest.testFetchShouldBeTreatedAsLeaderAcknowledgement")
def test_fetch_acknowledges_lost_begin_quorum_epoch() -> None:
    node = leading(2)
    (lost,) = node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH)
    node.pass_ms(900)
    node.fetch(1, 0, 0)
    lost.failed()
    node.pass_ms(200)
    assert not node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH)


@pytest.mark.clause(
    "KafkaRaftClientTest.testLeaderShouldNotResignLeadershipIfOnlyOneVoters",
    "LeaderStateTest.testCheckQuorumWithOneVoter",
)
def test_leader_without_other_voters_does_not_resign() -> None:
    node = Alone(1).started()
    node.pass_ms(600_000)
    assert node.quorum.is_leader
    assert not node.sent


@pytest.mark.clause(
    "KafkaRaftClientTest.testLeaderShouldResignLeadershipIfNotGetFetchRequestFromMajorityVoters",
    "LeaderStateTest.testCheckQuorum",
    "KafkaRaftClientSnapshotTest.testLeaderShouldResignLeadershipIfNotGetFetchSnapshotRequestFromMajorityVoters",
)
@pytest.mark.parametrize("voters", [3, 5])
def test_leader_without_majority_resigns(voters: int) -> None:
    """A majority counts the leader itself. Observers do not count, whether they fetch the log or a snapshot."""
    node = leading(voters)
    too_few = range(1, voters // 2)
    for _ in range(4):
        for peer in (*too_few, 7):
            node.fetch(peer, 1, 1)
        node.quorum.note_contact(8)
        node.pass_ms(749)
    assert node.quorum.is_leader
    node.pass_ms(4)
    assert node.quorum.role is Role.RESIGNED


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testLeaderShouldResignLeadershipIfNotGetFetchSnapshotRequestFromMajorityVoters"
)
def test_snapshot_fetch_counts_as_contact() -> None:
    node = leading(3)
    for _ in range(8):
        node.quorum.note_contact(1)
        node.pass_ms(1500)
    assert node.quorum.is_leader


# Elections


@pytest.mark.clause("KafkaRaftClientTest.testVoteRequestTimeout")
def test_lost_vote_request_is_retried() -> None:
    node = roles.candidate()
    first, second = node.take_requests(ApiKey.VOTE)
    first.failed()
    second.failed()
    node.pass_ms(50)
    again = node.take_requests(ApiKey.VOTE)
    assert [(each.peer, each.partition.pre_vote) for each in again] == [(1, False), (2, False)]
    again[0].replied(granted(again[0], True))
    assert (node.quorum.role, node.quorum.epoch) == (Role.LEADER, 6)


@pytest.mark.clause("KafkaRaftClientTest.testCandidateElectionTimeout")
def test_candidate_without_responses_becomes_prospective() -> None:
    node = roles.candidate()
    node.pass_ms(999)
    assert node.quorum.role is Role.CANDIDATE
    node.sent.clear()
    node.pass_ms(1001)
    assert (node.quorum.role, node.quorum.epoch) == (Role.PROSPECTIVE, 6)
    assert node.take_requests(ApiKey.VOTE)[0].partition.pre_vote


@pytest.mark.clause("KafkaRaftClientTest.testGrantVotesWhenShuttingDown")
def test_leader_rejects_votes_of_its_epoch_and_resigns_for_newer() -> None:
    node = leading()
    assert node.request_vote(1, 1, OffsetAndEpoch(9, 0)) == [RaftResponse(ErrorCode.none, 0, 1, False)]
    node.quorum.shut_down(lambda: None)
    assert node.request_vote(1, 2, OffsetAndEpoch(9, 1)) == [RaftResponse(ErrorCode.none, -1, 2, True)], (
        "also while it leaves"
    )


@pytest.mark.clause(
    "KafkaRaftClientTest.testAppendFailedWithNotLeaderException", "KafkaRaftClientTest.testCannotResignIfNotLeader"
)
def test_append_and_resign_of_non_leader_raise() -> None:
    for state in (roles.follower, roles.unattached, roles.candidate):
        node = state()
        with pytest.raises(NotLeader):
            node.append()
        with pytest.raises(AssertionError, match="resigns"):
            node.quorum.resign("requested by the test")


@pytest.mark.clause("KafkaRaftClientTest.testCandidateIgnoreVoteRequestOnSameEpoch", "CandidateStateTest.testGrantVote")
def test_candidate_votes_only_for_itself() -> None:
    node = roles.candidate()
    assert node.request_vote(1, 6, OffsetAndEpoch(9, 5)) == [RaftResponse(ErrorCode.none, -1, 6, False)]
    assert (node.quorum.role, node.quorum.voted_id) == (Role.CANDIDATE, 0)


# State of the others at the leader


@pytest.mark.clause(
    "KafkaRaftClientTest.testListenerCommitCallbackAfterLeaderWrite",
    "LeaderStateTest.testUpdateHighWatermarkQuorumSizeTwo",
)
def test_high_watermark_is_reported_when_majority_has_records() -> None:
    node = leading(2)
    node.fetch(1, 1, 1)
    assert node.notifications[-1] == ("hw", 1)
    node.append(3)
    node.fetch(1, 1, 1)
    assert node.notifications[-1] == ("hw", 1)
    node.fetch(1, 4, 1)
    assert node.notifications[-1] == ("hw", 4)


@pytest.mark.clause("KafkaRaftClientTest.testLeaderAppendSingleMemberQuorum")
def test_log_of_quorum_of_one_starts_with_leader_change() -> None:
    node = Alone(1).started()
    node.append()
    (response,) = node.fetch(7, 0, 0)
    assert isinstance(response, PartitionData)
    first, second = (header for _, header in validate(bytes(response.records or b"")))
    assert (first.is_control, first.base_offset, first.leader_epoch) == (True, 0, 1)
    assert (second.is_control, second.base_offset, second.leader_epoch) == (False, 1, 1)
    assert response.high_watermark == 2


@pytest.mark.clause(
    "KafkaRaftClientTest.testDescribeQuorumNonLeader", "KafkaRaftClientTest.testDescribeQuorumWithFollowers"
)
def test_only_leader_describes_quorum() -> None:
    node = leading(2)
    assert node.quorum.describe().leader_id == 0
    node.pass_ms(3000)
    for other in (node, roles.follower(), roles.unattached()):
        with pytest.raises(NotLeader):
            other.quorum.describe()


@pytest.mark.clause(
    "KafkaRaftClientTest.testDescribeQuorumNonMonotonicFollowerFetch",
    "LeaderStateTest.testNonMonotonicHighWatermarkUpdate",
)
def test_voter_with_lost_disk_is_described_and_does_not_commit_again() -> None:
    node = leading(2)
    node.append(2)
    node.fetch(1, 3, 1)
    caught_up_ms = node.now().wall_ms
    node.pass_ms(100)
    node.fetch(1, 2, 1)
    described = node.quorum.describe()
    voter = described.voters[1]
    assert (voter.log_end_offset, voter.last_fetch_ms, voter.last_caught_up_ms) == (2, caught_up_ms + 100, caught_up_ms)
    assert described.high_watermark == 3
    assert ("hw", 2) not in node.notifications


@pytest.mark.clause("LeaderStateTest.testIdempotentEndOffsetUpdate")
def test_repeated_fetch_reports_high_watermark_once() -> None:
    """The high watermark is reported once although a follower names the same end repeatedly."""
    node = leading(2)
    node.append()
    for _ in range(3):
        node.fetch(1, 2, 1)
    assert [notification for notification in node.notifications if notification[0] == "hw"] == [("hw", 2)]


@pytest.mark.clause("KafkaRaftClientTest.testLeaderStateUpdateWithDifferentFetchRequestVersions")
@pytest.mark.parametrize("version", range(13, 19))
def test_fetch_by_topic_id_moves_high_watermark_in_each_version(version: int) -> None:
    """Up to version 14 the replica's ID is a field of the request, from 15 on a tagged one (KIP-903)."""
    node = leading(2)
    request = build_fetch_request(CLUSTER, 1, 1, OffsetAndEpoch(1, 1), 0, -1, 0)
    frame = b"".join(bytes(each) for each in encode_request(ApiKey.FETCH, version, 1, "x", request))
    body_offset = 4 + len(write_request_header(RequestHeader(ApiKey.FETCH, version, 1, "x")))
    decoded = decode_request(ApiKey.FETCH, version, memoryview(frame), body_offset)
    assert isinstance(decoded, FetchRequest)
    (response,) = node.fetch_as(decoded)
    assert response.error_code == ErrorCode.none
    assert node.quorum.high_watermark == 1
