"""Encodes a change's records and cuts them into batches.

Each record is checked before it is appended. A plan that breaks an invariant of a partition is a bug of the controller.
It ends in an assertion before anything of the change is written, because the log would carry the damage to every node.
One check costs less than 1 us.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.write_operations import Records
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import NO_LEADER, PartitionImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord, encode
from reference_broker.ports.slicing import Budget, Sliced
from reference_broker.records.batch import HEADER_BYTES

MAX_RECORDS_PER_OPERATION = 2_000_000
"""More than any cluster needs. It limits the memory that one request may cost the controller."""

MAX_RECORD_BYTES = 1_048_576
"""The limit for the value of one record. Only values of settings have no limit of their own."""

_RECORD_OVERHEAD_BYTES = 14
"""The most that a batch adds to a value: length, attributes, deltas, key length, value length, header count."""


class ChangeTooLarge(Exception):  # noqa: N818 - the limit is the news
    """A change is larger than allowed. It is refused with POLICY_VIOLATION, and nothing was written."""


@dataclass(slots=True)
class ChangeBatch:
    """Records that are appended together."""

    records: list[MetadataRecord] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    """The encoded records."""


@dataclass(slots=True)
class ChangeBatches:
    """The records of a change as batches."""

    delta: MetadataDelta
    """The delta that has replayed all of the records."""
    batches: list[ChangeBatch] = field(default_factory=list)
    records: int = 0
    """The number of records in all batches."""


def run_plan(plan: Callable[[], Records | Sliced[Records]]) -> Sliced[Records]:
    """Run a plan whose turn has come, and return its records."""
    records = plan()
    if isinstance(records, Generator):
        return (yield from records)
    return records


def encode_batches(
    records: Records, delta: MetadataDelta, max_batch_bytes: int, budget: Budget
) -> Sliced[ChangeBatches]:
    """Cut the records into batches of at most ``max_batch_bytes``, and replay them on ``delta``. A larger record gets a
    batch of its own.

    Raise ChangeTooLarge, and MetadataFault for a record that cannot follow the ones before it.
    """
    cut, size_bytes = ChangeBatches(delta), max_batch_bytes
    for record in records:
        value = encode(record)
        length = len(value) + _RECORD_OVERHEAD_BYTES
        if length > MAX_RECORD_BYTES:
            raise ChangeTooLarge(f"a metadata record of {length} bytes, at most {MAX_RECORD_BYTES} are allowed")
        if size_bytes + length > max_batch_bytes:
            cut.batches.append(ChangeBatch())
            size_bytes = HEADER_BYTES
        cut.batches[-1].records.append(record)
        cut.batches[-1].values.append(value)
        size_bytes += length
        cut.records += 1
        if cut.records > MAX_RECORDS_PER_OPERATION:
            raise ChangeTooLarge(f"more than {MAX_RECORDS_PER_OPERATION} metadata records in one operation")
        replay_checked(delta, record)
        if budget.spend(2):
            yield
    return cut


def replay_batch(batch: ChangeBatch, delta: MetadataDelta, budget: Budget) -> Sliced[None]:
    """Replay one batch of a cut on ``delta``. Raise MetadataFault for a record that cannot follow."""
    for record in batch.records:
        replay(delta, record)
        if budget.spend(2):
            yield


_OfPartition: TypeAlias = PartitionRecord | PartitionChangeRecord


def replay_checked(delta: MetadataDelta, record: MetadataRecord) -> None:
    """Replay the record, and check the partition that it creates or changes."""
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
