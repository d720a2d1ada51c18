"""Ledger of sent and read records: ranges of sequences by writer, small enough to keep all of them.

A writer's sequences in a partition ascend by one, so all that it sent without an error is one range, and so is all
that a reader took of it. Ranges are half-open. ``judge`` compares both once the load has ended and all was read.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.load.producer import SEQUENCES

Range = tuple[int, int]


def add(ranges: list[Range], first: int, end: int) -> int:
    """Add a range to disjoint ascending ranges. Return how many of its numbers they already held."""
    at = bisect_right(ranges, (first, first)) - 1
    if at >= 0 and ranges[at][1] >= first:
        low = at
    else:
        low = at + 1
    high, held, start, stop = low, 0, first, end
    while high < len(ranges) and ranges[high][0] <= end:
        held += max(0, min(end, ranges[high][1]) - max(first, ranges[high][0]))
        start, stop = min(start, ranges[high][0]), max(stop, ranges[high][1])
        high += 1
    ranges[low:high] = [(start, stop)]
    return held


def count(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)


def without(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return what of ``ranges`` is not in ``others``. Both are disjoint and ascending."""
    left: list[Range] = []
    at = 0
    for first, end in ranges:
        while at < len(others) and others[at][1] <= first:
            at += 1
        place, here = first, at
        while here < len(others) and others[here][0] < end:
            if others[here][0] > place:
                left.append((place, others[here][0]))
            place = max(place, others[here][1])
            here += 1
        if place < end:
            left.append((place, end))
    return left


def _joined(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    joined = list(ranges)
    for first, end in others:
        add(joined, first, end)
    return joined


def not_superseded(missing: Sequence[Range], ok: Sequence[Range], keys: int) -> list[Range]:
    """Return what of ``missing`` has no later sequence with the same key in ``ok``. Sequences of a key are ``keys``
    apart, and partitions are further apart than their records."""
    spans: dict[int, Range] = {}  # by partition
    for first, end in ok:
        low, _ = spans.setdefault(first // SEQUENCES, (first, end))
        spans[first // SEQUENCES] = low, end
    left = list(missing)
    for distance in range(keys, max(end - first for first, end in spans.values()) + keys, keys):
        if not left:
            break
        later = [(first + distance, end + distance) for first, end in left]
        left = [(first - distance, end - distance) for first, end in without(later, ok)]
    return left


@dataclass(slots=True)
class Sent:
    """The sent records of one producer at its end."""

    ok: list[Range] = field(default_factory=list)
    info: list[Range] = field(default_factory=list)
    fail: list[Range] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # batches by error

    def add(self, kind: str, error: str | None, first: int, end: int) -> None:
        add({"ok": self.ok, "info": self.info}.get(kind, self.fail), first, end)
        if error is not None:
            self.errors[error] += 1


@dataclass(slots=True)
class Read:
    """The records that one reader took."""

    writers: dict[str, list[Range]] = field(default_factory=dict)
    repeated: int = 0  # records whose sequence was read before
    reordered: int = 0  # records that came after one with a higher sequence, for the first time
    damaged: int = 0  # records whose value proves nothing
    _reached: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """by topic, partition and writer: the end of the highest sequences so far"""

    def add(self, topic: str, partition: int, writer: str, first: int, size: int, valid: bool) -> None:
        """Add a span of ``size`` records."""
        if not valid or not writer:
            self.damaged += size
            return
        end, key = first + size, (topic, partition, writer)
        ranges, reached = self.writers.setdefault(writer, []), self._reached.get(key, 0)
        if first < reached:
            self.reordered += count(without([(first, min(end, reached))], ranges))
        self.repeated += add(ranges, first, end)
        self._reached[key] = max(reached, end)


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts of records."""

    acknowledged: int  # summed over subscriptions, each with its own
    read: int
    lost: int  # summed over subscriptions, each with its own
    repeated: int
    reordered: int
    damaged: int
    refused_but_read: int  # records that were read although the producer got an error that means "not written"
    first_lost: str = ""  # one sentence about the first range
    unknown: int = 0  # records whose producer does not know whether they were written, as all with acks=0
    unread: int = 0  # records of unknown outcome that were not read, which is no violation

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.repeated or self.reordered or self.damaged or self.refused_but_read)


def judge(
    sent: Mapping[str, Sent], subscriptions: Sequence[Sequence[Read]], exactly_once: bool, compacted_keys: int = 0
) -> Findings:
    """Compare what was sent with what each subscription's readers took.

    ``compacted_keys`` is how many keys take turns in each partition of compacted topics, and 0 for others. There, a
    record may be missing once a later one with its key was acknowledged, or is perhaps written.

    ``exactly_once`` says that producers are idempotent, so a record read twice is a violation. Otherwise it is not
    counted: a batch without a sequence may be written again.
    """
    read = lost = repeated = reordered = damaged = refused = acknowledged = unknown = unread = 0
    first_lost = ""
    for number, readers in enumerate(subscriptions):
        damaged += sum(reader.damaged for reader in readers)
        reordered += sum(reader.reordered for reader in readers)
        repeated += sum(reader.repeated for reader in readers) if exactly_once else 0
        for writer, own in sent.items():
            taken: list[Range] = []
            for reader in readers:
                for first, end in reader.writers.get(writer, ()):
                    overlap = add(taken, first, end)
                    repeated += overlap if exactly_once else 0
            read += count(taken)
            acknowledged += count(own.ok)
            missing = without(own.ok, taken)
            if compacted_keys and missing:
                missing = not_superseded(missing, _joined(own.ok, own.info), compacted_keys)
            lost += count(missing)
            unknown += count(own.info)
            unread += count(without(own.info, taken))
            refused += count(own.fail) - count(without(own.fail, taken))
            if missing and not first_lost:
                first, end = missing[0]
                first_lost = f"subscription {number} never read the sequences {first} to {end - 1} of {writer}"
    return Findings(acknowledged, read, lost, repeated, reordered, damaged, refused, first_lost, unknown, unread)
