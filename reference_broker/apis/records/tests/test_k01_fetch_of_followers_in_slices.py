"""Followers' fetches whose work takes slices: the progress that the leader records for them."""

from collections.abc import Iterator

import pytest

from reference_broker.apis.records.tests.sliced_fetches import slices_of_one
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import ReplicatedWorld, fetch_partition, partitions_of
from reference_broker.replication.partitions import Partition

PARTITIONS = 4


@pytest.fixture
def world() -> Iterator[ReplicatedWorld]:
    """Return a world whose partitions have two uncommitted records each."""
    with slices_of_one():
        yield ReplicatedWorld(PARTITIONS, records=2)


def fetch_all(world: ReplicatedWorld, follower: int) -> FakeCall:
    """Fetch from the log end of all partitions, as a follower that has all records."""
    return world.follow(follower, 0, 0, [fetch_partition(2, index) for index in range(PARTITIONS)], max_wait_ms=0)


def step(world: ReplicatedWorld) -> None:
    """Run one slice."""
    _, fire = world.timers.pop(min(number for number, (at_us, _) in world.timers.items() if at_us <= world.mono_us))
    fire()


def lead(world: ReplicatedWorld, partition: Partition) -> None:
    """Make this node the leader of the partition."""
    world.broker.partitions.add(partition)


@pytest.mark.parametrize("slices", range(20))
@pytest.mark.parametrize("index", range(PARTITIONS))
def test_follower_progress_is_recorded_or_partition_gets_error(world: ReplicatedWorld, index: int, slices: int) -> None:
    """The follower knows its leader before the leader does. It names a partition again only after an error."""
    late = world.led[index]
    world.broker.partitions.remove(late)
    late.is_removed = False
    calls = [fetch_all(world, follower) for follower in (2, 3)]
    for _ in range(slices):
        if any(call.waiting for call in calls):
            step(world)
    lead(world, late)
    world.pass_ms(0)
    errors = [partitions_of(call.response)[index].error_code for call in calls]
    assert late.followers is not None
    for follower, error in zip((2, 3), errors, strict=True):
        assert error or late.followers.states[follower].log_end_offset == 2
    if not any(errors):
        assert late.log.high_watermark == 2
