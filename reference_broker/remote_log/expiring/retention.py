"""Which remote segments are due to be deleted, by the settings of their topic and by the leader's log (KIP-405)."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment

UNLIMITED: Final = -1
SEGMENTS_PER_SLICE: Final = 100
"""To look at so many takes some 0.5 ms. An event may have the end of one pass and the beginning of the next."""
_NO_END: Final = 1 << 63

FoundT = TypeVar("FoundT")
Sliced: TypeAlias = Generator[None, None, FoundT]
"""Long work that yields after each slice and returns what it found."""


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """What retention asks of the leader's log. ``local_only_bytes``: of the records that are not listed yet.
    -1 in ``retention_ms`` or ``retention_bytes`` means that there is no limit."""

    log_start_offset: int
    lineage: LeaderEpochStarts
    local_only_bytes: int
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class Due:
    """``segments`` are to be deleted, in this order, once the log starts at ``log_start_offset``."""

    segments: tuple[RemoteSegment, ...]
    log_start_offset: int


def due(segments: Sequence[RemoteSegment], log: LeaderLog, now_ms: int) -> Sliced[Due]:
    """Returns what is due of the listed segments, which come by their first offset. In slices.

    A segment goes if it lies wholly before the log's start. Of those that hold records of this log the oldest go while
    they are too old, or while the log without them still has ``retention_bytes``. The first that stays keeps all that
    follow. A segment of leader epochs before those of this log goes, too. One that an unclean election cut off stays
    until then: the log may end before it.
    """
    shares, ends = Shares(log.lineage), list[int | None]()
    spare_bytes = log.local_only_bytes - log.retention_bytes
    for number, each in enumerate(segments, 1):
        end = shares.end(each)
        ends.append(end)
        spare_bytes += 0 if end is None else each.size_bytes
        if number % SEGMENTS_PER_SLICE == 0:
            yield
    start, is_retaining = log.log_start_offset, False
    gone = []
    for number, (each, end) in enumerate(zip(segments, ends, strict=True), 1):
        if number % SEGMENTS_PER_SLICE == 0:
            yield
        if end is None:
            if each.next_offset <= log.log_start_offset or is_before(each, log.lineage):
                gone.append(each)
            continue
        is_unreachable = each.next_offset <= log.log_start_offset
        is_old = log.retention_ms != UNLIMITED and each.max_timestamp_ms <= now_ms - log.retention_ms
        is_too_much = log.retention_bytes != UNLIMITED and spare_bytes >= each.size_bytes
        if is_unreachable or (not is_retaining and (is_old or is_too_much)):
            gone.append(each)
            spare_bytes -= each.size_bytes
            start = max(start, end)
        else:
            is_retaining = True
    return Due(tuple(gone), start)


def is_before(segment: RemoteSegment, lineage: LeaderEpochStarts) -> bool:
    """Says whether all leader epochs of the segment are before the first one of the log."""
    return bool(lineage) and segment.leader_epochs[-1][0] < lineage[0][0]


class Shares:
    """Which offsets of remote segments a log of these leader epochs has, too."""

    def __init__(self, lineage: LeaderEpochStarts) -> None:
        self._ranges = {one[0]: (one[1], other[1]) for one, other in pairwise([*lineage, (-1, _NO_END)])}

    def end(self, segment: RemoteSegment) -> int | None:
        """Returns one past the last offset that both have. None: there is no such offset."""
        return max((end for _, end in self._shared(segment)), default=None)

    def first(self, segments: Sequence[RemoteSegment], offset: int) -> Sliced[int | None]:
        """Returns the first offset from ``offset`` on that one of the segments shares with the log. In slices."""
        first: int | None = None
        for number, each in enumerate(segments, 1):
            for start, end in self._shared(each):
                if end > offset and (first is None or max(start, offset) < first):
                    first = max(start, offset)
            if number % SEGMENTS_PER_SLICE == 0:
                yield
        return first

    def _shared(self, segment: RemoteSegment) -> Iterator[tuple[int, int]]:
        for epoch, start, end in segment.epoch_ranges():
            first, last = self._ranges.get(epoch, (0, 0))
            if max(start, first) < min(end, last):
                yield max(start, first), min(end, last)
