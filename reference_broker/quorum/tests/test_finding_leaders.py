"""Finding the leader and leaving the quorum (KafkaRaftClientTest)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests import quorum_roles as roles
from reference_broker.quorum.tests.quorum_alone import Alone, batch
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

OBSERVER = 7


def observer() -> Alone:
    """Return an observer of the voters 0, 1 and 2 that follows node 1 in epoch 5."""
    node = Alone(node_id=OBSERVER).started()
    node.pass_ms(20)
    node.respond_to_fetch(error=ErrorCode.fenced_leader_epoch, leader=1, epoch=5)
    assert (node.quorum.role, node.quorum.leader_id) == (Role.FOLLOWER, 1)
    return node


@pytest.mark.clause("KafkaRaftClientTest.testInitializeObserverNoPreviousState")
def test_observer_without_state_finds_leader_through_voter() -> None:
    node = observer()
    (sent,) = node.take_requests(ApiKey.FETCH)
    assert sent.peer == 1
    partition = sent.partition
    assert (partition.current_leader_epoch, partition.fetch_offset, partition.last_fetched_epoch) == (5, 0, 0)
    assert partition.high_watermark == -1


@pytest.mark.clause("KafkaRaftClientTest.testObserverQuorumDiscoveryFailure")
def test_observer_retries_after_response_without_leader() -> None:
    node = Alone(node_id=OBSERVER).started()
    node.pass_ms(20)
    node.respond_to_fetch(error=ErrorCode.unknown_server_error, leader=-1, epoch=-1)
    assert node.quorum.role is Role.UNATTACHED
    node.pass_ms(500)
    node.respond_to_fetch(error=ErrorCode.fenced_leader_epoch, leader=1, epoch=5)
    assert (node.quorum.role, node.quorum.leader_id) == (Role.FOLLOWER, 1)


@pytest.mark.clause(
    "KafkaRaftClientTest.testFollowerAsObserverDoesNotBecomeProspectiveAfterFetchTimeout",
    "KafkaRaftClientTest.testObserverSendDiscoveryFetchAfterFetchTimeout",
    "KafkaRaftClientTest.testObserverHandleRetryFetchToBootstrapServer",
)
def test_observer_with_silent_leader_queries_other_voters() -> None:
    node = observer()
    (late,) = node.take_requests(ApiKey.FETCH)
    node.pass_ms(2050)
    assert node.quorum.role is Role.UNATTACHED
    sent: list[int] = []
    for _ in range(3):
        node.pass_ms(500)
        (one,) = node.take_requests(ApiKey.FETCH)
        sent.append(one.peer)
        one.failed()
    assert {0, 2} <= set(sent)
    node.sent[:] = [late]
    node.respond_to_fetch(batch(0, 5, count=2), epoch=5)
    assert node.log.end_offset == 0, "the response was to an earlier role"
    node.pass_ms(60_000)
    assert not node.take_requests(ApiKey.VOTE)


@pytest.mark.clause(
    "KafkaRaftClientTest.testObserverLeaderRediscoveryAfterBrokerNotAvailableError",
    "KafkaRaftClientTest.testObserverLeaderRediscoveryAfterRequestTimeout",
)
@pytest.mark.parametrize("is_timeout", [True, False])
def test_observer_finds_leader_again_after_failed_request(is_timeout: bool) -> None:
    node = observer()
    for _ in range(2):
        (one,) = node.take_requests(ApiKey.FETCH)
        if is_timeout:
            one.failed()
        else:
            node.sent[:] = [one]
            node.respond_to_fetch(error=ErrorCode.broker_not_available, leader=-1, epoch=-1)
        node.pass_ms(50)
    node.sent.clear()
    node.pass_ms(200)
    assert node.quorum.role is Role.UNATTACHED
    node.pass_ms(500)
    node.respond_to_fetch(leader=2, epoch=6, error=ErrorCode.not_leader_or_follower)
    assert (node.quorum.leader_id, node.quorum.epoch) == (2, 6)


@pytest.mark.clause("KafkaRaftClientTest.testUnattachedAsVoterCanBecomeFollowerAfterFindingLeader")
def test_voter_follows_leader_named_by_other_voter() -> None:
    node = roles.unattached()
    node.sent.clear()
    node.pass_ms(20)
    (sent,) = node.take_requests(ApiKey.FETCH)
    node.sent[:] = [sent]
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=2, epoch=5)
    assert (node.quorum.role, node.quorum.leader_id, node.quorum.epoch) == (Role.FOLLOWER, 2, 5)


@pytest.mark.clause("KafkaRaftClientTest.testFetchResponseIgnoredAfterBecomingFollowerOfDifferentLeader")
def test_response_of_previous_leader_is_ignored() -> None:
    node = roles.follower()
    late = node.take_requests(ApiKey.FETCH)[-1:]
    node.begin(2, 6)
    node.sent[:] = late
    node.respond_to_fetch(batch(2, 5), epoch=5)
    assert node.log.end == OffsetAndEpoch(2, 4)
    assert node.quorum.leader_id == 2


@pytest.mark.clause(
    "KafkaRaftClientTest.testEmptyRecordSetInFetchResponse",
    "KafkaRaftClientTest.testHandleCommitCallbackFiresAfterFollowerHighWatermarkAdvances",
)
def test_empty_response_raises_high_watermark() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(high_watermark=0)
    assert node.log.end_offset == 0
    node.respond_to_fetch(batch(0, 5, count=2), high_watermark=0)
    assert (node.log.end_offset, node.quorum.high_watermark) == (2, -1)
    node.respond_to_fetch(high_watermark=2)
    assert (node.log.end_offset, node.quorum.high_watermark) == (2, 2)


@pytest.mark.clause("KafkaRaftClientTest.testObserverReplication")
def test_observer_replicates_and_syncs_in_background() -> None:
    node = observer()
    node.auto_sync = False
    node.respond_to_fetch(batch(0, 5, count=2))
    assert (node.log.end_offset, node.log.synced_offset) == (2, 0)
    node.sync_all()
    assert node.log.synced_offset == 2


@pytest.mark.clause("KafkaRaftClientTest.testFollowerGracefulShutdown")
@pytest.mark.parametrize("state", [roles.unattached, roles.follower, roles.prospective, roles.candidate])
def test_shutdown_of_non_leader_completes_at_once(state: roles.State) -> None:
    node, left = state(), list[bool]()
    node.quorum.shut_down(lambda: left.append(True))
    assert left == [True]


@pytest.mark.clause(
    "KafkaRaftClientTest.testObserverGracefulShutdown", "KafkaRaftClientTest.testGracefulShutdownSingleMemberQuorum"
)
def test_shutdown_of_observer_and_quorum_of_one_completes_at_once() -> None:
    for node in (Alone(node_id=OBSERVER).started(), Alone(1).started()):
        left = list[bool]()
        node.quorum.shut_down(lambda left=left: left.append(True))  # type: ignore[misc]
        assert left == [True]
        assert not node.sent


@pytest.mark.clause("KafkaRaftClientFetchTest.testRandomRecords", "KafkaMetadataLogTest.testRandomRecords")
@given(st.binary(min_size=1, max_size=300))
def test_random_bytes_leave_follower_log_intact(data: bytes) -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(data)
    assert node.log.end == OffsetAndEpoch(0, 0)
    node.pass_ms(50)
    assert node.take_requests(ApiKey.FETCH)[0].partition.fetch_offset == 0


@pytest.mark.clause("KafkaMetadataLogTest.testInvalidMemoryRecords")
@given(st.integers(0, 3), st.data())
def test_follower_appends_batches_before_damaged_byte(number: int, data: st.DataObject) -> None:
    batches = [batch(0, 5), batch(1, 5, count=2), batch(3, 5), batch(4, 5)]
    place = data.draw(st.integers(16, len(batches[number]) - 1))
    damaged = bytearray(batches[number])
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    node = Alone().following(1, 5)
    node.respond_to_fetch(b"".join([*batches[:number], bytes(damaged), *batches[number + 1 :]]))
    assert node.log.end_offset == (0, 1, 3, 4)[number]
