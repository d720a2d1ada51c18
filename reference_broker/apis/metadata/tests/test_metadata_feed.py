"""OfflinePartitionsCount and PreferredReplicaImbalanceCount equal the counts of a walk over the image."""

from random import Random

import pytest

from reference_broker.apis.metadata.metadata_feed import PartitionHealth
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.quorum.values import Provenance


def shown(metrics: Metrics) -> tuple[int, int]:
    values = {named.mbean: named.metric.value for named in metrics.rows()}  # type: ignore[union-attr]
    kind = "kafka.controller:type=KafkaController"
    return values[f"{kind},name=OfflinePartitionsCount"], values[f"{kind},name=PreferredReplicaImbalanceCount"]


def walked(image: MetadataImage) -> tuple[int, int]:
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    return sum(partition.leader == -1 for partition in partitions), sum(
        partition.leader != partition.replicas[0] for partition in partitions
    )


def changed(random: Random, image: MetadataImage) -> MetadataDelta:
    """Return a delta with topics created, grown, changed and deleted, some of them more than once."""
    delta = MetadataDelta(image)
    known = {topic.topic_id: len(topic.partitions) for topic in image.topics.values()}
    for _ in range(random.randint(1, 8)):
        name = f"t{random.randrange(4)}"
        ids = [each for each in known if each.startswith(name.encode())]
        if not ids:
            topic_id = (name.encode() + bytes([random.randrange(256) for _ in range(16)]))[:16]
            delta.put_topic(name, topic_id)
            known[topic_id] = 0
        elif random.random() < 0.2:
            topic_id = ids[0]
            delta.remove_topic(topic_id)
            del known[topic_id]
            continue
        else:
            topic_id = ids[0]
        index = random.randint(0, known[topic_id])
        known[topic_id] = max(known[topic_id], index + 1)
        delta.put_partition(topic_id, index, PartitionImage((1, 2), (1, 2), random.choice((-1, 1, 2)), 0, 0))
    return delta


@pytest.mark.parametrize("seed", range(10))
def test_gauges_are_exact_after_each_publication(seed: int) -> None:
    random, image = Random(seed), EMPTY_IMAGE
    metrics = Metrics()
    health = PartitionHealth(metrics, image)
    most = (0, 0)
    for offset in range(100):
        delta = changed(random, image)
        image = delta.build(Provenance(offset, 0, 0))
        for change in delta.topics:
            health.changed(change)
        assert shown(metrics) == walked(image)
        most = max(most, shown(metrics))
    assert all(most)
    again = Metrics()
    PartitionHealth(again, image)
    assert shown(again) == walked(image)


def test_gauges_are_exact_after_snapshot_replaces_image() -> None:
    random, metrics = Random(1), Metrics()
    before = changed(random, EMPTY_IMAGE).build(Provenance(1, 0, 0))
    after = changed(random, before).build(Provenance(2, 0, 0))
    health = PartitionHealth(metrics, before)
    for change in MetadataDelta.between(before, after).topics:
        health.changed(change)
    assert shown(metrics) == walked(after)
