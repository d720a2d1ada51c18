"""The cleaner's own decoding of records, compared with the reader of all other parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.log.cleaner.record_columns import columns, extents, shifted
from reference_broker.records.batch import HEADER_BYTES, InvalidRecords, read_header
from reference_broker.records.record import Record, build, decoded, zigzag

BYTES = st.one_of(st.none(), st.binary(max_size=5), st.integers(60, 70).map(bytes), st.integers(8185, 8200).map(bytes))
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp_ms=st.integers(0, 1 << 40),
        key=BYTES,
        value=BYTES,
        headers=st.lists(st.tuples(st.sampled_from(["h", "long" * 20]), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


def plain_of(records: list[Record]) -> bytes:
    return bytes(build(records)[HEADER_BYTES:])


@pytest.mark.thorough
@given(records=RECORDS, limit=st.integers(1, 13))
def test_columns_equal_decoded_records(records: list[Record], limit: int) -> None:
    batch = build(records)
    plain, header = bytes(batch[HEADER_BYTES:]), read_header(batch)
    position = 0
    seen: list[tuple[int, bytes | None, bool]] = []
    while position < len(plain):
        parts, position = columns(plain, position, limit)
        assert 0 < len(parts.starts) <= limit
        has_value = [at not in parts.valueless for at in range(len(parts.starts))]
        keys = [None if at in parts.keyless else key for at, key in enumerate(parts.keys)]
        seen += zip(parts.offset_deltas, keys, has_value, strict=True)
        for record in extents(plain, parts.starts):
            (again,) = decoded(plain[record.start : record.end], header._replace(record_count=1))
            assert again.timestamp_ms == header.base_timestamp_ms + record.timestamp_delta
            moved = shifted(plain, record, record.timestamp_delta - 7)
            (earlier,) = decoded(moved, header._replace(record_count=1))
            assert (earlier.timestamp_ms, earlier.value) == (again.timestamp_ms - 7, again.value)
    expected = [
        (record.offset - header.base_offset, record.key, record.value is not None) for record in decoded(plain, header)
    ]
    assert seen == expected


@pytest.mark.parametrize("delta", [0, 63, 64, 8191, 8192, 1 << 20, (1 << 31) - 1, -1, -65])
def test_varints_of_any_length_are_decoded(delta: int) -> None:
    body = b"\0" + zigzag(0) + zigzag(delta) + zigzag(1) + b"k" + zigzag(-1) + zigzag(0)
    parts, end = columns(zigzag(len(body)) + body, 0, 10)
    assert (parts.offset_deltas, parts.keys, parts.valueless) == ([delta], [b"k"], [0])
    assert end == len(body) + 1


def test_keys_start_at_given_offset() -> None:
    parts, _ = columns(plain_of([Record(key=b"a"), Record(value=b"none"), Record(key=b"b"), Record(key=b"c")]), 0, 10)
    assert parts.keyed(100, 0) == ([b"a", b"b", b"c"], [100, 102, 103])
    assert parts.keyed(100, 102) == ([b"b", b"c"], [102, 103])
    keyed, _ = columns(plain_of([Record(key=b"a"), Record(key=b"b")]), 0, 10)
    assert keyed.keyed(100, 101) == ([b"b"], [101])


@pytest.mark.thorough
@given(records=RECORDS, data=st.data())
def test_truncated_records_are_damage(records: list[Record], data: st.DataObject) -> None:
    plain = plain_of(records)
    ends = [record.end for record in extents(plain, columns(plain, 0, 100)[0].starts)]
    cut = data.draw(st.integers(1, len(plain) - 1).filter(lambda at: at not in ends) if len(plain) > 1 else st.just(1))
    with pytest.raises(InvalidRecords):
        columns(plain[:cut], 0, 100)


@pytest.mark.parametrize(
    "wrong", [b"\x01", b"\x02\0", b"\x0a\0\0\0\x0a" + b"k" * 5, b"\x06\0\0\0" + bytes(9), b"\xff" * 30]
)
def test_random_bytes_are_damage(wrong: bytes) -> None:
    with pytest.raises(InvalidRecords):
        columns(wrong, 0, 100)
