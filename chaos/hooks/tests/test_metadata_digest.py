"""The digest moved by deltas equals the whole image's, whatever way the image was reached."""

from dataclasses import replace
from random import Random

import pytest

from chaos.hooks.metadata_digest import Digest, digest_of
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import EMPTY_IMAGE, TOPIC_RESOURCE, BrokerImage, MetadataImage, PartitionImage
from reference_broker.quorum.values import Provenance


def changed(image: MetadataImage, random: Random, offset: int) -> tuple[MetadataDelta, MetadataImage]:
    delta = MetadataDelta(image)
    names = list(image.topics)
    for step in range(random.randint(1, 4)):
        kind = random.randrange(6)
        if kind <= 1 or not names:
            topic_id = random.randbytes(16)
            delta.put_topic(f"t{offset}-{step}", topic_id)
            for index in range(random.randint(1, 3)):
                delta.put_partition(topic_id, index, PartitionImage((0,), (0,), 0, 0, 0))
        elif kind == 2:
            delta.remove_topic(image.topics[names.pop(random.randrange(len(names)))].topic_id)
        elif kind == 3:
            topic = image.topics[random.choice(names)]
            delta.put_partition(topic.topic_id, 0, PartitionImage((0,), (0,), -1, offset, offset))
        elif kind == 4:
            value = random.choice((None, str(offset)))
            delta.set_config((TOPIC_RESOURCE, random.choice(names)), "retention.ms", value)
        else:
            features = (("f", 0, random.randrange(3)),)
            fenced = random.random() < 0.5
            delta.put_broker(BrokerImage(random.randrange(3), offset, bytes(16), "h", 1, fenced, features=features))
            delta.metadata_epoch = offset
            delta.set_feature("metadata.version", random.randint(0, 3))
            delta.next_producer_id = offset
    return delta, delta.build(Provenance(offset, 1, 0))


@pytest.mark.clause("S-15")
@pytest.mark.parametrize("seed", range(10))
def test_digest_that_followed_deltas_equals_that_of_the_whole_image(seed: int) -> None:
    random, image, digest = Random(seed), EMPTY_IMAGE, Digest(EMPTY_IMAGE)
    for offset in range(60):
        before = digest.value
        delta, image = changed(image, random, offset)
        published = digest.follow(delta, image)
        assert published.digest == digest.thorough() == digest_of(image)
        assert (published.offset, published.topics) == (offset, len(image.topics))
        assert published.partitions == sum(len(topic.partitions) for topic in image.topics.values())
        if delta.topics:
            assert published.digest != before
    jump = Digest(EMPTY_IMAGE).follow(MetadataDelta.between(EMPTY_IMAGE, image), image)
    assert jump == digest.published()


def test_delta_on_another_image_is_not_followed_but_the_whole_image_is_hashed() -> None:
    random, digest = Random(1), Digest(EMPTY_IMAGE)
    _, skipped = changed(EMPTY_IMAGE, random, 1)
    delta, image = changed(skipped, random, 2)
    assert digest.follow(delta, image).digest == digest_of(image)


@pytest.mark.clause("M-1")
def test_digest_covers_the_metadata_epoch_and_the_registrations_of_brokers() -> None:
    broker = BrokerImage(1, 1, bytes(16), "h", 1, False)
    plain = MetadataImage(brokers={1: broker})
    announced = MetadataImage(brokers={1: replace(broker, features=(("f", 0, 1),))})
    epochs = [replace(plain, metadata_epoch=epoch) for epoch in (1, 2)]
    assert len({digest_of(image) for image in (plain, announced, *epochs)}) == 4
