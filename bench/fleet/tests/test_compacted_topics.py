"""Writers of compacted topics and readers that hold the newest record of each key."""

from bench.fleet.batch_reader import spans_of_batch
from bench.fleet.behaviours.member_storage import View
from bench.fleet.behaviours.producers import NOT_COMPACTED, KeyedRecords
from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.values import ValueMaker, read_record
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.records.record import Record, build

WHERE = TopicPartition("table", 0)
WRITER = "producer-0"
COUNT = 400


def keyed(delete_percent: int, retention_us: int = 9) -> KeyedRecords:
    return KeyedRecords(ValueMaker(WRITER, 60), [WHERE, TopicPartition("table", 1)], 5, delete_percent, retention_us)


def test_tombstone_has_no_value_and_proves_itself() -> None:
    made = keyed(25).make(WHERE, 0, COUNT, 1)
    tombstones = [each for each in made if each.value is None]
    assert COUNT // 8 < len(tombstones) < COUNT // 2
    assert [read_record(each.value, each.headers) for each in made] == [
        (WRITER, number, True) for number in range(COUNT)
    ]
    (run,) = spans_of_batch(memoryview(build(made)), -1, COUNT - 1, 0)
    assert run.writer == WRITER
    assert run.first_sequence == 0
    assert run.count == COUNT
    assert run.valid is True


def test_tombstone_without_its_header_is_not_ours() -> None:
    assert not read_record(None, ()).valid


def test_batch_that_is_encoded_again_holds_the_same_and_the_rows_say_it() -> None:
    records = keyed(25)
    made = records.make(WHERE, 7, 20, 1)
    assert records.make(WHERE, 7, 20, 1) == made
    rows = records.rows(WRITER, 3, WHERE, 7, 20)
    found = [(row.sequence, row.key.encode(), row.is_tombstone) for row in rows]
    assert found == [(7 + step, each.key, each.value is None) for step, each in enumerate(made)]
    assert {row.delete_retention_us for row in rows} == {9}
    assert len({row.key for row in rows}) == 5


def test_uncompacted_topics_have_no_rows() -> None:
    assert keyed(0, NOT_COMPACTED).rows(WRITER, 0, WHERE, 0, 20) == []
    assert all(each.value is not None for each in keyed(0).make(WHERE, 0, COUNT, 1))


def test_view_holds_the_newest_value_of_each_key() -> None:
    view = View("reader", 1)
    made = [
        Record(offset=each, key=key, value=ValueMaker(WRITER, 60).make(each))
        for each, key in enumerate((b"a", b"b", b"a", b"c"))
    ]
    made.append(Record(offset=4, key=b"b"))
    view.put([ConsumerRecord(*WHERE, record.offset, 0, record.key, record.value, record.headers) for record in made])
    rows = view.rows(WHERE, 6, 1, 2)
    assert [(row.key, row.offset, row.writer, row.sequence) for row in rows] == [
        ("", -1, "", -1),
        ("a", 2, WRITER, 2),
        ("c", 3, WRITER, 3),
    ]
    assert {(row.process, row.isolation, row.position, row.from_us, row.at_us) for row in rows} == {
        ("reader", 1, 6, 1, 2)
    }
    view.drop([WHERE])
    assert [row.key for row in view.rows(WHERE, 6, 1, 2)] == [""]
