"""Forged and replayed requests of the quorum: none stops a node or prevents its start, or takes back a vote."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from reference_broker.quorum.messages import (
    RaftResponse,
    VoteRequest,
    build_begin_quorum_epoch_request,
    build_end_quorum_epoch_request,
    build_fetch_request,
    build_vote_request,
)
from reference_broker.quorum.messages import build_vote_response as vote_response
from reference_broker.quorum.node_files import QUORUM_STATE, StartRefused, read_quorum_state, write_quorum_state
from reference_broker.quorum.raft_handlers import (
    handle_begin_quorum_epoch,
    handle_end_quorum_epoch,
    handle_fetch,
    handle_vote,
)
from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests.quorum_alone import CLUSTER, Alone
from reference_broker.quorum.values import MAX_EPOCH, LeaderChanged, OffsetAndEpoch
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import encode_request, encode_response

GREATEST_INT32 = 2**31 - 1
TOO_GREAT = (GREATEST_INT32 - 1, GREATEST_INT32)
EPOCHS = (-1, 0, 1, 1, 2, 3, 4, 5, 6, 2**30, GREATEST_INT32 - 3, GREATEST_INT32 - 2, *TOO_GREAT)
NODES = (-1, 0, 1, 1, 2, 2, 3, 7, GREATEST_INT32)
OFFSETS = (-1, 0, 1, 2, 3, 2**40, 2**63 - 1)


def test_epoch_after_greatest_accepted_one_can_be_written() -> None:
    assert MAX_EPOCH == GREATEST_INT32 - 2


@pytest.mark.parametrize("epoch", TOO_GREAT)
def test_greatest_epoch_is_rejected(epoch: int) -> None:
    node = Alone().started()
    assert [each.error for each in node.request_vote(1, epoch)] == [ErrorCode.invalid_request]
    assert [each.error for each in node.request_vote(1, epoch, pre_vote=True)] == [ErrorCode.invalid_request]
    assert node.begin(1, epoch).error is ErrorCode.invalid_request
    assert node.end(1, epoch, 0).error is ErrorCode.invalid_request
    assert node.quorum.epoch == 0


def test_response_with_greatest_epoch_is_ignored() -> None:
    node = Alone().following(leader=1, epoch=5)
    node.respond_to_fetch(epoch=GREATEST_INT32)
    assert (node.quorum.epoch, node.quorum.role) == (5, Role.FOLLOWER)
    node.pass_ms(50)
    node.respond_to_fetch(leader=2, epoch=GREATEST_INT32 - 1)
    assert (node.quorum.epoch, node.quorum.leader_id) == (5, 1)
    assert not node.quorum.maybe_transition(2, GREATEST_INT32), "the outcome of a download has an epoch, too"


def test_node_with_exhausted_epochs_runs_without_elections() -> None:
    node = Alone().started()
    assert node.begin(1, MAX_EPOCH).error is ErrorCode.none
    node.take_requests(ApiKey.FETCH)
    for _ in range(20):
        node.pass_ms(500)
        for request in node.take_requests(ApiKey.VOTE):
            request.replied(vote_response(RaftResponse(ErrorCode.none, -1, MAX_EPOCH, True)))
    assert node.quorum.epoch == MAX_EPOCH
    assert not node.quorum.is_leader
    assert ("epochs_used_up", {"epoch": MAX_EPOCH}) in node.notes
    assert_goes_on(node)


@pytest.mark.clause(
    "KafkaRaftClientTest.testVoteRequestClusterIdValidation",
    "KafkaRaftClientTest.testBeginQuorumEpochRequestClusterIdValidation",
    "KafkaRaftClientTest.testEndQuorumEpochRequestClusterIdValidation",
    "KafkaRaftClientPreVoteTest.testPreVoteRequestClusterIdValidation",
)
@pytest.mark.parametrize("cluster_id", [None, "", "another"])
def test_voter_requests_need_cluster_id(cluster_id: str | None) -> None:
    node = Alone().following(leader=1, epoch=5)
    sent = node.quorum.log.end
    responses: list[Any] = []
    handle_vote(node.quorum, build_vote_request(VoteRequest(cluster_id, 0, 2, 9, sent, False)), responses.append)
    handle_begin_quorum_epoch(
        node.quorum,
        replace(build_begin_quorum_epoch_request(CLUSTER, 0, 2, 9), cluster_id=cluster_id),
        responses.append,
    )
    handle_end_quorum_epoch(
        node.quorum, replace(build_end_quorum_epoch_request(CLUSTER, 2, 9, ()), cluster_id=cluster_id), responses.append
    )
    assert [response.error_code for response in responses] == [ErrorCode.inconsistent_cluster_id] * 3
    assert (node.quorum.epoch, node.quorum.leader_id) == (5, 1)


@pytest.mark.clause("KafkaRaftClientTest.testFetchRequestClusterIdValidation")
@pytest.mark.parametrize(("replica", "needs"), [(1, True), (7, True), (-1, False)])
def test_fetch_of_replica_needs_cluster_id_and_of_consumer_does_not(replica: int, needs: bool) -> None:
    """A consumer's fetch changes no state: tools that read the log send no cluster ID."""
    node = Alone().started().elect(1)
    before = node.quorum.high_watermark
    (response,) = node.fetch(replica, node.quorum.log.end_offset, node.quorum.epoch, cluster_id=None)
    expected = ErrorCode.inconsistent_cluster_id if needs else ErrorCode.none
    assert response.error_code == expected
    assert node.quorum.high_watermark == before


def test_quorum_state_file_with_invalid_epoch_is_rejected() -> None:
    node = Alone().following(leader=1, epoch=5)
    state = read_quorum_state(node.disk)
    assert state is not None
    temporary = write_quorum_state(node.disk, replace(state, leader_epoch=2**31))
    node.disk.rename(temporary, QUORUM_STATE)
    with pytest.raises(StartRefused, match="epoch 2147483648"):
        Alone(disk=node.disk)


class Forger:
    """Sends one node requests that the schemas allow, or replays earlier ones."""

    def __init__(self, seed: int, cluster_ids: tuple[str | None, ...]) -> None:
        self.random = Random(seed)
        self.cluster_ids = cluster_ids
        self.sent: list[tuple[ApiKey, Any]] = []

    def send(self, node: Alone) -> None:
        replays = self.sent and self.random.random() < 0.3
        api_key, body = self.random.choice(self.sent) if replays else self._forged()
        self.sent.append((api_key, body))
        version = VERSIONS[api_key][1]
        frame = memoryview(b"".join(bytes(each) for each in encode_request(api_key, version, 1, "x", body)))
        assert len(frame) < 200, "frames of forgers are small"
        responded: list[Any] = []
        quorum = node.quorum
        if api_key == ApiKey.FETCH:
            handle_fetch(quorum, body, responded.append)
        elif api_key == ApiKey.VOTE:
            handle_vote(quorum, body, responded.append)
        elif api_key == ApiKey.BEGIN_QUORUM_EPOCH:
            handle_begin_quorum_epoch(quorum, body, responded.append)
        else:
            handle_end_quorum_epoch(quorum, body, responded.append)
        node.sync_all()
        for response in responded:
            encode_response(api_key, version, 1, response)

    def _forged(self) -> tuple[ApiKey, Any]:
        pick = self.random.choice
        cluster_id, node_id, epoch = pick(self.cluster_ids), pick(NODES), pick(EPOCHS)
        end = OffsetAndEpoch(pick(OFFSETS), pick(EPOCHS))
        api_key = pick((ApiKey.VOTE, ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH))
        if api_key == ApiKey.VOTE:
            return api_key, build_vote_request(
                VoteRequest(cluster_id, pick(NODES), node_id, epoch, end, pick((True, False)))
            )
        if api_key == ApiKey.BEGIN_QUORUM_EPOCH:
            return api_key, replace(
                build_begin_quorum_epoch_request(CLUSTER, pick(NODES), node_id, epoch), cluster_id=cluster_id
            )
        if api_key == ApiKey.END_QUORUM_EPOCH:
            body = build_end_quorum_epoch_request(CLUSTER, node_id, epoch, (pick(NODES), pick(NODES)))
            return api_key, replace(body, cluster_id=cluster_id)
        request = build_fetch_request(CLUSTER, node_id, epoch, end, pick(OFFSETS), pick(OFFSETS), pick((0, 100)))
        return api_key, replace(request, cluster_id=cluster_id)


def votes_kept(node: Alone) -> tuple[int, int] | None:
    """Return (epoch, voted ID) as stored on the disk."""
    state = read_quorum_state(node.disk)
    return None if state is None else (state.leader_epoch, state.voted_id)


def assert_goes_on(node: Alone) -> Alone:
    """Assert that the node restarts from its disk with its durable epoch and vote, and sends only requests that can be
    encoded."""
    kept = votes_kept(node)
    again = Alone(disk=node.disk.copy()).started()
    if kept is not None:
        assert again.quorum.epoch == kept[0] <= MAX_EPOCH
        assert again.quorum.voted_id in (kept[1], again.node_id), "a durable vote is lost"
        if kept[1] != -1:
            assert again.quorum.voted_id == kept[1], "a durable vote is lost"
    again.pass_ms(3000)
    assert_encodable(again)
    return again


def assert_encodable(node: Alone) -> None:
    for each in node.sent:
        encode_request(each.api_key, VERSIONS[each.api_key][1], 1, "x", each.body)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("knows_cluster", [True, False])
def test_forged_requests_do_not_end_node_or_change_vote(seed: int, knows_cluster: bool) -> None:
    """The forger of half of the runs has the IDs of the cluster and of the voters. The other one must not change
    anything."""
    forger = Forger(seed, (CLUSTER, CLUSTER, CLUSTER, None, "") if knows_cluster else (None, "", "another"))
    node = Alone(auto_sync=False).started()
    node.sync_all()
    if seed % 3 == 0:
        node.auto_sync = True
        node.elect(1)
        node.auto_sync = False
    moved = (node.quorum.epoch, node.quorum.leader_id, node.quorum.voted_id)
    votes: dict[int, int] = {}
    for number in range(40):
        forger.send(node)
        epoch_and_vote = votes_kept(node)
        if epoch_and_vote is not None:
            epoch, voted_id = epoch_and_vote
            assert votes.setdefault(epoch, voted_id) in (-1, voted_id), f"two votes in epoch {epoch}"
            votes[epoch] = voted_id
            assert epoch == max(votes), "the durable epoch went back"
        if not knows_cluster:
            assert (node.quorum.epoch, node.quorum.leader_id, node.quorum.voted_id) == moved
            assert node.quorum.high_watermark <= 0 or node.quorum.is_leader
        if number % 10 == 9:
            assert_goes_on(node)
            if knows_cluster:
                node.pass_ms(forger.random.choice((10, 1500)))
                node.sync_all()
    assert_encodable(node)
    assert_goes_on(node)


def test_download_outcome_with_greatest_epoch_is_failure() -> None:
    node = Alone().following(leader=1, epoch=5)
    outcome = LeaderChanged(2, GREATEST_INT32)
    assert not node.quorum.maybe_transition(outcome.leader_id, outcome.leader_epoch)
