"""Three nodes with a tier: a follower that lost its disk starts after the records that are in the tier only."""

from typing import Any

import pytest

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import iterate
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic

TIER: dict[str, Any] = {
    "remote_log_storage_system_enable": "true",
    "remote_log_manager_task_interval_ms": "500",
    "log_retention_check_interval_ms": "1000",
    "rlmm_config_remote_log_metadata_topic_num_partitions": "3",
}
TOPIC: dict[str, Any] = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}
VALUE = bytes(300_000)
EARLY, LATE = 7, 8
"""Producers. The first one writes one record, at offset 0."""


def write(world: ClusterWorld, sequence: int, producer: int = LATE) -> int:
    """Return the offset of the record, which may have been written before."""
    how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    response = world.produce("events", VALUE, **how)
    assert response.error_code == ErrorCode.none
    return int(response.base_offset)


def offsets_from_the_beginning(world: ClusterWorld) -> list[int]:
    leader = world.leader("events")
    topic_id = world.partition("events").topic_id
    found: list[int] = []
    while len(found) < world.log(leader, "events").high_watermark:
        wanted = FetchTopic("", topic_id, [FetchPartition(0, len(found), 1 << 20)])
        (one,) = world.request(leader, ApiKey.FETCH, 17, FetchRequest(topics=[wanted])).responses[0].partitions
        assert not one.error_code
        found += [header.base_offset for _, header in iterate(one.records or b"")]
    return found


@pytest.mark.thorough
@pytest.mark.clause("P-11", "P-6")
def test_wiped_follower_restores_state_from_tier() -> None:
    world = ClusterWorld(**TIER)
    world.ready()
    assert world.create("events", **TOPIC).error_code == ErrorCode.none
    assert write(world, 0, EARLY) == 0
    for sequence in range(14):
        assert write(world, sequence) == sequence + 1
    world.run(15_000)
    leader = world.leader("events")
    held = world.log(leader, "events")
    assert (held.log_start_offset, held.local_log_start_offset) == (0, held.bases[-1])
    wiped = next(number for number in range(3) if number not in (leader, world.controller))
    world.kill(wiped)
    world.disks[wiped] = MemoryDisk()
    world.start(wiped)
    world.ready()
    world.run_until(lambda: wiped in world.state("events").isr and len(world.state("events").isr) == 3)
    (note,) = world.notes("started_in_the_tier")
    assert note["offset"] == held.local_log_start_offset
    log = world.log(wiped, "events")
    assert (log.log_start_offset, log.local_log_start_offset) == (0, held.local_log_start_offset)
    assert (log.epochs.epochs, log.epochs.starts) == (held.epochs.epochs, held.epochs.starts)
    assert {one: each.last_sequence for one, each in log.producers.by_id.items()} == {EARLY: 0, LATE: 13}
    log.check_invariants()
    make_leader(world, wiped)
    assert write(world, 0, EARLY) == 0, "a retry is written once, although the record is in the tier only"
    response = world.produce("events", VALUE, producer_id=EARLY, producer_epoch=0, base_sequence=5)
    assert response.error_code == ErrorCode.out_of_order_sequence_number
    assert write(world, 14) == 15
    assert offsets_from_the_beginning(world) == list(range(16))


def make_leader(world: ClusterWorld, wanted: int) -> None:
    """Kill leaders until the wanted node leads."""
    while (leader := world.leader("events")) != wanted:
        world.kill(leader)
        world.run_until(lambda: world.leader("events") not in (-1, leader))
        if world.leader("events") != wanted:
            world.start(leader)
            world.ready()
            world.run_until(lambda: len(world.state("events").isr) == 3)
    led = world.members[wanted].node.broker.partitions.by_name
    world.run_until(lambda: ("events", 0) in led)
