"""Batches whose records have sizes of their own and headers: the same bytes and spans as any other way to make them."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fleet.batch_reader import BatchReader
from bench.fleet.value_batches import BatchMaker
from bench.fleet.values import ValueMaker, ValueSpan, read_value
from bench.load.calibration import Batches, Calibrations, Reached, calibrate
from bench.load.command import batches_of
from bench.load.options import LoadOptions
from bench.load.producer import LoadPlan, LoadProducer, Settled
from bench.load.record_batches import DRAWS, MessageSizes, RecordBatchMaker, RecordHeaders
from bench.load.run import run
from bench.load.sink import Sink, SinkPlan, serving
from bench.load.spec import load_plans, read_plans, read_spec
from bench.load.target import started
from bench.load.workload import WorkloadError, workload_of
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import Buffer, read_header
from reference_broker.records.compression import Compression
from reference_broker.records.record import HeaderPair, Record, build, read_records

WHERE = TopicPartition("t", 0)
SIZES = st.lists(st.integers(20, 300), min_size=1, max_size=30)
HEADERS = st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=80)), max_size=4).map(tuple)
KEYS = st.lists(st.binary(max_size=5), max_size=3)
FIRSTS = st.one_of(st.integers(0, 300), st.integers(0, 2**45))
MIXED = MessageSizes(weights={100: 7, 1_000: 2, 10_000: 1})


def spans(batch: bytes, reader: BatchReader) -> list[ValueSpan]:
    return reader.read(WHERE, [TakenBatch(read_header(batch), memoryview(batch), 0)])


@given(st.integers(20, 300), st.integers(1, 80), FIRSTS, st.lists(st.binary(min_size=3, max_size=3), max_size=3))
def test_of_one_size_it_makes_the_batch_that_is_made_by_column(
    size: int, count: int, first: int, keys: list[bytes]
) -> None:
    by_column = BatchMaker(ValueMaker("p", size, b"abc"), count, keys)
    by_record = RecordBatchMaker("p", count, (size,), b"abc", keys)
    made = by_record.make(first, 7, producer_id=4, producer_epoch=1, base_sequence=9)
    assert made == by_column.make(first, 7, producer_id=4, producer_epoch=1, base_sequence=9)
    assert spans(made, BatchReader()) == spans(made, BatchReader(by_record=True))


@given(SIZES, HEADERS, KEYS, st.integers(1, 80), FIRSTS, st.sampled_from(Compression))
def test_batch_equals_one_built_of_records_and_both_readers_agree(
    sizes: list[int],
    headers: tuple[HeaderPair, ...],
    keys: list[bytes],
    count: int,
    first: int,
    compression: Compression,
) -> None:
    made = RecordBatchMaker("p", count, sizes, b"xy", keys, headers).make(first, 7, compression=compression)
    found = [len(record.value or b"") for record in read_records(made)]
    records = [
        Record(
            timestamp_ms=7,
            key=keys[sequence % len(keys)] if keys else None,
            value=ValueMaker("p", size, b"xy").make(sequence),
            headers=headers,
        )
        for sequence, size in zip(range(first, first + count), found, strict=True)
    ]
    assert made == build(records, compression=compression)
    assert set(found) <= set(sizes)
    assert count < len(sizes) or set(found) == set(sizes)
    expected = [ValueSpan(0, count, -1, "p", first, valid=True)]
    assert spans(made, BatchReader()) == expected
    assert spans(made, BatchReader(by_record=True, headers=headers)) == expected


def test_batch_that_is_made_again_has_the_same_bytes() -> None:
    maker = RecordBatchMaker("p", 16, MIXED.drawn())
    assert maker.make(160, 7) == maker.make(160, 7)
    assert maker.make(160, 7) != maker.make(176, 7)


def test_partitions_and_writers_do_not_send_their_large_values_together() -> None:
    def sizes(writer: str, first: int) -> list[int]:
        batch = RecordBatchMaker(writer, 50, MIXED.drawn()).make(first, 7)
        return [len(record.value or b"") for record in read_records(batch)]

    assert len({tuple(sizes(writer, first)) for writer in ("p0", "p1") for first in (0, 1 << 40, 2 << 40)}) == 6


@pytest.mark.parametrize("headers", [(), (("h0", b"a"),), (("h0", b"b"), ("h1", b"c")), (("h0", b"x"),)])
def test_records_without_exactly_the_expected_headers_are_damaged(headers: tuple[HeaderPair, ...]) -> None:
    expected = (("h0", b"x"),)
    made = RecordBatchMaker("p", 20, (60,), headers=headers).make(0, 7)
    (span,) = spans(made, BatchReader(headers=expected))
    assert span.valid is (headers == expected)
    assert spans(made, BatchReader())[0].valid, "nobody expects headers"


def test_sizes_follow_their_weights() -> None:
    drawn = Counter(MIXED.drawn())
    assert {size: round(count / DRAWS, 2) for size, count in drawn.items()} == {100: 0.7, 1_000: 0.2, 10_000: 0.1}
    assert MIXED.drawn() == MIXED.drawn() != sorted(MIXED.drawn())
    assert MIXED.mean == pytest.approx(1_270, rel=0.01)


def test_uniform_sizes_reach_both_ends() -> None:
    drawn = MessageSizes(min=100, max=2_000).drawn()
    assert (min(drawn), max(drawn)) == (100, 2_000)
    assert MessageSizes(min=100, max=2_000).mean == pytest.approx(1_050, rel=0.01)
    assert set(MessageSizes(min=50, max=50).drawn()) == {50}


class Sizes(Sink):
    """A sink that keeps the sizes of values, and refuses each tenth batch once."""

    def __init__(self) -> None:
        super().__init__(SinkPlan(partitions=2))
        self.sizes: Counter[int] = Counter()
        self.sequences: set[int] = set()
        self._batches = 0

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        self._batches += 1
        if self._batches % 10 == 0:
            return 6, -1  # NOT_LEADER_OR_FOLLOWER
        for record in read_records(batch):
            self.sizes[len(record.value or b"")] += 1
            self.sequences.add(read_value(record.value).sequence)
            assert record.headers == RecordHeaders(count=2, size=5).pairs
        return super().append(partition, batch)


def test_producer_sends_the_sizes_and_headers_of_its_plan() -> None:
    sink, ends = Sizes(), 0

    def settled(each: Settled) -> None:
        nonlocal ends
        assert each.kind == "ok"
        ends += 1
        if ends == 100:
            producer.stop()

    where = (WHERE, TopicPartition("t", 1))
    headers = RecordHeaders(count=2, size=5).pairs
    plan = LoadPlan("p", where, batch_records=40, sizes=tuple(MIXED.drawn()), headers=headers)
    with serving(sink) as address:
        producer = LoadProducer(plan, address, settled)
        producer.run()
    total = sum(sink.sizes.values())
    assert total == len(sink.sequences) >= 4_000
    assert {size: round(count / total, 1) for size, count in sink.sizes.items()} == {100: 0.7, 1_000: 0.2, 10_000: 0.1}


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_calibration_measures_a_worker_with_such_records(tmp_path: Path) -> None:
    own = {"messageSizes": {"min": 100, "max": 1_000}, "headers": {"count": 3}}
    batches = batches_of(workload_of({"crucible": own}, "w", "w"), "none")
    assert (batches.value_bytes, batches.records) == (550, 16_384 // (550 + 3 * 18))
    said: list[str] = []
    reached = calibrate(batches, 0.3, said.append)
    assert [each.work for each in reached] == ["sending", "reading"]
    assert "about 550-byte values and 3 headers" in said[0]

    def planted(each: Batches, *_: object) -> list[Reached]:
        return [Reached(work, 1_000, each.value_bytes, 1.0, 1.0) for work in ("sending", "reading")]

    kept = Calibrations(tmp_path, lambda _: None, planted)
    kept.known(batches)
    assert kept.find(batches) is not None
    assert kept.find(Batches(batches.value_bytes, batches.records)) is None, "records of one size cost less"


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"messageSizes": {}}, "messageSizes have min and max, or weights: give one of both"),
        ({"messageSizes": {"min": 100, "max": 200, "weights": {100: 1}}}, "give one of both"),
        ({"messageSizes": {"min": 300, "max": 200}}, "a min that is more than max"),
        ({"messageSizes": {"min": 5, "max": 200}}, "messageSizes have 5, too small for a value that proves itself"),
        ({"messageSizes": {"weights": {100: 1, 200: 0}}}, "a weight below a thousandth"),
        ({"messageSizes": {"weights": {100: 5_000, 200: 1}}}, "a weight below a thousandth"),
        ({"messageSizes": {"weights": {10**9: 1}}}, "the most are 67,108,864"),
        ({"headers": {"count": 0}}, "Expected `int` >= 1 in `crucible.headers.count`"),
        ({"headers": {"count": 1}, "client": "librdkafka"}, "does not carry out crucible.headers"),
        ({"messageSizes": {"min": 100, "max": 200}, "client": "java"}, "does not carry out crucible.messageSizes"),
    ],
)
def test_sizes_that_cannot_be_drawn_end_with_one_sentence(own: dict[str, object], complaint: str) -> None:
    with pytest.raises(WorkloadError) as error:
        workload_of({"crucible": own}, "w", "w")
    assert complaint in str(error.value)


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_workload_of_several_sizes_with_headers_is_verified(tmp_path: Path) -> None:
    own = {"messageSizes": {"weights": {100: 7, 1_000: 2, 10_000: 1}}, "headers": {"count": 3, "size": 20}}
    table = {"partitionsPerTopic": 4, "producerRate": 2_000, "crucible": own}
    with started("reference", lambda _: None) as target:
        result = run(workload_of(table, "w", "w"), target, LoadOptions(seconds=2, warmup_s=1), tmp_path, lambda _: None)
    assert result.findings.is_clean
    assert result.findings.acknowledged == result.findings.read > 3_000
    spec = read_spec(tmp_path / "load-spec.json")
    assert {len(plan.headers) for plan in load_plans(spec)} == {3}
    assert {plan.headers for _, plan in read_plans(spec)} == {load_plans(spec)[0].headers}
