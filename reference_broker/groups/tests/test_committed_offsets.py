"""The committed offsets of one partition, beside a naive model that looks at the whole log each time."""

from hypothesis import given
from hypothesis import strategies as st

from reference_broker.groups.offsets.committed_offsets import CommittedOffsets
from reference_broker.groups.offsets.values import Change, CommitOffset, OffsetKey

KEYS = [OffsetKey(group, topic, index) for group in "gh" for topic in "tu" for index in (0, 1)]

BATCHES = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 99)), min_size=1, max_size=3)
STEPS = st.lists(BATCHES | st.integers(0, 5), max_size=30)


def change(key: OffsetKey, offset: int | None, at: int) -> Change:
    return key, None if offset is None else CommitOffset(key.topic, key.partition, offset, 0, "", at)


@given(STEPS)
def test_what_is_visible_is_the_log_below_the_high_watermark(
    steps: list[list[tuple[OffsetKey, int | None]] | int],
) -> None:
    offsets = CommittedOffsets()
    log: list[tuple[int, Change]] = []
    end = high_watermark = 0
    for step in steps:
        if isinstance(step, int):
            high_watermark = min(end, high_watermark + step)
            list(offsets.replicated(high_watermark))
        else:
            changes = [change(key, offset, end) for key, offset in step]
            end += len(changes)
            offsets.appended(end, changes)
            log.extend((end, each) for each in changes)
        offsets.validate()
        visible = {key: commit for at, (key, commit) in log if at <= high_watermark}
        newest = dict(each for _, each in log)
        written = {key: at for at, (key, _) in log}
        assert {key: offsets.find(key) for key in KEYS} == {key: visible.get(key) for key in KEYS}
        assert {key: offsets.latest(key) for key in KEYS} == {key: newest.get(key) for key in KEYS}
        there = {key: commit for key, commit in visible.items() if commit is not None}
        assert offsets.count == len(there)
        assert offsets.is_waiting == any(at > high_watermark for at, _ in log)
        for topic in "tu":
            assert sorted(offsets.groups_of(topic)) == sorted({key.group for key in there if key.topic == topic})
        waiting = {key.topic for at, (key, _) in log if at > high_watermark and newest[key] is not None}
        assert sorted(offsets.topics()) == sorted({key.topic for key in there} | waiting)
        for group in "gh":
            told = {
                OffsetKey(group, topic, index): stored.commit
                for topic, partitions in offsets.of(group).items()
                for index, stored in partitions.items()
            }
            assert told == {key: commit for key, commit in there.items() if key.group == group}
            assert offsets.has_any(group) == any(key.group == group and newest[key] is not None for key in newest)
        for key in KEYS:
            older = key in there and written[key] <= min(high_watermark, 4)
            assert offsets.is_older(key, 4) == older


def test_changes_are_told_in_the_order_of_the_log() -> None:
    offsets = CommittedOffsets()
    first, second = change(KEYS[0], 1, 0), change(KEYS[1], 2, 1)
    offsets.appended(1, [first])
    offsets.appended(2, [second])
    assert list(offsets.replicated(0)) == []
    assert list(offsets.replicated(2)) == [first, second]
