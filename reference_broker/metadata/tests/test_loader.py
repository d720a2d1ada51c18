"""The loader: slices, snapshots, order of telling, damage (counterparts of Kafka's MetadataLoaderTest)."""

from collections.abc import Callable, Sequence

import pytest

from reference_broker.metadata import loader as loader_module
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    EndTransactionRecord,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
    RemoveTopicRecord,
    encode,
)
from reference_broker.metadata.tests.metadata_world import (
    ABORT,
    BEGIN,
    END,
    MetadataWorld,
    StoreInMemory,
    topic_id,
    topic_records,
)
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import Sliced, run_to_end
from reference_broker.quorum.values import OffsetAndEpoch, Provenance

A, B = topic_records("a", topic_id(1)), topic_records("b", topic_id(2))


def world_of(*batches: Sequence[MetadataRecord]) -> MetadataWorld:
    world = MetadataWorld()
    for records in batches:
        world.log.append([encode(record) for record in records], 1)
    return world


@pytest.mark.clause("MetadataLoaderTest.testPublishTransaction", "OffsetControlManagerTest.testReplayTransaction")
@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("marker", "topics"), [(END, ["a"]), (ABORT, [])])
def test_transaction_is_invisible_until_its_end_wherever_the_high_watermark_is(
    marker: AbortTransactionRecord | EndTransactionRecord, topics: list[str]
) -> None:
    world = world_of([BEGIN], A, [NoOpRecord()], [marker])
    for batch in world.log.content[:-1]:
        world.commit(batch.provenance.offset + 1)
        assert (world.published, world.loader.in_transaction) == ([], True)
    assert (world.loader.last_offset, world.loader.image.provenance.offset) == (3, -1)
    world.commit()
    assert not world.loader.in_transaction
    assert list(world.loader.image.topics) == topics
    assert world.loader.image.provenance == Provenance(4, 1, 7)


@pytest.mark.clause("RecordsIteratorTest.testControlRecordIterationWithKraftVersion0")
def test_control_batches_inside_a_transaction_are_not_seen_and_do_not_publish() -> None:
    world = world_of([BEGIN], A)
    world.log.append((), 2, is_control=True)
    world.commit()
    assert world.published == []
    world.log.append([encode(END)], 2)
    world.commit()
    assert list(world.loader.image.topics) == ["a"]


@pytest.mark.clause("MetadataLoaderTest.testLastAppliedOffset")
def test_last_applied_offset_follows_commits_and_never_decreases() -> None:
    world = world_of(A, B)
    world.commit(2)
    assert world.loader.last_offset == 1
    world.commit(1)
    assert world.loader.last_offset == 1
    world.commit()
    assert (world.loader.last_offset, world.loader.image.provenance.offset) == (3, 3)


@pytest.mark.clause("RecordsIteratorTest.testEmptyRecords", "MetadataLoaderTest.testNoPublishEmptyImage")
def test_nothing_is_published_where_nothing_was_committed() -> None:
    world = MetadataWorld()
    world.commit(0)
    assert world.published == []


def test_long_logs_are_taken_in_slices_and_later_commits_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "LOADED_RECORDS_PER_SLICE", 10)
    world = world_of(*(topic_records(f"t{number}", topic_id(number), 4) for number in range(40)))
    world.loader.catch_up(100)
    assert len(world.published) == 1
    world.loader.catch_up(200)
    assert len(world.published) == 1
    world.ports.run()
    assert len(world.loader.image.topics) == 40
    assert len(world.published) == world.ports.events + 1 == 20


def test_listeners_are_called_before_snapshot_and_progress_hooks() -> None:
    world = world_of(A)
    order: list[object] = []
    world.loader.subscribe(lambda *_: order.append("second listener"))
    world.loader.on_published = lambda image, size: order.append((image.provenance.offset, size))
    world.loader.on_progress = lambda: order.append("progress")
    world.commit()
    assert order == ["second listener", (1, 61 + 20), "progress"]
    assert [fields["offset"] for fields in world.ports.notes_of("metadata_published")] == [1]


@pytest.mark.clause(
    "KafkaMetadataLogTest.testCreateSnapshotInMiddleOfBatch",
    "SnapshotGeneratorTest.testNoSnapshotCreatedWhenLastOffsetIsNotBatchAligned",
    "SnapshotGeneratorTest.testSnapshotsCreatedAgainWhenLastOffsetIsAligned",
)
def test_image_ending_inside_batch_is_published_without_snapshot() -> None:
    world = world_of([*A, BEGIN, *B, END])
    sizes = []
    world.loader.on_published = lambda image, size: sizes.append((image.provenance.offset, size))
    world.commit()
    assert [image.provenance.offset for _, image in world.published] == [1, 5]
    assert sizes == [(5, 61 + 60)]


@pytest.mark.clause(
    "RecordsIteratorTest.testCrcValidation", "QuorumControllerTest.testFatalMetadataErrorDuringLogLoading"
)
@pytest.mark.clause("T-3")
def test_damaged_log_raises_fault_after_preceding_records_are_published() -> None:
    world = world_of(A, [END])
    with pytest.raises(MetadataFault, match=r"damaged in or after the batch that ends at offset 1 .*without a trans"):
        world.commit()
    assert list(world.loader.image.topics) == ["a"]
    world = world_of(A, [RemoveTopicRecord(topic_id=topic_id(9))])
    with pytest.raises(MetadataFault, match="no topic with ID"):
        world.commit()


def test_gap_in_the_log_is_damage() -> None:
    world = world_of(A)
    with pytest.raises(MetadataFault, match="there is no batch at offset 2"):
        world.commit(5)


def snapshot_of(
    topics: list[tuple[str, int]], offset: int, slices: int = 3
) -> Callable[[MemoryDisk, OffsetAndEpoch], Sliced[MetadataImage]]:
    """As ``load_snapshot``: an image after some slices."""

    def load(_disk: MemoryDisk, snapshot: OffsetAndEpoch) -> Sliced[MetadataImage]:
        assert snapshot.offset == offset
        for _ in range(slices):
            yield
        world = world_of(*(topic_records(name, topic_id(number)) for name, number in topics))
        world.commit()
        return world.loader.image.at(Provenance(offset - 1, 3, 0))

    return load


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testLeaderListenerNotified",
    "MetadataLoaderTest.testLastAppliedOffset",
    "OffsetControlManagerTest.testHandleLoadSnapshot",
)
def test_newest_snapshot_is_taken_at_start_and_notifies_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "load_snapshot", snapshot_of([("a", 1)], 40))
    world = MetadataWorld()
    assert isinstance(world.loader._store, StoreInMemory)
    world.loader._store.latest = OffsetAndEpoch(40, 3)
    run_to_end(world.loader.load())
    assert list(world.loader.image.topics) == ["a"]
    assert world.loader.last_offset == 39
    assert world.published == []
    world.log.start_offset = 40
    world.log.append([encode(each) for each in B], 3)
    world.commit()
    assert list(world.loader.image.topics) == ["a", "b"]


@pytest.mark.clause(
    "MetadataLoaderTest.testReloadSnapshot",
    "MetadataLoaderTest.testSnapshotDuringTransaction",
    "OffsetControlManagerTest.testHandleLoadSnapshot",
)
def test_snapshot_in_the_middle_of_a_transaction_discards_it_and_publishes_the_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_module, "load_snapshot", snapshot_of([("b", 2), ("c", 3)], 40))
    world = world_of(A, B, [BEGIN], topic_records("x", topic_id(7)))
    world.commit()
    world.log.coded, world.log.start_offset = [], 40
    world.loader.reload(OffsetAndEpoch(40, 3))
    world.commit(40)
    delta, image = world.published[-1]
    assert [(change.before and change.before.name, change.after and change.after.name) for change in delta.topics] == [
        ("a", None),
        (None, "c"),
    ]
    assert sorted(image.topics) == ["b", "c"]
    assert world.loader.last_offset == 39
    assert world.loader.in_transaction is False


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testListenerRenotified", "MetadataLoaderTest.testReloadSnapshot")
def test_newer_snapshot_replaces_one_being_loaded_and_commits_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "load_snapshot", snapshot_of([("a", 1)], 40))
    world = MetadataWorld()
    world.loader.reload(OffsetAndEpoch(40, 3))
    monkeypatch.setattr(loader_module, "load_snapshot", snapshot_of([("b", 2)], 50))
    world.log.start_offset = 50
    world.loader.reload(OffsetAndEpoch(50, 3))
    world.log.append([encode(each) for each in A], 4)
    world.loader.catch_up(52)
    assert world.published == []
    world.ports.run()
    assert [list(image.topics) for _, image in world.published] == [["b"], ["b", "a"]]


@pytest.mark.clause("MetadataLoaderTest.testLoadEmptySnapshot")
def test_reloading_the_same_content_publishes_an_empty_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "load_snapshot", snapshot_of([], 10))
    world = MetadataWorld()
    world.loader.reload(OffsetAndEpoch(10, 3))
    world.ports.run()
    ((delta, image),) = world.published
    assert (delta.topics, delta.brokers, image.topics) == ((), {}, EMPTY_IMAGE.topics)


def test_trace_notes_kind_of_each_committed_batch() -> None:
    world = world_of(A, [BEGIN], B, [NoOpRecord()], [END], [BEGIN], [ABORT], [BEGIN, NoOpRecord(), END], [NoOpRecord()])
    world.log.append((), 2, is_control=True)
    world.loader.expect(2, 2)
    world.commit()
    noted = [
        (note["offset"], note["kind"], note["number"], note["of"])
        for note in world.ports.notes_of("metadata_committed")
    ]
    assert noted == [
        (1, "single", 1, 1),
        (2, "begin", 0, 2),
        (4, "batch", 1, 2),
        (5, "batch", 2, 2),
        (6, "end", 2, 2),
        (7, "begin", 0, 0),
        (8, "abort", 0, 0),
        (11, "begin", 0, 0),
        (12, "single", 1, 1),
    ]
