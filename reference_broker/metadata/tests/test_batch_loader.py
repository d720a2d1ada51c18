"""Transactions become visible whole: the counterparts of Kafka's MetadataBatchLoaderTest, and any batches whatever."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.loader import MetadataBatch, MetadataBatchLoader
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
)
from reference_broker.metadata.tests.metadata_world import ABORT, BEGIN, END, topic_id, topic_records
from reference_broker.quorum.values import Provenance

FOO, BAR = topic_records("foo", topic_id(1)), topic_records("bar", topic_id(2))


@dataclass
class Watched:
    """``updates``: (offset, epoch, ends with a batch, topics) of each publication."""

    updates: list[tuple[int, int, bool, list[str]]] = field(default_factory=list)
    start: int = 10

    def __post_init__(self) -> None:
        image = EMPTY_IMAGE.at(Provenance(self.start - 1, 1, 0))
        self.loader = MetadataBatchLoader(image, self._published)
        self.next = self.start

    def batch(self, *records: MetadataRecord, epoch: int = 4) -> None:
        self.next += len(records)
        self.loader.load(MetadataBatch(tuple(records), Provenance(self.next - 1, epoch, 0), 100))

    def _published(self, delta: MetadataDelta, image: MetadataImage, aligned: bool) -> None:
        assert all(change.after is not None and change.after.name in image.topics for change in delta.topics)
        self.updates.append((image.provenance.offset, image.provenance.epoch, aligned, list(image.topics)))


@pytest.mark.clause("MetadataBatchLoaderTest.testAlignedTransactionBatches")
@pytest.mark.clause("T-8")
def test_transaction_of_whole_batches_is_one_update_at_its_end() -> None:
    watched = Watched()
    for records in ([BEGIN], FOO, [NoOpRecord()] * 3, [END], [NoOpRecord()] * 2):
        watched.batch(*records)
        assert watched.updates == []
    watched.loader.flush()
    assert watched.updates == [(18, 4, True, ["foo"])]


@pytest.mark.clause("MetadataBatchLoaderTest.testSingletonBeginAndEnd")
@pytest.mark.parametrize("flushes", [1, 4])
def test_markers_alone_in_their_batches_give_the_same_result_however_it_is_committed(flushes: int) -> None:
    watched = Watched()
    for records in (BAR, [BEGIN], FOO, [END]):
        watched.batch(*records)
        if flushes == 4:
            watched.loader.flush()
    watched.loader.flush()
    assert watched.updates == [(11, 4, True, ["bar"]), (15, 4, True, ["bar", "foo"])]


@pytest.mark.clause("MetadataBatchLoaderTest.testUnexpectedBeginTransaction")
@pytest.mark.clause("T-3")
def test_begin_inside_a_transaction_is_a_fault_and_publishes_nothing() -> None:
    watched = Watched()
    watched.batch(BEGIN, *FOO)
    with pytest.raises(MetadataFault, match="begins inside another"):
        watched.batch(BEGIN, NoOpRecord())
    watched.loader.flush()
    assert watched.updates == []


@pytest.mark.clause(
    "MetadataBatchLoaderTest.testUnexpectedEndTransaction", "MetadataBatchLoaderTest.testUnexpectedAbortTransaction"
)
@pytest.mark.clause("T-3")
@pytest.mark.parametrize("marker", [END, ABORT])
def test_end_without_a_begin_is_a_fault_and_earlier_batches_are_published(
    marker: AbortTransactionRecord | EndTransactionRecord,
) -> None:
    watched = Watched()
    watched.batch(*FOO)
    with pytest.raises(MetadataFault, match="without a transaction"):
        watched.batch(*BAR, marker)
    watched.loader.flush()
    assert watched.updates == [(11, 4, True, ["foo"])]


@pytest.mark.clause(
    "MetadataBatchLoaderTest.testMultipleTransactionsInOneBatch", "MetadataLoaderTest.testPublishTransactionWithinBatch"
)
def test_several_transactions_in_one_batch_are_published_one_by_one() -> None:
    watched = Watched()
    watched.batch(BEGIN, *FOO, NoOpRecord(), NoOpRecord(), END, BEGIN, *BAR, END)
    watched.loader.flush()
    assert watched.updates == [(15, 4, False, ["foo"]), (19, 4, True, ["foo", "bar"])]


@pytest.mark.clause("MetadataBatchLoaderTest.testMultipleTransactionsInOneBatchesWithNoOp")
@pytest.mark.parametrize(
    ("between", "updates"), [((), [(13, False), (18, True)]), ((NoOpRecord(),), [(14, False), (19, True)])]
)
def test_records_between_transactions_are_published_before_the_second(
    between: tuple[NoOpRecord, ...], updates: list[tuple[int, bool]]
) -> None:
    watched = Watched()
    watched.batch(BEGIN, *FOO, END, *between, BEGIN, *BAR, END, NoOpRecord())
    watched.loader.flush()
    assert [(offset, aligned) for offset, _, aligned, _ in watched.updates] == updates


@pytest.mark.clause("MetadataBatchLoaderTest.testOneTransactionInMultipleBatches")
@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("marker", "topics"), [(END, ["foo"]), (ABORT, [])])
def test_transaction_over_batches_leaves_its_place_in_the_log_whether_it_ends_or_is_aborted(
    marker: AbortTransactionRecord | EndTransactionRecord, topics: list[str]
) -> None:
    watched = Watched()
    watched.batch(BEGIN, *FOO)
    watched.loader.flush()
    watched.batch(*[NoOpRecord()] * 5)
    watched.loader.flush()
    watched.batch(marker, NoOpRecord(), NoOpRecord())
    watched.loader.flush()
    assert watched.updates == [(20, 4, True, topics)]


@pytest.mark.clause("MetadataBatchLoaderTest.testTransactionAlignmentOnBatchBoundary")
def test_records_before_begin_at_batch_start_end_aligned_with_batch() -> None:
    watched = Watched()
    watched.batch(*FOO)
    watched.batch(BEGIN, *BAR)
    assert watched.updates == [(11, 4, True, ["foo"])]


@pytest.mark.clause("MetadataLoaderTest.testLoadEmptyBatch")
def test_control_batches_and_nothing_at_all() -> None:
    watched = Watched()
    watched.loader.flush()
    assert watched.updates == []
    watched.next += 1
    watched.loader.load(MetadataBatch((), Provenance(10, 5, 0), 80))
    watched.loader.flush()
    assert watched.updates == [(10, 5, True, [])]


@pytest.mark.clause(
    "MetadataLoaderTest.testSnapshotDuringTransaction",
    "OffsetControlManagerTest.testLoadSnapshotClearsTransactionalState",
)
def test_snapshot_discards_an_open_transaction() -> None:
    watched = Watched()
    watched.batch(BEGIN, *FOO)
    watched.loader.reset(EMPTY_IMAGE.at(Provenance(40, 6, 0)))
    assert not watched.loader.in_transaction
    watched.next = 41
    watched.batch(*BAR)
    watched.loader.flush()
    assert watched.updates == [(42, 4, True, ["bar"])]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("topic", "config", "noop", "begin", "end", "abort", "batch", "commit")), st.integers(0, 4)
    ),
    max_size=60,
)


@pytest.mark.thorough
@pytest.mark.clause("T-8")
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_readers_see_whole_transactions_or_nothing_of_them_wherever_batches_and_commits_are_cut(
    steps: list[tuple[str, int]],
) -> None:
    """Against a model: exactly the records outside of open and aborted transactions are replayed."""
    watched, seen = Watched(start=0), []
    watched.loader.publish = lambda _delta, image, _aligned: seen.append(_state(image))
    complete: list[MetadataRecord] = []
    states = {_state(EMPTY_IMAGE)}
    pending: list[MetadataRecord] = []
    open_: list[MetadataRecord] | None = None
    made = 0
    for what, number in steps:
        if what in ("batch", "commit"):
            _write(watched, pending)
        if what == "commit":
            watched.loader.flush()
        if what == "begin" and open_ is None:
            open_ = []
            pending.append(BEGIN)
        elif what in ("end", "abort") and open_ is not None:
            if what == "end":
                complete += open_
            open_ = None
            pending.append(END if what == "end" else ABORT)
        elif what in ("topic", "config", "noop"):
            made += 1
            records = _records(what, number, made)
            pending += records
            (complete if open_ is None else open_).extend(records)
        if open_ is None:
            states.add(_replayed(complete))
    _write(watched, pending)
    watched.loader.flush()
    assert set(seen) <= states
    if open_ is None and seen:
        assert seen[-1] == _replayed(complete)


def _write(watched: Watched, pending: list[MetadataRecord]) -> None:
    if pending:
        watched.batch(*pending)
        pending.clear()


def _records(what: str, number: int, made: int) -> list[MetadataRecord]:
    if what == "topic":
        return topic_records(f"t{made}", topic_id(made), 1 + number)
    if what == "config":
        return [ConfigRecord(resource_type=2, resource_name="x", name=f"k{number}", value=str(made))]
    return [NoOpRecord()]


def _replayed(records: list[MetadataRecord]) -> tuple[object, ...]:
    delta = MetadataDelta(EMPTY_IMAGE)
    for record in records:
        replay(delta, record)
    return _state(delta.build(Provenance()))


def _state(image: MetadataImage) -> tuple[object, ...]:
    topics = tuple((name, len(topic.partitions)) for name, topic in image.topics.items())
    configs = tuple(sorted((key, tuple(sorted(pairs.items()))) for key, pairs in image.configs.items()))
    return topics, configs
