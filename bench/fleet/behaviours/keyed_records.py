"""Makes the records of a writer: unique values and tombstones, under keys that take turns in each partition."""

from collections.abc import Sequence
from zlib import crc32

from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.values import PROOF, ValueMaker
from reference_broker.records.record import Record
from reports.rows import KeyedWriteRow

NOT_COMPACTED = -1


def partition_keys(partitions: Sequence[TopicPartition], keys: int) -> dict[TopicPartition, tuple[bytes, ...]]:
    """Returns ``keys`` keys for each partition. The CRC-32 of a key leads to its partition, so a key never changes its
    partition."""
    found: dict[TopicPartition, list[bytes]] = {where: [] for where in partitions}
    counts: dict[str, int] = {}
    for where in partitions:
        counts[where.topic] = max(counts.get(where.topic, 0), where.partition + 1)
    for topic, count in counts.items():
        for number in range(count * keys * 8):
            key = b"k%06d" % number
            bucket = found.get(TopicPartition(topic, crc32(key) % count))
            if bucket is not None and len(bucket) < keys:
                bucket.append(key)
    return {where: tuple(each) or (b"k",) for where, each in found.items()}


class KeyedRecords:
    """A record of a writer has the number ``sequence``, and the number says all of it: its key, and whether it is a
    tombstone. So a batch that is encoded again holds the same records.

    Of all records ``delete_percent`` are tombstones. ``delete_retention_us`` is the topic's ``delete.retention.ms``, or
    NOT_COMPACTED.
    """

    def __init__(
        self,
        values: ValueMaker,
        partitions: Sequence[TopicPartition],
        keys: int,
        delete_percent: int,
        delete_retention_us: int,
    ) -> None:
        self.values = values
        self._keys = partition_keys(partitions, keys)
        self._delete_percent = delete_percent
        self._delete_retention_us = delete_retention_us

    def make(self, where: TopicPartition, first: int, count: int, wall_ms: int) -> list[Record]:
        """Returns the records with the numbers ``first`` to ``first + count - 1``."""
        return [self._record(where, sequence, wall_ms) for sequence in range(first, first + count)]

    def rows(self, process: str, index: int, where: TopicPartition, first: int, count: int) -> list[KeyedWriteRow]:
        """Returns what the history says of these records if their topic is compacted."""
        if self._delete_retention_us == NOT_COMPACTED:
            return []
        return [
            KeyedWriteRow(
                process,
                index,
                *where,
                sequence,
                self._key(where, sequence).decode(),
                self._is_tombstone(sequence),
                self._delete_retention_us,
            )
            for sequence in range(first, first + count)
        ]

    def _record(self, where: TopicPartition, sequence: int, wall_ms: int) -> Record:
        key, value = self._key(where, sequence), self.values.make(sequence)
        if self._is_tombstone(sequence):
            return Record(timestamp_ms=wall_ms, key=key, headers=((PROOF, value),))
        return Record(timestamp_ms=wall_ms, key=key, value=value)

    def _key(self, where: TopicPartition, sequence: int) -> bytes:
        keys = self._keys[where]
        return keys[sequence % len(keys)]

    def _is_tombstone(self, sequence: int) -> bool:
        return self._delete_percent > 0 and crc32(self.values.make(sequence)) % 100 < self._delete_percent
