"""A voter's first election after its start: soon, and no danger to a leader that lives."""

import pytest

from reference_broker.quorum.roles import START_DELAY_US, Role
from reference_broker.quorum.tests.quorum_alone import Alone, Sent, granted
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey

FIRST_MS, LAST_MS = (delay_us // 1000 for delay_us in START_DELAY_US)


def votes(node: Alone, pre_vote: bool) -> list[Sent]:
    return [each for each in node.take(ApiKey.VOTE) if each.partition.pre_vote is pre_vote]


def restarted(epoch: int = 5) -> Alone:
    """A voter that knows of an epoch, and of no leader."""
    before = Alone().started()
    assert before.ask_vote(2, epoch, OffsetAndEpoch(0, 0), pre_vote=False)[0].granted
    return Alone(disk=before.disk).started()


def test_a_new_cluster_does_not_wait_for_an_election_timeout() -> None:
    node = Alone().started()
    node.pass_ms(FIRST_MS - 1)
    assert not node.take(ApiKey.VOTE)
    node.pass_ms(LAST_MS - FIRST_MS + 1)
    first, _ = votes(node, pre_vote=True)
    first.replied(granted(first, True))
    assert node.quorum.role is Role.CANDIDATE, "nobody can lead in epoch 0 or before it"


def test_a_restarted_voter_hears_everyone_before_it_takes_a_new_epoch() -> None:
    """One that has just started, too, grants what a leader's follower would refuse."""
    node = restarted()
    node.pass_ms(LAST_MS)
    of_1, of_2 = votes(node, pre_vote=True)
    of_1.replied(granted(of_1, True))
    assert (node.quorum.role, node.quorum.epoch) == (Role.PROSPECTIVE, 5)
    of_2.replied(granted(of_2, False, leader=2))
    assert (node.quorum.role, node.quorum.epoch, node.quorum.leader_id) == (Role.FOLLOWER, 5, 2)


@pytest.mark.parametrize("is_granted", [True, False, None])
def test_a_restarted_voter_is_elected_once_the_last_has_completed_or_cannot_be_reached(is_granted: bool | None) -> None:
    node = restarted()
    node.pass_ms(LAST_MS)
    of_1, of_2 = votes(node, pre_vote=True)
    of_1.replied(granted(of_1, True))
    if is_granted is None:
        of_2.failed()
    else:
        of_2.replied(granted(of_2, is_granted))
    assert (node.quorum.role, node.quorum.epoch) == (Role.CANDIDATE, 6)


def test_peers_that_are_not_up_yet_are_retried() -> None:
    node = Alone().started()
    node.pass_ms(LAST_MS)
    for _ in range(3):
        for each in votes(node, pre_vote=True):
            each.failed()
        node.pass_ms(200)
    assert {each.peer for each in votes(node, pre_vote=True)} == {1, 2}


@pytest.mark.clause("UnattachedStateTest.testElectionStateAndElectionTimeout")
def test_later_elections_wait_for_the_election_timeout() -> None:
    node = Alone().started()
    node.pass_ms(LAST_MS)
    for each in votes(node, pre_vote=True):
        each.replied(granted(each, False))
    assert node.quorum.role is Role.UNATTACHED
    node.pass_ms(999)
    assert not node.take(ApiKey.VOTE)


def test_an_observer_seeks_no_election() -> None:
    node = Alone(node_id=7).started()
    node.pass_ms(LAST_MS)
    assert not node.take(ApiKey.VOTE)
