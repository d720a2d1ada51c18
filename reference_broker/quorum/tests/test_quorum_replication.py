"""A leader's log: the high watermark, fetches, divergence."""

from typing import Any

import pytest

from reference_broker.quorum.tests.quorum_alone import CLUSTER, Alone, batch
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchRequest, FetchResponse, PartitionData

CONFIRMED = 2**63 - 1


def leading(voters: int = 3, **settings: Any) -> Alone:
    node = Alone(voters, **settings).started().elect(*range(1, voters))
    node.sent.clear()
    return node


def snapshot_at(node: Alone, offset: int) -> OffsetAndEpoch:
    """Make a snapshot at a committed offset, and delete the log before it."""
    made = OffsetAndEpoch(offset, node.log.log.epoch_at(offset - 1))
    node.snapshots.add(made)
    assert node.log.delete_before(made)
    return made


# The high watermark


@pytest.mark.clause("LeaderStateTest.testUpdateHighWatermarkQuorumSizeThree")
def test_high_watermark_is_durable_end_of_majority() -> None:
    node = leading(5)
    node.append(3)
    node.fetch(1, 4, 1)
    assert node.quorum.high_watermark == -1
    node.fetch(2, 2, 1)
    assert node.quorum.high_watermark == 2
    node.fetch(3, 3, 1)
    assert node.quorum.high_watermark == 3
    node.fetch(7, 4, 1)  # An observer.
    assert node.quorum.high_watermark == 3


def test_leader_counts_itself_up_to_synced_end() -> None:
    node = leading()
    node.auto_sync = False
    node.append()
    node.fetch(1, 2, 1)
    assert node.quorum.high_watermark == 1
    node.sync_all()
    assert node.quorum.high_watermark == 2


def test_older_epochs_are_committed_with_first_record_of_epoch() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5, count=4))
    node.elect(2)
    assert node.quorum.epoch_start_offset == 4
    node.fetch(2, 4, 5)
    assert node.quorum.high_watermark == -1
    node.fetch(2, 5, 6)
    assert node.quorum.high_watermark == 5


@pytest.mark.clause("LeaderStateTest.testUpdateHighWatermarkQuorumSizeThree")
def test_high_watermark_does_not_go_back() -> None:
    node = leading()
    node.append(3)
    node.fetch(1, 4, 1)
    assert node.quorum.high_watermark == 4
    node.fetch(1, 1, 1)
    assert node.quorum.high_watermark == 4
    assert [notification for notification in node.notifications if notification[0] == "hw"] == [("hw", 4)]


@pytest.mark.clause("FollowerStateTest.testMonotonicHighWatermark")
def test_follower_high_watermark_is_capped_at_log_end() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5, count=2), high_watermark=9)
    assert node.quorum.high_watermark == 2
    node.respond_to_fetch(high_watermark=1)
    assert node.quorum.high_watermark == 2


# Responses to fetches


@pytest.mark.clause(
    "KafkaRaftClientTest.testInvalidFetchRequest",
    "KafkaRaftClientTest.testFetchRequestClusterIdValidation",
    "KafkaRaftClientSnapshotTest.testFetchRequestWithLargerLastFetchedEpoch",
)
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"topics": []}, ErrorCode.invalid_request),
        ({"cluster_id": None}, ErrorCode.inconsistent_cluster_id),
        ({"cluster_id": None, "replica": -1}, ErrorCode.none),
        ({"wait_ms": -1, "current": 9}, ErrorCode.invalid_request),
        ({"current": 9}, ErrorCode.unknown_leader_epoch),
        ({"current": 0, "epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"current": 0, "epoch": 1}, ErrorCode.invalid_request),
        ({"epoch": 2}, ErrorCode.invalid_request),
        ({"epoch": -1}, ErrorCode.invalid_request),
        ({"offset": -1}, ErrorCode.invalid_request),
    ],
)
def test_fetch_errors_are_in_order_of_kafka(changed: dict[str, object], error: Error) -> None:
    node = leading()
    fetch: dict[str, object] = {"replica": 1, "offset": 1, "epoch": 1, **changed}
    response = node.fetch(**fetch)[0]  # type: ignore[arg-type]
    assert response.error_code == error


def test_fetch_by_topic_name_is_rejected() -> None:
    response = leading().fetch_as(FetchRequest(replica_id=1, cluster_id=CLUSTER))[0]
    assert isinstance(response, FetchResponse)
    assert response.error_code == ErrorCode.invalid_request


def test_non_leader_returns_not_leader_with_leader() -> None:
    response = Alone().following(1, 5).fetch(2, 0, 0)[0]
    assert isinstance(response, PartitionData)
    assert response.error_code == ErrorCode.not_leader_or_follower
    assert response.current_leader is not None
    assert (response.current_leader.leader_id, response.current_leader.leader_epoch) == (1, 5)


@pytest.mark.clause("KafkaRaftClientTest.testPurgatoryFetchSatisfiedByWrite")
def test_fetch_waits_for_records() -> None:
    node = leading()
    responses = node.fetch(1, 1, 1, wait_ms=500)
    node.pass_ms(499)
    assert not responses
    node.append(2)
    assert not responses, "records of one event are sent together"
    node.pass_ms(0)
    assert len(responses) == 1
    again = Alone().following(1, 1)
    again.log.append_fetched(node.now(), batch(0, 1), 1)
    assert again.log.append_fetched(node.now(), responses[0].records, 1)  # type: ignore[union-attr, arg-type]
    assert again.log.end == OffsetAndEpoch(3, 1)


@pytest.mark.clause("KafkaRaftClientTest.testPurgatoryFetchTimeout")
def test_fetch_waits_for_max_wait() -> None:
    node = leading()
    node.fetch(1, 1, 1)
    responses = node.fetch(1, 1, 1, wait_ms=500)
    node.pass_ms(500)
    assert [(response.error_code, bytes(response.records)) for response in responses] == [(ErrorCode.none, b"")]  # type: ignore[union-attr, arg-type]


def test_fetches_with_close_deadlines_complete_together() -> None:
    node = leading()
    node.fetch(1, 1, 1)
    node.fetch(2, 1, 1)
    first = node.fetch(1, 1, 1, wait_ms=500)
    near = node.fetch(2, 1, 1, wait_ms=515)
    later = node.fetch(-1, 1, 1, wait_ms=600)
    sooner = node.fetch(-1, 1, 1, wait_ms=100)
    node.pass_ms(100)
    assert (len(sooner), len(first)) == (1, 0)
    node.pass_ms(400)
    assert len(first) == 1
    assert len(near) == 1
    assert len(later) == 0
    node.pass_ms(100)
    assert len(later) == 1


def test_wait_of_fetch_is_limited() -> None:
    node = leading()
    responses = node.fetch(-1, 1, 1, wait_ms=2**31 - 1)
    node.pass_ms(2000)
    assert len(responses) == 1
    assert not node.quorum.state.parked  # type: ignore[attr-defined]


@pytest.mark.clause(
    "KafkaRaftClientFetchTest.testDefaultHwmDeferred", "KafkaRaftClientFetchTest.testUnchangedHighWatermarkDeferred"
)
@pytest.mark.parametrize(
    "known_high_watermark", [CONFIRMED, 4], ids=["testDefaultHwmDeferred", "testUnchangedHighWatermarkDeferred"]
)
def test_fetch_with_current_high_watermark_waits(known_high_watermark: int) -> None:
    node = leading()
    node.append(3)
    node.fetch(1, 4, 1)
    responses = node.fetch(1, 4, 1, wait_ms=500, high_watermark=known_high_watermark)
    node.pass_ms(499)
    assert not responses


@pytest.mark.clause("KafkaRaftClientFetchTest.testUnknownHwmDeferredWhenLeaderDoesNotKnowHwm")
def test_fetch_waits_while_high_watermark_is_unknown() -> None:
    assert not leading(5).fetch(1, 1, 1, wait_ms=500, high_watermark=-1)


@pytest.mark.clause("KafkaRaftClientFetchTest.testOutdatedHwmCompletedWhenLeaderKnowsHwm")
def test_fetch_with_stale_high_watermark_completes_at_once() -> None:
    node = leading()
    node.append(3)
    node.fetch(1, 4, 1)
    (response,) = node.fetch(2, 4, 1, wait_ms=500, high_watermark=3)
    assert response.high_watermark == 4  # type: ignore[union-attr]


@pytest.mark.clause("KafkaRaftClientFetchTest.testUpdatedHighWatermarkCompleted")
def test_new_high_watermark_completes_parked_fetches() -> None:
    node = leading(5)
    node.append(3)
    responses = node.fetch(1, 4, 1, wait_ms=500, high_watermark=-1)
    assert not responses
    node.fetch(2, 4, 1)
    assert [response.high_watermark for response in responses] == [4]  # type: ignore[union-attr]


@pytest.mark.clause(
    "KafkaRaftClientTest.testResignWillCompleteFetchPurgatory",
    "KafkaRaftClientTest.testPurgatoryFetchCompletedByFollowerTransition",
)
def test_lost_leadership_completes_parked_fetches_once_durable() -> None:
    node = leading()
    responses = node.fetch(1, 1, 1, wait_ms=500)
    node.auto_sync = False
    node.request_vote(2, 7, OffsetAndEpoch(9, 6))
    assert not responses
    node.sync_all()
    (response,) = responses
    assert isinstance(response, PartitionData)
    assert response.error_code == ErrorCode.not_leader_or_follower
    assert response.current_leader is not None
    assert response.current_leader.leader_epoch == 7


def test_newer_fetch_of_replica_completes_parked_one() -> None:
    node = leading()
    first = node.fetch(1, 1, 1, wait_ms=500)
    second = node.fetch(1, 1, 1, wait_ms=500)
    assert (len(first), len(second)) == (1, 0)


@pytest.mark.clause("KafkaRaftClientTest.testLeaderImmediatelySendsDivergingEpoch")
def test_diverging_fetch_returns_end_of_leaders_epoch() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=3) + batch(3, 3))
    node.elect(2)
    (response,) = node.fetch(1, 9, 3, wait_ms=500)
    assert isinstance(response, PartitionData)
    assert response.diverging_epoch is not None
    assert (response.diverging_epoch.epoch, response.diverging_epoch.end_offset) == (3, 4)
    assert not response.records


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testLeaderImmediatelySendsSnapshotId",
    "KafkaRaftClientSnapshotTest.testFetchRequestOffsetLessThanLogStart",
    "KafkaRaftClientSnapshotTest.testFetchRequestAtLogStartOffsetWithInvalidEpoch",
)
@pytest.mark.clause("S-10")
@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, 0), (2, 1), (4, 0)],
    ids=[
        "testFetchRequestOffsetAtZero",
        "testFetchRequestOffsetLessThanLogStart",
        "testFetchRequestAtLogStartOffsetWithInvalidEpoch",
    ],
)
def test_fetch_below_log_start_returns_snapshot_id_at_once(offset: int, epoch: int) -> None:
    node = leading()
    node.append(5)
    node.fetch(1, 6, 1)
    made = snapshot_at(node, 4)
    high_watermark = node.quorum.high_watermark
    (response,) = node.fetch(2, offset, epoch, wait_ms=500)
    assert response.snapshot_id is not None  # type: ignore[union-attr]
    assert (response.snapshot_id.end_offset, response.snapshot_id.epoch) == made  # type: ignore[union-attr]
    assert node.quorum.high_watermark == high_watermark


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchRequestAtLogStartOffsetWithValidEpoch")
@pytest.mark.clause("S-10")
def test_fetch_from_snapshot_end_returns_records() -> None:
    node = leading()
    node.append(5)
    node.fetch(1, 6, 1)
    snapshot_at(node, 4)
    (response,) = node.fetch(2, 4, 1)
    assert response.snapshot_id is None  # type: ignore[union-attr]
    assert len(response.records) > 0  # type: ignore[union-attr, arg-type]


@pytest.mark.clause(
    "KafkaRaftClientTest.testDescribeQuorumWithOnlyStaticVoters",
    "KafkaRaftClientTest.testDescribeQuorumWithFollowers",
    "KafkaRaftClientTest.testDescribeQuorumWithObserver",
)
def test_describe_quorum_returns_fetch_times() -> None:
    node = leading()
    node.append(3)
    node.fetch(1, 4, 1)
    at_ms = node.now().wall_ms
    node.pass_ms(100)
    node.fetch(7, 2, 1)
    described = node.quorum.describe()
    assert (described.leader_id, described.leader_epoch, described.high_watermark) == (0, 1, 4)
    own, one, two = described.voters
    assert (own.log_end_offset, own.last_fetch_ms) == (4, at_ms + 100)
    assert (one.log_end_offset, one.last_fetch_ms, one.last_caught_up_ms) == (4, at_ms, at_ms)
    assert (two.log_end_offset, two.last_fetch_ms, two.last_caught_up_ms) == (-1, -1, -1)
    (observer,) = described.observers
    assert (observer.replica_id, observer.log_end_offset, observer.last_caught_up_ms) == (7, 2, -1)
    node.pass_ms(100)
    node.append()
    node.fetch(7, 4, 1)
    assert node.quorum.describe().observers[0].last_caught_up_ms == at_ms + 100, "where the log ended at its last fetch"


@pytest.mark.clause("KafkaRaftClientTest.testDescribeQuorumWithObserver")
def test_silent_observer_is_dropped_after_minutes() -> None:
    node = leading(1)
    node.fetch(7, 1, 1)
    node.pass_ms(300_001)
    assert not node.quorum.describe().observers


def test_leader_request_errors_are_in_order() -> None:
    node = leading()
    check = node.quorum.validate_leader_only_request
    assert check("another", 9) is ErrorCode.inconsistent_cluster_id
    assert check("cluster", 0) is ErrorCode.fenced_leader_epoch
    assert check(None, 2) is ErrorCode.unknown_leader_epoch
    assert check(None, 1) is None
    assert Alone().following(1, 5).quorum.validate_leader_only_request(None, 5) is ErrorCode.not_leader_or_follower
    node.quorum.shut_down(lambda: None)
    assert check(None, 1) is ErrorCode.not_leader_or_follower
