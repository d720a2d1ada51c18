"""The difference between two images leads from one to the other, whatever they hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metadata.cache import cache_of, update_of
from reference_broker.metadata.delta import MetadataDelta, TopicChange
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage

PARTITIONS = st.lists(
    st.builds(
        PartitionImage,
        replicas=st.just((1,)),
        isr=st.just((1,)),
        leader=st.sampled_from((-1, 1)),
        leader_epoch=st.integers(0, 1),
        partition_epoch=st.integers(0, 1),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
TOPICS = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 1), PARTITIONS))
CONFIGS = st.dictionaries(
    st.tuples(st.just(2), st.sampled_from("abcd")),
    st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), min_size=1),
)
BROKERS = st.dictionaries(
    st.integers(1, 3),
    st.builds(
        BrokerImage,
        broker_id=st.just(0),
        broker_epoch=st.integers(0, 2),
        incarnation_id=st.just(bytes(16)),
        host=st.just("h"),
        port=st.just(1),
        fenced=st.booleans(),
    ),
)


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    topics = {
        name: TopicImage(name, f"{name}{life}".encode().ljust(16), partitions)
        for name, (life, partitions) in draw(TOPICS).items()
    }
    return MetadataImage(
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        configs=draw(CONFIGS),
        brokers=draw(BROKERS),
        features=draw(st.dictionaries(st.sampled_from("fg"), st.integers(1, 2))),
        next_producer_id=draw(st.integers(0, 1)) * 1000,
        metadata_epoch=draw(st.integers(0, 1)),
    )


@pytest.mark.thorough
@pytest.mark.clause(
    "ClusterImageTest.testApplyDelta1",
    "ClusterImageTest.testApplyDelta2",
    "FeaturesImageTest.testApplyDelta1",
    "FeaturesImageTest.testApplyDelta2",
    "FeatureControlManagerTest.testReplay",
)
@given(images(), images())
def test_difference_applied_to_first_image_gives_second(before: MetadataImage, after: MetadataImage) -> None:
    delta = MetadataDelta.between(before, after)
    topics = dict(before.topics)
    for change in delta.topics:
        if change.after is None:
            assert change.before is not None
            assert topics.pop(change.before.name) == change.before
        else:
            assert change.before is None or change.before == before.topics[change.after.name]
            assert (change.before is None) == (change.after.name not in topics)
            _check_partitions(change, change.after)
            topics[change.after.name] = change.after
    assert topics == after.topics
    for what in ("configs", "brokers", "features"):
        assert _applied(getattr(before, what), getattr(delta, what)) == getattr(after, what)
    assert delta.next_producer_id in (None, after.next_producer_id)
    assert delta.next_producer_id is not None or before.next_producer_id == after.next_producer_id
    assert delta.metadata_epoch == (None if before.metadata_epoch == after.metadata_epoch else after.metadata_epoch)
    cache = cache_of(before, "c", 1).apply(update_of(delta, after, 1))
    assert (cache.topics, cache.topic_names) == (after.topics, after.topic_names)
    if before == after:
        assert delta.topics == ()
        assert delta.configs == {}
        assert delta.brokers == {}
        assert delta.features == {}


def _check_partitions(change: TopicChange, after: TopicImage) -> None:
    old = () if change.before is None else change.before.partitions
    differing = [
        index for index, partition in enumerate(after.partitions) if index >= len(old) or old[index] != partition
    ]
    assert list(change.partitions) == differing


def _applied(before: dict[Any, Any], changes: dict[Any, Any]) -> dict[Any, Any]:
    after = {**before, **changes}
    return {key: value for key, value in after.items() if value is not None}
