"""Knows which records were committed in a compacted partition, and which of them a replica may lack.

Each replica is cleaned by itself, and one that fetches late copies what its leader has cleaned already. So replicas
hold different batches, but all hold the newest record of each key.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checks.batches import batches_of
from chaos.checks.records import records_in


class CommittedRecord(NamedTuple):
    """One record. ``at_us`` is when its commit was first seen."""

    epoch: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    at_us: int

    def equals(self, other: "CommittedRecord") -> bool:
        return self[:-1] == other[:-1]


def records_of(batch: bytes, at_us: int) -> Iterator[tuple[int, CommittedRecord]]:
    """Yields the records of a batch with their offsets. A control batch has none."""
    for header, data in batches_of(batch):
        for each in () if header.control else records_in(data):
            yield each.offset, CommittedRecord(header.epoch, each.key, each.value, each.timestamp_ms, at_us)


@dataclass(slots=True)
class Compacted:
    """One compacted partition.

    ``records`` are by offset, ascending. No replica had anything to clean at or above ``cleanable_end``: a replica
    cleans only below its active segment and its high watermark. ``cleanings`` counts how often a pass over a replica
    was seen to end.
    """

    delete_retention_us: int
    records: dict[int, CommittedRecord] = field(default_factory=dict)
    cleanable_end: int = 0
    cleanings: int = 0
    _offsets: list[int] = field(default_factory=list)
    _by_key: dict[bytes, list[int]] = field(default_factory=dict)

    def commit(self, batch: bytes, at_us: int) -> None:
        for offset, record in records_of(batch, at_us):
            self.records[offset] = record
            self._offsets.append(offset)
            if record.key is not None:
                self._by_key.setdefault(record.key, []).append(offset)

    def begin_anew(self) -> None:
        self.records.clear()
        self._offsets.clear()
        self._by_key.clear()

    def between(self, begin: int, end: int) -> Sequence[int]:
        """Returns the offsets of committed records in [begin, end)."""
        return self._offsets[bisect_left(self._offsets, begin) : bisect_left(self._offsets, end)]

    def next_of_key(self, offset: int) -> int | None:
        """Returns the offset of the next record with the same key."""
        key = self.records[offset].key
        if key is None:
            return None
        offsets = self._by_key[key]
        at = bisect_right(offsets, offset)
        return offsets[at] if at < len(offsets) else None

    def may_lack(self, offset: int, at_us: int) -> bool:
        """Returns whether a replica may lack this record, because its cleaner or that of its leader took it."""
        newer = self.next_of_key(offset)
        if newer is not None and newer < self.cleanable_end:
            return True
        record = self.records[offset]
        is_old = at_us - record.at_us >= self.delete_retention_us
        return record.value is None and is_old and offset < self.cleanable_end
