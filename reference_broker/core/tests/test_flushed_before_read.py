"""Where flush.messages requires a sync, no consumer reads records that a power loss could remove."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.core.tests.node_world import NodeWorld, batch, fetch_request, produce_request
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import Sliced, run_to_end
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import nobody_waits, sync_led_then
from reference_broker.replication.tests.leader_world import TOPIC_ID, LeaderWorld
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_high_watermark_of_single_replica_waits_for_sync(acks: int) -> None:
    world = NodeWorld(log_flush_interval_messages="2")
    world.create("t")
    world.hold_syncs = True
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch(), 1))
    assert world.log("t").high_watermark == 1, "the first record need not be durable"
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch(), acks), connection=2)
    world.send(ApiKey.PRODUCE, 9, produce_request("t", 0, batch(), acks), connection=3)
    fetched = world.send(ApiKey.FETCH, 12, fetch_request("t", offset=1), connection=4)
    assert (world.log("t").high_watermark, world.log("t").log_end_offset) == (1, 3)
    assert fetched not in world.replies
    world.complete_syncs()
    assert world.log("t").high_watermark == 3
    assert fetched in world.replies, "the sync completes parked fetches"


def test_records_appended_by_broker_wait_for_sync() -> None:
    """Committed offsets are such records."""
    world = NodeWorld(log_flush_interval_messages="2")
    world.create("t")
    partition = world.node.broker.partitions.by_name["t", 0]
    for _ in range(2):
        partition.log.append(Now(0, 0), batch(), partition.leader_epoch, origin=BatchOrigin.BROKER)
        world.node.broker.replication.leaders.appended(partition)
    assert (partition.log.high_watermark, partition.log.log_end_offset) == (1, 2)


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_high_watermark_of_leader_waits_for_its_own_sync(isr: tuple[int, ...]) -> None:
    """Also if it is alone in sync, and if the others have the records already."""
    world = LeaderWorld()
    partition = world.lead(isr=isr, replicas=(1, 2))
    log = partition.log
    log.config = replace(log.config, flush_messages=2)
    world.append(partition)
    world.fetch(2, partition, 1)
    assert log.high_watermark == 1, "the first record need not be durable"
    world.append(partition)
    world.fetch(2, partition, 2)
    assert (log.high_watermark, log.log_end_offset) == (1, 2)
    log.mark_synced(log.sync_point())
    partition.synced()
    assert log.high_watermark == 2


def test_new_leader_syncs_its_log() -> None:
    world = LeaderWorld()
    partition = world.lead(isr=(1,), replicas=(1, 2), records=1)
    partition.log.config = replace(partition.log.config, flush_messages=1)
    world.append(partition)
    assert partition.log.high_watermark == 1
    world.state(partition, (1,), replicas=(1, 2), leader_epoch=1, partition_epoch=1)
    world.pass_ms(1)
    assert (partition.log.high_watermark, partition.log.synced_offset) == (2, 2)


@pytest.mark.parametrize(("flush_messages", "read"), [(1, 0), (4, 3)])
def test_recovered_records_of_single_replica_are_read_once_durable(
    monkeypatch: pytest.MonkeyPatch, flush_messages: int, read: int
) -> None:
    """flush.messages requires the sync, since recovered records may be in the page cache only."""
    world = LeaderWorld()
    directory = world.lead(isr=(1,), replicas=(1,), records=3).log.directory
    log = run_to_end(open_log(world.disk, directory, LogConfig(flush_messages=flush_messages), world.now(), False))
    syncs: list[Callable[[], None]] = []
    monkeypatch.setattr(world, "sync", lambda _, done: syncs.append(done))
    world.state(Partition("events", TOPIC_ID, 0, 0, log), (1,), replicas=(1,))
    assert (log.log_end_offset, log.high_watermark) == (3, read)
    for done in syncs:
        done()
    assert log.high_watermark == 3


def test_changed_flush_messages_syncs_leaders_log() -> None:
    """Otherwise the high watermark would wait for the next append."""
    world = LeaderWorld()
    partition = world.lead(isr=(1, 2), replicas=(1, 2))
    world.append(partition)
    partition.log.config = replace(partition.log.config, flush_messages=1)
    world.leaders.reconfigured(partition)
    world.fetch(2, partition, 1)
    assert (partition.log.high_watermark, partition.log.synced_offset) == (1, 1)


def test_records_synced_before_their_response_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches of a request are appended one after the other. When the first one was, its log needed a sync."""
    world = NodeWorld()
    world.create("c", partitions=2, cleanup_policy="compact", flush_messages="2")
    world.produce("c", 0, batch())
    log, validated_records = world.log("c"), []
    syncs: list[Callable[[], None]] = []
    ports: Any = SimpleNamespace(sync=lambda _, done: syncs.append(done))
    sync_led_then(ports, [world.node.broker.partitions.by_name["c", 0]], nobody_waits)

    def validate_records(self: UnifiedLog, _: object, records: bytes) -> Sliced[bytes]:
        validated_records.append(self.directory)
        if self.directory == "c-1":
            assert (log.high_watermark, log.log_end_offset) == (1, 2)
            syncs.pop()()
        yield from ()
        return records

    monkeypatch.setattr(UnifiedLog, "validate_records", validate_records)
    large = batch(b"v" * 5000)
    partitions = [ProducePartition(index, large) for index in (0, 1)]
    world.request(ApiKey.PRODUCE, 9, ProduceRequest(1, 1000, [ProduceTopic("c", NO_TOPIC_ID, partitions)]))
    assert validated_records == ["c-0", "c-1"]
    assert log.high_watermark == 2
