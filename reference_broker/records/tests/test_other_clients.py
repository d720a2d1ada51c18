"""Differential: batches of kafka-python and aiokafka are read here, ours are read there."""

import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.records.batch import validate
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_records

with warnings.catch_warnings():  # kafka-python reads its schemas through a deprecated function of importlib.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KpyBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KpyBuilder

BATCHES = {"kafka-python": KpyBatch, "aiokafka": AioBatch}
BUILDERS = {"kafka-python": KpyBuilder, "aiokafka": AioBuilder}
PAIRS = [
    (name, codec)
    for name in BATCHES
    for codec in Compression
    if (name, codec) != ("kafka-python", Compression.SNAPPY)  # It needs a C library that aiokafka brings itself.
]
payloads = st.none() | st.binary(max_size=60)
records = st.lists(
    st.builds(
        Record,
        timestamp_ms=st.integers(1, 2**40),
        key=payloads,
        value=payloads,
        headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


def fields(record: Any) -> tuple[object, ...]:
    headers = tuple((name, value) for name, value in record.headers)
    return record.offset, record.timestamp, record.key, record.value, headers


def ours(data: bytes) -> list[tuple[object, ...]]:
    return [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in read_records(data)]


@pytest.mark.parametrize(("client", "codec"), PAIRS)
@settings(max_examples=20)
@given(batch=records)
def test_our_batches_are_read_by_them(client: str, codec: Compression, batch: list[Record]) -> None:
    data = build(batch, base_offset=1000, producer_id=7, producer_epoch=1, base_sequence=3, compression=codec)
    theirs = BATCHES[client](bytearray(data))
    assert theirs.validate_crc()
    assert theirs.base_offset == 1000
    assert theirs.producer_id == 7
    assert theirs.producer_epoch == 1
    assert theirs.base_sequence == 3
    assert theirs.max_timestamp == max(record.timestamp_ms for record in batch)
    assert [fields(record) for record in theirs] == ours(data)


@pytest.mark.thorough
@pytest.mark.parametrize(("client", "codec"), PAIRS)
@settings(max_examples=20)
@given(batch=records)
def test_their_batches_are_read_here(client: str, codec: Compression, batch: list[Record]) -> None:
    builder = BUILDERS[client](
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
        batch_size=1 << 20,
    )
    for offset, record in enumerate(batch):
        assert builder.append(offset, record.timestamp_ms, record.key, record.value, list(record.headers)) is not None
    data = bytes(builder.build())
    ((_, header),) = validate(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 3)
    assert header.record_count == len(batch)
    assert ours(data) == [(at, r.timestamp_ms, r.key, r.value, r.headers) for at, r in enumerate(batch)]
    epoch = header.leader_epoch
    if codec is Compression.NONE:
        assert build(batch, leader_epoch=epoch, producer_id=7, producer_epoch=1, base_sequence=3) == data
