"""Small batches that decompress to large ones: they block no other request, and do not fill the memory."""

from random import Random

import pytest

from reference_broker.core.tests.hostile_client import HostileClient, memory_of, slices_of
from reference_broker.core.tests.hostile_records import bomb, raw_batch, raw_record
from reference_broker.core.tests.node_world import START_WALL_MS, NodeWorld
from reference_broker.core.tests.test_hostile_records import offset_at
from reference_broker.records.batch import iterate
from reference_broker.records.compression import Compression
from reference_broker.records.record import MAX_PLAIN_BYTES, read_all
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

LONGEST_MS = 40
"""A slice takes some 5 ms. A busy machine may need several times as long."""
PACKED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
RECORD_BYTES = len(raw_record(key=None, value=None))


def with_bomb(codec: Compression, count: int) -> NodeWorld:
    world = NodeWorld(message_max_bytes="2000000")
    world.create("t")
    assert world.produce("t", 0, bomb(codec, count)).error_code == ErrorCode.none
    return world


@pytest.mark.thorough
@pytest.mark.parametrize("codec", PACKED)
def test_timestamp_lookup_in_many_records_takes_slices(codec: Compression) -> None:
    """The records are before the requested time, so all are read."""
    world = with_bomb(codec, 300_000)
    client = HostileClient(world)
    with slices_of(world) as cost:
        found = offset_at(client, START_WALL_MS + 5)
        largest = offset_at(client, -3)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, 0, START_WALL_MS + 5)
    assert (largest.error_code, largest.offset) == (ErrorCode.none, 0)
    assert cost.slices > 50
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.thorough
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_timestamp_lookup_decompresses_within_limit(codec: Compression) -> None:
    world = with_bomb(codec, 8 * MAX_PLAIN_BYTES // RECORD_BYTES)
    client = HostileClient(world)
    with memory_of() as cost:
        found = offset_at(client, START_WALL_MS + 5)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, 0, START_WALL_MS + 5)
    assert cost.peak_bytes < 3 * MAX_PLAIN_BYTES


@pytest.mark.thorough
def test_timestamp_lookups_of_many_partitions_take_slices() -> None:
    world = NodeWorld()
    world.create("t", 50)
    records = b"".join(raw_record(0, offset, None, b"v" * 90) for offset in range(10_000))
    large = raw_batch(records, 10_000, max_timestamp_ms=START_WALL_MS + 5)
    for index in range(50):
        assert world.produce("t", index, large).error_code == ErrorCode.none
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": START_WALL_MS + 5} for index in range(50)
    ]
    client = HostileClient(world)
    with slices_of(world) as cost:
        response = client.request(
            ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": partitions}]
        )
    assert [partition.offset for partition in response.topics[0].partitions] == [0] * 50
    assert cost.slices > 50
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.thorough
def test_timestamp_lookup_restarts_after_truncation() -> None:
    world = with_bomb(Compression.ZSTD, 300_000)
    world.produce("t", 0, bomb(Compression.ZSTD, 300_000))
    client = HostileClient(world)
    log, steps = world.log("t"), 0
    step = world.step

    def cut_meanwhile() -> bool:
        nonlocal steps
        steps += 1
        if steps == 5:
            log.truncate_to(300_000)
        return step()

    world.step = cut_meanwhile  # type: ignore[method-assign]
    found = offset_at(client, START_WALL_MS + 5)
    assert (found.error_code, found.offset) == (ErrorCode.none, 0)
    assert steps > 10


def test_topic_deleted_during_lookup_returns_not_leader() -> None:
    world = with_bomb(Compression.ZSTD, 300_000)
    client = HostileClient(world)
    step, steps = world.step, 0

    def delete_meanwhile() -> bool:
        nonlocal steps
        steps += 1
        if steps == 5:
            world.step = step  # type: ignore[method-assign]
            world.delete("t")
        return step()

    world.step = delete_meanwhile  # type: ignore[method-assign]
    found = offset_at(client, START_WALL_MS + 5)
    assert found.error_code in (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error)


def keyed(codec: Compression, count: int, first_key: int) -> bytes:
    plain = b"".join(raw_record(0, at, b"%d" % (first_key + at), b"v" * 8) for at in range(count))
    return raw_batch(plain, count, codec)


def compacted(client: HostileClient) -> None:
    configs = [{"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]
    client.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{"resource_type": 2, "resource_name": "t", "configs": configs}]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("codec", [Compression.NONE, *PACKED])
def test_large_batches_are_cleaned_in_slices(codec: Compression) -> None:
    world = NodeWorld(log_segment_bytes="2000000", log_cleaner_backoff_ms="1000", message_max_bytes="2000000")
    world.create("t")
    for first_key in (0, 5000, 10_000):
        assert world.produce("t", 0, keyed(codec, 15_000, first_key)).error_code == ErrorCode.none
    log = world.log("t")
    log.roll(world.now)
    compacted(HostileClient(world))
    with slices_of(world) as cost:
        world.advance(60_000)
    assert log.cleaned_offset == 45_000
    keys = [record.key for _, record in read_all(log.read(0, 1 << 24, log.log_end_offset))]
    assert len(keys) == 25_000
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.thorough
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_batch_too_large_to_decompress_is_not_cleaned(codec: Compression) -> None:
    world = NodeWorld(log_cleaner_backoff_ms="1000")
    world.create("t")
    for _ in range(2):
        world.produce("t", 0, keyed(codec, 10, 0))
    assert world.produce("t", 0, bomb(codec, 8 * MAX_PLAIN_BYTES // RECORD_BYTES)).error_code == ErrorCode.none
    world.produce("t", 0, raw_batch(raw_record(0, 0, b"k", bytes(8 * MAX_PLAIN_BYTES)), 1, codec))
    log = world.log("t")
    log.roll(world.now)
    compacted(HostileClient(world))
    with memory_of() as cost:
        world.advance(60_000)
    counts = [header.record_count for _, header in iterate(log.read(0, 1 << 24, log.log_end_offset))]
    assert counts == [0, 10, 8 * MAX_PLAIN_BYTES // RECORD_BYTES, 1]
    assert log.cleaned_offset == log.log_end_offset
    assert cost.peak_bytes < 64 * 2**20


@pytest.mark.thorough
@pytest.mark.parametrize("codec", [Compression.NONE, *PACKED])
def test_large_batch_for_compacted_topic_is_validated_in_slices(codec: Compression) -> None:
    world = NodeWorld(message_max_bytes="2000000")
    world.create("t", cleanup_policy="compact")
    batch = keyed(codec, 20_000, 0)
    with slices_of(world) as cost:
        appended = world.produce("t", 0, batch)
    assert (appended.error_code, appended.base_offset) == (ErrorCode.none, 0)
    assert cost.slices > 20
    assert cost.longest_ms < LONGEST_MS
    assert world.produce("t", 0, keyed(codec, 1, 0)).base_offset == 20_000


@pytest.mark.thorough
@pytest.mark.parametrize("setting", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.SNAPPY])
def test_many_small_batches_are_validated_in_slices(codec: Compression, setting: dict[str, str]) -> None:
    """Each alone takes a few milliseconds."""
    world = NodeWorld()
    world.create("t", 150, **setting)
    batch = keyed(codec, 200, 0)
    assert len(batch) < 4096
    parts = [ProducePartition(number, batch) for number in range(150)]
    with slices_of(world) as cost:
        response = world.request(ApiKey.PRODUCE, 9, ProduceRequest(1, 1000, [ProduceTopic("t", NO_TOPIC_ID, parts)]))
    assert [partition.base_offset for partition in response.responses[0].partitions] == [0] * 150
    assert cost.slices > 40
    assert cost.longest_ms < LONGEST_MS


def test_slow_compression_takes_slices() -> None:
    """Random text of few letters is the slowest input of gzip."""
    world = NodeWorld()
    world.create("t", compression_type="gzip")
    letters = f"{Random(1).getrandbits(900_000):0900000b}".encode()
    with slices_of(world) as cost:
        appended = world.produce("t", 0, raw_batch(raw_record(0, 0, b"k", letters)))
    assert appended.error_code == ErrorCode.none
    assert cost.slices > 10
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.thorough
@pytest.mark.parametrize("codec", PACKED)
def test_bomb_or_missing_keys_for_compacted_topic_are_rejected(codec: Compression) -> None:
    world = NodeWorld(message_max_bytes="2000000")
    world.create("t", cleanup_policy="compact")
    world.create("u")
    assert world.produce("t", 0, bomb(codec, 300_000)).error_code == ErrorCode.message_too_large
    large = raw_batch(raw_record(0, 0, b"k", bytes(2 * MAX_PLAIN_BYTES)), 1, codec)
    assert world.produce("t", 0, large).error_code == ErrorCode.message_too_large
    refused = world.produce("t", 0, bomb(codec, 2000))
    assert (refused.error_code, len(refused.record_errors)) == (ErrorCode.invalid_record, 1000)
    assert world.log("t").log_end_offset == 0
    assert world.produce("u", 0, bomb(codec, 2000)).error_code == ErrorCode.none


def test_batches_claiming_all_offsets_are_rejected() -> None:
    world = NodeWorld()
    world.create("t")
    garbage = raw_batch(b"", 2**31 - 1, Compression.GZIP, body=b"garbage")
    for _ in range(10):
        assert world.produce("t", 0, garbage).error_code == ErrorCode.invalid_record
    assert len(world.log("t").segments) <= 1


@pytest.mark.parametrize("acks", [-1, 1])
def test_results_of_large_and_small_batches_are_in_request_order(acks: int) -> None:
    world = NodeWorld()
    world.create("t", 3, cleanup_policy="compact")
    world.create("u", 1)
    good, small, keyless = keyed(Compression.ZSTD, 5000, 0), keyed(Compression.NONE, 1, 0), bomb(Compression.ZSTD, 5000)
    topics = [
        ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(at, each) for at, each in enumerate((good, keyless, small))]),
        ProduceTopic("u", NO_TOPIC_ID, [ProducePartition(0, keyless), ProducePartition(7, good)]),
    ]
    response = world.request(ApiKey.PRODUCE, 9, ProduceRequest(acks, 1000, topics))
    assert [
        [(partition.partition, partition.error_code) for partition in topic.partitions] for topic in response.responses
    ] == [
        [(0, ErrorCode.none), (1, ErrorCode.invalid_record), (2, ErrorCode.none)],
        [(0, ErrorCode.none), (7, ErrorCode.unknown_topic_or_partition)],
    ]
    ends = [world.log(*place).log_end_offset for place in (("t", 0), ("t", 1), ("t", 2), ("u", 0))]
    assert ends == [5000, 0, 1, 5000]


def test_rejected_large_batch_with_acks_zero_closes_connection() -> None:
    world = NodeWorld()
    world.create("t", 1, cleanup_policy="compact")
    topic = ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(0, bomb(Compression.ZSTD, 5000))])
    world.send(ApiKey.PRODUCE, 9, ProduceRequest(0, 1000, [topic]), connection=77)
    world.settle()
    assert "INVALID_RECORD" in world.closed[77]
