"""The batch as bytes: header, CRC, patching, what is refused."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.records.batch import (
    HEADER_BYTES,
    UNPATCHED_FROM,
    InvalidRecords,
    add_sequence,
    iterate,
    patched_log_append_time,
    patched_prefix,
    read_header,
    validate,
    write_header,
)
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_all, read_records
from reference_broker.wire.errors import Error, ErrorCode

i64 = st.integers(-(2**63), 2**63 - 1)
timestamps = st.integers(0, 2**62)
texts = st.text(max_size=6)
payloads = st.none() | st.binary(max_size=40)
records = st.builds(
    Record,
    timestamp_ms=timestamps,
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(texts, payloads), max_size=3).map(tuple),
)
codecs = st.sampled_from(list(Compression))


@pytest.mark.thorough
@given(st.lists(records, min_size=1, max_size=8), codecs, st.integers(0, 2**60), st.integers(-1, 2**31 - 1))
def test_built_batch_is_read_back(batch: list[Record], codec: Compression, base_offset: int, epoch: int) -> None:
    data = build(batch, base_offset=base_offset, leader_epoch=epoch, compression=codec)
    ((position, header),) = validate(data)
    assert position == 0
    assert header.size_bytes == len(data)
    assert (header.base_offset, header.leader_epoch, header.compression) == (base_offset, epoch, codec)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in batch)
    assert header.record_count == len(batch) == header.last_offset_delta + 1
    found = list(read_records(data))
    assert [record.offset for record in found] == list(range(base_offset, base_offset + len(batch)))
    assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in found] == [
        (r.timestamp_ms, r.key, r.value, r.headers) for r in batch
    ]


@pytest.mark.clause(
    "LogValidatorTest.checkNonCompressed",
    "LogValidatorTest.checkCompressed",
    "LogValidatorTest.testDifferentLevelDoesNotCauseRecompression",
    "LogValidatorTest.testRelativeOffsetAssignmentNonCompressedV2",
    "LogValidatorTest.testRelativeOffsetAssignmentCompressedV2",
)
@given(st.lists(records, min_size=1, max_size=4), codecs, st.integers(0, 2**60), st.integers(0, 2**31 - 1))
def test_patching_keeps_the_crc_right_and_the_records_untouched(
    batch: list[Record], codec: Compression, base_offset: int, epoch: int
) -> None:
    how: dict[str, Any] = {"producer_id": 1324, "producer_epoch": 10, "base_sequence": 984, "is_transactional": True}
    data = build(batch, compression=codec, **how)
    new = patched_prefix(read_header(data), base_offset, epoch) + data[UNPATCHED_FROM:]
    ((_, header),) = validate(new)
    assert header == read_header(data)._replace(base_offset=base_offset, leader_epoch=epoch)
    assert [(r.offset, r.timestamp_ms, r.value) for r in read_records(new)] == [
        (base_offset + index, record.timestamp_ms, record.value) for index, record in enumerate(batch)
    ]


@pytest.mark.clause(
    "LogValidatorTest.checkLogAppendTimeNonCompressed",
    "LogValidatorTest.checkLogAppendTimeWithoutRecompression",
)
@given(st.lists(records, min_size=1, max_size=4), codecs, st.integers(0, 2**60), timestamps)
def test_append_time_gives_every_record_that_time_and_a_new_crc(
    batch: list[Record], codec: Compression, base_offset: int, time_ms: int
) -> None:
    data = build(batch, compression=codec)
    head = patched_log_append_time(memoryview(data), read_header(data), base_offset, 7, time_ms)
    new = head + data[HEADER_BYTES:]
    ((_, header),) = validate(new)
    assert header.is_log_append_time
    assert header.max_timestamp_ms == time_ms
    assert [(r.offset, r.timestamp_ms, r.value) for r in read_records(new)] == [
        (base_offset + index, time_ms, record.value) for index, record in enumerate(batch)
    ]
    assert new == build(batch, compression=codec, base_offset=base_offset, leader_epoch=7, log_append_time_ms=time_ms)


@pytest.mark.thorough
@given(st.lists(st.lists(records, min_size=1, max_size=3), max_size=4))
def test_several_batches_are_walked_in_order(batches: list[list[Record]]) -> None:
    parts = [build(batch, base_offset=10 * at) for at, batch in enumerate(batches)]
    data = b"".join(parts)
    starts = [sum(len(part) for part in parts[:at]) for at in range(len(parts))]
    assert [position for position, _ in iterate(data)] == starts
    assert validate(data) == list(iterate(data))
    assert [record.value for _, record in read_all(data)] == [r.value for batch in batches for r in batch]


def test_any_flipped_bit_from_the_magic_on_is_noticed() -> None:
    data = build([Record(timestamp_ms=5, key=b"k", value=b"value")])
    for position in range(16, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(InvalidRecords):
                validate(damaged)


def test_every_shorter_and_longer_buffer_is_refused() -> None:
    data = build([Record(timestamp_ms=5, value=b"value")])
    for end in range(1, len(data)):
        with pytest.raises(InvalidRecords) as refused:
            validate(data[:end])
        assert refused.value.error == ErrorCode.corrupt_message
        with pytest.raises(InvalidRecords):
            validate(data + data[:end])


@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 48, 2**31 - 1])
def test_invalid_batch_length_is_refused(length: int) -> None:
    data = bytearray(build([Record(value=b"v")]))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(InvalidRecords) as refused:
        validate(data)
    assert refused.value.error == ErrorCode.corrupt_message
    with pytest.raises(InvalidRecords):
        list(iterate(data))


@pytest.mark.parametrize(
    ("magic", "error"),
    [
        (0, ErrorCode.unsupported_for_message_format),
        (1, ErrorCode.unsupported_for_message_format),
        (3, ErrorCode.corrupt_message),
    ],
)
def test_other_formats_are_refused(magic: int, error: Error) -> None:
    data = bytearray(build([Record(value=b"v")]))
    data[16] = magic
    with pytest.raises(InvalidRecords) as refused:
        validate(data)
    assert refused.value.error == error


@given(st.binary(max_size=200))
def test_random_bytes_never_break_the_reader_otherwise(data: bytes) -> None:
    for read in (validate, lambda bytes_: list(read_all(bytes_))):
        with suppress(InvalidRecords):
            assert (read(data) == []) == (data == b"")


@given(st.integers(0, 400), st.binary(min_size=1, max_size=8), codecs)
def test_damaged_records_never_break_the_reader_otherwise(at: int, bytes_: bytes, codec: Compression) -> None:
    data = bytearray(build([Record(1, 2, b"k", b"v" * 20, (("h", b"x"),))] * 3, compression=codec))
    at = HEADER_BYTES - 4 + at % (len(data) - HEADER_BYTES)
    data[at : at + len(bytes_)] = bytes_[: len(data) - at]
    with suppress(InvalidRecords):
        assert len(list(read_records(data))) == int.from_bytes(data[57:61], "big", signed=True)


def test_sequences_go_round_at_the_largest_number() -> None:
    assert add_sequence(2**31 - 1, 1) == 0
    assert add_sequence(2**31 - 2, 4) == 2
    header = read_header(build([Record()] * 5, producer_id=1, producer_epoch=0, base_sequence=2**31 - 3))
    assert header.last_sequence == 1
    assert read_header(build([Record()])).last_sequence == -1


def test_header_survives_a_round_trip() -> None:
    data = build([Record(value=b"v")], producer_id=5, producer_epoch=3, base_sequence=9, is_transactional=True)
    header = read_header(data)
    assert write_header(header) == data[:HEADER_BYTES]
    assert header.is_transactional
    assert not header.is_control


def test_offsets_are_kept_where_requested() -> None:
    data = build([Record(offset=7, value=b"a"), Record(offset=12, value=b"b")], base_offset=5, keep_offsets=True)
    assert [record.offset for record in read_records(data)] == [7, 12]
    assert read_header(data).last_offset == 12
