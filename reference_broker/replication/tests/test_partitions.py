"""The registry of led partitions: look-ups, watchers, and removal at a constant cost."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.partitions import Partition, Partitions

ID = bytes(15) + b"\x07"


class Watching:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, bool]] = []

    def partition_changed(self, partition: Partition) -> None:
        self.seen.append((partition.topic, partition.index, partition.is_removed))


def partition(index: int = 0, topic: str = "t", topic_id: bytes = ID) -> Partition:
    return Partition(topic, topic_id, index, 0, cast("UnifiedLog", SimpleNamespace()))


def test_topic_name_is_removed_with_its_last_partition() -> None:
    partitions = Partitions()
    first, second = partition(0), partition(1)
    partitions.add(first)
    partitions.add(second)
    partitions.remove(first)
    assert (partitions.topic_ids, partitions.topic_names) == ({"t": ID}, {ID: "t"})
    partitions.remove(second)
    assert not any((partitions.by_name, partitions.by_id, partitions.topic_ids, partitions.topic_names))


def test_removing_old_topic_keeps_new_one_of_same_name() -> None:
    partitions, new_id = Partitions(), bytes(15) + b"\x08"
    old, new = partition(), partition(topic_id=new_id)
    partitions.add(old)
    partitions.add(new)
    partitions.remove(old)
    assert partitions.by_name["t", 0] is new
    assert (partitions.topic_ids, partitions.topic_names) == ({"t": new_id}, {new_id: "t"})


def test_watchers_are_notified_once_of_deletion() -> None:
    partitions, watcher = Partitions(), Watching()
    partitions.arrivals[watcher] = None
    one = partition()
    partitions.add(one)
    one.changed()
    one.watch(watcher)
    one.changed()
    one.changed()
    one.watch(watcher)
    partitions.remove(one)
    assert watcher.seen == [("t", 0, False), ("t", 0, False), ("t", 0, True)]


def test_removal_does_not_iterate_other_partitions() -> None:
    partitions = Partitions()
    many = [partition(index) for index in range(1000)]
    for one in many:
        partitions.add(one)

    class Counting(dict[Any, Any]):
        walks = 0

        def __iter__(self) -> Iterator[Any]:
            Counting.walks += 1
            return super().__iter__()

    partitions.by_name = Counting(partitions.by_name)
    for one in many:
        partitions.remove(one)
    assert (Counting.walks, len(partitions.by_name)) == (0, 0)
