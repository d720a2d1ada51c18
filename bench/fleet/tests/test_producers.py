"""Producer, seeder, preparer and final reader against a small correct broker with faults."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bench.fleet import negotiation
from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.final_reads import FinalReader, FinalReadPlan, without_ends
from bench.fleet.behaviours.preparer import NewTopic, TopicPreparer, seeder
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan, partition_keys
from bench.fleet.behaviours.protocol import ClientSettings, Request, TopicPartition, Versions
from bench.fleet.tests.conftest import FakeBroker, FakeLog, FleetWorld
from reference_broker.client.consumer import TakenBatch
from reference_broker.records.batch import iterate, read_header
from reference_broker.records.record import read_records
from reference_broker.wire.apis import ApiKey
from reports.rows import OperationRow, SpanRow

HOT = tuple(TopicPartition("hot", number) for number in range(4))
IDLE = tuple(TopicPartition("idle", number) for number in range(2))
OF_A_WEEK: dict[str, str | None] = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}


def producer(settings: ClientSettings, **changes: Any) -> KeyedProducer:
    options = {"interval_us": 10_000, "records_per_request": 3, "delivery_timeout_us": 5_000_000} | changes
    return KeyedProducer(ProducerPlan("producer-0", HOT, **options), settings, Random(4))


def produces(world: FleetWorld) -> list[OperationRow]:
    return [row for row in world.rows("operations") if row.f == "produce"]


def sends(world: FleetWorld) -> dict[int, SpanRow]:
    return {row.index: row for row in world.rows("runs") if row.kind == "send"}


def nth_produce(numbers: set[int], fate: str | None) -> Callable[[Request], str | None]:
    seen = []

    def fault(request: Request) -> str | None:
        if request.api_key == ApiKey.PRODUCE:
            seen.append(request)
            if len(seen) in numbers:
                return fate
        return None

    return fault


def values_in(broker: FakeBroker) -> list[tuple[str, int]]:
    """(writer's sequence as CRC-checked value) per partition, from the log itself."""
    reader = BatchReader()
    values_read: list[tuple[str, int]] = []
    for partition, log in broker.logs.items():
        for batch in log.batches:
            header = next(iter(iterate(batch)))[1]
            values_read.extend(
                (run.writer, run.first_sequence + number)
                for run in reader.read(partition, [TakenBatch(header, memoryview(batch), 0)])
                for number in range(run.count)
            )
    return values_read


@pytest.mark.thorough
@pytest.mark.clause("P-6")
@pytest.mark.parametrize("fate", ["lose_request", "lose_response", "cut"])
def test_batch_sent_again_after_any_lost_frame_is_written_once(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, fate: str
) -> None:
    world.fault = nth_produce({3, 7}, fate)
    subject = producer(settings)
    world.start(subject)
    world.run(20)
    world.stop(subject)
    world.run(20)
    assert subject.process in world.finished
    values = values_in(broker)
    assert len(values) == len(set(values)), "a value was written twice"
    assert {produce.type for produce in produces(world)} == {"ok"}
    assert len(values) == 3 * len(produces(world))


def test_sends_know_where_their_records_are(world: FleetWorld, broker: FakeBroker, settings: ClientSettings) -> None:
    subject = producer(settings)
    world.start(subject)
    world.run(1)
    world.stop(subject)
    world.run(1)
    for row in sends(world).values():
        batch = next(
            each
            for each in broker.logs[TopicPartition(row.topic, row.partition)].batches
            if next(iter(iterate(each)))[1].base_offset == row.first_offset
        )
        header = next(iter(iterate(batch)))[1]
        assert (header.producer_id, header.record_count) == (row.producer_id, row.count)


def test_all_overdue_slots_are_sent_and_timed_from_when_they_were_due(
    world: FleetWorld, settings: ClientSettings
) -> None:
    world.refuse_until_us = 0
    subject = producer(settings)
    world.start(subject)
    world.run(1)
    before = len(produces(world))
    world.fault = lambda _: "cut" if world.now_us < 4_000_000 else None
    world.refuse_until_us = 4_000_000
    world.run(4)
    rows = produces(world)
    assert len(rows) > before + 300, "slots that fell into the outage were dropped"
    due = [row.intended_us for row in rows]
    assert [b - a for a, b in itertools.pairwise(due)] == [10_000] * (len(due) - 1)
    late = max(rows, key=lambda row: row.complete_us - row.intended_us)
    assert late.complete_us - late.intended_us > 1_900_000


@pytest.mark.thorough
def test_unsettled_batch_becomes_info_and_the_next_goes_under_a_new_producer_id(
    world: FleetWorld, settings: ClientSettings
) -> None:
    subject = producer(settings, delivery_timeout_us=3_000_000)
    world.fault = nth_produce({3}, "lose_response")
    world.start(subject)
    world.run(20)
    infos = [produce for produce in produces(world) if produce.type == "info"]
    assert len(infos) == 1
    ids = [send.producer_id for send in sends(world).values()]
    assert len(dict.fromkeys(ids)) == 2
    assert sends(world)[infos[0].index].first_offset == -1


def test_batch_of_unknown_producer_gets_new_id_and_is_written_once(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    subject = producer(settings)
    world.start(subject)
    world.run(0.5)
    broker.errors = dict.fromkeys(HOT, 59)
    world.run(0.3)
    broker.errors = {}
    world.run(1)
    world.stop(subject)
    world.run(1)
    values = values_in(broker)
    assert len(values) == len(set(values)) == 3 * len(produces(world))
    assert len({send.producer_id for send in sends(world).values()}) >= 2


def test_without_idempotence_a_lost_batch_is_not_sent_again(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    subject = producer(settings, idempotent=False)
    world.fault = nth_produce({3}, "lose_response")
    world.start(subject)
    world.run(8)
    world.stop(subject)
    world.run(5)
    assert [produce.type for produce in produces(world)].count("info") == 1
    assert {send.producer_id for send in sends(world).values()} == {-1}
    values = values_in(broker)
    assert len(values) == len(set(values))
    headers = [next(iter(iterate(batch)))[1] for log in broker.logs.values() for batch in log.batches]
    written = {(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers}
    assert written == {(-1, -1, -1), (-1, -1, 0), (-1, 0, 0)}  # As several clients write them.


def test_slots_due_but_never_sent_are_offered_and_failed(world: FleetWorld, settings: ClientSettings) -> None:
    subject = producer(settings)
    world.start(subject)
    world.run(1)
    world.refuse_until_us = world.now_us + 60_000_000
    world.fault = lambda _: "cut"
    world.run(2)
    world.stop(subject)
    world.run(20)
    assert subject.process in world.finished
    unsent = [produce for produce in produces(world) if produce.error == "not_sent"]
    assert 150 < len(unsent) <= 201
    load = world.recorder.load_rows()
    assert sum(row.offered for row in load) - sum(row.sent for row in load) >= len(unsent)


def test_key_never_changes_its_partition() -> None:
    keys = partition_keys(HOT, 8)
    assert all(len(key) == 8 for key in keys.values())
    every = [key for each in keys.values() for key in each]
    assert len(every) == len(set(every))
    assert partition_keys(HOT[:2] + HOT[2:], 8) == keys


def test_seeder_appends_once_to_each_idle_partition(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    subject = seeder("seeder", settings, Random(1), IDLE)
    world.start(subject)
    world.run(1)
    assert subject.process in world.finished
    assert [len(broker.logs[each].batches) for each in IDLE] == [1, 1]
    assert all(len(list(read_records(broker.logs[each].batches[0]))) == 3 for each in IDLE)


def test_preparer_ends_well_when_every_partition_has_a_leader(world: FleetWorld, settings: ClientSettings) -> None:
    subject = TopicPreparer("preparer", settings, Random(1), [NewTopic("hot", 4), NewTopic("idle", 2)])
    world.refuse_until_us = world.now_us + 500_000
    world.start(subject)
    world.run(5)
    assert subject.process in world.finished
    assert subject.failure is None


def test_preparer_reports_why_topics_are_missing(world: FleetWorld, settings: ClientSettings) -> None:
    subject = TopicPreparer("preparer", settings, Random(1), [NewTopic("hot", 4), NewTopic("idle", 9)])
    world.fault = lambda request: "cut" if request.api_key == ApiKey.CREATE_TOPICS else None
    world.start(subject)
    world.run(100)
    assert subject.process in world.finished
    assert subject.failure is not None


@pytest.mark.parametrize("is_back", [True, False])
def test_final_reader_retries_where_a_record_is_out_of_reach(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, *, is_back: bool
) -> None:
    """The reader begins at the start again only where the log does not have the offset any more."""
    written(world, broker, settings)
    log = broker.logs[HOT[0]]
    log.readable_end = read_header(log.batches[-1]).base_offset
    subject = FinalReader(FinalReadPlan("final-reader", (HOT[0],), 4_000_000), settings, Random(1), BatchReader())
    world.start(subject)
    world.run(1)
    before = [row for row in world.rows("runs") if row.process == "final-reader"]
    log.readable_end = 1 << 63
    if not is_back:
        del log.batches[-2:]
        log.end = read_header(log.batches[-1]).last_offset + 1
    world.run(5)
    assert list(subject.unread) == []
    after = [row for row in world.rows("runs") if row.process == "final-reader"][len(before) :]
    assert before
    first = min(row.first_offset for row in after)
    assert (first > max(row.first_offset for row in before)) is is_back


def test_final_reader_reads_each_partition_to_its_end_and_notes_its_bounds(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    load = producer(settings)
    world.start(load)
    world.run(2)
    world.stop(load)
    world.run(1)
    broker.logs[HOT[2]].start = 9
    broker.configs["hot"] = OF_A_WEEK
    world.fault = nth_produce(set(), None)
    subject = FinalReader(FinalReadPlan("final-reader", (*HOT, *IDLE)), settings, Random(1), BatchReader())
    world.start(subject)
    world.run(3)
    assert subject.process in world.finished
    assert not subject.unread
    ends = {TopicPartition(each.topic, each.partition): each for each in world.rows("ends")}
    assert {partition: (end.log_start_offset, end.high_watermark) for partition, end in ends.items()} == {
        partition: (log.start, log.end) for partition, log in broker.logs.items()
    }
    read: dict[TopicPartition, list[int]] = {}
    for row in world.rows("runs"):
        if row.kind == "read":
            where = TopicPartition(row.topic, row.partition)
            read.setdefault(where, []).extend(range(row.first_offset, row.first_offset + row.count))
    assert read == {partition: list(range(log.start, log.end)) for partition, log in broker.logs.items() if log.end}
    assert {each.f for each in world.rows("operations")} >= {"final_read", "list_offsets"}


@pytest.mark.parametrize(
    ("settings_of_topic", "noted"),
    [
        ({**OF_A_WEEK, "segment.bytes": "2000"}, (604_800_000, -1, 2000)),
        (OF_A_WEEK, (604_800_000, -1, None)),
        ({**OF_A_WEEK, "cleanup.policy": "compact,delete"}, (None, None, None)),
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, (None, None, None)),
    ],
)
def test_final_reader_notes_the_retention_of_logs_that_do_not_begin_at_0(
    world: FleetWorld,
    broker: FakeBroker,
    settings: ClientSettings,
    settings_of_topic: dict[str, str | None],
    noted: tuple[int | None, int | None, int | None],
) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.stop(load)
    world.run(1)
    cut, whole = HOT[2], HOT[1]
    broker.logs[cut].start = broker.logs[cut].end
    broker.configs["hot"] = settings_of_topic
    subject = FinalReader(FinalReadPlan("final-reader", (*HOT, *IDLE)), settings, Random(1), BatchReader())
    world.start(subject)
    world.run(3)
    assert subject.process in world.finished
    ends = {TopicPartition(row.topic, row.partition): row for row in world.rows("ends")}
    limits = (ends[cut].retention_ms, ends[cut].retention_bytes, ends[cut].segment_bytes)
    assert (limits, ends[cut].size_bytes) == (noted, 0)
    assert (ends[whole].retention_ms, ends[whole].retention_bytes) == (None, None)
    assert ends[whole].size_bytes == sum(map(len, broker.logs[whole].batches)) > 0
    bodies = [request.body for request in broker.requests if request.api_key == ApiKey.DESCRIBE_CONFIGS]
    assert {resource.resource_name for body in bodies for resource in body.resources} == {"hot"}  # type: ignore[attr-defined]
    assert len(bodies) == 1
    assert subject.missed == ""


def written(world: FleetWorld, broker: FakeBroker, settings: ClientSettings) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.stop(load)
    world.run(1)
    assert all(broker.logs[each].end > 2 for each in HOT)


def last_look(world: FleetWorld, settings: ClientSettings, limit_us: int = 2_000_000, **more: Any) -> FinalReader:
    plan = FinalReadPlan("final-reader", (*HOT, *IDLE), limit_us, **more)
    subject = FinalReader(plan, settings, Random(1), BatchReader())
    world.start(subject)
    world.run(limit_us / 1e6 + 1)
    assert subject.process in world.finished
    return subject


def descriptions(broker: FakeBroker) -> int:
    return sum(request.api_key == ApiKey.DESCRIBE_CONFIGS for request in broker.requests)


def fetches(broker: FakeBroker) -> int:
    return sum(request.api_key == ApiKey.FETCH for request in broker.requests)


def test_log_that_begins_later_at_its_next_leader_is_described_too(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All logs begin at 0 when the reader queries their starts, and one begins at 1 when the first batch was read."""
    written(world, broker, settings)
    broker.configs["hot"] = OF_A_WEEK

    def first_batch(log: FakeLog, offset: int) -> bytes:
        return next((batch for batch in log.batches if read_header(batch).last_offset >= offset), b"")

    monkeypatch.setattr(FakeLog, "read", first_batch)

    def moved(request: Request) -> None:
        if request.api_key == ApiKey.FETCH:
            broker.logs[HOT[2]].start = int(fetches(broker) > 0)

    world.fault = moved
    assert last_look(world, settings).missed == ""
    (end,) = [row for row in world.rows("ends") if (row.topic, row.partition) == HOT[2]]
    assert (end.log_start_offset, end.retention_ms, end.retention_bytes) == (1, 604_800_000, -1)
    assert len(world.rows("ends")) == len(HOT) + len(IDLE)
    assert descriptions(broker) == 1


def test_description_is_retried_with_backoff_while_others_are_read(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    written(world, broker, settings)
    broker.logs[HOT[2]].start = 1
    started_us = world.now_us

    def late(request: Request) -> None:
        if request.api_key == ApiKey.DESCRIBE_CONFIGS and world.now_us >= started_us + 1_200_000:
            broker.configs["hot"] = OF_A_WEEK

    world.fault = late
    assert last_look(world, settings, 4_000_000).missed == ""
    ends = {(row.topic, row.partition): row for row in world.rows("ends")}
    assert ends[HOT[2]].retention_ms == 604_800_000
    assert (
        max(end.end_us for partition, end in ends.items() if partition != HOT[2])
        < started_us + 500_000
        < ends[HOT[2]].end_us
    )
    assert 4 <= descriptions(broker) <= 8


def test_partition_waiting_for_description_delays_no_other_leader(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    written(world, broker, settings)
    broker.logs[HOT[0]].start = 1
    for partition in HOT[1:]:
        broker.move(partition, 1)
    assert last_look(world, settings).missed == "hot could not be described"
    assert len(world.rows("ends")) == len(HOT) + len(IDLE)


def test_reader_that_leaves_the_ends_to_another_does_not_describe(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    written(world, broker, settings)
    broker.logs[HOT[2]].start = 1
    assert last_look(world, settings, keep=without_ends).missed == ""
    assert descriptions(broker) == 0


@pytest.mark.parametrize("fate", [None, "cut"])
def test_undescribed_topic_is_named(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, fate: str | None
) -> None:
    written(world, broker, settings)
    broker.logs[HOT[2]].start = 1
    world.fault = lambda request: fate if request.api_key == ApiKey.DESCRIBE_CONFIGS else None
    assert last_look(world, settings).missed == "hot could not be described"
    ends = {(row.topic, row.partition): row for row in world.rows("ends")}
    assert len(ends) == len(HOT) + len(IDLE)
    assert (ends[HOT[2]].log_start_offset, ends[HOT[2]].retention_ms) == (1, None)
    assert 4 <= descriptions(broker) <= 10


def test_no_configs_are_described_if_the_broker_lacks_the_api(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = SimpleNamespace(api_key=int(ApiKey.FETCH), max_version=12)
    monkeypatch.setattr(negotiation, "_api_versions", lambda *_: SimpleNamespace(api_keys=(fetch,)))
    versions = Versions(**negotiation.negotiate((), 0.0))
    assert versions == replace(Versions(), fetch=12, describe_configs=-1)
    written(world, broker, settings)
    broker.logs[HOT[2]].start = 1
    without = replace(settings, versions=replace(settings.versions, describe_configs=versions.describe_configs))
    assert last_look(world, without).missed == ""
    assert (len(world.rows("ends")), descriptions(broker)) == (len(HOT) + len(IDLE), 0)


def test_final_reader_notes_a_topic_that_does_not_exist_any_more(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    """A topic that the first Metadata responses do not know yet does exist."""
    broker.unknown = {HOT[0].topic, IDLE[0].topic}
    plan = FinalReadPlan("final-reader", (*HOT, *IDLE), limit_us=8_000_000)
    subject = FinalReader(plan, settings, Random(1), BatchReader())
    world.start(subject)
    world.run(1)
    broker.unknown = {IDLE[0].topic}
    world.run(9)
    assert subject.process in world.finished
    assert subject.missed == ""
    found = {TopicPartition(row.topic, row.partition): (row.high_watermark, row.error) for row in world.rows("ends")}
    assert found == {
        **dict.fromkeys(IDLE, (0, "UNKNOWN_TOPIC_OR_PARTITION")),
        **{partition: (broker.logs[partition].end, None) for partition in HOT},
    }


def test_final_reader_gives_up_on_a_partition_that_stays_in_error(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    broker.errors[HOT[0]] = 6
    plan = FinalReadPlan("final-reader", tuple(HOT), limit_us=3_000_000)
    subject = FinalReader(plan, settings, Random(1), BatchReader())
    world.start(subject)
    world.run(6)
    assert subject.process in world.finished
    assert list(subject.unread) == [HOT[0]]
    assert subject.missed == f"{HOT[0].topic}-{HOT[0].partition} could not be read to the end"
    assert len(world.rows("ends")) == 3
