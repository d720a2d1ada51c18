"""Commits of consumers and of several transactions, markers, loads, expiry and removals compared with naive models.

One machine has one replica, and its model knows the requests. The other has three, and its model reads the log.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_broker.groups.committed_offsets import OffsetKey
from reference_broker.groups.records import read_key
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.groups.tests.naive_offsets import Commit, Ending, Event, NaiveOffsets, Removal, read_below
from reference_broker.groups.tests.test_commits import deleted
from reference_broker.records.control import ControlType, read_control
from reference_broker.records.record import read_all
from reference_broker.wire.errors import Error, ErrorCode

MINUTE_MS = 60_000
RETENTION_MS = 10 * MINUTE_MS
STEP_MS = 6 * MINUTE_MS
"""Two of them are longer than the retention and a look after it, one is shorter."""
UNSTABLE = (-1, ErrorCode.unstable_offset_commit)
PRODUCERS = st.sampled_from((5, 6))
GROUPS = st.sampled_from("gh")
TOPICS = st.sampled_from("tu")
OFFSETS = st.lists(st.integers(0, 99), min_size=1, max_size=2)


class _Machine(RuleBasedStateMachine):
    """Two groups in partition 0, and two topics."""

    replicas: tuple[int, ...]

    def __init__(self) -> None:
        super().__init__()
        self.world = CoordinatorWorld(
            self.replicas,
            offsets_retention_minutes=str(RETENTION_MS // MINUTE_MS),
            offsets_retention_check_interval_ms="30000",
        )
        self.world.show(t=3, u=3)
        self.world.lead_offsets(0)
        self.names = {prefix: self.world.group_in(0, prefix) for prefix in "gh"}
        self.epoch = 0

    def load(self) -> None:
        self.epoch += 1
        high_watermark = self.world.led[0].log.high_watermark
        log = self.world.lose(0)
        self.world.lead_offsets(0, log, epoch=self.epoch)
        if len(self.replicas) > 1:
            log.advance_high_watermark(high_watermark)
        self.world.pass_ms(0)

    def keys(self) -> list[OffsetKey]:
        return [OffsetKey(self.names[each], topic, index) for each in "gh" for topic in "tu" for index in range(3)]

    def check(self, seen: NaiveOffsets) -> None:
        offsets = self.world.active(0).offsets
        for key in self.keys():
            found = offsets.find(key)
            assert (None if found is None else found.offset) == seen.visible.get(key, (0, None))[1], key
            assert (key in offsets.pending_of(key.group)) == (key in seen.unstable()), key
        self.world.groups.validate()
        assert self.world.groups.metrics.offsets.value == len(seen.visible)


class BesideALedger(_Machine):
    """``written_ms``: when a record was written, by the offset after it."""

    replicas = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.naive = NaiveOffsets()
        self.written_ms: dict[int, int] = {}

    def took(self, group: str, topic: str, offsets: list[int], producer: int | None) -> None:
        end = self.world.led[0].log.log_end_offset
        self.written_ms[end] = self.world.now().wall_ms
        for index, offset in enumerate(offsets):
            self.naive.take(Commit(end, OffsetKey(group, topic, index), offset, producer))

    @rule(group=GROUPS, topic=TOPICS, offsets=OFFSETS)
    def commit(self, group: str, topic: str, offsets: list[int]) -> None:
        assert self.world.commit(self.names[group], *offsets, topic=topic) == [[ErrorCode.none] * len(offsets)]
        self.took(self.names[group], topic, offsets, None)

    @rule(group=GROUPS, topic=TOPICS, offsets=OFFSETS, producer=PRODUCERS)
    def transact(self, group: str, topic: str, offsets: list[int], producer: int) -> None:
        responses = self.world.transact(self.names[group], *offsets, topic=topic, producer=producer)
        assert responses == [[ErrorCode.none] * len(offsets)]
        self.took(self.names[group], topic, offsets, producer)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        self.world.end(0, commit=commit, producer=producer)
        self.naive.take(Ending(0, producer, commit))

    @rule()
    def loads(self) -> None:
        self.load()

    @rule(group=GROUPS, topic=TOPICS, index=st.integers(0, 2))
    def delete_offset(self, group: str, topic: str, index: int) -> None:
        deleted(self.world, self.names[group], (topic, index))
        self.naive.take(Removal(0, OffsetKey(self.names[group], topic, index)))

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        results: list[Error] = []
        self.world.groups.group_manager.delete_group(self.names[group], results.append)
        assert results in ([ErrorCode.none], [ErrorCode.group_id_not_found])
        for key in self.keys():
            if key.group == self.names[group]:
                self.naive.take(Removal(0, key))

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        """Delete the topic and recreate it."""
        self.world.delete_topic(topic)
        self.world.pass_ms(0)
        self.world.show(t=3, u=3)
        for key in self.keys():
            if key.topic == topic:
                self.naive.take(Removal(0, key))

    @rule()
    def time_passes(self) -> None:
        self.world.pass_ms(STEP_MS)
        now_ms = self.world.now().wall_ms
        unstable = self.naive.unstable()
        for key, (end, _) in list(self.naive.visible.items()):
            if self.written_ms[end] + RETENTION_MS <= now_ms and key not in unstable:
                del self.naive.visible[key]
        there = {key.group for key in self.naive.visible.keys() | self.naive.unstable()}
        assert self.world.active(0).groups.keys() == there

    @invariant()
    def same(self) -> None:
        self.check(self.naive)
        for group in self.names.values():
            for topic in "tu":
                keys = [OffsetKey(group, topic, index) for index in range(3)]
                seen = [(self.naive.visible.get(key, (0, -1))[1], ErrorCode.none) for key in keys]
                unstable = self.naive.unstable()
                results = [UNSTABLE if key in unstable else each for key, each in zip(keys, seen, strict=True)]
                assert self.world.stable(group, topic) == results


class BesideTheLog(_Machine):
    """A machine whose followers have the log up to a point that the test sets."""

    replicas = (1, 2, 3)

    @rule(group=GROUPS, topic=TOPICS, offsets=OFFSETS)
    def commit(self, group: str, topic: str, offsets: list[int]) -> None:
        self.world.commit(self.names[group], *offsets, topic=topic)

    @rule(group=GROUPS, topic=TOPICS, offsets=OFFSETS, producer=PRODUCERS)
    def transact(self, group: str, topic: str, offsets: list[int], producer: int) -> None:
        self.world.transact(self.names[group], *offsets, topic=topic, producer=producer)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        self.world.end(0, commit=commit, producer=producer)

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        before = read_below(self.world.led[0].log.log_end_offset, self.log())
        results: list[Error] = []
        self.world.groups.group_manager.delete_group(self.names[group], results.append)
        if results == [ErrorCode.group_id_not_found]:
            assert self.names[group] not in {key.group for key in before.visible.keys() | before.unstable()}
        after = read_below(self.world.led[0].log.log_end_offset, self.log())
        assert self.names[group] not in {key.group for key in after.visible.keys() | after.unstable()}

    @rule()
    def time_passes(self) -> None:
        """An offset that an open transaction commits again does not expire."""
        before, unstable = len(self.log()), read_below(1 << 40, self.log()).unstable()
        self.world.pass_ms(STEP_MS)
        assert not {event.key for event in self.log()[before:] if isinstance(event, Removal)} & unstable

    @rule()
    def replicate(self) -> None:
        self.world.replicate(0)

    @rule()
    def loads(self) -> None:
        self.load()

    def log(self) -> list[Event]:
        """Read the bytes of Kafka's layouts. The value's version precedes the offset."""
        events: list[Event] = []
        log = self.world.led[0].log
        for header, record in read_all(log.read(0, 1 << 20, log.log_end_offset)):
            end = record.offset + 1
            if header.is_control:
                events.append(Ending(end, header.producer_id, read_control(record).type == ControlType.COMMIT))
                continue
            key = read_key(record.key or b"")
            if isinstance(key, OffsetKey):
                if record.value is None:
                    events.append(Removal(end, key))
                else:
                    producer = header.producer_id if header.is_transactional else None
                    events.append(Commit(end, key, int.from_bytes(record.value[2:10], "big"), producer))
        return events

    @invariant()
    def same(self) -> None:
        self.check(read_below(self.world.led[0].log.high_watermark, self.log()))


TestBesideALedger = pytest.mark.thorough(BesideALedger.TestCase)
TestBesideALedger.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
TestBesideTheLog = pytest.mark.thorough(BesideTheLog.TestCase)
TestBesideTheLog.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
