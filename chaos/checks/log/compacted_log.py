"""What replicas of a compacted partition may lack: its committed records, without those that a cleaner may have
removed.

Each replica is cleaned separately, and one that fetches late copies batches that its leader has cleaned already. So
replicas have different batches, but all have the newest committed record of each key (X-11).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checks.log.batches import BatchIdentity, PlainRecord, batches_of, last_sequence_of, producing_of, records_in

ABORT, COMMIT = 0, 1
"""Types of markers, as their keys have them: version and type, each an int16 (KIP-98)."""


class CommittedRecord(NamedTuple):
    """One record below the high watermark."""

    epoch: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    at_us: int
    """when it was first seen there"""

    def equals(self, other: "CommittedRecord") -> bool:
        return self[:-1] == other[:-1]


class Marker(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    is_commit: bool
    batches: tuple[int, ...]
    """base offsets of the transaction's batches"""
    at_us: int
    """when it was first seen below the high watermark"""


class LastBatch(NamedTuple):
    """The batch that must stay so that a producer's epoch and last sequence stay known (P-1, Kafka's
    ``lastRecordsOfActiveProducers``): the last one with records or, if the newest epoch has none, the marker that began
    the epoch."""

    producer_epoch: int
    last_offset: int


def records_of(batch: bytes, at_us: int) -> Iterator[tuple[int, CommittedRecord]]:
    """Yield the records of a batch with their offsets. A control batch has none."""
    for header, data in batches_of(batch):
        for each in () if header.control else records_in(data):
            yield each.offset, CommittedRecord(header.epoch, each.key, each.value, each.timestamp_ms, at_us)


def marker_in(batch: bytes) -> PlainRecord | None:
    """Return the record of a control batch, or None if a cleaner has emptied the batch."""
    return next(records_in(batch), None)


def _kind_of(marker: PlainRecord | None) -> int:
    return -1 if marker is None or marker.key is None else int.from_bytes(marker.key[2:4], "big")


@dataclass(slots=True)
class OpenTransaction:
    """A transaction without a marker yet."""

    batches: list[int] = field(default_factory=list)
    """base offsets of its batches"""
    offsets: list[int] = field(default_factory=list)
    """offsets of its records"""


@dataclass(slots=True)
class Compacted:
    """One compacted partition."""

    delete_retention_us: int
    records: dict[int, CommittedRecord] = field(default_factory=dict)
    """by offset, ascending"""
    markers: dict[int, Marker] = field(default_factory=dict)
    """by offset, ascending"""
    aborted: dict[int, int] = field(default_factory=dict)
    """offset of its marker for each record of a transaction that was aborted"""
    last_batches: dict[int, LastBatch] = field(default_factory=dict)
    """the batch by which each producer is known"""
    cleanable_end: int = 0
    """no replica had anything to clean at or above it: a replica cleans only below its active segment and its last
    stable offset"""
    cleanings: int = 0
    """number of passes over a replica that were seen to end"""
    _offsets: list[int] = field(default_factory=list)
    _marker_offsets: list[int] = field(default_factory=list)
    _by_key: dict[bytes, list[int]] = field(default_factory=dict)
    """the offsets of records outside transactions and in committed ones"""
    _open: dict[int, OpenTransaction] = field(default_factory=dict)
    """by producer ID"""
    _seen: dict[int, CommittedRecord] = field(default_factory=dict)
    """by offset: the records from before ``restart``"""
    _seen_markers: dict[int, Marker] = field(default_factory=dict)

    def commit(self, batch: bytes, at_us: int) -> None:
        """Note batches that are below the high watermark from now on."""
        for header, data in batches_of(batch):
            if header.control:
                self._end(header, data, at_us)
            else:
                self._note(header, data, at_us)

    def _note(self, header: BatchIdentity, data: bytes, at_us: int) -> None:
        producing = producing_of(data)
        opened = self._open.setdefault(producing.producer_id, OpenTransaction()) if producing.is_transactional else None
        if opened is not None:
            opened.batches.append(header.base_offset)
        if producing.producer_id >= 0:
            self.last_batches[producing.producer_id] = LastBatch(last_sequence_of(data)[1], header.last_offset)
        for offset, record in records_of(data, at_us):
            # E-7: a record that survived a loss was committed before it. Cleaners measure its age from that time.
            seen = self._seen.get(offset)
            self.records[offset] = seen if seen is not None and seen.equals(record) else record
            self._offsets.append(offset)
            if opened is not None:
                opened.offsets.append(offset)
            else:
                self._takes_effect(offset)

    def _end(self, header: BatchIdentity, data: bytes, at_us: int) -> None:
        kind = _kind_of(marker_in(data))
        if kind not in (ABORT, COMMIT):
            return
        producer_id, epoch, _ = last_sequence_of(data)
        known = self.last_batches.get(producer_id)
        if known is None or epoch > known.producer_epoch:
            self.last_batches[producer_id] = LastBatch(epoch, header.last_offset)
        ended = self._open.pop(producer_id, OpenTransaction())
        marker = Marker(producer_id, kind == COMMIT, tuple(ended.batches), at_us)
        seen = self._seen_markers.get(header.base_offset)
        self.markers[header.base_offset] = seen if seen is not None and seen[:-1] == marker[:-1] else marker
        self._marker_offsets.append(header.base_offset)
        for offset in ended.offsets:
            if kind == COMMIT:
                self._takes_effect(offset)
            else:
                self.aborted[offset] = header.base_offset

    def _takes_effect(self, offset: int) -> None:
        key = self.records[offset].key
        if key is not None:
            insort(self._by_key.setdefault(key, []), offset)

    def restart(self) -> None:
        """Forget what is committed. The leader that takes over after a loss shows what is left of it."""
        self._seen.update(self.records)
        self._seen_markers.update(self.markers)
        for each in (self.records, self.markers, self.aborted, self.last_batches, self._by_key, self._open):
            each.clear()
        self._offsets.clear()
        self._marker_offsets.clear()

    def is_marker(self, offset: int, data: bytes, marker: PlainRecord | None) -> bool:
        """Return whether this marker was committed at this offset."""
        known = self.markers.get(offset)
        kind = _kind_of(marker)
        return known is not None and (known.producer_id, known.is_commit) == (
            producing_of(data).producer_id,
            kind == COMMIT,
        )

    def stable_end(self, committed_end: int) -> int:
        """Return the last stable offset of a node that knows all committed records (X-4)."""
        return min(
            (transaction.batches[0] for transaction in self._open.values() if transaction.batches),
            default=committed_end,
        )

    def between(self, begin: int, end: int) -> Sequence[int]:
        """Return the offsets of records in [begin, end)."""
        return self._offsets[bisect_left(self._offsets, begin) : bisect_left(self._offsets, end)]

    def markers_between(self, begin: int, end: int) -> Sequence[int]:
        """Return the offsets of markers in [begin, end)."""
        offsets = self._marker_offsets
        return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]

    def counts(self, offset: int) -> bool:
        """Return whether the record took effect: it belongs to no transaction, or to one that was committed."""
        key = self.records[offset].key
        offsets = self._by_key.get(key, []) if key is not None else []
        at = bisect_left(offsets, offset)
        return at < len(offsets) and offsets[at] == offset

    def next_of_key(self, offset: int) -> int | None:
        """Return the offset of the next record with the same key that took effect."""
        key = self.records[offset].key
        if key is None:
            return None
        offsets = self._by_key.get(key, [])
        at = bisect_right(offsets, offset)
        return offsets[at] if at < len(offsets) else None

    def last_of_key(self, offset: int) -> int:
        """Return the offset of the last record with the same key that took effect, or -1."""
        key = self.records[offset].key
        offsets = self._by_key.get(key, []) if key is not None else []
        return offsets[-1] if offsets else -1

    def may_lack(self, offset: int, at_us: int) -> bool:
        """Return whether a replica may lack this record, because its cleaner or that of its leader removed it
        (X-11)."""
        if offset >= self.cleanable_end:
            return False
        newer = self.next_of_key(offset)
        if offset in self.aborted or (newer is not None and newer < self.cleanable_end):
            return True
        record = self.records[offset]
        is_old = at_us - record.at_us >= self.delete_retention_us  # Kafka: delete.retention.ms.
        return record.value is None and is_old

    def may_lack_marker(self, offset: int, at_us: int) -> bool:
        """Return whether a cleaner may have removed this marker, if no batch of its transaction remains. KIP-534: it
        stays for delete.retention.ms after the pass that has found none."""
        return offset < self.cleanable_end and at_us - self.markers[offset].at_us >= self.delete_retention_us


@dataclass(slots=True)
class Remains:
    """The records of a replica in [``begin``, ``end``)."""

    begin: int
    end: int
    cleaned_offset: int
    """its own cleaner has worked below it"""
    records: dict[int, None] = field(default_factory=dict)
    """offsets of records"""
    markers: dict[int, None] = field(default_factory=dict)
    """offsets of markers"""
    batches: dict[int, int] = field(default_factory=dict)
    """last offset by base offset"""


def wrongly_cleaned(at_us: int, compacted: Compacted, remains: Remains) -> str:
    """Return which record or marker the replica lacks or has wrongly; empty if none."""
    return (
        _records(at_us, compacted, remains) or _markers(at_us, compacted, remains) or _last_batches(compacted, remains)
    )


def _records(at_us: int, compacted: Compacted, remains: Remains) -> str:
    kept: dict[bytes, int] = {}
    for offset in compacted.between(remains.begin, remains.end):
        if offset not in remains.records:
            if not compacted.may_lack(offset, at_us):
                return f"lacks the record at offset {offset}, {_why_it_stays(compacted, offset)}"
        elif offset < remains.cleaned_offset:
            if offset in compacted.aborted:
                return f"is cleaned up to {remains.cleaned_offset}, and has offset {offset}, which was aborted"
            key = compacted.records[offset].key
            older = offset if key is None or not compacted.counts(offset) else kept.setdefault(key, offset)
            if older != offset:
                return f"is cleaned up to {remains.cleaned_offset}, and has offset {older}, which {offset} supersedes"
    return ""


def _why_it_stays(compacted: Compacted, offset: int) -> str:
    newer, end = compacted.next_of_key(offset), compacted.cleanable_end
    if newer is not None:
        return f"which only that at {newer} supersedes; cleaners may work below {end}"
    return f"which is the newest of its key; cleaners may work below {end}"


def _markers(at_us: int, compacted: Compacted, remains: Remains) -> str:
    for offset in compacted.markers_between(remains.begin, remains.end):
        if offset in remains.markers:
            continue
        if not compacted.may_lack_marker(offset, at_us):
            return f"lacks the marker at offset {offset}, which stays for delete.retention.ms"
        # Kafka: a marker stays while a batch of its transaction remains, even an empty one.
        batch = next((each for each in compacted.markers[offset].batches if each in remains.batches), None)
        if batch is not None:
            return f"lacks the marker at offset {offset}, although the batch at {batch} of its transaction is left"
    return ""


def _last_batches(compacted: Compacted, remains: Remains) -> str:
    """P-1: the last batch of each producer stays, without records if necessary."""
    last = dict.fromkeys(remains.batches.values())
    for producer_id, (_, offset) in compacted.last_batches.items():
        if remains.begin <= offset < remains.end and offset not in last:
            return f"lacks the batch that ends at offset {offset}, the last one of producer {producer_id}"
    return ""
