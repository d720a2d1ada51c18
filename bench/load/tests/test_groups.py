"""Readers that are members of consumer groups, on the reference broker."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.load.group_reader import GroupLoadReader
from bench.load.options import LoadOptions
from bench.load.producer import LoadPlan, LoadProducer, Settled
from bench.load.reader import ReadPlan, Taken
from bench.load.run import run
from bench.load.target import LoadTarget, started
from bench.load.topics import topics_for
from bench.load.workload import workload_of
from reference_broker.client.partitions import TopicPartition

pytestmark = pytest.mark.live
WHERE = tuple(TopicPartition("grouped", index) for index in range(6))
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def target() -> Iterator[LoadTarget]:
    with started("reference", lambda _: None) as found:
        yield found


class Member:
    """A reader in a thread, and what it has read of each partition."""

    def __init__(self, target: LoadTarget, name: str, group_id: str) -> None:
        self.offsets: dict[TopicPartition, set[int]] = {partition: set() for partition in WHERE}
        self.repeated = 0
        self.errors: list[str] = []
        self.reader = GroupLoadReader(ReadPlan(name, WHERE, group_id=group_id), target.bootstrap, self._take)
        self._thread = threading.Thread(target=self.reader.run)
        self._thread.start()

    def _take(self, taken: Taken) -> None:
        if taken.error:
            self.errors.append(taken.error)
        for span in taken.spans:
            offsets = set(range(span.first_offset, span.first_offset + span.count))
            self.repeated += len(offsets & self.offsets[taken.where])
            self.offsets[taken.where] |= offsets

    def count(self) -> int:
        return sum(map(len, self.offsets.values()))

    def end(self) -> None:
        self.reader.stop()
        self._thread.join()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.02)


def produce(target: LoadTarget, batches: int) -> int:
    """Write this number of batches and more. Return the number of records."""
    records = 0
    ends = 0

    def settled(each: Settled) -> None:
        nonlocal records, ends
        records, ends = records + each.count, ends + 1
        if ends >= batches:
            producer.stop()

    producer = LoadProducer(LoadPlan(f"p{batches}", WHERE, batch_records=20), target.bootstrap, settled)
    producer.run()
    return records


@pytest.mark.rotated(4, "load")
def test_members_share_partitions_and_continue_at_committed_offsets(target: LoadTarget) -> None:
    with topics_for(target.bootstrap, ["grouped"], len(WHERE), 1):
        members = [Member(target, f"m{number}", "g") for number in range(2)]
        until(
            lambda: all(len(member.reader.assigned) == 3 for member in members),
            "an assignment of three partitions each",
        )
        first = produce(target, 60)
        until(lambda: sum(member.count() for member in members) == first, "reading all records")
        assert not set(members[0].reader.assigned) & set(members[1].reader.assigned)
        assert all(member.reader.lag == 0 for member in members)
        for member in members:
            member.end()
        second = produce(target, 30)
        later = Member(target, "m2", "g")
        until(lambda: later.count() == second, "reading from the committed offsets on")
        assert later.reader.lag == 0
        later.end()
    assert not [error for member in (*members, later) for error in member.errors]
    assert not [member for member in (*members, later) if member.repeated]


@pytest.mark.rotated(4, "load")
def test_partitions_move_to_joining_member(target: LoadTarget) -> None:
    with topics_for(target.bootstrap, ["grouped"], len(WHERE), 1):
        first = Member(target, "m0", "h")
        until(lambda: len(first.reader.assigned) == 6, "an assignment of all partitions")
        assert first.reader.rebalances == 1
        second = Member(target, "m1", "h")
        until(lambda: len(first.reader.assigned) == len(second.reader.assigned) == 3, "a rebalance")
        assert first.reader.rebalances == 2
        records = produce(target, 60)
        until(lambda: first.count() + second.count() == records, "reading all records once")
        for each in (first, second):
            each.end()


@pytest.mark.rotated(4, "load")
def test_workload_with_groups(target: LoadTarget, tmp_path: Path) -> None:
    table = {"partitionsPerTopic": 6, "producerRate": 2_000, "messageSize": 200, "consumerPerSubscription": 5}
    workload = workload_of({**table, "crucible": {"groups": True}}, "w", "w")
    result = run(workload, target, LoadOptions(seconds=3, warmup_s=1), tmp_path, lambda _: None)
    assert result.findings.is_clean
    assert result.findings.acknowledged == result.findings.read > 2_000
    assert result.rebalances == 0
    assert not result.errors
