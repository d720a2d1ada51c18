"""What must hold for every partition that the active controller writes. Each record is checked before it is appended.

A plan that breaks one of these rules is a bug of the controller. It ends in an assertion before anything of the change
is written, because the log would carry the damage to every node. One check costs less than 1 us.
"""

from typing import TypeAlias

from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import NO_LEADER, PartitionImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from reference_broker.metadata.replay import replay

_OfPartition: TypeAlias = PartitionRecord | PartitionChangeRecord


def replay_checked(delta: MetadataDelta, record: MetadataRecord) -> None:
    """Replays the record, and checks the partition that it creates or changes."""
    if type(record) is PartitionRecord:
        replay(delta, record)
        _check_state(record, delta.partition(record.topic_id, record.partition_id))
    elif type(record) is PartitionChangeRecord:
        before = delta.partition(record.topic_id, record.partition_id)
        replay(delta, record)
        after = delta.partition(record.topic_id, record.partition_id)
        _check_state(record, after)
        _check_change(record, before, after)
    else:
        replay(delta, record)


def _check_state(record: _OfPartition, partition: PartitionImage) -> None:
    isr, replicas, leader = partition.isr, partition.replicas, partition.leader
    assert isr or partition.elr or partition.last_known_elr, (
        f"{_place(record)} is about to have no replica in sync, none that is eligible and no last known leader: nobody "
        "could ever lead it again"
    )
    assert all(replica in replicas and replica not in isr for replica in partition.elr), (
        f"{_place(record)} is about to have the eligible leaders {partition.elr}, its replicas are {replicas}, and in "
        f"sync are {isr}"
    )
    assert isr is replicas or all(replica in replicas for replica in isr), (
        f"{_place(record)} is about to have the in-sync replicas {isr}, but its replicas are only {replicas}"
    )
    assert leader == NO_LEADER or leader in isr, (
        f"{_place(record)} is about to be led by {leader}, which is not one of the in-sync replicas {isr}: it may lack "
        "acknowledged records"
    )


def _check_change(record: _OfPartition, before: PartitionImage, after: PartitionImage) -> None:
    assert after.partition_epoch > before.partition_epoch, (
        f"{_place(record)} is about to change, and its partition epoch goes from {before.partition_epoch} to "
        f"{after.partition_epoch}: brokers would take the change for an old one"
    )
    assert after.leader_epoch >= before.leader_epoch, (
        f"{_place(record)} is about to go back from leader epoch {before.leader_epoch} to {after.leader_epoch}"
    )
    assert after.leader == before.leader or after.leader_epoch > before.leader_epoch, (
        f"{_place(record)} is about to pass from leader {before.leader} to {after.leader} within leader epoch "
        f"{before.leader_epoch}: two leaders would write in one epoch"
    )


def _place(record: _OfPartition) -> str:
    return f"Partition {record.partition_id} of topic {record.topic_id.hex()}"
