"""Eligibility to lead when the in-sync replicas fall below their minimum (KIP-966, clauses E-1 to E-6)."""

from dataclasses import replace

import pytest

from reference_broker.controller.planning.brokers import (
    Registration,
    handle_broker_fenced,
    handle_broker_restarted,
    handle_broker_shutdown_now,
    handle_broker_unfenced,
)
from reference_broker.controller.planning.partition_changes import RECOVERING, Election
from reference_broker.controller.planning.partition_requests import (
    DirectoryChange,
    IsrChange,
    RequestedElections,
    RequestedIsr,
)
from reference_broker.controller.planning.topic_creation import NewTopic, TopicCreation
from reference_broker.controller.tests.planned import after, brokers, plan_context, records_of
from reference_broker.controller.write_operations import ApiError, PlanContext
from reference_broker.metadata.broker_settings import cluster_min_isr_record
from reference_broker.metadata.identifiers import LOST_DIRECTORY, NO_DIRECTORY
from reference_broker.metadata.image import PartitionImage
from reference_broker.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from reference_broker.ports.slicing import run_to_end

ID = b"\x01" * 16


def directory(broker_id: int, number: int = 0) -> bytes:
    return bytes([broker_id, number]) * 8


class Cluster:
    """Brokers 1 to 3 with a directory each, and partition 0 of topic t."""

    def __init__(self, *replicas: int, min_isr: int = 2, elr: int = 1, directories: bool = True) -> None:
        image = brokers(1, 2, 3)
        homes = {each: replace(image.brokers[each], log_dirs=(directory(each),)) for each in (1, 2, 3)}
        self.image = after(
            replace(image, brokers=homes),
            [
                FeatureLevelRecord(name="metadata.version", feature_level=25),
                FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=elr),
                cluster_min_isr_record(min_isr),
                TopicRecord(name="t", topic_id=ID),
                PartitionRecord(
                    partition_id=0,
                    topic_id=ID,
                    replicas=replicas,
                    isr=replicas,
                    leader=replicas[0],
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=tuple(directory(replica) if directories else NO_DIRECTORY for replica in replicas),
                ),
            ],
        )

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    def state(self) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return (leader, ISR, ELR, last known ELR)."""
        return self.partition.leader, self.partition.isr, self.partition.elr, self.partition.last_known_elr

    def plan_context(self) -> PlanContext:
        return plan_context(self.image)

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.image = after(
                self.image, run_to_end(handle_broker_fenced(self.plan_context(), self.image.brokers[broker_id]))
            )

    def unfence(self, broker_id: int) -> None:
        self.image = after(
            self.image, run_to_end(handle_broker_unfenced(self.plan_context(), self.image.brokers[broker_id]))
        )

    def stop(self, broker_id: int) -> None:
        self.image = after(
            self.image, run_to_end(handle_broker_shutdown_now(self.plan_context(), self.image.brokers[broker_id]))
        )

    def register(self, broker_id: int, *, cleanly: bool, number: int = 0) -> None:
        """Register the broker's next incarnation, fenced."""
        known, dirs = self.image.brokers[broker_id], (directory(broker_id, number),)
        epoch = known.broker_epoch if cleanly else -1
        wanted = Registration(broker_id, "c", b"n" * 16, (), (), None, dirs, epoch)
        uncleanly = not wanted.is_after_clean_shutdown(known)
        self.image = after(self.image, run_to_end(handle_broker_restarted(self.plan_context(), broker_id, uncleanly)))
        again = replace(known, broker_epoch=known.broker_epoch + 10, fenced=True, in_controlled_shutdown=False)
        self.image = replace(self.image, brokers={**self.image.brokers, broker_id: replace(again, log_dirs=dirs)})

    def report(self, broker_id: int, directory_id: bytes) -> list[list[str]]:
        """Report the directory of the broker's replica. Return the names of the errors."""
        epoch = self.image.brokers[broker_id].broker_epoch
        change = DirectoryChange(broker_id, epoch, [(directory_id, ID, (0,))])
        self.image = after(self.image, records_of(change, self.plan_context()))
        outcome = change.outcome(None)
        assert isinstance(outcome, list)
        return [[code.name for code in found] for found in outcome]

    def in_sync(self, *isr: int) -> None:
        wanted = RequestedIsr(
            0, self.partition.leader_epoch, self.partition.partition_epoch, tuple((n, -1) for n in isr), 0
        )
        leader = self.image.brokers[self.partition.leader]
        change = IsrChange(leader.broker_id, leader.broker_epoch, [(ID, [wanted])])
        self.image = after(self.image, records_of(change, self.plan_context()))
        assert self.partition.isr == isr

    def apply(self, *records: MetadataRecord) -> None:
        self.image = after(self.image, records)


@pytest.mark.clause(
    "ReplicationControlManagerTest.testEligibleLeaderReplicas_ShrinkAndExpandIsr",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_IsrShrinkBelowMinISR",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_IsrExpandAboveMinISR",
)
@pytest.mark.clause("E-1")
def test_replica_leaving_isr_below_minimum_stays_eligible() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.in_sync(1, 2)
    assert cluster.state() == (1, (1, 2), (), ())
    cluster.in_sync(1)
    assert cluster.state() == (1, (1,), (2,), ())
    cluster.in_sync(1, 3)
    assert cluster.state() == (1, (1, 3), (), ())


@pytest.mark.clause("ReplicationControlManagerTest.testEligibleLeaderReplicas_EffectiveMinIsr")
@pytest.mark.clause("E-1")
def test_minimum_is_capped_at_replica_count() -> None:
    cluster = Cluster(1, 2, min_isr=3)
    cluster.in_sync(1)
    assert cluster.state() == (1, (1,), (2,), ())
    cluster.in_sync(1, 2)
    assert cluster.state() == (1, (1, 2), (), ())


@pytest.mark.clause("E-1")
def test_topic_min_isr_applies() -> None:
    cluster = Cluster(1, 2, 3, min_isr=1)
    cluster.in_sync(1)
    assert cluster.state() == (1, (1,), (), ())
    cluster.in_sync(1, 2, 3)
    cluster.apply(ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"))
    cluster.in_sync(1)
    assert cluster.state() == (1, (1,), (2, 3), ())


@pytest.mark.clause(
    "ReplicationControlManagerTest.testEligibleLeaderReplicas_ShrinkToEmptyIsr",
    "ReplicationControlManagerTest.testEligibleLeaderReplicas_BrokerFence",
    "ReplicationControlManagerTest.testEligibleLeaderReplicas_CleanElection",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_lastKnownElrShouldBePopulatedWhenNoLeader",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_ElrCanBeElected",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_IsrCanShrinkToZero",
)
@pytest.mark.clause("E-1")
@pytest.mark.clause("E-3")
def test_fenced_last_isr_member_becomes_eligible_and_is_elected_first() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.fence(1, 2)
    assert cluster.state() == (3, (3,), (2,), ())
    cluster.fence(3)
    assert cluster.state() == (-1, (), (2, 3), (3,))
    cluster.unfence(1)
    assert cluster.state() == (-1, (), (2, 3), (3,))
    cluster.unfence(2)
    assert cluster.state() == (2, (2,), (3,), ())
    assert cluster.partition.leader_recovery_state == 0


@pytest.mark.clause("E-7")
@pytest.mark.clause(
    "QuorumControllerTest.testUncleanShutdownBrokerElrEnabled",
    "ReplicationControlManagerTest.testEligibleLeaderReplicas_UncleanShutdown",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_RemoveUncleanShutdownReplicasFromElr",
    "ClusterControlManagerTest.testReRegistrationWithCleanShutdownDetection",
)
@pytest.mark.clause("E-4")
def test_clean_stop_keeps_eligibility_and_unclean_stop_does_not() -> None:
    for cleanly, leader in ((True, 2), (False, -1)):
        cluster = Cluster(1, 2, min_isr=2)
        cluster.stop(2)
        assert cluster.state() == (1, (1,), (2,), ())
        cluster.fence(1)
        cluster.register(2, cleanly=cleanly)
        assert cluster.state() == (-1, (), (2, 1) if cleanly else (1,), (1,))
        cluster.unfence(2)
        assert cluster.partition.leader == leader


@pytest.mark.clause("E-4")
def test_unnoticed_restart_leaves_isr() -> None:
    for cleanly, elr in ((True, (1,)), (False, ())):
        cluster = Cluster(1, 2, min_isr=2)
        cluster.register(1, cleanly=cleanly)
        assert cluster.state() == (2, (2,), elr, ())


@pytest.mark.clause("E-7")
@pytest.mark.clause("PartitionChangeBuilderTest.testEligibleLeaderReplicas_ElectLastKnownLeaderShouldFail")
@pytest.mark.clause("E-3")
@pytest.mark.clause("E-4")
def test_eligible_replica_leads_after_unclean_stop_of_last_isr_member() -> None:
    """2 is away, 1 is alone in sync, loses its power and is back at once."""
    cluster = Cluster(1, 2)
    cluster.fence(2)
    cluster.register(1, cleanly=False)
    assert cluster.state() == (-1, (), (2,), (1,))
    cluster.unfence(1)
    assert cluster.state() == (-1, (), (2,), (1,))
    cluster.unfence(2)
    assert cluster.state() == (2, (2,), (), ())


@pytest.mark.clause(
    "QuorumControllerTest.testUncleanShutdownBrokerElrEnabled",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_ElectLastKnownLeader",
    "PartitionChangeBuilderTest.testEligibleLeaderReplicas_NotEligibleLastKnownLeader",
)
@pytest.mark.clause("E-5")
def test_last_known_leader_is_elected_without_eligible_replicas() -> None:
    cluster = Cluster(1, 2)
    cluster.fence(2)
    cluster.register(1, cleanly=False)
    cluster.register(2, cleanly=False)
    assert cluster.state() == (-1, (), (), (1,))
    cluster.unfence(2)
    assert cluster.state() == (-1, (), (), (1,))
    cluster.unfence(1)
    assert cluster.state() == (1, (1,), (), ())
    assert cluster.partition.leader_recovery_state == RECOVERING


@pytest.mark.clause("E-5")
def test_single_replica_is_elected_after_unclean_stop() -> None:
    cluster = Cluster(1)
    cluster.register(1, cleanly=False)
    assert cluster.state() == (-1, (), (), (1,))
    cluster.unfence(1)
    assert cluster.state() == (1, (1,), (), ())


@pytest.mark.clause("E-7")
@pytest.mark.clause("E-6")
def test_replica_with_lost_directory_is_not_elected_until_back_or_unclean_election() -> None:
    cluster = Cluster(1)
    cluster.register(1, cleanly=True, number=9)
    cluster.unfence(1)
    assert cluster.state() == (-1, (), (), (1,))
    missing = cluster.image
    cluster.register(1, cleanly=False)
    cluster.unfence(1)
    assert cluster.state() == (1, (1,), (), ())
    cluster.image = missing
    elections = RequestedElections(Election.UNCLEAN, [("t", [0])])
    cluster.apply(*records_of(elections, cluster.plan_context()))
    assert cluster.state() == (1, (1,), (), ())
    assert cluster.partition.directories == (directory(1, 9),)


@pytest.mark.clause("PartitionChangeBuilderTest.testUpdateDirectories")
@pytest.mark.clause("E-6")
def test_joining_replica_gets_new_directory() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.register(3, cleanly=False, number=9)
    cluster.unfence(3)
    assert cluster.partition.directories == (directory(1), directory(2), directory(3))
    cluster.in_sync(1, 2, 3)
    assert cluster.partition.directories == (directory(1), directory(2), directory(3, 9))


@pytest.mark.clause("PartitionChangeBuilderTest.testUpdateDirectories")
@pytest.mark.clause("E-6")
def test_partitions_of_new_and_old_topics_get_actual_directories() -> None:
    cluster = Cluster(1, 2, 3, directories=False)
    cluster.apply(*records_of(TopicCreation([NewTopic("u", 1, 3)], False), cluster.plan_context()))
    new = cluster.image.topics["u"].partitions[0]
    assert new.directories == tuple(directory(replica) for replica in new.replicas)
    wiped = Cluster(1, 2, 3, directories=False)
    wiped.register(2, cleanly=False, number=9)
    assert wiped.partition.directories == (directory(1), directory(2), directory(3)), "that of before the restart"
    cluster.fence(3)
    cluster.unfence(3)
    assert cluster.partition.directories == (directory(1), directory(2), directory(3))


@pytest.mark.clause("FeaturesImageTest.testElrEnabled", "QuorumControllerTest.testUncleanShutdownElrDisabled")
@pytest.mark.clause("E-8")
def test_last_isr_member_stays_in_sync_without_feature() -> None:
    cluster = Cluster(1, 2, elr=0)
    cluster.fence(2, 1)
    assert cluster.state() == (-1, (1,), (), ())
    cluster = Cluster(1, 2)
    cluster.fence(2, 1)
    cluster.apply(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0))
    cluster.unfence(2)
    assert cluster.state() == (2, (2,), (1,), ())
    cluster.unfence(1)
    cluster.in_sync(2, 1)
    assert cluster.state() == (2, (2, 1), (), ())


@pytest.mark.clause("TopicsImageTest.testClearElrRecords", "QuorumControllerTest.testMinIsrUpdateWithElr")
@pytest.mark.clause("E-8")
def test_clear_elr_record_keeps_partitions_led_by_eligible_replicas_only() -> None:
    cluster = Cluster(1, 2)
    cluster.fence(2)
    led = cluster.image
    cluster.apply(ClearElrRecord(topic_name="t"))
    assert cluster.state() == (1, (1,), (), ())
    cluster.image = led
    cluster.apply(ClearElrRecord(topic_name=""))
    assert cluster.state() == (1, (1,), (), ())
    cluster.image = led
    cluster.fence(1)
    cluster.apply(ClearElrRecord(topic_name=""))
    assert cluster.state() == (-1, (), (2, 1), (1,))


@pytest.mark.clause("E-3")
@pytest.mark.clause("E-6")
def test_eligible_replica_with_damaged_log_is_not_elected_until_in_sync() -> None:
    cluster = Cluster(1, 2)
    cluster.stop(2)
    cluster.stop(1)
    assert cluster.state() == (-1, (), (2, 1), (1,))
    cluster.register(1, cleanly=True)
    assert cluster.report(1, LOST_DIRECTORY) == [["none"]]
    cluster.unfence(1)
    assert cluster.state() == (-1, (), (2, 1), (1,)), "what it lacks may have been acknowledged"
    cluster.register(2, cleanly=True)
    cluster.unfence(2)
    assert cluster.state() == (2, (2,), (1,), ())
    cluster.fence(2)
    assert cluster.state()[0] == -1
    cluster.unfence(2)
    cluster.in_sync(1, 2)
    assert cluster.partition.directories == (directory(1), directory(2))
    cluster.fence(2)
    assert cluster.state() == (1, (1,), (2,), ())


@pytest.mark.clause("E-5")
@pytest.mark.clause("E-6")
@pytest.mark.parametrize("elr", [0, 1])
def test_single_replica_with_damaged_log_stays_offline_until_restored(elr: int) -> None:
    """The replica is neither elected nor dropped, so that its records can be restored by hand."""
    cluster = Cluster(1, elr=elr)
    cluster.stop(1)
    held = cluster.partition.isr, cluster.partition.elr
    assert held == (((), (1,)) if elr else ((1,), ()))
    cluster.register(1, cleanly=True)
    assert cluster.report(1, LOST_DIRECTORY) == [["none"]]
    cluster.unfence(1)
    assert (cluster.partition.leader, cluster.partition.isr, cluster.partition.elr) == (-1, *held)
    cluster.register(1, cleanly=True)
    assert cluster.report(1, directory(1)) == [["none"]]
    cluster.unfence(1)
    assert cluster.state() == (1, (1,), (), ())


@pytest.mark.clause("E-6")
@pytest.mark.parametrize("elr", [0, 1])
def test_lost_replica_is_elected_only_by_requested_unclean_election(elr: int) -> None:
    """The setting alone does not. Otherwise the partition would stay offline until its topic is deleted, as on a
    replaced disk."""
    cluster = Cluster(1, elr=elr)
    cluster.apply(
        ConfigRecord(resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"),
    )
    cluster.stop(1)
    cluster.register(1, cleanly=True)
    cluster.report(1, LOST_DIRECTORY)
    cluster.register(1, cleanly=False, number=9)
    cluster.unfence(1)
    assert cluster.state()[0] == -1
    elections = RequestedElections(Election.UNCLEAN, [("t", [0])])
    cluster.apply(*records_of(elections, cluster.plan_context()))
    assert cluster.state() == (1, (1,), (), ())
    assert cluster.partition.directories == (directory(1, 9),)


@pytest.mark.clause("ReplicationControlManagerTest.testHandleAssignReplicasToDirs")
@pytest.mark.clause("E-6")
def test_lost_replica_is_not_elected_uncleanly_if_another_can_be() -> None:
    cluster = Cluster(1, 2)
    cluster.apply(
        ConfigRecord(resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"),
    )
    assert cluster.report(1, LOST_DIRECTORY) == [["none"]]
    assert cluster.state() == (2, (2,), (1,), ())
    cluster.fence(2)
    assert cluster.state()[0] == -1


@pytest.mark.clause(
    "ReplicationControlManagerTest.testHandleAssignReplicasToDirsFailsOnOlderMv",
    "ReplicationControlManagerTest.testHandleAssignReplicasToDirs",
)
def test_directory_report_of_other_brokers_replica_is_rejected() -> None:
    cluster = Cluster(1, 2)
    known = {"wanted": [(LOST_DIRECTORY, ID, (0,))]}
    for broker_id, epoch, wanted, expected in (
        (3, 3, known["wanted"], "not_leader_or_follower"),
        (1, 1, [(LOST_DIRECTORY, ID, (1,))], "unknown_topic_or_partition"),
        (1, 1, [(LOST_DIRECTORY, b"o" * 16, (0,))], "unknown_topic_id"),
        (1, 0, known["wanted"], "stale_broker_epoch"),
    ):
        change = DirectoryChange(broker_id, epoch, wanted)
        assert records_of(change, cluster.plan_context()) == []
        outcome = change.outcome(None)
        assert (outcome.error if isinstance(outcome, ApiError) else outcome[0][0]).name == expected
    cluster.apply(
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0),
        FeatureLevelRecord(name="metadata.version", feature_level=16),
    )
    change = DirectoryChange(1, 1, known["wanted"])
    assert records_of(change, cluster.plan_context()) == []
    outcome = change.outcome(None)
    assert isinstance(outcome, ApiError)
    assert outcome.error.name == "unsupported_version"
