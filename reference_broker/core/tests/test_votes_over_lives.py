"""A voter that is killed while its vote is made durable, comes back, and then loses its power."""

from functools import partialmethod
from random import Random
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.ports.disk import KnownFolder
from reference_broker.quorum.messages import RaftResponse, Vote, read_voted, vote
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

    def asked_for_its_vote(self, candidate: int) -> Any:
        question = Vote("cluster", 2, candidate, EPOCH, OffsetAndEpoch(0, 0), pre_vote=False)
        return self.ask(ApiKey.VOTE, VERSIONS[ApiKey.VOTE][1], vote(question))

    def grants(self, candidate: int) -> bool:
        answer = read_voted(self.asked_for_its_vote(candidate))
        assert isinstance(answer, RaftResponse)
        return answer.granted


def votes_for_both(seed: int) -> bool:
    """The first life is killed when the vote has its name, before that is durable. The second life grants the same vote
    again, and ends with the power."""
    disk = SimDisk(Random(seed))
    first = Voter(disk)
    first.hold_syncs = True
    question = Vote("cluster", 2, 1, EPOCH, OffsetAndEpoch(0, 0), pre_vote=False)
    first.send(ApiKey.VOTE, VERSIONS[ApiKey.VOTE][1], vote(question))
    while not disk.exists(QUORUM_STATE):
        first.complete_sync()
    assert not first.replies, "the vote is not durable"
    assert Voter(disk).grants(1)
    disk.power_loss()
    return Voter(disk).grants(3)


def test_a_vote_that_a_killed_process_left_without_a_durable_name_is_kept_once_it_was_told() -> None:
    assert not any(votes_for_both(seed) for seed in SEEDS)


def test_a_vote_is_given_twice_in_an_epoch_if_a_process_trusts_the_names_that_it_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KnownFolder, "__init__", partialmethod(KnownFolder.__init__, changes=0))
    assert any(votes_for_both(seed) for seed in SEEDS)
