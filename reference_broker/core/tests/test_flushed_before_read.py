"""Where flush.messages asks for a sync, no consumer reads records that a power loss could take."""

import pytest

from reference_broker.core.tests.node_world import NodeWorld, batch, fetch_request, produce_request
from reference_broker.wire.apis import ApiKey


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_the_high_watermark_of_a_lone_replica_waits_for_the_sync(acks: int) -> None:
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
    assert fetched in world.replies, "the sync wakes who waits for records"
