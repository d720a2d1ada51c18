"""A voter's first election after its start: soon, and harmless to a live leader."""

import pytest

from reference_broker.quorum.roles import START_DELAY_US, Role
from reference_broker.quorum.tests.quorum_alone import Alone, Sent, granted
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey

FIRST_MS, LAST_MS = (delay_us // 1000 for delay_us in START_DELAY_US)


def votes(node: Alone, pre_vote: bool) -> list[Sent]:
    return [request for request in node.take_requests(ApiKey.VOTE) if request.partition.pre_vote is pre_vote]


def restarted(epoch: int = 5) -> Alone:
    """Return a restarted voter that knows an epoch, and no leader."""
    before = Alone().started()
    assert before.request_vote(2, epoch, OffsetAndEpoch(0, 0), pre_vote=False)[0].granted
    return Alone(disk=before.disk).started()


def test_new_cluster_elects_leader_without_election_timeout() -> None:
    node = Alone().started()
    node.pass_ms(FIRST_MS - 1)
    assert not node.take_requests(ApiKey.VOTE)
    node.pass_ms(LAST_MS - FIRST_MS + 1)
    first, _ = votes(node, pre_vote=True)
    first.replied(granted(first, True))
    assert node.quorum.role is Role.CANDIDATE, "no node can lead in epoch 0 or before it"


def test_restarted_voter_waits_for_all_pre_votes_before_new_epoch() -> None:
    """A voter that has just started grants pre-votes that a leader's follower would reject."""
    node = restarted()
    node.pass_ms(LAST_MS)
    of_1, of_2 = votes(node, pre_vote=True)
    of_1.replied(granted(of_1, True))
    assert (node.quorum.role, node.quorum.epoch) == (Role.PROSPECTIVE, 5)
    of_2.replied(granted(of_2, False, leader=2))
    assert (node.quorum.role, node.quorum.epoch, node.quorum.leader_id) == (Role.FOLLOWER, 5, 2)


@pytest.mark.parametrize("is_granted", [True, False, None])
def test_restarted_voter_is_elected_once_last_pre_vote_completes_or_fails(is_granted: bool | None) -> None:
    node = restarted()
    node.pass_ms(LAST_MS)
    of_1, of_2 = votes(node, pre_vote=True)
    of_1.replied(granted(of_1, True))
    if is_granted is None:
        of_2.failed()
    else:
        of_2.replied(granted(of_2, is_granted))
    assert (node.quorum.role, node.quorum.epoch) == (Role.CANDIDATE, 6)


def test_unreachable_peers_are_retried() -> None:
    node = Alone().started()
    node.pass_ms(LAST_MS)
    for _ in range(3):
        for vote in votes(node, pre_vote=True):
            vote.failed()
        node.pass_ms(200)
    assert {vote.peer for vote in votes(node, pre_vote=True)} == {1, 2}


@pytest.mark.clause("UnattachedStateTest.testElectionStateAndElectionTimeout")
def test_later_elections_wait_for_election_timeout() -> None:
    node = Alone().started()
    node.pass_ms(LAST_MS)
    for vote in votes(node, pre_vote=True):
        vote.replied(granted(vote, False))
    assert node.quorum.role is Role.UNATTACHED
    node.pass_ms(999)
    assert not node.take_requests(ApiKey.VOTE)


def test_observer_starts_no_election() -> None:
    node = Alone(node_id=7).started()
    node.pass_ms(LAST_MS)
    assert not node.take_requests(ApiKey.VOTE)
