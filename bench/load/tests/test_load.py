"""The load producer and reader against a sink: order, retries, losses, schedules."""

import itertools
import random
import threading
import time
from collections.abc import Callable

import pytest

from bench.fleet.batch_reader import BatchReader
from bench.load.calibration import calibrate, full
from bench.load.ledger import Findings, Read, Sent, judge
from bench.load.producer import SEQUENCES, LoadPlan, LoadProducer, Settled, monotonic_us
from bench.load.reader import LoadReader, ReadPlan, Taken
from bench.load.sink import READ_WRITER, Sink, SinkPlan, serving
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import HEADER_BYTES, Buffer, add_sequence, patched_prefix, read_header, sealed
from reference_broker.records.compression import Compression
from reference_broker.wire.errors import ErrorCode

WHERE = tuple(TopicPartition("t", index) for index in range(4))
LIMIT_S = 60.0
BATCH_RECORDS = 40
PLANTED_BATCH = 20
"""The number of the batch with which a planted violation begins."""
DISK_DELAY_S = 0.02


class Log(Sink):
    """A sink that keeps the spans of what it takes, and checks sequences as a broker does (KIP-98).

    ``fault`` gets each batch's number, and returns an error code, or "before" or "after", when the connection ends.
    """

    def __init__(self, fault: Callable[[int], int | str] = lambda _: 0) -> None:
        super().__init__(SinkPlan(len(WHERE)))
        self.spans: dict[TopicPartition, list[tuple[int, int]]] = {partition: [] for partition in WHERE}
        self.batches = 0
        self._fault = fault
        self._kept: dict[tuple[TopicPartition, int], list[tuple[int, int, int]]] = {}

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        header = read_header(batch)
        self.batches += 1
        fault = self._fault(self.batches)
        if fault == "before":
            raise ConnectionAbortedError
        if isinstance(fault, int) and fault:
            return fault, -1
        kept = self._kept.setdefault((partition, header.producer_id), [])
        if header.base_sequence >= 0:
            for first, count, base in kept[-5:]:
                if (first, count) == (header.base_sequence, header.record_count):
                    return 0, base
            if kept and add_sequence(kept[-1][0], kept[-1][1]) != header.base_sequence:
                return int(ErrorCode.out_of_order_sequence_number), -1
        error, base = super().append(partition, batch)
        kept.append((header.base_sequence, header.record_count, base))
        (span,) = BatchReader().read(partition, [TakenBatch(header, memoryview(batch), 0)])
        assert span.valid
        self.spans[partition].append((span.first_sequence, span.count))
        if fault == "after":
            raise ConnectionAbortedError
        return error, base


def produced(sink: Sink, plan: LoadPlan, batches: int) -> list[Settled]:
    """Run a producer until this number of batches is settled."""
    ends: list[Settled] = []

    def settled(each: Settled) -> None:
        ends.append(each)
        if len(ends) >= batches:
            producer.stop()

    with serving(sink) as address:
        producer = LoadProducer(plan, address, settled)
        limit = threading.Timer(LIMIT_S, producer.stop)
        limit.start()
        producer.run()
        limit.cancel()
    return ends


def test_each_batch_is_written_once_and_in_the_order_of_its_partition() -> None:
    log = Log()
    ends = produced(log, LoadPlan("p", WHERE, batch_records=BATCH_RECORDS), 200)
    assert {end.kind for end in ends} == {"ok"}
    for partition in WHERE:
        settled = [(end.first_sequence, end.count) for end in ends if end.where == partition]
        assert settled == log.spans[partition]
        assert [first for first, _ in settled] == sorted(first for first, _ in settled)
        assert [first for first, _ in settled] == [
            partition.partition * SEQUENCES + BATCH_RECORDS * number for number in range(len(settled))
        ]


@pytest.mark.parametrize(
    "faults",
    [
        [int(ErrorCode.not_leader_or_follower)],
        [int(ErrorCode.not_enough_replicas), int(ErrorCode.request_timed_out)],
        ["before"],
        ["after"],
        ["before", "after", int(ErrorCode.not_leader_or_follower)],
    ],
)
def test_failures_lose_repeat_and_reorder_nothing(faults: list[int | str]) -> None:
    chance = random.Random(5)
    log = Log(lambda _: chance.choice(faults) if chance.random() < 0.05 else 0)
    ends = produced(log, LoadPlan("p", WHERE, batch_records=BATCH_RECORDS), 150)
    assert {end.kind for end in ends} == {"ok"}
    assert len(ends) >= 150
    for partition in WHERE:
        written = [first for first, _ in log.spans[partition]]
        assert written == sorted(set(written))
        assert written == sorted(end.first_sequence for end in ends if end.where == partition)


def test_without_idempotence_a_lost_response_leaves_the_end_unknown() -> None:
    log = Log(lambda number: "after" if number == 50 else 0)
    ends = produced(log, LoadPlan("p", WHERE, batch_records=BATCH_RECORDS, idempotent=False), 100)
    unknown = [end for end in ends if end.kind != "ok"]
    assert unknown
    assert {(end.kind, end.error, end.base_offset) for end in unknown} == {("info", "disconnected", -1)}


def test_error_that_no_retry_cures_ends_a_batch() -> None:
    log = Log(lambda number: int(ErrorCode.message_too_large) if number == 30 else 0)
    ends = produced(log, LoadPlan("p", WHERE, batch_records=BATCH_RECORDS), 100)
    failed = [end for end in ends if end.kind != "ok"]
    assert [(end.kind, end.error) for end in failed][:1] == [("fail", "MESSAGE_TOO_LARGE")]
    assert ends[-1].kind == "ok"  # A new producer ID lets the others go on.


def test_batch_fails_once_its_delivery_time_has_passed() -> None:
    log = Log(lambda _: int(ErrorCode.not_leader_or_follower))
    ends = produced(log, LoadPlan("p", WHERE[:1], batch_records=BATCH_RECORDS, delivery_timeout_us=300_000), 1)
    assert (ends[0].kind, ends[0].error) == ("fail", "NOT_LEADER_OR_FOLLOWER")
    assert ends[0].end_us - ends[0].first_sent_us >= 300_000


def test_latency_starts_at_due_time_of_batch() -> None:
    """A pause of the sink makes the batches behind it late, by their schedule."""

    def slow(number: int) -> int:
        if number == 20:
            time.sleep(0.4)
        return 0

    plan = LoadPlan("p", WHERE, batch_records=10, records_per_s=2_000, requests_in_flight=1)
    ends = produced(Log(slow), plan, 120)
    due = sorted(end.due_us for end in ends)
    assert {after - before for before, after in itertools.pairwise(due)} == {5_000}
    behind = [end for end in ends if end.first_sent_us - end.due_us > 200_000]
    assert len(behind) >= 20
    assert max(end.end_us - end.due_us for end in ends) >= 400_000


def test_records_with_keys_and_compression_prove_themselves_too() -> None:
    plan = LoadPlan("p", WHERE, batch_records=BATCH_RECORDS, keys=7, compression=Compression.LZ4, padding=b"xyz")
    assert {settled.kind for settled in produced(Log(), plan, 40)} == {"ok"}


def test_producer_waits_for_its_bootstrap_server() -> None:
    sink = Log()
    sink.close()
    producer = LoadProducer(LoadPlan("p", WHERE), [("127.0.0.1", sink.port)], lambda _: None)
    threading.Timer(0.3, producer.stop).start()
    producer.run()
    assert producer.sent_requests == 0


def test_reader_verifies_all_values() -> None:
    sink = Sink(SinkPlan(len(WHERE), batch_records=BATCH_RECORDS, read_batches=3))
    taken: list[Taken] = []

    def take(each: Taken) -> None:
        taken.append(each)
        if len(taken) >= 40:
            reader.stop()

    with serving(sink) as address:
        reader = LoadReader(ReadPlan("r", WHERE, from_offset=7), address, take)
        reader.run()
    assert {each.error for each in taken} == {None}
    for partition in WHERE:
        spans = [span for each in taken if each.where == partition for span in each.spans]
        assert {(span.writer, span.first_sequence, span.count, span.valid) for span in spans} == {
            (READ_WRITER, 0, BATCH_RECORDS, True)
        }
        assert [span.first_offset for span in spans] == [7 + BATCH_RECORDS * number for number in range(len(spans))]
        assert reader.position(partition) == spans[-1].first_offset + BATCH_RECORDS


@pytest.mark.live
def test_calibration_measures_both_directions() -> None:
    lines: list[str] = []
    before_us = monotonic_us()
    sent, read = calibrate(full(100), 0.5, lines.append)
    assert monotonic_us() - before_us >= 1_000_000
    assert (sent.work, read.work) == ("sending", "reading")
    assert min(sent.records, read.records) > 1_000
    assert sent.cpu_us_per_record > 0
    assert len(lines) == 2


class Store(Sink):
    """A sink that keeps what it takes, and serves it. ``plant`` may do something else with the batch of a number.

    ``delay_s`` is how long each Produce request takes.
    """

    def __init__(self, plant: Callable[["Store", TopicPartition, bytes, int], bool], delay_s: float = 0.0) -> None:
        super().__init__(SinkPlan(len(WHERE)))
        self.logs: dict[TopicPartition, list[bytes]] = {partition: [] for partition in WHERE}
        self.held: list[bytes] = []
        self._plant = plant
        self._delay_s = delay_s
        self._number = 0
        self._lock = threading.Lock()

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        if self._delay_s:
            time.sleep(self._delay_s)
        with self._lock:
            self._number += 1
            base = self.end(partition)
            if not self._plant(self, partition, bytes(batch), self._number):
                self.keep(partition, bytes(batch))
        return 0, base

    def keep(self, partition: TopicPartition, batch: bytes) -> None:
        header = read_header(batch)
        self.logs[partition].append(patched_prefix(header, self.end(partition), 0) + batch[16:])

    def end(self, partition: TopicPartition) -> int:
        return read_header(self.logs[partition][-1]).last_offset + 1 if self.logs[partition] else 0

    def read(self, partition: TopicPartition, offset: int) -> tuple[bytes, int]:
        with self._lock:
            batches = [each for each in self.logs[partition] if read_header(each).last_offset >= offset]
            return b"".join(batches[:20]), self.end(partition)


def lost(store: Store, partition: TopicPartition, batch: bytes, number: int) -> bool:  # noqa: ARG001
    return number == PLANTED_BATCH


def repeated(store: Store, partition: TopicPartition, batch: bytes, number: int) -> bool:
    if number == PLANTED_BATCH:
        store.keep(partition, batch)
    return False


def reordered(store: Store, partition: TopicPartition, batch: bytes, number: int) -> bool:
    if partition == WHERE[0] and number >= PLANTED_BATCH and not store.held:
        store.held.append(batch)
        return True
    if partition == WHERE[0] and len(store.held) == 1:
        store.held.append(batch)
        store.keep(partition, batch)
        store.keep(partition, store.held[0])
        return True
    return False


def damaged(store: Store, partition: TopicPartition, batch: bytes, number: int) -> bool:
    if number != PLANTED_BATCH:
        return False
    body = bytearray(batch[HEADER_BYTES:])
    body[40] ^= 1
    store.keep(partition, sealed(read_header(batch), bytes(body)))
    return True


def healthy(store: Store, partition: TopicPartition, batch: bytes, number: int) -> bool:  # noqa: ARG001
    return False


def judged(store: Store, batches: int = 60) -> tuple[Findings, list[Settled]]:
    """Send and read at once, and judge both."""
    sent, read, ends = {"p": Sent()}, Read(), list[Settled]()

    def settled(each: Settled) -> None:
        ends.append(each)
        sent["p"].add(each.kind, each.error, each.first_sequence, each.first_sequence + each.count)
        if len(ends) >= batches:
            producer.stop()

    def taken(each: Taken) -> None:
        for span in each.spans:
            read.add(*each.where, span.writer, span.first_sequence, span.count, span.valid)

    with serving(store) as address:
        producer = LoadProducer(LoadPlan("p", WHERE, batch_records=BATCH_RECORDS), address, settled)
        reader = LoadReader(ReadPlan("r", WHERE), address, taken)
        reading = threading.Thread(target=reader.run)
        reading.start()
        producer.run()
        deadline = time.monotonic() + LIMIT_S
        while (
            any(reader.position(partition) < store.end(partition) for partition in WHERE)
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        reader.stop()
        reading.join()
    return judge(sent, [[read]], exactly_once=True), ends


@pytest.mark.parametrize(
    ("plant", "violations"),
    [
        (healthy, {}),
        (lost, {"lost": BATCH_RECORDS}),
        (repeated, {"repeated": BATCH_RECORDS}),
        (reordered, {"reordered": BATCH_RECORDS}),
        (damaged, {"lost": 1, "damaged": 1}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_planted_violation_is_found(
    plant: Callable[[Store, TopicPartition, bytes, int], bool], violations: dict[str, int]
) -> None:
    findings, _ = judged(Store(plant))
    counts = {name: getattr(findings, name) for name in ("lost", "repeated", "reordered", "damaged")}
    assert {name: count for name, count in counts.items() if count} == violations
    assert findings.acknowledged >= 60 * BATCH_RECORDS


def test_disk_that_needs_20_ms_is_seen_in_the_latency() -> None:
    _, ends = judged(Store(healthy, delay_s=DISK_DELAY_S))
    assert min(end.end_us - end.first_sent_us for end in ends) >= DISK_DELAY_S * 1_000_000


class LateFetches(Sink):
    """A sink whose responses to Fetch come after a reader's longest wait."""

    def __init__(self) -> None:
        super().__init__(SinkPlan(1, batch_records=BATCH_RECORDS, read_batches=1))

    def read(self, partition: TopicPartition, offset: int) -> tuple[bytes, int]:
        time.sleep(0.1)
        return super().read(partition, offset)


def test_response_that_was_requested_before_a_seek_is_dropped() -> None:
    """A client that goes back after an abort must not skip the records between."""
    offsets: list[int] = []

    def taken(each: Taken) -> None:
        offsets.extend(span.first_offset for span in each.spans)

    with serving(LateFetches()) as address:
        reader = LoadReader(ReadPlan("r", WHERE[:1]), address, taken)

        def step_until(condition: Callable[[], bool]) -> None:
            deadline_s = time.monotonic() + LIMIT_S
            while not condition():
                assert time.monotonic() < deadline_s
                reader._step(monotonic_us())

        step_until(lambda: offsets == [0])
        step_until(lambda: any(link.sent is not None for link in reader._links.values()))

        reader._seek(WHERE[0], 0)
        reader._stale = True
        step_until(lambda: len(offsets) == 3)
        reader.stop()
        reader.run()
    assert offsets == [0, 0, BATCH_RECORDS]
