"""``compression.type`` of a topic: its batches are stored with that codec."""

from dataclasses import replace

import pytest

from reference_broker.core.tests.node_world import NodeWorld, batch
from reference_broker.records.batch import CRC_FROM, HEADER_BYTES, checksum, read_header, write_header
from reference_broker.records.compression import Compression
from reference_broker.records.record import read_records
from reference_broker.wire.errors import ErrorCode

NAMES = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.thorough
@pytest.mark.clause("LogValidatorTest.checkRecompression", "LogValidatorTest.testDifferentCodecCausesRecompression")
@pytest.mark.parametrize("size", [100, 600_000], ids=["at once", "in slices"])
@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("name", NAMES)
def test_batches_are_stored_with_topic_codec(name: str, time: str, size: int) -> None:
    world = NodeWorld()
    world.create("t", compression_type=name, message_timestamp_type=time)
    log = world.log("t")
    for sequence, codec in enumerate(Compression):
        sent = batch(b"v" * size, compression=codec, producer_id=7, producer_epoch=0, base_sequence=sequence)
        for _ in range(2):  # The second one is a retry, which is not written again.
            response = world.produce("t", 0, sent)
            assert (response.error_code, response.base_offset) == (ErrorCode.none, sequence)
        (stored,) = [bytes(log.read(sequence, 1 << 20, log.log_end_offset))]
        header, before = read_header(stored), read_header(sent)
        assert header.compression == NAMES[name]
        assert (header.producer_id, header.base_sequence) == (7, sequence)
        ((record,), (was,)) = list(read_records(stored)), list(read_records(sent))
        if time == "CreateTime":
            assert header.max_timestamp_ms == before.max_timestamp_ms
            assert record == replace(was, offset=sequence)
        assert (record.key, record.value) == (was.key, was.value)
    assert log.log_end_offset == len(Compression)


@pytest.mark.thorough
@pytest.mark.parametrize("in_slices", [False, True], ids=["at once", "in slices"])
@pytest.mark.parametrize(("name", "low", "high"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -50, 19)])
def test_batches_are_stored_with_topic_compression_level(name: str, low: int, high: int, in_slices: bool) -> None:
    """Level 9 of lz4 is its default, which is fast; any other is the compressor with high compression."""
    words = [b"%d" % (n * n) for n in range(60_000 if in_slices else 2_000)]
    sent = batch(b" ".join(words))
    sizes = []
    for level in (low, high):
        world = NodeWorld()
        configs = {"compression_type": name, f"compression_{name}_level": str(level)}
        world.create("t", 1, **configs)
        assert world.produce("t", 0, sent).error_code == ErrorCode.none
        stored = bytes(world.log("t").read(0, 1 << 22, 1))
        assert [record.value for record in read_records(stored)] == [b" ".join(words)]
        sizes.append(len(stored))
    assert sizes[0] > sizes[1]


def test_batch_with_topic_codec_keeps_its_bytes() -> None:
    world = NodeWorld()
    world.create("t", compression_type="gzip")
    sent = batch(b"v" * 100, compression=Compression.GZIP)
    world.produce("t", 0, sent)
    assert bytes(world.log("t").read(0, 1 << 20, 1))[16:] == sent[16:]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP], ids=["at once", "in slices"])
def test_bytes_in_counts_bytes_of_producer(codec: Compression) -> None:
    world = NodeWorld()
    world.create("t", compression_type="uncompressed" if codec else "gzip")
    sent = batch(bytes(3_000), compression=codec)
    assert world.produce("t", 0, sent).error_code == ErrorCode.none
    assert world.node.broker.traffic.bytes_in.value == len(sent)


def test_batch_too_large_after_recompression_is_rejected() -> None:
    world = NodeWorld()
    world.create("t", compression_type="uncompressed", max_message_bytes="1000")
    for count in (1, 20):
        sent = batch(bytes(2_000), count=count, compression=Compression.GZIP)
        assert world.produce("t", 0, sent).error_code == ErrorCode.message_too_large
    assert world.produce("t", 0, batch(bytes(100), compression=Compression.GZIP)).error_code == ErrorCode.none
    assert world.log("t").log_end_offset == 1


def test_undecodable_compressed_bytes_are_rejected() -> None:
    world = NodeWorld()
    world.create("t", compression_type="lz4")
    good = batch(b"v" * 100)
    covered = write_header(read_header(good)._replace(attributes=Compression.GZIP))[CRC_FROM:] + good[HEADER_BYTES:]
    header = read_header(good)._replace(attributes=Compression.GZIP, crc=checksum(covered))
    sent = write_header(header) + good[HEADER_BYTES:]
    assert world.produce("t", 0, sent).error_code == ErrorCode.corrupt_message
    assert world.log("t").log_end_offset == 0
