"""UpdateMetadata and the metadata that clients get: any way of sending images leads to the content of the images."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metadata.cache import MetadataCache, MetadataUpdate, is_overtaken, refusal, update_from
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.slicing import run_to_end
from reference_broker.wire.drafts import (
    FULL_UPDATE,
    INCREMENTAL_UPDATE,
    UpdateMetadataPartition1000,
    UpdateMetadataPartition1001,
    UpdateMetadataRequest1000,
    UpdateMetadataRequest1001,
)
from reference_broker.wire.errors import Error, ErrorCode

KNOWN = MetadataCache(cluster_id="c", controller_id=1, controller_epoch=5, metadata_epoch=8)


def request(**changed: object) -> UpdateMetadataRequest1001:
    plain = UpdateMetadataRequest1001(
        controller_id=1,
        controller_epoch=5,
        metadata_epoch=9,
        partition_states=(),
        live_brokers=(),
        broker_epoch=3,
        type=INCREMENTAL_UPDATE,
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def state(topic: str, partition: int, leader: int = 1) -> UpdateMetadataPartition1001:
    return UpdateMetadataPartition1001(
        topic=topic,
        partition=partition,
        controller_epoch=5,
        leader=leader,
        leader_epoch=2,
        isr=(1,),
        zk_version=4,
        replicas=(1, 2),
    )


def applied(
    update: UpdateMetadataRequest1000 | UpdateMetadataRequest1001, cache: MetadataCache
) -> MetadataUpdate | None:
    return run_to_end(update_from(update, cache))


@pytest.mark.clause("M-3")
@pytest.mark.parametrize(
    ("changed", "error", "overtaken"),
    [
        ({}, ErrorCode.none, False),
        ({"metadata_epoch": 8}, ErrorCode.none, True),
        ({"metadata_epoch": 7}, ErrorCode.none, True),
        ({"controller_epoch": 4, "metadata_epoch": 99}, ErrorCode.stale_controller_epoch, False),
        ({"controller_epoch": 4, "metadata_epoch": 99, "type": FULL_UPDATE}, ErrorCode.stale_controller_epoch, False),
        ({"controller_epoch": 6}, ErrorCode.invalid_request, False),
        ({"controller_epoch": 6, "type": FULL_UPDATE}, ErrorCode.none, False),
        ({"broker_epoch": 2}, ErrorCode.stale_broker_epoch, False),
        ({"broker_epoch": 4, "type": FULL_UPDATE}, ErrorCode.stale_broker_epoch, False),
    ],
)
def test_whether_an_update_counts(changed: dict[str, object], error: Error, overtaken: bool) -> None:
    update = request(**changed)
    assert refusal(update, KNOWN, 3) is error
    assert is_overtaken(update, KNOWN) is overtaken


@pytest.mark.clause("M-3")
def test_incremental_update_with_unknown_epoch_is_invalid_request() -> None:
    by_image = replace(KNOWN, metadata_epoch=-1)
    assert refusal(request(), by_image, 3) is ErrorCode.invalid_request
    assert refusal(request(type=FULL_UPDATE), by_image, 3) is ErrorCode.none


@pytest.mark.clause("M-3")
def test_recreated_topic_keeps_no_state_of_old_topic() -> None:
    old, new = UUID(int=1), UUID(int=2)
    first = request(partition_states=(replace(state("t", 0), topic_id=old), replace(state("t", 1), topic_id=old)))
    update = applied(first, KNOWN)
    assert update is not None
    known = KNOWN.apply(update)
    again = request(metadata_epoch=10, partition_states=(replace(state("t", 0), topic_id=new),))
    deleted_first = request(
        metadata_epoch=10,
        partition_states=(
            *(replace(state("t", index, -2), topic_id=old) for index in (0, 1)),
            *again.partition_states,
        ),
    )
    for body in (again, deleted_first):
        changed = applied(body, known)
        assert changed is not None
        cache = known.apply(changed)
        assert (cache.topics["t"].topic_id, len(cache.topics["t"].partitions)) == (new.bytes, 1)
        assert cache.topic_names == {new.bytes: "t"}


def test_partitions_may_come_in_any_order_but_not_with_gaps() -> None:
    update = applied(request(partition_states=(state("t", 1), state("t", 0))), KNOWN)
    assert update is not None
    topic = update.topics["t"]
    assert topic is not None
    assert len(topic.partitions) == 2
    assert applied(request(partition_states=(state("t", 1),)), KNOWN) is None
    assert applied(request(partition_states=(state("t", -1),)), KNOWN) is None


def test_unchanged_topic_keeps_same_object() -> None:
    partition = PartitionImage((1, 2), (1,), 1, 2, 4)
    known = KNOWN.apply(MetadataUpdate(1, 5, {"t": TopicImage("t", bytes(16), (partition,))}, (), 8))
    update = applied(request(type=FULL_UPDATE, partition_states=(state("t", 0),)), known)
    assert update is not None
    assert update.topics["t"] is known.topics["t"]
    cache = known.apply(update)
    assert cache.metadata_epoch == 9
    assert cache.brokers is known.brokers


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(-2, 3)), max_size=12))
def test_full_update_removes_topics_not_named(states: list[tuple[str, int, int]]) -> None:
    before = KNOWN.apply(MetadataUpdate(1, 5, {"z": TopicImage("z", bytes(15) + b"z", ())}, None, 8))
    update = applied(request(type=FULL_UPDATE, partition_states=tuple(state(*each) for each in states)), before)
    if update is not None:
        assert "z" not in before.apply(update).topics


@pytest.mark.clause("D-1", "M-3")
def test_version_1000_is_a_controllers_whole_metadata_first_and_its_changes_afterwards() -> None:
    """The page of version 1000 has neither a type nor topic IDs nor the broker's incarnation."""

    def old(metadata_epoch: int, *leaders: int, controller_epoch: int = 5) -> UpdateMetadataRequest1000:
        states = tuple(
            UpdateMetadataPartition1000(
                topic="t", partition=n, controller_epoch=5, leader=leader, leader_epoch=2, zk_version=4, replicas=(1, 2)
            )
            for n, leader in enumerate(leaders)
        )
        return UpdateMetadataRequest1000(
            controller_id=1,
            controller_epoch=controller_epoch,
            metadata_epoch=metadata_epoch,
            partition_states=states,
            live_brokers=(),
        )

    def topics(cache: MetadataCache) -> dict[str, tuple[bytes, list[int]]]:
        return {
            name: (topic.topic_id, [partition.leader for partition in topic.partitions])
            for name, topic in cache.topics.items()
        }

    def after(update: UpdateMetadataRequest1000 | UpdateMetadataRequest1001, cache: MetadataCache) -> MetadataCache:
        assert refusal(update, cache, broker_epoch=3) is ErrorCode.none
        found = applied(update, cache)
        assert found is not None
        return cache.apply(found)

    known = replace(state("t", 0), topic_id=UUID(int=7))
    cache = after(request(partition_states=(known, state("u", 0)), type=FULL_UPDATE), KNOWN)
    topic_id = UUID(int=7).bytes
    cache = after(old(10, 2), cache)
    assert topics(cache) == {"t": (topic_id, [2]), "u": (bytes(16), [1])}
    assert is_overtaken(old(10, 1), cache)
    cache = after(old(11, 1, 2, controller_epoch=6), cache)
    assert topics(cache) == {"t": (topic_id, [1, 2])}, "another controller's first request replaces everything"
    cache = after(old(12, 2, controller_epoch=6), cache)
    assert topics(cache) == {"t": (topic_id, [2, 2])}
    assert refusal(old(13, controller_epoch=5), cache, 3) is ErrorCode.stale_controller_epoch
