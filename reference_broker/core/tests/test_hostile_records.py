"""Valid records that are made to break later readers: look-ups by time, the cleaner, fetches."""

from typing import Any

import pytest

from reference_broker.core.tests.hostile_client import HostileClient
from reference_broker.core.tests.hostile_records import raw_batch, raw_record
from reference_broker.core.tests.node_world import START_WALL_MS, NodeWorld, batch, fetch_request
from reference_broker.records.batch import read_header
from reference_broker.records.record import read_all
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

DELTAS = (2**66, -(2**66), 2**63 - 1, -(2**63), 2**62)


def offset_at(client: HostileClient, timestamp_ms: int) -> Any:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp_ms}
    topics = [{"name": "t", "partitions": [partition]}]
    response = client.request(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("delta", DELTAS)
def test_timestamp_lookup_skips_timestamp_beyond_int64(delta: int) -> None:
    world = NodeWorld()
    world.create("t")
    records = raw_record(delta) + raw_record(0, 1)
    assert world.produce("t", 0, raw_batch(records, 2, max_timestamp_ms=START_WALL_MS + 9)).error_code == ErrorCode.none
    world.produce("t", 0, batch())
    client = HostileClient(world)
    for timestamp_ms in (0, START_WALL_MS, START_WALL_MS + 1, -3):
        found = offset_at(client, timestamp_ms)
        assert found.error_code == ErrorCode.none
        assert -1 <= found.offset <= 2


@pytest.mark.parametrize("delta", DELTAS)
def test_cleaner_skips_timestamp_beyond_int64(delta: int) -> None:
    world = NodeWorld(log_segment_bytes="2000", log_cleaner_backoff_ms="1000")
    world.create("t")
    kept = raw_record(delta, 0, b"a", None) + raw_record(delta, 1, b"b") + raw_record(0, 2, b"c")
    for _ in range(2):
        assert (
            world.produce("t", 0, raw_batch(kept, 3, max_timestamp_ms=START_WALL_MS + 9)).error_code == ErrorCode.none
        )
    client = HostileClient(world)
    configs = [{"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]
    client.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{"resource_type": 2, "resource_name": "t", "configs": configs}]
    )
    for _ in range(40):
        world.produce("t", 0, batch(b"v" * 100))
    log = world.log("t")
    world.advance(60_000)
    assert log.cleaned_offset > 6
    data = log.read(0, 1 << 20, log.log_end_offset)
    keys = [record.key for header, record in read_all(data) if header.last_offset < 6]
    assert keys == [b"a", b"b", b"c"]
    maximum = read_header(data).max_timestamp_ms
    assert -(2**63) <= maximum < 2**63


@pytest.mark.parametrize("at", [16, 8])
def test_fetch_of_damaged_batch_fails_only_its_partition(at: int) -> None:
    """16 is the magic byte of a batch, and 8 the first byte of its length."""
    world = NodeWorld()
    world.create("t", 2)
    size = len(batch())
    for _ in range(5):
        world.produce("t", 0, batch())
    world.produce("t", 1, batch())
    path = world.log("t").segments[0].path
    world.disk.files[path][2 * size + at] ^= 0x41
    client = HostileClient(world)
    for offset in (0, 2, 3, 4):
        response = client.send(ApiKey.FETCH, 11, fetch_request("t", 0, offset, max_wait_ms=0))
        error = response.responses[0].partitions[0].error_code
        assert error in (ErrorCode.none, ErrorCode.corrupt_message)
        if offset in (3, 4):
            assert error == ErrorCode.corrupt_message
    assert offset_at(client, START_WALL_MS + 5).error_code in (ErrorCode.none, ErrorCode.corrupt_message)
    assert (
        client.send(ApiKey.FETCH, 11, fetch_request("t", 1, 0, 0)).responses[0].partitions[0].error_code
        == ErrorCode.none
    )
