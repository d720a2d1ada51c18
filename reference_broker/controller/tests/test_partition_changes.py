"""The record that changes one partition (counterparts of Kafka's PartitionChangeBuilderTest)."""

from dataclasses import replace

import pytest

from reference_broker.controller.planning.partition_changes import (
    NO_LEADER_CHANGE,
    RECOVERING,
    Elected,
    Election,
    PartitionChangeBuilder,
    active_brokers,
    elect,
)
from reference_broker.controller.planning.partition_requests import RequestedElections
from reference_broker.controller.tests.planned import after, brokers, records_of
from reference_broker.controller.tests.test_eligible_leaders import Cluster
from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from reference_broker.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from reference_broker.wire.errors import ErrorCode

ID = b"\x01" * 16
ALL_IN_SYNC = PartitionImage((2, 1, 3), (2, 1, 3), 1, 100, 200)
PREFERRED_IS_OUT = PartitionImage((2, 1, 3), (1, 3), 3, 100, 200)


def image_of(partition: PartitionImage, *live: int, version: int = 25) -> MetadataImage:
    """Return an image of brokers 1 to 4, of which ``live`` ones are not fenced, and a topic with this partition."""
    record = PartitionRecord(
        partition_id=0,
        topic_id=ID,
        replicas=partition.replicas,
        isr=partition.isr,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    return after(
        brokers(1, 2, 3, 4, fenced=tuple(each for each in (1, 2, 3, 4) if each not in live)),
        [
            FeatureLevelRecord(name="metadata.version", feature_level=version),
            TopicRecord(name="t", topic_id=ID),
            record,
        ],
    )


@pytest.mark.clause("PartitionChangeBuilderTest.testElectLeader")
@pytest.mark.parametrize(
    ("isr", "election", "elected"),
    [
        ((2, 1, 3), Election.PREFERRED, Elected(2)),
        ((2, 1, 3), Election.ONLINE, Elected(1)),
        ((2, 1, 3), Election.UNCLEAN, Elected(1)),
        ((1, 3), Election.ONLINE, Elected(1)),
        ((1, 3), Election.UNCLEAN, Elected(1)),
        ((3,), Election.ONLINE, Elected(NO_LEADER)),
        ((3,), Election.UNCLEAN, Elected(2, unclean=True)),
    ],
)
def test_leader_stays_or_first_electable_replica_replaces_it(
    isr: tuple[int, ...], election: Election, elected: Elected
) -> None:
    """Broker 3 is not alive."""
    live = active_brokers(image_of(ALL_IN_SYNC, 1, 2, 4))
    assert elect(ALL_IN_SYNC, isr, (), live, election) == elected


@pytest.mark.clause("PartitionChangeBuilderTest.testElectLeader")
@pytest.mark.parametrize("election", [Election.PREFERRED, Election.ONLINE, Election.UNCLEAN])
def test_preferred_replica_out_of_sync_is_not_elected(election: Election) -> None:
    live = active_brokers(image_of(PREFERRED_IS_OUT, 1, 2, 3))
    assert elect(PREFERRED_IS_OUT, (1, 3), (), live, election) == Elected(3)


@pytest.mark.clause(
    "PartitionChangeBuilderTest.testNoLeaderEpochBumpOnIsrShrink",
    "PartitionChangeBuilderTest.testLeaderEpochBumpOnIsrShrink",
    "PartitionChangeBuilderTest.testNoLeaderEpochBumpOnIsrExpansion",
    "PartitionChangeBuilderTest.testIsrChangeDoesntBumpLeaderEpoch",
    "PartitionChangeBuilderTest.testIsrChangeAndLeaderChange",
)
@pytest.mark.parametrize(
    ("partition", "isr", "version", "leader"),
    [
        (ALL_IN_SYNC, (2, 1), 12, NO_LEADER_CHANGE),
        (ALL_IN_SYNC, (2, 1), 11, 1),
        (PREFERRED_IS_OUT, (2, 1, 3), 12, NO_LEADER_CHANGE),
        (PREFERRED_IS_OUT, (2, 1, 3), 11, NO_LEADER_CHANGE),
        (ALL_IN_SYNC, (2, 3), 12, 2),
        (ALL_IN_SYNC, (2, 3), 11, 2),
    ],
    ids=["smaller", "smaller, older", "larger", "larger, older", "without the leader", "without the leader, older"],
)
def test_record_has_leader_only_if_leader_epoch_increases(
    partition: PartitionImage, isr: tuple[int, ...], version: int, leader: int
) -> None:
    image = image_of(partition, 1, 2, 3, version=version)
    record = PartitionChangeBuilder.of(image).change(image.topics["t"], 0, isr=isr)
    assert record is not None
    assert (record.isr, record.leader) == (isr, leader)
    changed = after(image, [record]).topics["t"].partitions[0]
    assert changed.leader_epoch - partition.leader_epoch == (leader != NO_LEADER_CHANGE)
    assert changed.partition_epoch == partition.partition_epoch + 1


@pytest.mark.clause(
    "PartitionChangeBuilderTest.testChangeRecordIsNoOp",
    "PartitionChangeBuilderTest.testNoLeaderEpochBumpIfNothingChanged",
    "PartitionChangeBuilderTest.testNoChange",
)
@pytest.mark.parametrize("version", [11, 12, 25])
@pytest.mark.parametrize("isr", [None, (2, 1, 3)])
def test_unchanged_partition_has_no_record(version: int, isr: tuple[int, ...] | None) -> None:
    image = image_of(ALL_IN_SYNC, 1, 2, 3, version=version)
    image = replace(image, brokers={each: replace(broker, log_dirs=()) for each, broker in image.brokers.items()})
    assert PartitionChangeBuilder.of(image).change(image.topics["t"], 0, isr=isr) is None


@pytest.mark.clause("PartitionChangeBuilderTest.testNoLeaderEpochBumpOnEmptyTargetIsr")
def test_empty_isr_starts_no_epoch_of_leaving_leader() -> None:
    """The last member stays in sync without eligible leader replicas, and the partition has no leader."""
    lone = replace(ALL_IN_SYNC, isr=(1,))
    image = image_of(lone, 2, 3, version=11)
    record = PartitionChangeBuilder.of(image).change(image.topics["t"], 0, isr=())
    assert record is not None
    assert (record.isr, record.leader) == (None, NO_LEADER)


@pytest.mark.clause("PartitionChangeBuilderTest.testChangeInLeadershipDoesNotChangeRecoveryState")
def test_recovering_leader_still_recovers_after_return() -> None:
    recovering = replace(ALL_IN_SYNC, isr=(1,), leader_recovery_state=RECOVERING)
    image = image_of(recovering, 2, 3, version=11)
    gone = PartitionChangeBuilder.of(image).change(image.topics["t"], 0, isr=())
    assert gone is not None
    offline = after(image_of(recovering, 1, 2, 3, version=11), [gone])
    assert offline.topics["t"].partitions[0].leader_recovery_state == RECOVERING
    back = PartitionChangeBuilder.of(offline).change(offline.topics["t"], 0)
    assert back is not None
    partition = after(offline, [back]).topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), RECOVERING)


@pytest.mark.clause(
    "PartitionChangeBuilderTest.testUncleanLeaderElection",
    "PartitionChangeBuilderTest.testUncleanSetsLeaderRecoveringState",
)
def test_unclean_election_makes_recovering_leader() -> None:
    left = replace(ALL_IN_SYNC, isr=(2, 3), leader=NO_LEADER)
    image = image_of(left, 1)
    record = PartitionChangeBuilder.of(image).change(image.topics["t"], 0, election=Election.UNCLEAN)
    assert record is not None
    assert (record.leader, record.isr, record.leader_recovery_state) == (1, (1,), RECOVERING)


@pytest.mark.clause("PartitionChangeBuilderTest.testEligibleLeaderReplicas_IsrAddNewMemberNotInELR")
def test_new_isr_member_keeps_eligible_replicas() -> None:
    cluster = Cluster(1, 2, 3, min_isr=3)
    cluster.in_sync(1)
    cluster.register(2, cleanly=False)
    cluster.unfence(2)
    assert cluster.state() == (1, (1,), (3,), ())
    cluster.in_sync(1, 2)
    assert cluster.state() == (1, (1, 2), (3,), ())


@pytest.mark.clause("ReplicationControlManagerTest.testPreferredElectionDoesNotTriggerUncleanElection")
def test_preferred_election_is_not_unclean() -> None:
    cluster = Cluster(1, 2, elr=0)
    cluster.fence(2, 1)
    cluster.unfence(2)
    key = "unclean.leader.election.enable"
    cluster.apply(ConfigRecord(resource_type=2, resource_name="t", name=key, value="true"))
    elections = RequestedElections(Election.PREFERRED, [("t", [0])])
    assert records_of(elections, cluster.plan_context()) == []
    outcome = elections.outcome(None)
    assert not isinstance(outcome, ApiError)
    ((_, ((_, refusal),)),) = outcome
    assert refusal is not None
    assert refusal.error is ErrorCode.preferred_leader_not_available
    assert cluster.state() == (NO_LEADER, (1,), (), ())


@pytest.mark.clause("ReplicationControlManagerTest.testElrsRemovedShouldNotBumpPartitionEpochIfNoChange")
def test_clear_elr_record_keeps_partitions_without_eligible_replicas() -> None:
    cluster = Cluster(1, 2, 3)
    before = cluster.partition
    cluster.apply(ClearElrRecord(topic_name="t"), ClearElrRecord(topic_name=""))
    assert cluster.partition == before
