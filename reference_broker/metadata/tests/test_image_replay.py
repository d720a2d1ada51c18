"""Whatever the operations, an image built delta by delta equals one built by replaying all records at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metadata.cache import MetadataCache, cache_of, update_of
from reference_broker.metadata.delta import MetadataDelta, _Draft, replay
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from reference_broker.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataEpoch,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    decode,
    encode,
)
from reference_broker.metadata.tests.metadata_world import topic_records
from reference_broker.quorum.values import Provenance

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("create", "remove", "grow", "change", "config", "unset", "ids", "epoch")), st.integers(0, 5)
    ),
    max_size=40,
)


class Model:
    """Turns random choices into records that may follow each other, on plain dicts."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.configs: dict[tuple[str, str], str] = {}
        self.made = self.ids = self.epoch = 0

    def records(self, operation: str, number: int) -> list[MetadataRecord]:
        name = f"t{number}"
        topic_id, partitions = self.topics.get(name, (b"", 0))
        if operation == "ids":
            self.ids += 1000
            return [ProducerIdsRecord(broker_id=1, next_producer_id=self.ids)]
        if operation == "epoch":
            self.epoch += 1
            return [NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=self.epoch))]
        if operation == "create" and not partitions:
            self.made += 1
            self.topics[name] = self.made.to_bytes(16, "big"), number + 1
            return topic_records(name, self.topics[name][0], number + 1)
        if not partitions:
            return []
        if operation == "remove":
            del self.topics[name]
            self.configs = {key: value for key, value in self.configs.items() if key[0] != name}
            return [RemoveTopicRecord(topic_id=topic_id)]
        if operation == "grow":
            self.topics[name] = topic_id, partitions + 2
            return topic_records(name, topic_id, partitions + 2)[1 + partitions :]
        if operation == "change":
            return [PartitionChangeRecord(partition_id=partitions - 1, topic_id=topic_id, leader=1, isr=(1, 2))]
        value = "v" if operation == "config" else None
        if value is None:
            self.configs.pop((name, f"k{number % 2}"), None)
        else:
            self.configs[name, f"k{number % 2}"] = value
        return [ConfigRecord(resource_type=2, resource_name=name, name=f"k{number % 2}", value=value)]


@pytest.mark.clause(
    "RecordsIteratorTest.testFileRecords",
    "MetadataImageTest.testApplyDelta1",
    "TopicsImageTest.testApplyDelta1",
    "TopicsImageTest.testTopicNameToIdView",
    "TopicsImageTest.testTopicIdToNameView",
    "ConfigurationsImageTest.testApplyDelta1",
    "ProducerIdsImageTest.testApplyDelta1",
    "ConfigurationControlManagerTest.testReplay",
)
@given(OPERATIONS, st.integers(1, 7))
def test_image_by_deltas_equals_image_by_full_replay(operations: list[tuple[str, int]], batches_a_delta: int) -> None:
    model, written = Model(), []
    image, cache = EMPTY_IMAGE, MetadataCache(cluster_id="c")
    batch: list[MetadataRecord] = []
    for step, (operation, number) in enumerate(operations):
        batch += model.records(operation, number)
        if step % batches_a_delta == batches_a_delta - 1 or step == len(operations) - 1:
            written += [encode(record) for record in batch]
            delta, image = _built(image, batch, len(written))
            cache = cache.apply(update_of(delta, image, 1))
            batch = []
    _, replayed = _built(EMPTY_IMAGE, [decode(value) for value in written], len(written))
    assert _content(image) == _content(replayed)
    assert {name: (topic.topic_id, len(topic.partitions)) for name, topic in image.topics.items()} == model.topics
    assert image.topic_names == {topic_id: name for name, (topic_id, _) in model.topics.items()}
    set_now = {(name, key): value for (_, name), pairs in image.configs.items() for key, value in pairs.items()}
    assert set_now == model.configs
    assert (image.next_producer_id, image.metadata_epoch) == (model.ids, model.epoch)
    whole = cache_of(image, "c", 1)
    assert (cache.topics, cache.topic_names) == (whole.topics, whole.topic_names)


def test_untouched_topics_are_shared_between_images() -> None:
    _, before = _built(EMPTY_IMAGE, topic_records("a", bytes([1] * 16), 10), 1)
    delta, after = _built(before, topic_records("b", bytes([2] * 16), 10), 2)
    assert after.topics["a"] is before.topics["a"]
    assert [change.after.name for change in delta.topics if change.after] == ["b"]


def test_many_small_topics_are_frozen_while_a_delta_is_filled_and_again_only_where_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [number.to_bytes(16, "big") for number in range(1, 201)]
    records = [record for topic_id in ids for record in topic_records(f"t{topic_id[-1]}", topic_id, 3)]
    _, before = _built(EMPTY_IMAGE, records, 1)
    delta = MetadataDelta(before)
    for topic_id in (*ids, ids[5]):
        replay(delta, PartitionChangeRecord(partition_id=topic_id[-1] % 3, topic_id=topic_id, leader=2))
        replay(delta, PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=3))
    frozen: list[str] = []
    whole = _Draft.frozen

    def noted(draft: _Draft) -> TopicImage:
        frozen.append(draft.name)
        return whole(draft)

    monkeypatch.setattr(_Draft, "frozen", noted)
    after = delta.build(Provenance(2, 1, 0))
    assert frozen == ["t6"], "the others were before"
    for topic_id in ids:
        changed = after.topic_by_id(topic_id)
        assert changed is not None
        assert [partition.leader_epoch for partition in changed.partitions] == [
            (1 + (topic_id is ids[5])) * ((index == 0) + (index == topic_id[-1] % 3)) for index in range(3)
        ]
    assert [change.partitions for change in delta.topics][:3] == [(1, 0), (2, 0), (0,)]


def test_partitions_of_topics_may_come_in_any_order_between_those_of_others() -> None:
    first, second = (topic_records(name, bytes([number] * 16), 2) for number, name in enumerate(("a", "b"), 1))
    records = [first[0], second[0], first[2], second[2], first[1], second[1]]
    _, image = _built(EMPTY_IMAGE, records, 1)
    assert [len(topic.partitions) for topic in image.topics.values()] == [2, 2]


@pytest.mark.clause("TopicsImageTest.testDeleteAfterChanges")
def test_changed_and_deleted_topic_is_only_deleted() -> None:
    topic_id = bytes([1] * 16)
    _, before = _built(EMPTY_IMAGE, topic_records("a", topic_id, 2), 1)
    changed = PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=2)
    delta, after = _built(before, [changed, RemoveTopicRecord(topic_id=topic_id)], 2)
    assert [(change.before, change.after) for change in delta.topics] == [(before.topics["a"], None)]
    assert (dict(after.topics), dict(after.topic_names)) == ({}, {})


@pytest.mark.clause(
    "TopicsImageTest.testClearElrRecords_All_ForDeletedTopics",
    "TopicsImageTest.testClearElrRecords_Single_ForDeletedTopics",
)
@pytest.mark.parametrize("name", ["", "a"])
def test_clear_elr_applies_to_recreated_topic(name: str) -> None:
    """A topic that is deleted and made again in the same change, and one that was made, deleted and made again."""
    old, new = bytes([1] * 16), bytes([2] * 16)
    _, before = _built(EMPTY_IMAGE, topic_records("a", old), 1)
    eligible = PartitionChangeRecord(
        partition_id=0, topic_id=new, isr=(1,), leader=1, eligible_leader_replicas=(2,), last_known_elr=(3,)
    )
    made = [*topic_records("a", new), eligible]
    again = [RemoveTopicRecord(topic_id=old), *made]
    for image, records in ((before, again), (EMPTY_IMAGE, [*topic_records("a", old), *again])):
        _, kept = _built(image, records, 2)
        assert (kept.topics["a"].partitions[0].elr, kept.topics["a"].partitions[0].last_known_elr) == ((2,), (3,))
        _, after = _built(image, [*records, ClearElrRecord(topic_name=name)], 2)
        assert (after.topics["a"].partitions[0].elr, after.topics["a"].partitions[0].last_known_elr) == ((), ())
        assert dict(after.topic_names) == {new: "a"}


@pytest.mark.clause(
    "TopicsImageTest.testClearElrRecordForNonExistTopic",
    "TopicsImageTest.testClearElrRecordOnNonExistingTopic",
    "ReplicationControlManagerTest.testDuplicateTopicIdReplay",
)
def test_topic_created_twice_is_a_fault() -> None:
    first = topic_records("a", bytes([1] * 16))[0]
    _, before = _built(EMPTY_IMAGE, [first], 1)
    for again in (first, topic_records("a", bytes([2] * 16))[0]):
        with pytest.raises(MetadataFault, match="although it exists"):
            _built(before, [again], 2)
        with pytest.raises(MetadataFault, match="although it exists"):
            _built(EMPTY_IMAGE, [first, again], 2)


@pytest.mark.clause("ProducerIdControlManagerTest.testMonotonic")
@pytest.mark.parametrize("next_id", [40, 42])
def test_non_increasing_producer_ids_are_a_fault(next_id: int) -> None:
    _, before = _built(EMPTY_IMAGE, [ProducerIdsRecord(broker_id=1, next_producer_id=42)], 1)
    with pytest.raises(MetadataFault, match="go back"):
        _built(before, [ProducerIdsRecord(broker_id=1, next_producer_id=next_id)], 2)
    _, after = _built(before, [ProducerIdsRecord(broker_id=1, next_producer_id=50)], 2)
    assert after.next_producer_id == 50, "gaps are no fault"


def test_clear_elr_record_for_unknown_topic_is_a_fault() -> None:
    with pytest.raises(MetadataFault):
        _built(EMPTY_IMAGE, [ClearElrRecord(topic_name="gone")], 1)


def _built(image: MetadataImage, records: list[MetadataRecord], offset: int) -> tuple[MetadataDelta, MetadataImage]:
    delta = MetadataDelta(image)
    for record in records:
        replay(delta, record)
    return delta, delta.build(Provenance(offset, 1, 0))


def _content(image: MetadataImage) -> tuple[object, ...]:
    plain = dict(image.topics), dict(image.topic_names), dict(image.configs)
    return *plain, image.next_producer_id, image.metadata_epoch
