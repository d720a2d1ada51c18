"""A follower: fetches, truncation, lost leaders, snapshots."""

from typing import Any

import pytest

from reference_broker.quorum.messages import read_fetch_response
from reference_broker.quorum.metadata_log import Diverging, NeedsSnapshot, TruncationBelowHighWatermark
from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests.quorum_alone import Alone, batch
from reference_broker.quorum.values import (
    METADATA_TOPIC_ID,
    Failed,
    Installed,
    LeaderChanged,
    OffsetAndEpoch,
    Rediscover,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse, FetchTopicResponse, PartitionData

# Following


@pytest.mark.clause("KafkaRaftClientTest.testFollowerReplication")
def test_follower_fetches_from_durable_end() -> None:
    node = Alone().following(1, 5)
    node.auto_sync = False
    node.respond_to_fetch(batch(0, 5, count=2))
    assert not node.take_requests(ApiKey.FETCH)
    node.sync_all()
    (sent,) = node.take_requests(ApiKey.FETCH)
    assert (sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == (2, 5)


def test_unknown_error_code_is_unknown_server_error() -> None:
    """A newer node may send it, or a byte was damaged in transit. The follower retries."""
    data = PartitionData(0, 1024, 0)
    body = FetchResponse(responses=[FetchTopicResponse("", METADATA_TOPIC_ID, [data])])
    response = read_fetch_response(body)
    assert response is not None
    assert response.error is ErrorCode.unknown_server_error


@pytest.mark.clause("KafkaRaftClientTest.testObserverReplication")
def test_observer_fetches_without_waiting_for_sync() -> None:
    node = Alone(3, node_id=4).started()
    node.pass_ms(20)
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=1, epoch=5)
    node.auto_sync = False
    node.respond_to_fetch(batch(0, 5, count=2))
    assert node.take_requests(ApiKey.FETCH)[0].partition.fetch_offset == 2


@pytest.mark.clause("KafkaRaftClientFetchTest.testHighWatermarkSentInFetchRequest")
def test_fetch_has_replica_epoch_and_offset() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5, count=2), high_watermark=1)
    sent = node.sent[0]
    assert sent.peer == 1
    assert sent.body.replica_id == 0
    assert sent.body.cluster_id == "cluster"
    assert sent.body.max_wait_ms == 1000
    assert (sent.body.session_id, sent.body.session_epoch) == (0, -1)
    assert (sent.partition.current_leader_epoch, sent.partition.high_watermark) == (5, 1)


@pytest.mark.parametrize(
    ("fetch_ms", "request_ms", "wait_ms"), [(2000, 500, 250), (600, 2000, 300), (9000, 9000, 1000)]
)
def test_fetch_wait_is_shorter_than_timeouts(fetch_ms: int, request_ms: int, wait_ms: int) -> None:
    settings: Any = {
        "controller.quorum.fetch.timeout.ms": f"{fetch_ms}",
        "controller.quorum.request.timeout.ms": f"{request_ms}",
    }
    node = Alone(**settings).following(1, 5)
    assert node.sent[0].body.max_wait_ms == wait_ms


@pytest.mark.clause("KafkaRaftClientFetchTest.testReplicationOfHigherPartitionLeaderEpoch")
def test_records_of_higher_epoch_are_not_appended() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5) + batch(1, 6))
    assert node.log.end == OffsetAndEpoch(1, 5)


@pytest.mark.clause("KafkaRaftClientFetchTest.testRandomRecords", "KafkaRaftClientFetchTest.testInvalidMemoryRecords")
@pytest.mark.parametrize("damage", [b"\x00" * 200, batch(0, 5)[:-1], batch(7, 5)], ids=["zeros", "torn", "a hole"])
def test_damaged_records_are_ignored_and_fetched_again(damage: bytes) -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(damage)
    assert node.log.end == OffsetAndEpoch(0, 0)
    assert not node.sent, "not in a loop"
    node.pass_ms(50)
    assert node.take_requests(ApiKey.FETCH)[0].partition.fetch_offset == 0


@pytest.mark.clause("KafkaRaftClientTest.testFollowerLogReconciliation")
def test_diverging_follower_truncates_durably_then_fetches() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=2) + batch(2, 3, count=2) + batch(4, 3))
    node.begin(2, 6)
    node.sent[:] = node.sent[-1:]
    node.auto_sync = False
    node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(4, 3)), leader=2)
    assert node.log.end == OffsetAndEpoch(4, 3)
    assert not node.sent
    node.sync_all()
    assert node.take_requests(ApiKey.FETCH)[0].partition.fetch_offset == 4
    assert ("truncated", {"offset": 4}) in node.notes


def test_truncation_of_committed_records_raises() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=2) + batch(2, 3), high_watermark=3)
    node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(2, 2)))
    node.pass_ms(50)
    with pytest.raises(TruncationBelowHighWatermark, match="below its high watermark 3"):
        node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(2, 2)))


def test_single_response_truncating_committed_records_is_ignored() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=2) + batch(2, 3), high_watermark=3)
    for offset in (3, 4):
        node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(0, 0)))
        node.pass_ms(50)
        assert node.log.end.offset == offset
        node.respond_to_fetch(batch(offset, 3), high_watermark=offset)


def test_response_of_older_epoch_is_ignored() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 4), epoch=4, leader=2)
    assert node.log.end.offset == 0
    assert node.quorum.epoch == 5


@pytest.mark.clause("KafkaRaftClientTest.testFetchResponseIgnoredAfterBecomingProspective")
def test_response_to_earlier_role_is_ignored() -> None:
    node = Alone().following(1, 5)
    (late,) = node.take_requests(ApiKey.FETCH)
    node.pass_ms(2050)
    assert node.quorum.role is Role.PROSPECTIVE
    node.sent[:] = [late]
    node.respond_to_fetch(batch(0, 5))
    assert node.log.end.offset == 0


# A lost leader


def test_two_consecutive_failures_make_leader_lost() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch()
    node.take_requests(ApiKey.FETCH)[0].failed()
    node.pass_ms(20)
    assert node.request_vote(2, 5, pre_vote=True)[0].granted is False, "once is not enough"
    node.take_requests(ApiKey.FETCH)[0].failed()
    assert node.request_vote(2, 5, pre_vote=True)[0].granted is True
    node.pass_ms(50)
    assert node.quorum.role is Role.PROSPECTIVE


def test_response_between_failures_keeps_leader() -> None:
    node = Alone().following(1, 5)
    for _ in range(6):
        node.take_requests(ApiKey.FETCH)[0].failed()
        node.pass_ms(20)
        node.respond_to_fetch()
    node.pass_ms(200)
    assert node.quorum.role is Role.FOLLOWER


def test_not_leader_response_makes_follower_unattached() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch()
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=-1)
    node.pass_ms(50)
    assert node.quorum.role is Role.PROSPECTIVE


@pytest.mark.clause(
    "KafkaRaftClientTest.testVoterBecomeProspectiveAfterFetchTimeout", "FollowerStateTest.testFetchTimeoutExpiration"
)
def test_fetch_timeout_makes_prospective() -> None:
    node = Alone().following(1, 5)
    node.pass_ms(1999)
    assert node.quorum.role is Role.FOLLOWER
    node.pass_ms(51)
    assert node.quorum.role is Role.PROSPECTIVE  # type: ignore[comparison-overlap]  # It changed.


def test_observer_queries_voters_for_leader() -> None:
    node = Alone(3, node_id=4).started()
    sent = []
    for _ in range(4):
        node.pass_ms(500)
        (one,) = node.take_requests(ApiKey.FETCH)
        sent.append(one.peer)
        assert one.body.max_wait_ms == 0
        one.failed()
    assert sorted(sent[:3]) == [0, 1, 2]
    assert sent[3] == sent[0]


def test_full_disk_does_not_end_follower() -> None:
    node = Alone().following(1, 5)
    node.disk.fail_after = 0
    node.respond_to_fetch(batch(0, 5))
    node.disk.fail_after = None
    node.pass_ms(50)
    node.respond_to_fetch(batch(0, 5))
    assert node.log.end == OffsetAndEpoch(1, 5)


# Snapshots


def needing(id: OffsetAndEpoch) -> Alone:  # noqa: A002
    node = Alone().following(1, 5)
    node.respond_to_fetch(validity=NeedsSnapshot(id))
    return node


WANTED = OffsetAndEpoch(100, 4)


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFollowerListenerNotified",
    "KafkaRaftClientSnapshotTest.testFetchResponseWithSnapshotId",
)
@pytest.mark.clause("S-9")
def test_snapshot_replaces_log() -> None:
    node = needing(WANTED)
    assert node.download.started == [(1, 5, WANTED)]
    assert not node.take_requests(ApiKey.FETCH), "no fetch meanwhile"
    node.snapshots.add(WANTED)
    assert node.log.install_snapshot(node.now(), WANTED)
    node.download.outcome(Installed(WANTED))
    assert node.notifications[-1] == ("snapshot", WANTED)
    assert node.quorum.high_watermark == 100
    (sent,) = node.take_requests(ApiKey.FETCH)
    assert (sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == WANTED


def test_download_progress_resets_fetch_timeout() -> None:
    node = needing(WANTED)
    for _ in range(5):
        node.pass_ms(1900)
        node.download.progress()
    assert node.quorum.role is Role.FOLLOWER
    node.pass_ms(2050)
    assert node.quorum.role is Role.PROSPECTIVE  # type: ignore[comparison-overlap]  # It changed.
    assert node.download.cancels == 1


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchResponseWithInvalidSnapshotId")
@pytest.mark.parametrize("half", [OffsetAndEpoch(-1, 4), OffsetAndEpoch(100, -1)])
def test_partial_snapshot_id_is_ignored_and_does_not_reset_fetch_timeout(half: OffsetAndEpoch) -> None:
    node = Alone().following(1, 5)
    for _ in range(3):
        node.pass_ms(600)
        node.respond_to_fetch(validity=NeedsSnapshot(half))
        assert not node.sent
    assert not node.download.started
    node.pass_ms(250)
    assert node.quorum.role is Role.PROSPECTIVE


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseMissingSnapshot")
@pytest.mark.clause("S-10")
def test_missing_snapshot_is_rediscovered_from_offset_zero() -> None:
    node = needing(WANTED)
    node.download.outcome(Rediscover())
    (sent,) = node.take_requests(ApiKey.FETCH)
    assert (sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == (0, 0)


@pytest.mark.clause("S-10")
def test_rediscovery_appends_no_records() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5, count=3))
    node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
    node.download.outcome(Rediscover())
    node.respond_to_fetch(batch(0, 5))
    assert node.log.end.offset == 3
    assert node.take_requests(ApiKey.FETCH)[0].partition.fetch_offset == 3


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFetchSnapshotResponseFromNewerEpochNotLeader",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotResponseFromNewerEpochLeader",
)
@pytest.mark.parametrize("leader", [-1, 2])
def test_download_reporting_newer_epoch_changes_role(leader: int) -> None:
    node = needing(WANTED)
    node.download.outcome(LeaderChanged(leader, 8))
    assert (node.quorum.epoch, node.quorum.leader_id) == (8, leader)


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseFromOlderEpoch")
@pytest.mark.parametrize("epoch", [1, 4])
def test_download_reporting_older_epoch_is_restarted(epoch: int) -> None:
    node = needing(WANTED)
    node.download.outcome(LeaderChanged(2, epoch))
    assert (node.quorum.epoch, node.quorum.leader_id, node.quorum.role) == (5, 1, Role.FOLLOWER)
    node.pass_ms(50)
    node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
    assert node.download.started == [(1, 5, WANTED)] * 2


def test_failed_download_is_restarted_with_fetch() -> None:
    node = needing(WANTED)
    node.download.outcome(Failed())
    node.pass_ms(50)
    assert node.take_requests(ApiKey.FETCH)[0].partition.fetch_offset == 0


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseToNotFollower")
def test_download_outcome_for_earlier_role_is_ignored() -> None:
    node = needing(WANTED)
    node.pass_ms(2050)
    node.download.outcome(Installed(WANTED))
    assert node.quorum.high_watermark == -1


def test_delayed_download_keeps_contact_with_leader() -> None:
    """A damaged snapshot, or a full disk, once caused fifty downloads a second."""
    node = Alone().following(1, 5)
    node.download.waits_us = 10**9
    sent = 0
    for _ in range(100):
        if any(each.api_key == ApiKey.FETCH for each in node.sent):
            sent += 1
            node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
        node.pass_ms(100)
    assert (node.quorum.role, node.download.started) == (Role.FOLLOWER, [])
    assert 10 <= sent <= 40, "at most a few a second, and never silent for as long as the fetch timeout"
    node.download.waits_us = 0
    node.pass_ms(1000)
    node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
    assert node.download.started == [(1, 5, WANTED)]


def test_full_disk_backs_off_without_losing_leader() -> None:
    node = Alone().following(1, 5)
    node.disk.fail_after = 0
    tries = 0
    for _ in range(400):
        if any(each.api_key == ApiKey.FETCH for each in node.sent):
            tries += 1
            node.respond_to_fetch(batch(0, 5))
        node.pass_ms(50)
    assert node.quorum.role is Role.FOLLOWER
    assert tries < 60, "20 s of a full disk"
    node.disk.fail_after = None
    node.pass_ms(1000)
    node.respond_to_fetch(batch(0, 5))
    assert node.log.end == OffsetAndEpoch(1, 5)
