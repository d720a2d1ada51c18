"""What a client believes of the cluster after each update."""

import pytest

from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate, NodeAddress, PartitionInfo, TopicInfo
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.fetch import NO_TOPIC_ID

NODES = (NodeAddress(0, "a", 1), NodeAddress(1, "b", 2))
ID, OTHER = bytes([1]) * 16, bytes([2]) * 16
FOO0, FOO1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def update(*partitions: tuple[int, int], topic_id: bytes = ID, name: str = "foo", error: int = 0) -> MetadataUpdate:
    found = {number: PartitionInfo(leader, epoch) for number, (leader, epoch) in enumerate(partitions)}
    return MetadataUpdate(NODES, (TopicInfo(name, topic_id, found, error),))


def test_of_a_stale_update_only_the_stale_partition_is_dropped() -> None:
    cache = MetadataCache().apply(update((0, 5), (0, 1))).apply(update((1, 4), (1, 2)))
    assert cache.partition(FOO0) == PartitionInfo(0, 5)
    assert cache.partition(FOO1) == PartitionInfo(1, 2)


@pytest.mark.parametrize("epoch", [5, 6, -1])
def test_an_equal_a_newer_and_an_unknown_epoch_are_taken(epoch: int) -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((1, epoch)))
    assert cache.partition(FOO0) == PartitionInfo(1, epoch)


def test_a_topic_made_again_resets_the_epochs_even_downwards() -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((1, 0), topic_id=OTHER))
    assert cache.partition(FOO0) == PartitionInfo(1, 0)
    assert cache.topic_id("foo") == OTHER


def test_an_update_without_topic_ids_keeps_the_known_one() -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((0, 6), topic_id=NO_TOPIC_ID))
    assert cache.topic_id("foo") == ID


def test_topics_that_an_update_does_not_list_stay() -> None:
    cache = MetadataCache().apply(update((0, 5))).apply(update((1, 1), name="bar", topic_id=OTHER))
    assert cache.leader_of(FOO0) == NODES[0]


def test_a_topic_that_does_not_exist_is_forgotten_and_one_in_other_trouble_is_kept() -> None:
    known = MetadataCache().apply(update((0, 5)))
    assert known.apply(update(error=5)).leader_of(FOO0) == NODES[0]
    assert known.apply(update(error=3)).leader_of(FOO0) is None


def test_a_leader_named_in_an_error_response_counts_if_its_epoch_is_newer() -> None:
    cache = MetadataCache().apply(update((0, 5)))
    assert cache.learn_leader(FOO0, 1, 5) is cache
    assert cache.learn_leader(FOO0, 1, 6).leader_of(FOO0) == NODES[1]
    assert cache.leader_of(FOO0) == NODES[0], "the value was changed in place"
    assert cache.learn_leader(FOO1, 1, 6) is cache


def test_partitions_without_a_leader_or_its_address_are_missing() -> None:
    cache = MetadataCache().apply(update((-1, 5), (7, 1)))
    assert cache.missing([FOO0, FOO1]) == [FOO0, FOO1]
