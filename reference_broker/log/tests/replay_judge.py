"""A naive replay of a whole history, and the part of it that P-9 requires.

It is written from the clauses P-1, P-7, P-9 and P-10, and knows no files, snapshots or indexes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Batch(NamedTuple):
    """One batch of a history, at an offset. A marker has no sequence, and its outcome in ``commit``."""

    producer_id: int
    epoch: int
    sequence: int
    first: int
    last: int
    timestamp_ms: int
    is_transactional: bool = False
    commit: bool | None = None
    coordinator_epoch: int = -1


class Known(NamedTuple):
    """The state of a producer. ``sequence`` and ``offset`` are those of its last batch, or -1 if there is none in its
    epoch.
    ``open_from`` is the start of its open transaction, or -1.

    ``own_ms`` is when it last wrote, or when a transaction of its own ended here. A marker may have no transaction,
    since a producer may add a partition to a transaction and write nothing there. Such a marker is no record of the
    producer (P-1). ``coordinator_epoch`` is that of its last marker, or -1, and ``marked_at`` is the marker's offset.
    """

    epoch: int
    sequence: int
    offset: int
    timestamp_ms: int
    open_from: int
    own_ms: int
    coordinator_epoch: int = -1
    marked_at: int = -1


def replayed(history: Sequence[Batch], end_offset: int) -> dict[int, Known]:
    known: dict[int, Known] = {}
    for batch in history:
        if batch.first >= end_offset or batch.producer_id < 0:
            continue
        old = known.get(batch.producer_id, Known(batch.epoch, -1, -1, -1, -1, -1))
        if batch.commit is None:
            open_from = batch.first if batch.is_transactional and old.open_from < 0 else old.open_from
            sequence = batch.sequence + batch.last - batch.first
            new = Known(batch.epoch, sequence, batch.last, batch.timestamp_ms, open_from, batch.timestamp_ms, *old[6:])
        else:
            own_ms = batch.timestamp_ms if old.open_from >= 0 else old.own_ms
            marker = {"coordinator_epoch": batch.coordinator_epoch, "marked_at": batch.first}
            new = old._replace(timestamp_ms=batch.timestamp_ms, open_from=-1, own_ms=own_ms, **marker)
            if batch.epoch > old.epoch:
                new = new._replace(epoch=batch.epoch, sequence=-1, offset=-1)
        known[batch.producer_id] = new
    return known


def kept(known: dict[int, Known], expired_ms: int) -> dict[int, Known]:
    """Return the producers that are unexpired or have an open transaction. ``expired_ms``: a last record at or before
    it is
    too old (P-7)."""
    return {who: one for who, one in known.items() if one.timestamp_ms > expired_ms or one.open_from >= 0}


def first_needed(
    history: Sequence[Batch], bases: Sequence[int], snapshots: Sequence[int], at: int, expired_ms: int
) -> int:
    """Return where P-9 allows the replay for the segment base ``at`` to start. ``snapshots``: offsets of the whole
    ones."""
    young = at
    for base, end in pairwise(bases):
        newest = max((batch.timestamp_ms for batch in history if base <= batch.first < end), default=-1)
        if end <= at and newest > expired_ms:
            young = base
            break
    open_from = [
        each.open_from for end in (young, at) for each in replayed(history, end).values() if each.open_from >= 0
    ]
    begin = min([young, *open_from])
    return max([begin, *(offset for offset in snapshots if begin <= offset <= at)])


def first_looked_at(
    history: Sequence[Batch], bases: Sequence[int], snapshots: Sequence[int], needed: int, at: int, expired_ms: int
) -> int:
    """Return where the search for coordinator epochs from ``needed`` may end.

    That is the segment of the earliest last marker of the producers whose markers are all before, or a snapshot (P-10).
    It is ``needed`` if there is one there, or if each producer has a later marker or none. For a producer whose first
    marker is beyond ``at`` the search reaches the beginning in vain.
    """
    known, later = kept(replayed(history, at), expired_ms), replayed(history, max(bases) + len(history))
    first = needed
    for who, one in known.items():
        if one.marked_at < needed and later[who].marked_at >= 0:
            first = min(first, max(base for base in bases if base <= max(one.marked_at, 0)))
    return max([first, *(offset for offset in snapshots if offset <= needed)])
