"""The client's guard by the metadata epoch (KIP-232): dropped metadata, and the node and time of the next request."""

from typing import Any

import pytest

from reference_broker.client.group_requests import DRAFT_VERSION
from reference_broker.client.metadata_cache import (
    EpochGuards,
    MetadataCache,
    MetadataUpdate,
    NodeAddress,
    PartitionInfo,
    TopicInfo,
)
from reference_broker.client.metadata_refresher import METADATA, MetadataRefresher
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.tests.group_world import due
from reference_broker.wire.drafts import (
    MetadataBroker1000,
    MetadataPartition1001,
    MetadataResponse1001,
    MetadataTopic1001,
)
from reference_broker.wire.messages import decode_response, encode_response

A, B, SEED = NodeAddress(0, "a", 1), NodeAddress(1, "b", 2), NodeAddress(-1, "seed", 9)
FOO0 = TopicPartition("foo", 0)


def update(leader: int, epoch: int, leader_epoch: int = -1) -> MetadataUpdate:
    topic = TopicInfo("foo", bytes(16), {0: PartitionInfo(leader, leader_epoch)})
    return MetadataUpdate((A, B), (topic,), metadata_epoch=epoch)


def response(leader: int, epoch: int, leader_epoch: int = -1) -> MetadataResponse1001:
    partition = MetadataPartition1001(partition_index=0, leader_id=leader, leader_epoch=leader_epoch)
    return MetadataResponse1001(
        brokers=tuple(MetadataBroker1000(node_id=each.node_id, host=each.host, port=each.port) for each in (A, B)),
        metadata_epoch=epoch,
        topics=(MetadataTopic1001(name="foo", partitions=(partition,)),),
    )


@pytest.mark.clause("M-5")
@pytest.mark.parametrize(("epoch", "leader"), [(4, 0), (-1, 0), (5, 1), (6, 1)])
def test_older_metadata_is_dropped_and_equal_or_newer_accepted(epoch: int, leader: int) -> None:
    before = MetadataCache().apply(update(0, 5))
    after = before.apply(update(1, epoch))
    assert before.accepts(update(1, epoch)) is (leader == 1)
    assert after.leader_of(FOO0) == (A, B)[leader]
    assert after.metadata_epoch == max(epoch, 5)


@pytest.mark.clause("M-11")
def test_metadata_without_epochs_is_accepted() -> None:
    cache = MetadataCache().apply(update(0, -1)).apply(update(1, -1))
    assert (cache.leader_of(FOO0), cache.metadata_epoch) == (B, -1)


def test_older_metadata_is_accepted_with_guard_disabled() -> None:
    cache = MetadataCache(guards=EpochGuards(metadata_epoch=False)).apply(update(0, 5)).apply(update(1, 4))
    assert (cache.leader_of(FOO0), cache.metadata_epoch) == (B, 4)


def test_guards_are_enabled_separately() -> None:
    stale = update(1, 6, leader_epoch=3)
    fresh = update(0, 5, leader_epoch=4)
    assert MetadataCache().apply(fresh).apply(stale).leader_of(FOO0) == A
    off = MetadataCache(guards=EpochGuards(leader_epochs=False)).apply(fresh)
    assert off.apply(stale).leader_of(FOO0) == B
    assert off.learn_leader(FOO0, 1, 9) is off
    assert not off.accepts(update(1, 4, leader_epoch=9))


@pytest.mark.clause("M-4")
def test_draft_response_has_metadata_epoch_and_leader_epochs() -> None:
    frame = b"".join(encode_response(METADATA, DRAFT_VERSION, 7, response(1, 12, leader_epoch=4)))[4:]
    body: Any = decode_response(METADATA, DRAFT_VERSION, frame)[1]
    read = MetadataUpdate.of(body)
    assert read == update(1, 12, leader_epoch=4)
    cache = MetadataCache().apply(read)
    assert cache.apply(update(0, 12, leader_epoch=3)).leader_of(FOO0) == B  # KIP-320's guard applies as well.


def refresher(**more: Any) -> MetadataRefresher:
    return MetadataRefresher((SEED,), MetadataCache(), True, backoff_us=100, max_age_us=10_000, **more)


@pytest.mark.clause("M-5")
def test_rejected_metadata_is_requested_from_other_node_after_backoff() -> None:
    metadata = refresher()
    assert due(metadata.next_request(0, ("foo",))).to == SEED
    assert metadata.responded(0, response(0, 5))
    metadata.done(0, True)
    metadata.want(50)
    first = due(metadata.next_request(50, ("foo",))).to
    assert not metadata.responded(60, response(1, 4))
    assert (metadata.refused, metadata.cache.metadata_epoch) == (1, 5)
    assert metadata.next_request(159, ("foo",)) is None
    second = due(metadata.next_request(160, ("foo",))).to
    assert second != first
    assert metadata.responded(160, response(1, 5))


@pytest.mark.clause("M-12")
def test_metadata_is_requested_until_required_epoch() -> None:
    metadata = refresher()
    metadata.min_metadata_epoch = 8
    nodes = []
    for now, epoch in ((0, 6), (100, 7), (200, 8)):
        nodes.append(due(metadata.next_request(now, ())).to)
        assert metadata.next_request(now, ()) is None
        assert metadata.responded(now, response(0, epoch))
        metadata.done(now, True)
    assert (metadata.stale, metadata.due_at_us) == (False, 10_200)
    assert len(dict.fromkeys(nodes)) > 1


@pytest.mark.clause("M-12")
def test_equal_epoch_satisfies_requirement() -> None:
    reached = []
    for epoch in (-1, 4, 5, 6):
        metadata = refresher()
        metadata.cache = metadata.cache.apply(update(0, epoch))
        reached.append(metadata.has_reached(5))
    assert reached == [False, False, True, True]


def test_source_selects_node() -> None:
    offered = []

    def choose(known: tuple[NodeAddress, ...], bootstrap: tuple[NodeAddress, ...]) -> NodeAddress:
        offered.append((known, bootstrap))
        return known[-1] if known else bootstrap[0]

    metadata = refresher(source=choose)
    nodes = []
    for _ in range(2):
        nodes.append(due(metadata.next_request(0, ())).to)
        metadata.responded(0, response(0, 1))
        metadata.done(0, True)
        metadata.want_at_once()
    assert (nodes, offered) == ([SEED, B], [((), (SEED,)), ((A, B), (SEED,))])


def test_nodes_then_bootstrap_servers_are_tried_after_failures() -> None:
    metadata = refresher()
    metadata.next_request(0, ())
    metadata.responded(0, response(0, 1))
    metadata.done(0, False)
    nodes = []
    for turn in range(1, 5):
        nodes.append(due(metadata.next_request(turn * 100, ())).to)
        metadata.failed(turn * 100)
    assert sorted(node.node_id for node in nodes[:3]) == [-1, 0, 1]


@pytest.mark.clause("M-14")
def test_draft_is_sent_only_to_nodes_that_announce_it() -> None:
    metadata = refresher()
    assert due(metadata.next_request(0, ())).api_version == DRAFT_VERSION
    metadata.failed(0)
    metadata.learn_drafts(SEED, False)
    assert due(metadata.next_request(100, ())).api_version == 13
    metadata.failed(100)
    metadata.learn_drafts(SEED, True)
    assert due(metadata.next_request(200, ())).api_version == DRAFT_VERSION
