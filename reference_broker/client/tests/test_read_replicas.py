"""A consumer with a rack reads from the follower that the leader names, and returns to the leader (KIP-392)."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.client.leader_fetches import ReadReplicas
from reference_broker.client.metadata_cache import MetadataCache, NodeAddress, PartitionInfo, TopicInfo
from reference_broker.client.tests.test_group_consumer import T0, Driver, fetched
from reference_broker.records.record import Record, build
from reference_broker.wire.drafts import (
    MetadataBroker1000,
    MetadataPartition1001,
    MetadataResponse1001,
    MetadataTopic1001,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse

RACK = "far"
MAX_AGE_US = 300_000_000


def metadata(leader: int = 0, leader_epoch: int = 3, nodes: tuple[int, ...] = (0, 1)) -> MetadataResponse1001:
    partition = MetadataPartition1001(partition_index=0, leader_id=leader, leader_epoch=leader_epoch)
    brokers = tuple(MetadataBroker1000(node_id=node, host=f"n{node}", port=1) for node in nodes)
    return MetadataResponse1001(brokers=brokers, topics=(MetadataTopic1001(name="t", partitions=(partition,)),))


def make(**fetch: Any) -> Driver:
    """Return a driver that reads T0 from offset 5, while node 0 leads."""
    driver = Driver(**{"rack": RACK, "leader_epochs": True, **fetch})
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.respond("metadata", metadata())
    return driver


@pytest.fixture
def away() -> Driver:
    """Return a driver whose leader has named node 1, which gets the fetches now."""
    driver = make()
    assert driver.sent["node-0"].body.rack_id == RACK
    driver.respond("node-0", preferring(1))
    assert list(driver.sent) == ["node-1"]
    return driver


def preferring(node_id: int) -> FetchResponse:
    return fetched(preferred_read_replica=node_id)


def fetched_from(driver: Driver, channel: str) -> tuple[int, int, int]:
    """Return the offset, the leader epoch and the last fetched epoch of the fetch."""
    [topic] = driver.sent[channel].body.topics
    partition = topic.partitions[0]
    return partition.fetch_offset, partition.current_leader_epoch, partition.last_fetched_epoch


def test_preferred_follower_is_fetched_from_at_once_at_same_offset(away: Driver) -> None:
    assert fetched_from(away, "node-1") == (5, 3, -1)
    away.respond("node-1", fetched(b"x", b"y", first=5))
    assert [record.offset for record in away.consumer.take_records(10)] == [5, 6]
    away.go()
    assert fetched_from(away, "node-1") == (7, 3, -1)


def test_last_fetched_epoch_is_sent_only_to_leader(away: Driver) -> None:
    """A follower's log may end before that record, which is no divergence."""
    batch = bytes(build([Record(timestamp_ms=1, value=b"x")], base_offset=5, leader_epoch=2))
    response = fetched()
    response.responses[0].partitions[0].records = batch  # type: ignore[misc]  # Only mypy takes the fields as frozen.
    away.respond("node-1", response)
    away.consumer.take_records(10)
    away.go()
    assert fetched_from(away, "node-1") == (6, 3, -1)
    away.respond("node-1", fetched(error=ErrorCode.offset_out_of_range))
    assert fetched_from(away, "node-0") == (6, 3, 2)


def test_fetch_without_rack_sends_empty_rack() -> None:
    driver = make(rack="")
    assert driver.sent["node-0"].body.rack_id == ""


def test_out_of_range_of_follower_is_retried_at_leader(away: Driver) -> None:
    """A follower may lack records of the leader, so its error moves no position."""
    away.respond("node-1", fetched(error=ErrorCode.offset_out_of_range))
    assert fetched_from(away, "node-0")[0] == 5
    assert away.consumer.take_resets() == []
    away.respond("node-0", fetched(error=ErrorCode.offset_out_of_range))
    assert away.sent["node-0"].api_key == 2  # ListOffsets


@pytest.mark.parametrize(
    "error", [ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch, ErrorCode.kafka_storage_error]
)
def test_follower_error_returns_to_leader(away: Driver, error: int) -> None:
    away.respond("node-1", fetched(error=error))
    assert "node-0" in away.go(100)
    assert "metadata" in away.sent


def test_unresponsive_follower_returns_to_leader(away: Driver) -> None:
    away.sent.pop("node-1")
    away.consumer.failed("node-1", away.now)
    away.go()
    assert fetched_from(away, "node-0")[0] == 5


def test_unknown_preferred_follower_requests_metadata() -> None:
    """The follower returned after this consumer had requested metadata, and the leader sends no records meanwhile."""
    driver = make()
    driver.respond("node-0", preferring(7))
    assert "metadata" in driver.sent
    assert "node-0" not in driver.sent, "it gets no repeated requests"
    driver.respond("metadata", metadata(nodes=(0, 7)))
    assert "node-0" in driver.go(100)
    driver.respond("node-0", preferring(7))
    assert fetched_from(driver, "node-7")[0] == 5


@pytest.mark.parametrize(
    "newer", [metadata(leader_epoch=4), metadata(leader=1, leader_epoch=4), metadata(nodes=(0, 2))]
)
def test_changed_metadata_returns_to_leader(away: Driver, newer: MetadataResponse1001) -> None:
    away.respond("node-1", fetched())
    away.consumer.metadata.want(away.now)
    away.go(MAX_AGE_US // 10)
    away.respond("metadata", newer)
    leader = newer.topics[0].partitions[0].leader_id
    if "node-1" in away.sent:
        away.respond("node-1", fetched())
    assert f"node-{leader}" in away.sent


def test_preferred_follower_named_again_keeps_its_lease() -> None:
    replicas = ReadReplicas(MAX_AGE_US)
    partition = {0: PartitionInfo(0, 3)}
    nodes = {each: NodeAddress(each, f"n{each}", 1) for each in (0, 1)}
    cache = replace(MetadataCache(), nodes=nodes, topics={"t": TopicInfo("t", bytes(16), partition)})
    for now_us in (0, MAX_AGE_US - 1):
        replicas.prefer(T0, 1, cache, now_us)
        assert replicas.node_of(T0, cache, now_us) == nodes[1]
    assert replicas.node_of(T0, cache, MAX_AGE_US) == nodes[0]


def test_leader_is_fetched_from_after_lease(away: Driver) -> None:
    away.respond("node-1", fetched())
    away.now += MAX_AGE_US
    away.respond("node-1", fetched())
    assert "node-0" in away.sent


def test_late_response_of_former_follower_moves_no_position(away: Driver) -> None:
    """The follower's lease is over, so the leader gets a fetch while the follower has not responded yet."""
    away.go(MAX_AGE_US)
    assert "node-0" in away.sent
    away.respond("node-1", fetched(error=ErrorCode.offset_out_of_range))
    away.respond("node-0", fetched(b"x", first=5))
    assert [record.offset for record in away.consumer.take_records(10)] == [5]


def test_late_response_of_former_leader_moves_no_position() -> None:
    driver = make()
    driver.consumer.metadata.want(driver.now)
    driver.go(MAX_AGE_US // 10)
    driver.respond("metadata", metadata(leader=1, leader_epoch=4))
    driver.respond("node-0", fetched(error=ErrorCode.offset_out_of_range))
    driver.respond("node-1", fetched(b"x", first=5))
    assert [record.offset for record in driver.consumer.take_records(10)] == [5]
