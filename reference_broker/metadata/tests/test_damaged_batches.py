"""A batch that cannot be replayed: nothing of it is published, and everything before it is."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.metadata import loader as loader_module
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import (
    MARKERS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
    RemoveTopicRecord,
    encode,
)
from reference_broker.metadata.tests.metadata_world import ABORT, BEGIN, END, MetadataWorld, topic_id, topic_records
from reference_broker.quorum.values import Provenance

A, B, C = (topic_records(name, topic_id(number)) for number, name in enumerate("abc", 1))
UNKNOWN_TOPIC = RemoveTopicRecord(topic_id=topic_id(99))
WITH_A_GAP = [C[0], *topic_records("c", topic_id(3), 3)[2:]]
"""A topic whose partition 0 is missing. That shows only when an image is built of it."""


def world_of(*batches: Sequence[MetadataRecord]) -> MetadataWorld:
    world = MetadataWorld()
    for records in batches:
        world.log.append([encode(record) for record in records], 1)
    return world


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(
    ("batches", "topics", "offset"),
    [
        ([A, [*B, UNKNOWN_TOPIC]], ["a"], 1),
        ([A, B, [*C, UNKNOWN_TOPIC]], ["a", "b"], 3),
        ([[*A, UNKNOWN_TOPIC]], [], -1),
        ([A, WITH_A_GAP], ["a"], 1),
        ([A, WITH_A_GAP, B], ["a"], 1),
        ([A, [*B, BEGIN, UNKNOWN_TOPIC]], ["a"], 1),
        ([A, [*B, BEGIN, *C, END, UNKNOWN_TOPIC]], ["a"], 1),
        ([[*A, BEGIN, *B], [*C, END], [UNKNOWN_TOPIC]], ["a", "b", "c"], 7),
        ([[*A, BEGIN, *B], [*C], [END, UNKNOWN_TOPIC]], ["a"], 1),
        ([A, [BEGIN], B, [END], [*C, UNKNOWN_TOPIC]], ["a", "b"], 5),
        ([A, [BEGIN], B, [END, *C, UNKNOWN_TOPIC]], ["a"], 1),
        ([A, [BEGIN], B, [ABORT], [*C, UNKNOWN_TOPIC]], ["a"], 5),
        ([A, [BEGIN], [*B, UNKNOWN_TOPIC], [END]], ["a"], 1),
        ([A, [BEGIN], WITH_A_GAP, [END]], ["a"], 1),
        ([A, [*B, END]], ["a"], 1),
    ],
)
def test_metadata_fault_publishes_only_preceding_batches(
    batches: list[list[MetadataRecord]], topics: list[str], offset: int
) -> None:
    world = world_of(*batches)
    with pytest.raises(MetadataFault, match="metadata log is damaged"):
        world.commit()
    image = world.loader.image
    assert (list(image.topics), image.provenance.offset) == (topics, offset)
    assert [one.provenance.offset for _, one in world.published[-1:]] == ([offset] if offset >= 0 else [])


def test_sentence_names_the_last_batch_before_the_damage() -> None:
    world = world_of(A, WITH_A_GAP, B)
    with pytest.raises(MetadataFault, match=r"in or after the batch that ends at offset 1 \(topic c has partition 1"):
        world.commit()


def test_records_published_by_earlier_slices_are_not_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "LOADED_RECORDS_PER_SLICE", 3)
    world = world_of(A, B, [*C, UNKNOWN_TOPIC])
    with pytest.raises(MetadataFault):
        world.commit()
    assert [image.provenance.offset for _, image in world.published] == [1, 3]


STEPS = st.lists(
    st.tuples(st.sampled_from(("topic", "config", "begin", "end", "abort", "batch", "batch")), st.booleans()),
    max_size=40,
)


@pytest.mark.thorough
@pytest.mark.clause("T-8")
@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([UNKNOWN_TOPIC, *WITH_A_GAP[1:]]), st.lists(st.integers(0, 60), max_size=4))
def test_readers_never_see_a_part_of_a_damaged_batch_however_it_is_committed(
    steps: list[tuple[str, bool]], damage: MetadataRecord, commits: list[int]
) -> None:
    """Against a model that knows only whole batches: a record counts if its batch is before the damaged one and its
    transaction, if any, has ended there."""
    good = _batches(steps)
    is_open = _open_after(good)
    bad: list[MetadataRecord] = [*topic_records("bad", topic_id(98)), *([] if is_open else [BEGIN]), *B]
    if isinstance(damage, RemoveTopicRecord):
        bad.append(damage)
    else:
        bad += [END, WITH_A_GAP[0], damage]
    world = world_of(*good, bad)
    ends = [batch.provenance.offset + 1 for batch in world.log.content]
    for at in sorted(commits):
        if at < len(good):
            world.commit(ends[at])
    with pytest.raises(MetadataFault):
        world.commit()
    allowed = [_shown(good[:count]) for count in range(len(good) + 1)]
    assert all("bad" not in image.topics for _, image in world.published)
    assert _state(world.loader.image) == allowed[-1]


def _batches(steps: list[tuple[str, bool]]) -> list[list[MetadataRecord]]:
    batches: list[list[MetadataRecord]] = [[]]
    is_open = False
    for number, (what, short) in enumerate(steps, 10):
        if what == "batch":
            batches.append([])
        elif what == "begin" and not is_open:
            is_open = True
            batches[-1].append(BEGIN)
        elif what in ("end", "abort") and is_open:
            is_open = False
            batches[-1].append(END if what == "end" else ABORT)
        elif what == "topic":
            batches[-1] += topic_records(f"t{number}", topic_id(number), 1 if short else 3)
        elif what == "config":
            batches[-1].append(ConfigRecord(resource_type=2, resource_name="x", name=f"k{short}", value=str(number)))
    return [batch for batch in batches if batch] or [[NoOpRecord()]]


def _open_after(batches: list[list[MetadataRecord]]) -> bool:
    markers = [record for batch in batches for record in batch if isinstance(record, MARKERS)]
    return bool(markers) and isinstance(markers[-1], BeginTransactionRecord)


def _shown(batches: list[list[MetadataRecord]]) -> tuple[object, ...]:
    """Return the state that readers may see after these batches."""
    delta = MetadataDelta(EMPTY_IMAGE)
    held: list[MetadataRecord] | None = None
    for record in (record for batch in batches for record in batch):
        if isinstance(record, BeginTransactionRecord):
            held = []
        elif isinstance(record, MARKERS):
            for each in [] if isinstance(record, AbortTransactionRecord) else held or []:
                replay(delta, each)
            held = None
        elif held is not None:
            held.append(record)
        else:
            replay(delta, record)
    return _state(delta.build(Provenance()))


def _state(image: MetadataImage) -> tuple[object, ...]:
    topics = tuple((name, len(topic.partitions)) for name, topic in image.topics.items())
    configs = tuple(sorted((key, tuple(sorted(pairs.items()))) for key, pairs in image.configs.items()))
    return topics, configs
