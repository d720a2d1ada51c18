"""The client's view of the cluster after each metadata update."""

import pytest

from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate, NodeAddress, PartitionInfo, TopicInfo
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID

NODES = (NodeAddress(0, "a", 1), NodeAddress(1, "b", 2))
ID, OTHER = bytes([1]) * 16, bytes([2]) * 16
FOO0, FOO1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def update(*partitions: tuple[int, int], topic_id: bytes = ID, name: str = "foo", error: int = 0) -> MetadataUpdate:
    found = {number: PartitionInfo(leader, epoch) for number, (leader, epoch) in enumerate(partitions)}
    return MetadataUpdate(NODES, (TopicInfo(name, topic_id, found, error),))


def test_only_stale_partition_of_update_is_dropped() -> None:
    cache = MetadataCache().apply(update((0, 5), (0, 1))).apply(update((1, 4), (1, 2)))
    assert cache.partition(FOO0) == PartitionInfo(0, 5)
    assert cache.partition(FOO1) == PartitionInfo(1, 2)


@pytest.mark.parametrize("epoch", [5, 6, -1])
def test_equal_newer_or_unknown_epoch_is_accepted(epoch: int) -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((1, epoch)))
    assert cache.partition(FOO0) == PartitionInfo(1, epoch)


def test_recreated_topic_resets_leader_epochs() -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((1, 0), topic_id=OTHER))
    assert cache.partition(FOO0) == PartitionInfo(1, 0)
    assert cache.topic_id("foo") == OTHER


def test_update_without_topic_ids_keeps_known_id() -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((0, 6), topic_id=NO_TOPIC_ID))
    assert cache.topic_id("foo") == ID


def test_topics_missing_in_update_stay() -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((1, 1), name="bar", topic_id=OTHER))
    assert cache.leader_of(FOO0) == NODES[0]


def test_deleted_topic_is_dropped_and_one_with_other_error_kept() -> None:
    known = MetadataCache().apply(update((0, 5)))
    assert known.apply(update(error=ErrorCode.leader_not_available)).leader_of(FOO0) == NODES[0]
    assert known.apply(update(error=ErrorCode.unknown_topic_or_partition)).leader_of(FOO0) is None


def test_leader_in_error_response_is_used_if_epoch_is_newer() -> None:
    cache = MetadataCache().apply(update((0, 5)))
    assert cache.learn_leader(FOO0, 1, 5) is cache
    assert cache.learn_leader(FOO0, 1, 6).leader_of(FOO0) == NODES[1]
    assert cache.leader_of(FOO0) == NODES[0], "the value was changed in place"
    assert cache.learn_leader(FOO1, 1, 6) is cache


def test_partition_without_leader_or_address_has_no_leader() -> None:
    cache = MetadataCache().apply(update((-1, 5), (7, 1)))
    assert cache.missing([FOO0, FOO1]) == [FOO0, FOO1]
