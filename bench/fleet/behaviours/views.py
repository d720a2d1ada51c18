"""What a reader of a whole compacted topic holds: the newest record of each key that it has read (Kafka Streams calls
it a table, others a materialized view)."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.behaviours.sinks import Nowhere
from bench.fleet.values import read_record
from reference_broker.client.consumer_partitions import ConsumerRecord
from reports.rows import ViewRow


class Held(NamedTuple):
    offset: int
    writer: str
    sequence: int


class View(Nowhere):
    """A sink that keeps the newest record of each key. A tombstone removes its key."""

    def __init__(self, process: str, isolation: int) -> None:
        self._process = process
        self._isolation = isolation
        self._held: dict[TopicPartition, dict[bytes, Held]] = {}

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        for each in records:
            held = self._held.setdefault(TopicPartition(each.topic, each.partition), {})
            if each.key is None:
                continue
            if each.value is None:
                held.pop(each.key, None)
            else:
                read = read_record(each.value, each.headers)
                held[each.key] = Held(each.offset, read.writer, read.sequence)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self._held.pop(where, None)

    def rows(self, where: TopicPartition, position: int, from_us: int, at_us: int) -> list[ViewRow]:
        """Returns what it holds of a partition that was read up to ``position``."""
        head = (self._process, *where, self._isolation, from_us, at_us, position)
        held = self._held.get(where, {})
        return [
            ViewRow(*head, "", -1, "", -1),
            *(ViewRow(*head, key.decode(errors="replace"), *each) for key, each in held.items()),
        ]
