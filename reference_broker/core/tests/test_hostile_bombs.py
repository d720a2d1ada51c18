"""Small batches that are large once they are unpacked: nobody waits for them, and they do not fill the memory."""

import pytest

from reference_broker.core.tests.hostile_client import HostileClient, memory_of, slices_of
from reference_broker.core.tests.hostile_records import bomb, raw_batch, raw_record
from reference_broker.core.tests.node_world import START_WALL_MS, NodeWorld
from reference_broker.core.tests.test_hostile_records import offset_at
from reference_broker.log.lookup import MOST_PLAIN_BYTES
from reference_broker.records.compression import Compression
from reference_broker.wire.errors import ErrorCode

LONGEST_MS = 20
PACKED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
RECORD_BYTES = len(raw_record(key=None, value=None))


def with_bomb(codec: Compression, count: int) -> NodeWorld:
    world = NodeWorld(message_max_bytes="2000000")
    world.create("t")
    assert world.produce("t", 0, bomb(codec, count)).error_code == ErrorCode.none
    return world


@pytest.mark.parametrize("codec", PACKED)
def test_a_look_up_into_many_records_goes_in_slices(codec: Compression) -> None:
    """The records lie before the wanted time, so that all are looked at."""
    world = with_bomb(codec, 300_000)
    client = HostileClient(world)
    with slices_of(world) as cost:
        found = offset_at(client, START_WALL_MS + 5)
        largest = offset_at(client, -3)
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, START_WALL_MS + 5)
    assert (largest.error_code, largest.offset) == (0, 0)
    assert cost.slices > 50
    assert cost.longest_ms < LONGEST_MS


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_a_look_up_does_not_unpack_more_than_it_may(codec: Compression) -> None:
    world = with_bomb(codec, 8 * MOST_PLAIN_BYTES // RECORD_BYTES)
    client = HostileClient(world)
    with memory_of() as cost:
        found = offset_at(client, START_WALL_MS + 5)
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, START_WALL_MS + 5)
    assert cost.peak_bytes < 3 * MOST_PLAIN_BYTES


def test_many_partitions_with_large_batches_are_looked_up_in_slices() -> None:
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
        answer = client.ask(2, 7, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": partitions}])
    assert [one.offset for one in answer.topics[0].partitions] == [0] * 50
    assert cost.slices > 50
    assert cost.longest_ms < LONGEST_MS


def test_a_search_begins_anew_where_the_log_loses_what_it_passed() -> None:
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
    assert (found.error_code, found.offset) == (0, 0)
    assert steps > 10


def test_a_topic_that_is_deleted_meanwhile_is_not_led_any_more() -> None:
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
