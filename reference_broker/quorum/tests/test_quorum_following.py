"""Conversations of a follower: fetches, truncation, leaders that vanish, snapshots."""

from typing import Any

import pytest

from reference_broker.quorum.messages import read_fetched
from reference_broker.quorum.metadata_log import CutBelowHighWatermark, Diverging, NeedsSnapshot
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
def test_a_follower_names_only_what_is_durable() -> None:
    node = Alone().following(1, 5)
    node.auto_sync = False
    node.respond_to_fetch(batch(0, 5, count=2))
    assert not node.take(ApiKey.FETCH)
    node.sync_all()
    (sent,) = node.take(ApiKey.FETCH)
    assert (sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == (2, 5)


def test_an_error_that_nobody_knows_is_one_of_the_server() -> None:
    """A newer node may send it, or a byte was damaged on its way. The follower asks again."""
    data = PartitionData(0, 1024, 0)
    body = FetchResponse(responses=[FetchTopicResponse("", METADATA_TOPIC_ID, [data])])
    answer = read_fetched(body)
    assert answer is not None
    assert answer.error is ErrorCode.unknown_server_error


@pytest.mark.clause("KafkaRaftClientTest.testObserverReplication")
def test_an_observer_does_not_wait_for_its_disk() -> None:
    node = Alone(3, node_id=4).started()
    node.pass_ms(20)
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=1, epoch=5)
    node.auto_sync = False
    node.respond_to_fetch(batch(0, 5, count=2))
    assert node.take(ApiKey.FETCH)[0].partition.fetch_offset == 2


@pytest.mark.clause("KafkaRaftClientFetchTest.testHighWatermarkSentInFetchRequest")
def test_a_fetch_says_who_requests_and_what_it_knows() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5, count=2), high_watermark=1)
    sent = node.sent[0]
    assert (sent.peer, sent.body.replica_id, sent.body.cluster_id, sent.body.max_wait_ms) == (1, 0, "cluster", 1000)
    assert (sent.body.session_id, sent.body.session_epoch) == (0, -1)
    assert (sent.partition.current_leader_epoch, sent.partition.high_watermark) == (5, 1)


@pytest.mark.parametrize(
    ("fetch_ms", "request_ms", "wait_ms"), [(2000, 500, 250), (600, 2000, 300), (9000, 9000, 1000)]
)
def test_a_quiet_leader_responses_before_its_followers_give_up(fetch_ms: int, request_ms: int, wait_ms: int) -> None:
    settings: Any = {
        "controller.quorum.fetch.timeout.ms": f"{fetch_ms}",
        "controller.quorum.request.timeout.ms": f"{request_ms}",
    }
    node = Alone(**settings).following(1, 5)
    assert node.sent[0].body.max_wait_ms == wait_ms


@pytest.mark.clause("KafkaRaftClientFetchTest.testReplicationOfHigherPartitionLeaderEpoch")
def test_records_of_a_higher_epoch_are_not_taken() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5) + batch(1, 6))
    assert node.log.end == OffsetAndEpoch(1, 5)


@pytest.mark.clause("KafkaRaftClientFetchTest.testRandomRecords", "KafkaRaftClientFetchTest.testInvalidMemoryRecords")
@pytest.mark.parametrize("damage", [b"\x00" * 200, batch(0, 5)[:-1], batch(7, 5)], ids=["zeros", "torn", "a hole"])
def test_damaged_records_are_ignored_and_requested_again_later(damage: bytes) -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(damage)
    assert node.log.end == OffsetAndEpoch(0, 0)
    assert not node.sent, "not in a loop"
    node.pass_ms(50)
    assert node.take(ApiKey.FETCH)[0].partition.fetch_offset == 0


@pytest.mark.clause("KafkaRaftClientTest.testFollowerLogReconciliation")
def test_a_diverging_follower_cuts_its_log_durably_and_goes_on() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=2) + batch(2, 3, count=2) + batch(4, 3))
    node.begin(2, 6)
    node.sent[:] = node.sent[-1:]
    node.auto_sync = False
    node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(4, 3)), leader=2)
    assert node.log.end == OffsetAndEpoch(4, 3)
    assert not node.sent
    node.sync_all()
    assert node.take(ApiKey.FETCH)[0].partition.fetch_offset == 4
    assert ("truncated", {"offset": 4}) in node.notes


def test_committed_records_are_never_cut() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=2) + batch(2, 3), high_watermark=3)
    node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(2, 2)))
    node.pass_ms(50)
    with pytest.raises(CutBelowHighWatermark, match="below its high watermark 3"):
        node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(2, 2)))


def test_a_single_response_that_would_cut_committed_records_may_be_damaged() -> None:
    node = Alone().following(1, 3)
    node.respond_to_fetch(batch(0, 2, count=2) + batch(2, 3), high_watermark=3)
    for offset in (3, 4):
        node.respond_to_fetch(validity=Diverging(OffsetAndEpoch(0, 0)))
        node.pass_ms(50)
        assert node.log.end.offset == offset
        node.respond_to_fetch(batch(offset, 3), high_watermark=offset)


def test_a_response_from_an_older_epoch_is_ignored() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 4), epoch=4, leader=2)
    assert node.log.end.offset == 0
    assert node.quorum.epoch == 5


@pytest.mark.clause("KafkaRaftClientTest.testFetchResponseIgnoredAfterBecomingProspective")
def test_a_response_to_another_role_is_not_taken() -> None:
    node = Alone().following(1, 5)
    (late,) = node.take(ApiKey.FETCH)
    node.pass_ms(2050)
    assert node.quorum.role is Role.PROSPECTIVE
    node.sent[:] = [late]
    node.respond_to_fetch(batch(0, 5))
    assert node.log.end.offset == 0


# A leader that is gone


def test_two_broken_connections_in_a_row_mean_that_the_leader_is_gone() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch()
    node.take(ApiKey.FETCH)[0].failed()
    node.pass_ms(20)
    assert node.ask_vote(2, 5, pre_vote=True)[0].granted is False, "once is not enough"
    node.take(ApiKey.FETCH)[0].failed()
    assert node.ask_vote(2, 5, pre_vote=True)[0].granted is True
    node.pass_ms(50)
    assert node.quorum.role is Role.PROSPECTIVE


def test_a_response_in_between_means_that_it_is_there() -> None:
    node = Alone().following(1, 5)
    for _ in range(6):
        node.take(ApiKey.FETCH)[0].failed()
        node.pass_ms(20)
        node.respond_to_fetch()
    node.pass_ms(200)
    assert node.quorum.role is Role.FOLLOWER


def test_a_leader_that_says_it_is_none_is_let_go() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch()
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=-1)
    node.pass_ms(50)
    assert node.quorum.role is Role.PROSPECTIVE


@pytest.mark.clause(
    "KafkaRaftClientTest.testVoterBecomeProspectiveAfterFetchTimeout", "FollowerStateTest.testFetchTimeoutExpiration"
)
def test_silence_for_the_fetch_timeout_means_that_it_is_gone() -> None:
    node = Alone().following(1, 5)
    node.pass_ms(1999)
    assert node.quorum.role is Role.FOLLOWER
    node.pass_ms(51)
    assert node.quorum.role is Role.PROSPECTIVE  # type: ignore[comparison-overlap]  # It changed.


def test_an_observer_requests_the_voters_who_leads() -> None:
    node = Alone(3, node_id=4).started()
    sent = []
    for _ in range(4):
        node.pass_ms(500)
        (one,) = node.take(ApiKey.FETCH)
        sent.append(one.peer)
        assert one.body.max_wait_ms == 0
        one.failed()
    assert sorted(sent[:3]) == [0, 1, 2]
    assert sent[3] == sent[0]


def test_a_full_disk_does_not_end_a_follower() -> None:
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
def test_a_snapshot_takes_the_place_of_the_log() -> None:
    node = needing(WANTED)
    assert node.download.begun == [(1, 5, WANTED)]
    assert not node.take(ApiKey.FETCH), "no fetch meanwhile"
    node.snapshots.add(WANTED)
    assert node.log.install_snapshot(node.now(), WANTED)
    node.download.outcome(Installed(WANTED))
    assert node.news[-1] == ("snapshot", WANTED)
    assert node.quorum.high_watermark == 100
    (sent,) = node.take(ApiKey.FETCH)
    assert (sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == WANTED


def test_progress_refreshes_the_fetch_timeout() -> None:
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
def test_half_a_snapshot_id_is_ignored_and_the_fetch_timeout_goes_on(half: OffsetAndEpoch) -> None:
    node = Alone().following(1, 5)
    for _ in range(3):
        node.pass_ms(600)
        node.respond_to_fetch(validity=NeedsSnapshot(half))
        assert not node.sent
    assert not node.download.begun
    node.pass_ms(250)
    assert node.quorum.role is Role.PROSPECTIVE


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseMissingSnapshot")
@pytest.mark.clause("S-10")
def test_a_missing_snapshot_is_rediscovered_from_offset_0() -> None:
    node = needing(WANTED)
    node.download.outcome(Rediscover())
    (sent,) = node.take(ApiKey.FETCH)
    assert (sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == (0, 0)


@pytest.mark.clause("S-10")
def test_rediscovery_takes_no_records() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 5, count=3))
    node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
    node.download.outcome(Rediscover())
    node.respond_to_fetch(batch(0, 5))
    assert node.log.end.offset == 3
    assert node.take(ApiKey.FETCH)[0].partition.fetch_offset == 3


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFetchSnapshotResponseFromNewerEpochNotLeader",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotResponseFromNewerEpochLeader",
)
@pytest.mark.parametrize("leader", [-1, 2])
def test_a_download_may_report_of_a_newer_epoch(leader: int) -> None:
    node = needing(WANTED)
    node.download.outcome(LeaderChanged(leader, 8))
    assert (node.quorum.epoch, node.quorum.leader_id) == (8, leader)


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseFromOlderEpoch")
@pytest.mark.parametrize("epoch", [1, 4])
def test_a_download_that_reports_of_an_older_epoch_is_begun_again(epoch: int) -> None:
    node = needing(WANTED)
    node.download.outcome(LeaderChanged(2, epoch))
    assert (node.quorum.epoch, node.quorum.leader_id, node.quorum.role) == (5, 1, Role.FOLLOWER)
    node.pass_ms(50)
    node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
    assert node.download.begun == [(1, 5, WANTED)] * 2


def test_a_download_that_fails_is_begun_again_with_a_fetch() -> None:
    node = needing(WANTED)
    node.download.outcome(Failed())
    node.pass_ms(50)
    assert node.take(ApiKey.FETCH)[0].partition.fetch_offset == 0


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseToNotFollower")
def test_what_a_download_says_to_another_role_is_ignored() -> None:
    node = needing(WANTED)
    node.pass_ms(2050)
    node.download.outcome(Installed(WANTED))
    assert node.quorum.high_watermark == -1


def test_a_download_that_must_wait_keeps_the_leader_in_sight_and_does_not_hammer_it() -> None:
    """A damaged snapshot, or a full disk, once led to fifty downloads a second."""
    node = Alone().following(1, 5)
    node.download.waits_us = 10**9
    sent = 0
    for _ in range(100):
        if any(each.api_key == ApiKey.FETCH for each in node.sent):
            sent += 1
            node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
        node.pass_ms(100)
    assert (node.quorum.role, node.download.begun) == (Role.FOLLOWER, [])
    assert 10 <= sent <= 40, "at most a few a second, and never silent for as long as the fetch timeout"
    node.download.waits_us = 0
    node.pass_ms(1000)
    node.respond_to_fetch(validity=NeedsSnapshot(WANTED))
    assert node.download.begun == [(1, 5, WANTED)]


def test_a_disk_that_stays_full_is_tried_ever_more_seldom_without_losing_the_leader() -> None:
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
