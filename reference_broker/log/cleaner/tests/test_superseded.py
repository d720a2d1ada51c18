"""Batches that a pass need not decompress again."""

import pytest

from reference_broker.log.cleaner.retention import Superseded
from reference_broker.log.cleaner.tests.cleaner_world import cleaned, fresh, put, rolled, texts
from reference_broker.ports.slicing import INDEXED_OFFSETS_PER_SLICE
from reference_broker.records.batch import BatchHeader, read_header
from reference_broker.records.record import Record, build, plain_records


def header_at(base_offset: int, records: int) -> BatchHeader:
    return read_header(build([Record(key=b"k")] * records))._replace(base_offset=base_offset)


def settled(headers: list[BatchHeader], newest: list[int], most: int = 100) -> list[bool]:
    superseded = Superseded(most)
    for header in headers:
        superseded.note(header)
    for _ in superseded.settle(newest):
        pass
    return [superseded.holds(header) for header in headers]


def test_batch_without_newest_offset_is_superseded() -> None:
    headers = [header_at(0, 10), header_at(10, 5), header_at(15, 1)]
    assert settled(headers, [9, 15]) == [False, True, False]
    assert settled(headers, [10]) == [True, False, True]
    assert settled(headers, [14, 0]) == [False, False, True]
    assert settled(headers, []) == [True, True, True]


def test_unrecorded_batch_is_decompressed() -> None:
    assert settled([header_at(0, 2), header_at(2, 2), header_at(4, 2)], [], most=2) == [True, True, False]
    superseded = Superseded(2)
    assert list(superseded.settle([1, 2])) == []
    assert not superseded.holds(header_at(1, 1))
    superseded.note(header_at(5, 3))
    assert not superseded.holds(header_at(6, 2)), "its base offset is another"


def test_many_keys_are_processed_in_slices() -> None:
    superseded = Superseded(2)
    superseded.note(header_at(0, 10))
    assert len(list(superseded.settle(range(3 * INDEXED_OFFSETS_PER_SLICE)))) == 2


def test_superseded_batches_are_not_decompressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_into: list[int] = []

    def seen(header: BatchHeader, batch: memoryview):  # type: ignore[no-untyped-def]
        looked_into.append(header.base_offset)
        return plain_records(header, batch)

    log, disk = fresh()
    for number in range(5):
        put(log, ("a", f"{number}"), ("b", f"{number}"))
    put(log, ("a", "5"), ("c", "5"))
    rolled(log)
    monkeypatch.setattr("reference_broker.log.cleaner.retention.plain_records", seen)
    done = cleaned(log, disk)
    assert looked_into == [8, 10]
    assert (done.records, done.kept) == (12, 3)
    assert texts(log) == [(9, "b", "4"), (10, "a", "5"), (11, "c", "5")]
    looked_into.clear()
    put(log, ("b", None))
    rolled(log)
    cleaned(log, disk)
    assert looked_into == [8, 10, 12], "what was cleaned before has no newest offsets in the map"
    assert texts(log) == [(10, "a", "5"), (11, "c", "5"), (12, "b", None)]
