"""A voter that is killed while its vote is made durable, restarts, and then loses its power."""

from functools import partialmethod
from random import Random
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.ports.disk import KnownFolder
from reference_broker.quorum.messages import RaftResponse, VoteRequest, build_vote_request, read_vote_response
from reference_broker.quorum.node_files import QUORUM_STATE
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import VERSIONS, ApiKey

VOTERS = "1@one:9092,2@two:9092,3@three:9092"
EPOCH = 5
SEEDS = range(40)


class Voter(NodeWorld):
    """One life of voter 2."""

    def __init__(self, disk: SimDisk) -> None:
        disk.process_started()
        super().__init__(disk, node_id=2, start=False, controller_quorum_voters=VOTERS, crucible_cluster_id="cluster")
        self.start()
        self.settle_until(lambda: self.node.listening)

    def vote_for(self, candidate: int) -> Any:
        request = VoteRequest("cluster", 2, candidate, EPOCH, OffsetAndEpoch(0, 0), pre_vote=False)
        return self.request(ApiKey.VOTE, VERSIONS[ApiKey.VOTE][1], build_vote_request(request))

    def grants(self, candidate: int) -> bool:
        response = read_vote_response(self.vote_for(candidate))
        assert isinstance(response, RaftResponse)
        return response.granted


def votes_for_both(seed: int) -> bool:
    """The first life is killed when the vote file has its name, before that is durable. The second life grants the same
    vote again, and ends with a power loss."""
    disk = SimDisk(Random(seed))
    first = Voter(disk)
    first.hold_syncs = True
    request = VoteRequest("cluster", 2, 1, EPOCH, OffsetAndEpoch(0, 0), pre_vote=False)
    first.send(ApiKey.VOTE, VERSIONS[ApiKey.VOTE][1], build_vote_request(request))
    while not disk.exists(QUORUM_STATE):
        first.complete_sync()
    assert not first.replies, "the vote is not durable"
    assert Voter(disk).grants(1)
    disk.power_loss()
    return Voter(disk).grants(3)


def test_vote_of_killed_process_is_kept_once_granted() -> None:
    assert not any(votes_for_both(seed) for seed in SEEDS)


def test_trusting_undurable_file_names_grants_two_votes_per_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KnownFolder, "__init__", partialmethod(KnownFolder.__init__, changes=0))
    assert any(votes_for_both(seed) for seed in SEEDS)
