"""Remote segments: states out of order, copies that differ from their log, and near misses."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from struct import pack_into
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode
from chaos.checks.tier.segment_states import RemoteSegmentStates, record_of
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Note, StoreCall
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC, uuid_text
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.ports.store import Delete, Put
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build
from reference_broker.remote_log.metadata.events import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    encode,
    update_of,
)
from reference_broker.replication.partitions import Partition

TOPIC_ID, ID = b"t" * 16, b"s" * 16
START = f"hot-0-{uuid_text(TOPIC_ID)}/{0:020d}-{uuid_text(ID)}."
MS = 1_000_000
FINISHED, DELETING, GONE = (
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
)


def objects() -> dict[str, bytes]:
    """Return the files of a closed segment with an aborted transaction, by the suffixes of a copy."""
    disk = MemoryDisk()
    log = run_to_end(open_log(disk, "hot-0", LogConfig(index_interval_bytes=80), Now(0, MS), False))
    for number in range(6):
        data = build(
            [Record(timestamp_ms=MS + (9 if number == 2 else number), value=b"v")],
            producer_id=5,
            producer_epoch=0,
            base_sequence=number,
            is_transactional=True,
        )
        log.append(Now(0, MS), data, 3 if number < 4 else 4)
    marker = build_marker(commit=False, producer_id=5, producer_epoch=0, coordinator_epoch=1, timestamp_ms=MS)
    log.append(Now(0, MS), marker, 4, origin=BatchOrigin.BROKER)
    log.roll(Now(0, MS))
    found = {
        kind: disk.read(f"hot-0/{base:020}.{kind}", 0, disk.size(f"hot-0/{base:020}.{kind}"))
        for base, kind in ((0, "log"), (0, "index"), (0, "timeindex"), (0, "txnindex"), (7, "snapshot"))
    }
    return {**found, "leader-epoch-checkpoint": b"0\n2\n3 0\n4 4\n"}


METADATA_DIRECTORY = f"{REMOTE_LOG_METADATA_TOPIC}-0"


class Tier:
    """A committed log of remote log metadata, the store, and the check. Node 1 leads epoch 4, node 2 epoch 5."""

    def __init__(self) -> None:
        self.tier: dict[str, bytes] = {}
        self.context = replace(check_context(), tier=self.tier)
        self.context.replicas.leaders["hot-0", 4].add(1)
        self.context.replicas.leaders["hot-0", 5].add(2)
        self.check = RemoteSegmentStates(self.context)
        self.batches: list[bytes] = []
        self.made = objects()
        self.segment = RemoteLogSegmentMetadata(
            topic_id=TOPIC_ID,
            topic="hot",
            partition=0,
            segment_id=ID,
            start_offset=0,
            end_offset=6,
            max_timestamp_ms=MS + 9,
            broker_id=1,
            event_timestamp_ms=MS,
            size_bytes=len(self.made["log"]),
            leader_epochs=((3, 0), (4, 4)),
            uploader_epoch=4,
            has_transaction_index=True,
            attempt=1,
        )

    def write(self, *events: Any) -> "Tier":
        for event in events:
            batch = bytes(build([Record(timestamp_ms=0, value=encode(event))]))
            self.batches.append(len(self.batches).to_bytes(8, "big") + batch[8:])
        log = StubLog(
            METADATA_DIRECTORY,
            high_watermark=len(self.batches),
            log_end_offset=len(self.batches),
            read=lambda offset, _max, end: b"".join(self.batches[offset:end]),
        ).as_log()
        self.check.logs_touched(7, self.node(1), [log], False)
        return self

    def begin(self, **fields: Any) -> "Tier":
        return self.write(replace(self.segment, **fields))

    def move(
        self, state: RemoteLogSegmentState, known: RemoteLogSegmentState, broker: int = 1, epoch: int = 4
    ) -> "Tier":
        return self.write(update_of(replace(self.segment, state=known), state, broker, epoch, MS))

    def store(self, **changed: bytes | None) -> "Tier":
        kinds = {**self.made, **{kind.replace("_", "-"): data for kind, data in changed.items()}}
        self.tier.update({START + kind: data for kind, data in kinds.items() if data is not None})
        return self

    def finish(self) -> "Tier":
        return self.move(FINISHED, RemoteLogSegmentState.COPY_SEGMENT_STARTED)

    def call(self, operation: Any, node: int = 1) -> "Tier":
        self.check.acted(7, self.node(node), None, [StoreCall(1, operation)])
        self.check._judge_calls(7, self.node(node))
        return self

    @staticmethod
    def node(node_id: int) -> Any:
        return StubNode(StubBroker(node_id))

    @property
    def explanation(self) -> str:
        return " ".join(violation.explanation for violation in self.check.violations)


def test_record_is_read_without_the_broker_s_code() -> None:
    segment = Tier().segment
    record = record_of(encode(segment))
    assert record is not None
    assert record.partition.directory == "hot-0"
    assert record.broker_id == 1
    assert record.epoch == 4
    assert record.attempt == 1
    assert record.start_offset == 0
    assert record.end_offset == 6
    assert record.max_timestamp_ms == MS + 9
    assert record.leader_epochs == ((3, 0), (4, 4))
    assert record.has_transaction_index
    assert record.begins
    without = record_of(encode(replace(segment, has_transaction_index=False)))
    assert without is not None
    assert not without.has_transaction_index
    moved = record_of(encode(update_of(segment, GONE, 2, 5, MS)))
    assert moved is not None
    assert moved.state == 3
    assert moved.epoch == 5
    assert moved.known_as == 0
    assert not moved.begins


def test_copy_and_deletion_in_order_violate_nothing() -> None:
    tier = Tier().begin().call(Put(START + "log", b"")).store().finish()
    tier.move(DELETING, FINISHED).call(Delete((START + "log",)))
    tier.tier.clear()
    tier.move(GONE, DELETING).call(Delete((START + "log",)))
    assert not tier.explanation
    assert tier.check.evidence == 4


def test_object_before_start_of_its_segment() -> None:
    assert "no COPY_SEGMENT_STARTED of it is committed" in Tier().call(Put(START + "log", b"")).explanation


def test_node_stores_no_object_of_another_node_s_copy() -> None:
    assert "whose copy node 1 began" in Tier().begin().call(Put(START + "log", b""), node=2).explanation


def test_copy_that_is_not_being_deleted_keeps_its_objects() -> None:
    assert "which is COPY_SEGMENT_STARTED" in Tier().begin().call(Delete((START + "log",))).explanation
    assert (
        "which is COPY_SEGMENT_FINISHED" in Tier().begin().store().finish().call(Delete((START + "log",))).explanation
    )


def test_garbage_and_objects_of_a_deleted_partition_may_be_deleted() -> None:
    assert not Tier().call(Delete((START + "log",))).explanation
    tier = Tier().begin().store().finish()
    deleted = RemotePartitionDeleteMetadata(
        topic_id=TOPIC_ID,
        topic="hot",
        partition=0,
        broker_id=1,
        event_timestamp_ms=MS,
        state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
    )
    tier.write(deleted)
    assert not tier.explanation
    started = replace(deleted, state=RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
    assert not tier.write(started).call(Delete((START + "log",))).explanation


def test_deletion_of_a_partition_that_is_only_marked() -> None:
    tier = Tier().begin().store().finish()
    marked = RemotePartitionDeleteMetadata(
        topic_id=TOPIC_ID,
        topic="hot",
        partition=0,
        broker_id=1,
        event_timestamp_ms=MS,
        state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
    )
    assert "COPY_SEGMENT_FINISHED" in tier.write(marked).call(Delete((START + "log",))).explanation


@pytest.mark.clause("E-7", "P-11")
@pytest.mark.parametrize(
    ("log_start", "durable_start", "is_renamed", "is_right"),
    [(7, 7, False, True), (7, 7, True, True), (7, 0, False, False), (9, 6, False, False), (3, 0, False, True)],
    ids=["durable", "renamed since", "not durable", "less is durable", "not below the log start"],
)
def test_objects_go_once_the_log_start_behind_them_is_durable(
    log_start: int, durable_start: int, is_renamed: bool, is_right: bool
) -> None:
    disk, path = SimDisk(Random(0)), "hot-0/log-start-offset-checkpoint"
    if durable_start:
        disk.write(f"{path}.new" if is_renamed else path, f"0\n1\nhot 0 {durable_start}\n".encode())
        disk.make_durable(f"{path}.new" if is_renamed else path)
    if is_renamed:
        disk.rename(f"{path}.new", path)
    if log_start > durable_start:
        disk.write(path, f"0\n1\nhot 0 {log_start}\n".encode())
    tier = Tier().begin().store().finish().move(DELETING, FINISHED)
    log = StubLog("hot-0", log_start_offset=log_start)
    node = StubNode(StubBroker(1, disk=disk), all_logs=[log]).as_node()
    tier.check._judge_delete(7, node, START + "log")
    assert ("a power loss may take the log start" not in tier.explanation) is is_right


def test_object_that_a_deletion_leaves() -> None:
    tier = Tier().begin().store().finish().move(DELETING, FINISHED)
    del tier.tier[START + "log"]
    assert "are left" in tier.move(GONE, DELETING).explanation


def test_former_leader_may_store_an_object_late() -> None:
    tier = Tier().begin().move(DELETING, RemoteLogSegmentState.COPY_SEGMENT_STARTED).store().move(GONE, DELETING)
    assert not tier.explanation


def test_only_the_leader_writes_records_of_a_segment() -> None:
    assert "which [1] led" in Tier().begin(broker_id=2).explanation
    assert "which [2] led" in Tier().begin().move(DELETING, FINISHED, broker=1, epoch=5).explanation


def test_record_has_a_leader_epoch_that_a_node_led() -> None:
    assert "which nobody led" in Tier().begin(uploader_epoch=6).explanation


def test_leader_of_a_partition_with_one_replica_is_not_known() -> None:
    tier = Tier()
    tier.context.replicas.leaders.clear()
    assert not tier.begin(broker_id=2).explanation


def test_late_record_of_a_former_leader_has_no_effect() -> None:
    tier = Tier().begin().move(DELETING, RemoteLogSegmentState.COPY_SEGMENT_STARTED, broker=2, epoch=5).finish()
    assert not tier.explanation
    assert tier.check._segments[uuid_text(ID)].state == 2


def test_record_whose_writer_knew_another_state_has_no_effect() -> None:
    tier = Tier().begin().move(DELETING, FINISHED).call(Delete((START + "log",)))
    assert "which is COPY_SEGMENT_STARTED" in tier.explanation


def spoilt(kind: str, at: int, layout: str, value: int) -> Callable[[Tier], Tier]:
    def change(tier: Tier) -> Tier:
        data = bytearray(tier.made[kind])
        pack_into(layout, data, at, value)
        return tier.begin().store(**{kind.replace("-", "_"): bytes(data)})

    return change


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        (lambda tier: tier.begin(max_timestamp_ms=MS + 5).store(), "largest timestamp"),
        (lambda tier: tier.begin(size_bytes=10).store(), "its size"),
        (lambda tier: tier.begin(end_offset=7).store(), "its end"),
        (lambda tier: tier.begin(leader_epochs=((3, 0),)).store(), "its leader epochs"),
        (lambda tier: tier.begin(leader_epochs=((3, 0), (4, 5))).store(), "its leader epochs"),
        (lambda tier: tier.begin(has_transaction_index=False).store(), "its index of transactions is stored"),
        (lambda tier: tier.begin().store(txnindex=None), "its index of transactions is missing"),
        (lambda tier: tier.begin().store(txnindex=b""), "lacks [(5, 0, 6)]"),
        (lambda tier: tier.begin().store(snapshot=None), "its snapshot are not stored"),
        (lambda tier: tier.begin().store(snapshot=b"x"), "is not whole"),
        (lambda tier: tier.begin().store(timeindex=tier.made["timeindex"][:-12]), "timeindex ends with"),
        (spoilt("index", 0, ">i", 5), "an entry for offset 5"),
        (spoilt("timeindex", 0, ">q", MS + 1), "is the largest timestamp"),
    ],
)
def test_finished_copy_must_not_differ_from_its_log(change: Callable[[Tier], Tier], explanation: str) -> None:
    assert explanation in change(Tier()).finish().explanation


def test_no_segment_is_judged_after_possible_loss_of_committed_records() -> None:
    tier = Tier().begin()
    log = StubLog(METADATA_DIRECTORY).as_log()
    node = tier.node(1)
    node.broker.partitions.by_id[b"m", 0] = Partition(REMOTE_LOG_METADATA_TOPIC, b"m", 0, 0, log)
    tier.check.logs_touched(7, node, [log], False)
    assert not tier.call(Delete((START + "log",))).explanation


@pytest.mark.clause("P-11")
@pytest.mark.parametrize(
    ("read_to", "newest", "right"),
    [
        (0, -1, True),
        (1, 4, True),
        (2, 5, True),
        (2, 4, False),
        (3, 5, True),
        (3, 4, False),
        (1, 5, False),
        (4, 4, True),
    ],
)
def test_node_knows_the_newest_leader_epoch_of_what_it_has_read(read_to: int, newest: int, right: bool) -> None:
    """The second record is the first of epoch 5, and a former leader's follows. The fourth is not committed yet."""
    world = Tier().begin().move(DELETING, FINISHED, 2, 5).move(DELETING, FINISHED)
    node = world.node(1)
    watched = SimpleNamespace(topic="hot", next_offset=read_to, segments=SimpleNamespace(newest_epoch=newest))
    node.broker.remote_log = SimpleNamespace(metadata=SimpleNamespace(_watched={(TOPIC_ID, 0): watched}))
    world.check.inspect(7, 0, node, None, True)
    assert ("takes" in world.explanation) != right
    skipping = Tier().begin().move(DELETING, FINISHED, 2, 5)
    skipping.check.acted(7, node, None, [Note("remote_log_record_skipped", ())])
    skipping.check.inspect(7, 0, node, None, True)
    assert not skipping.explanation
