"""Assertions of the controller at its state changes: each one fires, and nothing of the change is written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from reference_broker.controller import record_batches
from reference_broker.controller.controller_term import AppendKind, ControllerTerm
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    encode,
)
from reference_broker.metadata.tests.metadata_world import MetadataWorld, started, topic_id, topic_records
from reference_broker.quorum.values import Provenance

TOPIC = topic_records("t", topic_id(1))


def change(**fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=topic_id(1), **fields)


def with_topic() -> MetadataWorld:
    world = started()
    submit(world, TOPIC)
    world.settle()
    return world


def submit(world: MetadataWorld, records: Sequence[MetadataRecord], name: str = "change") -> None:
    world.submit(lambda: records, lambda _: None, name=name)


def term_of(world: MetadataWorld) -> ControllerTerm:
    term = world.controller.activation.term
    assert term is not None
    return term


# Partitions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"isr": ()}, "no replica in sync"),
        ({"isr": (1, 2)}, r"in-sync replicas \(1, 2\), but its replicas are only \(1,\)"),
        ({"leader": 2}, r"led by 2, which is not one of the in-sync replicas \(1,\)"),
    ],
)
def test_record_with_inconsistent_partition_is_not_written(fields: dict[str, Any], message: str) -> None:
    world = with_topic()
    end = world.log.end
    with pytest.raises(AssertionError, match=message):
        submit(world, [change(**fields)])
    topic, partition = topic_records("u", topic_id(2))
    assert isinstance(partition, PartitionRecord)
    with pytest.raises(AssertionError, match=message):
        submit(with_topic(), [topic, replace(partition, **fields)])
    assert world.log.end == end


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition_epoch": 0}, "partition epoch goes from 0 to 0"),
        ({"partition_epoch": 1, "leader_epoch": -1}, "go back from leader epoch 0 to -1"),
        ({"partition_epoch": 1, "leader": -1}, "from leader 1 to -1 within leader epoch 0"),
    ],
)
def test_partition_epochs_that_do_not_increase_are_not_written(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
) -> None:
    """The records have no epochs of their own: their replay is patched to count wrongly."""

    def replay(delta: MetadataDelta, record: PartitionChangeRecord) -> None:
        before = delta.partition(record.topic_id, record.partition_id)
        delta.put_partition(record.topic_id, record.partition_id, replace(before, **fields))

    world = with_topic()
    end = world.log.end
    monkeypatch.setattr(record_batches, "replay", replay)
    with pytest.raises(AssertionError, match=message):
        submit(world, [change(leader=1)])
    assert world.log.end == end


# One change at a time, in order


def test_overlapping_change_raises() -> None:
    world = started(crucible_metadata_batch_max_bytes="512")
    submit(world, topic_records("big", topic_id(3), 40), name="the first")
    term = term_of(world)
    submit(world, TOPIC)
    with pytest.raises(AssertionError, match=r"\(the first\) is not over when the next one begins"):
        next(term._run_queue())


def test_nested_step_raises() -> None:
    world = started()
    term = term_of(world)

    def inside() -> tuple[MetadataRecord, ...]:
        term._run_slice()
        return ()

    with pytest.raises(AssertionError, match="inside another step"):
        world.submit(inside, lambda _: None)


def test_change_ending_at_earlier_offset_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started()
    submit(world, TOPIC, name="the first")
    monkeypatch.setattr(world.quorum, "append", lambda _: Provenance(0, 1, 7))
    with pytest.raises(AssertionError, match=r"\(the second\) ends at offset 0, before the change ahead of it"):
        submit(world, [NoOpRecord()], name="the second")


# Markers


@pytest.mark.clause("T-4", "T-5")
@pytest.mark.parametrize(
    ("before", "kind", "state"),
    [
        ((), AppendKind.END, "not open"),
        ((), AppendKind.BATCH, "not open"),
        ((), AppendKind.ABORT, "not open"),
        ((AppendKind.BEGIN,), AppendKind.BEGIN, "open"),
        ((AppendKind.BEGIN, AppendKind.BATCH), AppendKind.SINGLE, "open"),
        ((AppendKind.BEGIN, AppendKind.END), AppendKind.END, "not open"),
        ((AppendKind.BEGIN, AppendKind.ABORT), AppendKind.BATCH, "not open"),
    ],
)
def test_unpaired_transaction_marker_raises(before: tuple[AppendKind, ...], kind: AppendKind, state: str) -> None:
    world = started()
    term = term_of(world)

    def append(kind: AppendKind) -> None:
        markers: dict[AppendKind, MetadataRecord] = {
            AppendKind.BEGIN: BeginTransactionRecord(),
            AppendKind.END: EndTransactionRecord(),
        }
        record = markers.get(kind, NoOpRecord())
        term._append([encode(record)], kind, 1, 1)

    for each in before:
        append(each)
    end = world.log.end
    with pytest.raises(AssertionError, match=f"get {kind.word} 1 of 1 while a transaction is {state}"):
        append(kind)
    assert world.log.end == end
