"""ElectLeaders: preferred and unclean elections."""

import pytest

from reference_broker.apis.tests.three_brokers import with_topic
from reference_broker.wire.errors import ErrorCode


def test_alter_partition_ends_recovery_after_unclean_election() -> None:
    world = with_topic((2, 1), unclean_leader_election_enable="true")
    world.change((2,), leader=2)
    world.beat(2, want_fence=True)
    known = world.partition()
    assert (known.leader, known.isr, known.leader_recovery_state) == (1, (1,), 1)
    assert world.change((1, 2), leader_recovery_state=1).error_code is ErrorCode.invalid_request
    assert world.change((1,), leader_recovery_state=0).leader_recovery_state == 0
    assert world.partition().leader_recovery_state == 0


@pytest.mark.clause("ReplicationControlManagerTest.testElectPreferredLeaders")
def test_preferred_election_elects_in_sync_preferred_leaders() -> None:
    world = with_topic((2, 1), (2, 1), (1, 2))
    world.beat(2, want_fence=True)
    world.beat(2)
    assert [world.partition(index).leader for index in range(3)] == [1, 1, 1]
    world.change((1, 2))
    assert world.elect(0, ("t", (0, 1, 2, 3)), ("no", (0,))) == (
        "none",
        {
            ("t", 0): "none",
            ("t", 1): "preferred_leader_not_available",
            ("t", 2): "election_not_needed",
            ("t", 3): "unknown_topic_or_partition",
            ("no", 0): "unknown_topic_or_partition",
        },
    )
    assert (world.partition().leader, world.partition().leader_epoch) == (2, 2)
    assert world.elect(0) == ("none", {("t", 1): "preferred_leader_not_available"})


@pytest.mark.clause("ReplicationControlManagerTest.testElectUncleanLeaders_WithoutElr")
def test_unclean_election_elects_leader_where_no_in_sync_replica_is_alive() -> None:
    world = with_topic((2, 1), (1, 2), (2, 3))
    world.change((2,), leader=2)
    world.beat(3, want_fence=True)
    world.beat(2, want_fence=True)
    assert [world.partition(index).leader for index in range(3)] == [-1, 1, -1]
    assert world.elect(1, ("t", (0, 1, 2))) == (
        "none",
        {("t", 0): "none", ("t", 1): "election_not_needed", ("t", 2): "eligible_leaders_not_available"},
    )
    known = world.partition()
    assert (known.leader, known.isr, known.leader_recovery_state) == (1, (1,), 1)


def test_unknown_election_type_is_rejected() -> None:
    world = with_topic((1, 2))
    assert world.elect(7, ("t", (0,))) == ("invalid_request", {("t", 0): "invalid_request"})


def test_elect_leaders_version_0_elects_preferred_leaders() -> None:
    world = with_topic((2, 1))
    world.beat(2, want_fence=True)
    world.beat(2)
    world.change((1, 2))
    assert world.elect(0, ("t", (0,)), api_version=0)[1] == {("t", 0): "none"}
    assert world.partition().leader == 2
