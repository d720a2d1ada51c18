"""Committed partition changes: a right history, and changes that contradict KIP-966."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.log.batches import batches_of
from chaos.checks.metadata.partition_changes import REGISTERED_WITHIN_US, PartitionChangesByRule
from chaos.checks.tests.check_context import check_context
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.image import PartitionImage
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    encode,
)
from reference_broker.records.record import Record, build

TOPIC_ID = b"\x01" * 16
KEY = (TOPIC_ID, 0)
HOMES = tuple(bytes([each + 1] * 16) for each in range(3))


def registration(broker_id: int, *, fenced: bool = False) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=bytes(16),
        broker_epoch=1,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="host", port=9092, security_protocol=0),),
        features=(BrokerFeature(name="f", min_supported_version=0, max_supported_version=1),),
        fenced=fenced,
        log_dirs=(HOMES[broker_id],),
    )


def fence(broker_id: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=1, fenced=1)


def change(**fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **fields)


class MetadataLog:
    """Three brokers with one partition, whose minimum is 2."""

    def __init__(self) -> None:
        self.check = PartitionChangesByRule(check_context())
        self.end, self.at_us = 0, 0
        self.image = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0, directories=HOMES)
        self.write(
            FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
            ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="2"),
            *(registration(each) for each in range(3)),
            TopicRecord(name="t", topic_id=TOPIC_ID),
            PartitionRecord(
                partition_id=0,
                topic_id=TOPIC_ID,
                replicas=(0, 1, 2),
                isr=(0, 1, 2),
                leader=0,
                leader_epoch=0,
                partition_epoch=0,
                directories=HOMES,
            ),
        )

    def write(self, *records: MetadataRecord, epoch: int = 1) -> None:
        data = bytes(build([Record(timestamp_ms=0, value=encode(record)) for record in records], leader_epoch=epoch))
        data = self.end.to_bytes(8, "big") + data[8:]
        self.end += len(records)
        member: Any = None
        self.check.committed(self.at_us, member, list(batches_of(data)))

    def publish(self, image: PartitionImage) -> None:
        partition: Any = type("Partition", (), {"name": "t-0", "key": KEY})
        self.check.metadata_changed(self.at_us, partition, self.image, image)

    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


@pytest.fixture
def log() -> MetadataLog:
    return MetadataLog()


@pytest.mark.clause("E-1", "E-3", "E-5")
def test_history_by_the_rules_violates_nothing(log: MetadataLog) -> None:
    log.write(change(isr=(0, 1)))
    log.write(change(isr=(1,), leader=1, eligible_leader_replicas=(0,)), fence(0))
    log.write(change(isr=(), leader=-1, eligible_leader_replicas=(0, 1), last_known_elr=(1,)), fence(1))
    unfenced = BrokerRegistrationChangeRecord(broker_id=0, broker_epoch=1, fenced=-1)
    log.write(unfenced, change(isr=(0,), leader=0, eligible_leader_replicas=(1,), last_known_elr=()))
    log.write(change(isr=(0, 2), eligible_leader_replicas=()))
    log.write(BeginTransactionRecord(name="change"))
    log.write(change(isr=(7,)))
    log.write(AbortTransactionRecord())
    log.publish(replace(log.image, isr=(0, 2), leader_epoch=3, partition_epoch=5))
    assert log.explanations() == []
    assert log.check.evidence == 6


@pytest.mark.clause("E-5")
def test_last_leader_recovers_alone(log: MetadataLog) -> None:
    log.write(change(isr=(0,), eligible_leader_replicas=(1, 2)))
    log.write(change(eligible_leader_replicas=()), registration(1, fenced=True), registration(2, fenced=True))
    log.write(change(isr=(), leader=-1, eligible_leader_replicas=(0,), last_known_elr=(0,)), fence(0))
    log.write(change(eligible_leader_replicas=()))
    log.write(registration(0))
    recovers = change(isr=(0,), leader=0, eligible_leader_replicas=(), last_known_elr=(), leader_recovery_state=1)
    log.write(recovers)
    assert log.explanations() == []
    log.write(change(leader_recovery_state=0))
    log.write(change(isr=(0, 2)))
    assert len(log.explanations()) == 1  # Broker 2 is fenced.


@pytest.mark.parametrize(
    ("records", "explanation"),
    [
        ((change(isr=(0,)),), "[1, 2] are eligible (E-1)"),
        ((change(isr=(0,), eligible_leader_replicas=(1,)),), "[2] are eligible (E-1)"),
        ((change(isr=(0, 1), eligible_leader_replicas=(2,)),), "at a minimum of 2, are [] (E-1)"),
        ((change(isr=(0, 1, 3)),), "different replicas"),
        ((change(isr=(0,), eligible_leader_replicas=(0, 1, 2)),), "different replicas"),
        ((change(isr=(1, 2)), fence(1)), "is fenced in"),
        ((fence(2),), "stay (E-4)"),
        ((change(isr=(1, 2), leader=0),), "leader 0 is not in sync (E-3)"),
        ((change(isr=(0, 1), leader=1), fence(1)), "leader 1 is fenced or leaves (E-3)"),
        ((change(isr=(), leader=-1, eligible_leader_replicas=(0, 1, 2)),), "last leader 0 is not kept"),
        ((change(leader=1, directories=(HOMES[0], LOST_DIRECTORY, HOMES[2])),), "does not have its directory (E-6)"),
    ],
)
@pytest.mark.clause("E-1", "E-3", "E-4", "E-6")
def test_change_against_the_rules_is_a_violation(
    log: MetadataLog, records: tuple[MetadataRecord, ...], explanation: str
) -> None:
    log.write(*records)
    log.at_us += REGISTERED_WITHIN_US + 1
    log.write(change())
    assert [each for each in log.explanations() if explanation in each]


@pytest.mark.clause("E-3")
def test_eligible_leader_is_elected_only_if_no_in_sync_replica_is_live(log: MetadataLog) -> None:
    log.write(change(isr=(0,), eligible_leader_replicas=(1, 2)))
    log.write(change(isr=(0, 1), leader=1, eligible_leader_replicas=()))
    assert ["elected although [0]" in explanation for explanation in log.explanations()] == [True]


@pytest.mark.clause("E-3")
def test_leader_from_outside_is_a_violation(log: MetadataLog) -> None:
    log.write(change(isr=(0, 1)))
    log.write(change(isr=(0, 2), leader=2))
    assert ["neither in sync nor eligible" in explanation for explanation in log.explanations()] == [True]


@pytest.mark.clause("E-4")
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("registers", [True, False])
def test_replica_that_registers_uncleanly_is_not_eligible(log: MetadataLog, epoch: int, *, registers: bool) -> None:
    log.write(change(isr=(0,), eligible_leader_replicas=(1, 2)))
    log.write(change(eligible_leader_replicas=(2,)))
    log.at_us += REGISTERED_WITHIN_US + 1
    log.write(registration(1, fenced=True) if registers else change(eligible_leader_replicas=(2,)), epoch=epoch)
    assert bool(log.explanations()) == (not registers and epoch == 1)


@pytest.mark.clause("E-8")
def test_eligible_replicas_are_cleared_in_the_next_partition_epoch(log: MetadataLog) -> None:
    log.write(change(isr=(0,), eligible_leader_replicas=(1, 2)))
    log.write(ClearElrRecord(topic_name="t"))
    shrunk = replace(log.image, isr=(0,), partition_epoch=2)
    log.publish(shrunk)
    log.publish(replace(shrunk, elr=(1, 2), partition_epoch=1))
    assert log.explanations() == []
    log.publish(replace(shrunk, elr=(2,)))
    assert ["is published" in explanation for explanation in log.explanations()] == [True]


@pytest.mark.parametrize("fields", [{"leader_epoch": 2}, {"isr": (1, 2, 0)}, {"leader": 2}, {"partition_epoch": 0}])
def test_image_equals_state_of_records(log: MetadataLog, fields: dict[str, Any]) -> None:
    right = replace(log.image, isr=(1, 2), leader=1, leader_epoch=1, partition_epoch=1)
    log.publish(right)
    log.write(BeginTransactionRecord(name="change"), change(isr=(1, 2), leader=1), EndTransactionRecord())
    assert log.explanations() == []
    log.publish(replace(right, **fields))
    assert len(log.explanations()) == 1
