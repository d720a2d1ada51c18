"""The replicas that keep committed records: the model that decides which losses are excused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from chaos.checks.replication.eligible_replicas import Eligible, UncleanEnds, min_isr_of
from reference_broker.metadata.image import TOPIC_RESOURCE, BrokerImage, MetadataImage, PartitionImage

MIN_ISR = 2
START = PartitionImage((1, 2, 3), (1, 2, 3), 1, 0, 0)


class History:
    """States of one partition, each followed by the model."""

    def __init__(self) -> None:
        self.state = START
        self.records = 1
        """The number of changes that are published at once."""
        self.eligible = Eligible.of(START, MIN_ISR)

    def becomes(self, *isr: int, leader: int | None = None) -> bool:
        """Return whether a loss is excused."""
        before = self.state
        led = before.leader if leader is None else leader
        epoch = before.leader_epoch + (leader is not None)
        number = before.partition_epoch + self.records
        self.state = replace(before, isr=isr, leader=led, leader_epoch=epoch, partition_epoch=number)
        return self.eligible.follow(before, self.state, MIN_ISR)

    def powered_off(self, node: int) -> None:
        self.eligible.lost_bytes(node, 3)
        self.eligible.came_back_uncleanly(node)


@pytest.mark.clause("E-1")
def test_leaving_replica_keeps_records_until_enough_are_in_sync_without_it() -> None:
    history = History()
    history.becomes(1, 2)
    assert list(history.eligible.members) == [1, 2]
    history.becomes(1)
    assert list(history.eligible.members) == [1, 2]
    history.becomes()
    assert list(history.eligible.members) == [1, 2]
    history.becomes(1, 3)
    assert list(history.eligible.members) == [1, 3]


@pytest.mark.clause("E-6", "E-7")
@pytest.mark.parametrize("damaged_leads", [False, True])
def test_damaged_replica_keeps_nothing_and_is_no_excuse_as_leader(damaged_leads: bool) -> None:
    history = History()
    history.becomes(1, 2)
    history.powered_off(1)
    history.eligible.came_back_damaged(2)
    history.eligible.came_back_damaged(3)
    assert list(history.eligible.unclean) == [1, 2], "3 was no member"
    history.becomes(leader=-1)
    leader = 2 if damaged_leads else 1
    assert history.becomes(leader, leader=leader) is not damaged_leads


@pytest.mark.clause("E-7")
def test_loss_is_excused_when_all_lost_what_they_had_and_one_of_them_leads() -> None:
    history = History()
    history.becomes(1, 2)
    for node in (1, 2):
        history.powered_off(node)
    history.becomes(leader=-1)
    assert history.becomes(1, leader=1)
    assert list(history.eligible.members) == [1]
    assert list(history.eligible.tainted) == [2], "2 has not registered"


@pytest.mark.clause("E-7")
def test_loss_is_not_excused_while_other_eligible_replicas_hold_everything() -> None:
    history = History()
    history.becomes(1)
    history.powered_off(1)
    assert not history.becomes(1, leader=1), "2 and 3 still hold everything"


@pytest.mark.clause("E-7")
def test_loss_after_kills_of_all_processes_is_not_excused() -> None:
    """The page cache outlives the process."""
    history = History()
    for node in (1, 2, 3):
        history.eligible.came_back_uncleanly(node)
    history.becomes(leader=-1)
    assert not history.becomes(1, leader=1)


@pytest.mark.clause("E-7")
def test_replica_that_lost_its_power_and_is_not_back_stays_eligible() -> None:
    history = History()
    history.becomes(1, 2)
    history.powered_off(1)
    history.eligible.lost_bytes(2, 3)
    history.becomes(leader=-1)
    assert not history.becomes(1, leader=1)


@pytest.mark.clause("E-7")
def test_replica_that_joined_again_after_its_loss_is_eligible() -> None:
    history = History()
    history.powered_off(1)
    history.becomes(2, 3, leader=2)
    history.eligible.registered_uncleanly(1)
    history.becomes(2, 3, 1)
    for node in (2, 3):
        history.powered_off(node)
    assert not history.becomes(2, leader=2)


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(("leader", "is_excused"), [(1, True), (2, False)], ids=["without power", "killed"])
def test_loss_of_killed_holder_is_excused_only_if_leader_lost_its_power(leader: int, is_excused: bool) -> None:
    history = History()
    history.becomes(1, 2)
    history.powered_off(1)
    history.eligible.came_back_uncleanly(2)
    history.becomes(leader=-1)
    assert history.becomes(leader, leader=leader) is is_excused


def published_at_once(*isr: int) -> History:
    """Return the history of two changes, of which only the state after both is seen."""
    history = History()
    history.records = 2
    history.becomes(*isr)
    history.records = 1
    return history


@pytest.mark.clause("E-1")
def test_changes_published_at_once_leave_the_minimum_eligible() -> None:
    history = published_at_once(1)
    history.powered_off(1)
    history.becomes(leader=-1)
    assert not history.becomes(1, leader=1), "2 or 3 is still eligible"


@pytest.mark.clause("E-1")
def test_changes_published_at_once_may_have_cleared_all_but_the_minimum() -> None:
    history = published_at_once(1)
    for node in (1, 2):
        history.powered_off(node)
    history.becomes(leader=-1)
    assert history.becomes(1, leader=1), "3 may have left while 1 and 2 were in sync"
    assert history.eligible.uncertain == 0


@pytest.mark.clause("E-8")
def test_change_of_the_minimum_leaves_only_the_isr() -> None:
    history = History()
    history.becomes(1)
    history.eligible.minimum_changed(history.state, 3)
    assert list(history.eligible.members) == [1]
    assert history.eligible.min_isr == 3


@pytest.mark.clause("E-8")
def test_change_of_the_minimum_leaves_all_members_while_isr_is_empty() -> None:
    history = History()
    history.becomes(1)
    history.becomes()
    history.eligible.minimum_changed(history.state, 3)
    assert list(history.eligible.members) == [1, 2, 3]


@pytest.mark.clause("E-7", "E-8")
@pytest.mark.parametrize("minimum_changed", [False, True])
def test_replica_that_leaves_in_a_jump_with_a_change_of_the_minimum_may_have_been_cleared(
    minimum_changed: bool,
) -> None:
    history = History()
    history.becomes(1, 2)
    before = history.state
    history.state = replace(before, isr=(1,), partition_epoch=before.partition_epoch + 1)
    history.eligible.follow(before, history.state, MIN_ISR, minimum_changed)
    assert list(history.eligible.members) == [1, 2]
    history.powered_off(1)
    history.becomes(leader=-1)
    assert history.becomes(1, leader=1) is minimum_changed


@dataclass
class BrokerChanges:
    """The brokers of a change of the metadata, None for those that unregistered."""

    brokers: Mapping[int, BrokerImage | None]


def registration(epoch: int) -> BrokerChanges:
    return BrokerChanges({1: BrokerImage(1, epoch, bytes(16), "h", 1, True), 2: None})


@pytest.mark.clause("E-4")
def test_only_a_start_and_registration_after_an_unclean_end_count() -> None:
    ends = UncleanEnds()
    assert not ends.started(1)
    assert list(ends.registered(registration(5))) == []
    ends.ended(1, clean=True)
    assert not ends.started(1)
    assert list(ends.registered(registration(6))) == []
    ends.ended(1, clean=False)
    assert list(ends.registered(registration(6))) == [], "old news"
    assert ends.started(1)
    assert list(ends.registered(registration(7))) == [1]
    assert list(ends.registered(registration(7))) == []


def test_topic_without_its_own_minimum_has_that_of_its_brokers() -> None:
    image = MetadataImage(configs={(TOPIC_RESOURCE, "t"): {"min.insync.replicas": "3"}})
    assert (min_isr_of(image, "t", 2), min_isr_of(image, "u", 2)) == (3, 2)


@pytest.mark.clause("E-4", "E-7")
@pytest.mark.parametrize("registered", [False, True])
def test_replica_that_loses_its_power_while_it_joins_keeps_nothing_unless_it_registered_before(
    registered: bool,
) -> None:
    """The leader proposed 2 before 2 lost its power, and the controller commits that later. If 2 had registered in
    between, it joined once more with all records, and losing them is not excused."""
    history = History()
    history.becomes(1)
    history.powered_off(3)
    history.eligible.registered_uncleanly(3)
    history.eligible.lost_bytes(2, 3)
    if registered:
        history.eligible.came_back_uncleanly(2)
        history.eligible.registered_uncleanly(2)
    history.becomes(1, 2)
    history.powered_off(1)
    history.becomes(2, leader=2)
    history.eligible.came_back_uncleanly(2)
    history.becomes(leader=-1)
    assert history.becomes(2, leader=2) is not registered


@pytest.mark.clause("E-1", "E-4", "E-7")
@pytest.mark.parametrize("registered", [False, True])
def test_loss_counts_until_the_replica_registers_also_if_enough_others_were_in_sync_meanwhile(
    registered: bool,
) -> None:
    """2 loses its power and 1 and 3 keep the minimum without it. Then the controller commits the leader's proposal from
    before. Where 2 had registered in between, it has copied everything again."""
    history = History()
    history.becomes(1)
    history.powered_off(2)
    if registered:
        history.eligible.registered_uncleanly(2)
    history.becomes(1, 3)
    history.becomes(1, 3, 2)
    history.becomes(1, 2)
    history.eligible.came_back_uncleanly(1)
    history.becomes(2, leader=2)
    history.eligible.registered_uncleanly(2)
    history.becomes(leader=-1)
    assert history.becomes(2, leader=2) is not registered
