"""Snapshots of a whole node's metadata log, made while it handles changes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.types import TopicName

from reference_broker.core.tests.node_world import NodeWorld, batch, create_request, fetch_request
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.snapshots import load_snapshot
from reference_broker.quorum.snapshots.messages import request_for
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest

PARTITIONS = 200


def snapshots(world: NodeWorld, known: list[OffsetAndEpoch]) -> Iterator[MetadataImage]:
    """Yield the snapshots since the last call; ``known`` keeps them."""
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
def test_snapshot_has_no_part_of_open_transaction() -> None:
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


@pytest.mark.clause("S-13")
def test_topic_has_no_snapshots() -> None:
    """Neither by a request with an ID of the metadata log's, nor by a fetch from below the log's start."""
    world = NodeWorld(metadata_log_max_record_bytes_between_snapshots="600")
    for number in range(8):
        world.create(f"t{number}", 20)
    latest = world.node.broker.snapshots.latest
    assert latest is not None, "the metadata log has snapshots"
    for _ in range(3):
        world.produce("t0", 0, batch())
    world.log("t0").delete_records_before(2)
    quorum: Any = world.node.broker.quorum
    for topic in ("t0", "unknown"):
        body = request_for(quorum.cluster_id, 2, quorum.epoch, latest, 0, 100)
        body = replace(body, topics=(replace(body.topics[0], name=TopicName(topic)),))
        response = world.request(ApiKey.FETCH_SNAPSHOT, 1, body).topics[0].partitions[0]
        assert response.error_code == ErrorCode.unknown_topic_or_partition
        assert (bytes(response.unaligned_records), response.size) == (b"", 0)
    for replica_id, offset, error in (
        (-1, 0, ErrorCode.offset_out_of_range),
        (-1, 2, ErrorCode.none),
        (1, 0, ErrorCode.not_leader_or_follower),
    ):
        topics = fetch_request("t0", offset=offset).topics
        request = FetchRequest(replica_id=replica_id, max_wait_ms=0, topics=topics)
        (data,) = world.request(ApiKey.FETCH, 12, request).responses[0].partitions
        assert data.error_code == error
        assert data.snapshot_id is None
    names = [name for path in ("t0-0", "t1-0") for name in world.disk.list(path)]
    assert not [name for name in names if "checkpoint" in name and name[0].isdigit()]
