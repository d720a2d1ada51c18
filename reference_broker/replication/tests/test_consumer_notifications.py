"""Consumers that read from a follower (KIP-392) are notified of changes by its fetches."""

from reference_broker.replication.tests.follower_world import FollowerWorld, offsets, records
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, PartitionData


def test_moved_high_watermark_notifies_consumers_and_append_alone_does_not() -> None:
    world = FollowerWorld()
    world.follow(0)
    sent, _ = world.fetch()
    world.respond(sent)
    sent, _ = world.fetch()
    world.respond(sent, records(0, 0, 2, high_watermark=0))
    assert world.changed == []
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 2, log_start_offset=0))
    assert world.changed == [0]


def test_moved_log_start_notifies_consumers() -> None:
    world = FollowerWorld()
    log = world.follow(0, records=4)
    log.advance_high_watermark(4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 4, log_start_offset=2))
    assert (log.log_start_offset, world.changed) == (2, [0])


def test_truncation_notifies_consumers() -> None:
    world = FollowerWorld()
    world.follow(0, epoch=3, records=4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, 0, 1, diverging_epoch=EpochEndOffset(0, 2)))
    assert world.changed == [0]


def test_emptied_log_notifies_consumers() -> None:
    world = FollowerWorld()
    world.follow(0, records=4)
    sent, _ = world.fetch()
    world.respond(sent, PartitionData(0, ErrorCode.offset_out_of_range, -1))
    for offset in (9, 6):
        world.only_request(ApiKey.LIST_OFFSETS).replied(offsets(offset))
    assert world.changed == [0]
