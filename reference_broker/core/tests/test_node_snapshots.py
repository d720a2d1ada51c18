"""Snapshots of a whole node's metadata log, made while it takes changes."""

from collections.abc import Iterator

import pytest

from reference_broker.core.tests.node_world import NodeWorld, create_request
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.snapshots.reader import load_snapshot
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey

PARTITIONS = 200


def snapshots(world: NodeWorld, known: list[OffsetAndEpoch]) -> Iterator[MetadataImage]:
    """Those that came since; ``known`` keeps them."""
    store = world.node.broker.snapshots
    for snapshot in store.ids:
        if snapshot not in known:
            known.append(snapshot)
            loading = load_snapshot(world.disk, snapshot)
            while True:
                try:
                    next(loading)
                except StopIteration as stop:
                    yield stop.value
                    break


@pytest.mark.clause("T-9")
def test_no_snapshot_holds_a_part_of_a_transaction_however_long_it_is_open() -> None:
    world = NodeWorld(crucible_metadata_batch_max_bytes="512", metadata_log_max_record_bytes_between_snapshots="600")
    world.create("before")
    known: list[OffsetAndEpoch] = []
    list(snapshots(world, known))
    number = world.send(ApiKey.CREATE_TOPICS, 7, create_request("large", PARTITIONS))
    loader, open_for, sizes = world.node.broker.loader, 0, []
    while number not in world.replies or world.syncs:
        assert world.step(), "the topic is never created"
        open_for += loader.in_transaction
        sizes += [len(image.topics["large"].partitions) for image in snapshots(world, known) if "large" in image.topics]
    world.advance(1000)
    sizes += [len(image.topics["large"].partitions) for image in snapshots(world, known) if "large" in image.topics]
    assert open_for > 10, "the transaction was hardly ever open"
    assert sizes
    assert set(sizes) == {PARTITIONS}
