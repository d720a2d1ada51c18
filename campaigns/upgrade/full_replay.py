"""A full replay of a partition's files: the state of its producers, and how a snapshot differs from it.

Written from the clauses P-1, P-7, P-9 and P-10, over ``kafka_files``. It shares no code with the broker.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from campaigns.upgrade.kafka_files import FileBatch, ProducerRow, batches, file_name, offsets_of

SEQUENCES = 2**31
"""Sequences wrap to 0 after the largest int."""


class Known(NamedTuple):
    """A producer's row, and when it last wrote by itself. A marker that ended no transaction here is no record of the
    producer (P-1): a producer may add a partition to its transaction and write nothing there."""

    row: ProducerRow
    own_ms: int


@dataclass(frozen=True, slots=True)
class ReplayedSegment:
    """One segment after a replay up to its end."""

    base_offset: int
    next_offset: int
    """Base offset of the next segment."""
    size_bytes: int
    max_timestamp_ms: int
    known: Mapping[int, Known]
    """The producers at its end, by ID."""

    @property
    def open_from(self) -> int:
        return min((known.row.open_from for known in self.known.values() if known.row.open_from >= 0), default=-1)


class Differences(NamedTuple):
    """Number of producers that a snapshot lacks, has with other values than the replay, or has although the replay does
    not know them."""

    missing: int
    wrong: int
    unknown: int

    @property
    def is_equal(self) -> bool:
        return not any(self)


def replayed(folder: Path) -> list[ReplayedSegment]:
    """Replay all segments of a partition from the first batch on. Raise UnknownFormat."""
    known: dict[int, Known] = {}
    replay = []
    bases = offsets_of(folder, ".log")
    for base, following in zip(bases, [*bases[1:], -1], strict=True):
        path, newest, end = folder / file_name(base, ".log"), -1, base
        for batch in batches(path):
            newest, end = max(newest, batch.max_timestamp_ms), batch.last_offset + 1
            if batch.producer_id >= 0:
                known[batch.producer_id] = after(known.get(batch.producer_id), batch)
        next_offset = end if following < 0 else following
        replay.append(ReplayedSegment(base, next_offset, path.stat().st_size, newest, dict(known)))
    return replay


def after(known: Known | None, batch: FileBatch) -> Known:
    """Return the state of a producer after a batch of it, or after a marker for it (P-1)."""
    who, epoch, newest = batch.producer_id, batch.producer_epoch, batch.max_timestamp_ms
    old, own_ms = known or Known(ProducerRow(who, epoch, -1, -1, 0, -1, -1, -1), -1)
    if batch.is_end:
        own_ms = newest if old.open_from >= 0 else own_ms
        coordinator = max(old.coordinator_epoch, batch.coordinator_epoch)
        row = old._replace(timestamp_ms=newest, coordinator_epoch=coordinator, open_from=-1)
        if epoch > old.epoch:
            row = row._replace(epoch=epoch, last_sequence=-1, last_offset=-1, offset_delta=0)
        return Known(row, own_ms)
    delta = batch.last_offset - batch.base_offset
    begins = batch.is_transactional and old.open_from < 0
    row = old._replace(
        epoch=epoch,
        last_sequence=(batch.base_sequence + delta) % SEQUENCES,
        last_offset=batch.last_offset,
        offset_delta=delta,
        timestamp_ms=newest,
        open_from=batch.base_offset if begins else old.open_from,
    )
    return Known(row, newest)


def differences(
    snapshot: Mapping[int, ProducerRow], known: Mapping[int, Known], now_ms: int, expiration_ms: int
) -> Differences:
    """Compare a snapshot that was made at ``now_ms`` with the replay up to its offset (P-10).

    It must have each producer that is unexpired or has an open transaction (P-7), with all that P-1 names. It may have
    others, if the replay knows them: one that was written when its segment ended has those of that time.
    """
    expired_ms = now_ms - expiration_ms
    needed = {who for who, one in known.items() if one.row.timestamp_ms > expired_ms or one.row.open_from >= 0}
    wrong = [who for who in needed & snapshot.keys() if not _same(snapshot[who], known[who], expired_ms)]
    return Differences(len(needed - snapshot.keys()), len(wrong), len(snapshot.keys() - known.keys()))


def _same(found: ProducerRow, one: Known, expired_ms: int) -> bool:
    """Return whether a producer's row is what the replay found. If its own last record is expired, only the marker
    after that counts (P-7, P-9: what is older need not be read)."""
    wanted = one.row
    if found.coordinator_epoch != wanted.coordinator_epoch:
        return False
    if (found.epoch, found.timestamp_ms, found.open_from) != (wanted.epoch, wanted.timestamp_ms, wanted.open_from):
        return False
    batch = (wanted.last_sequence, wanted.last_offset, wanted.offset_delta)
    is_old = one.own_ms <= expired_ms and wanted.open_from < 0
    return is_old or (found.last_sequence, found.last_offset, found.offset_delta) == batch


def first_needed(
    replay: Sequence[ReplayedSegment], snapshots: Iterable[int], offset: int, now_ms: int, expiration_ms: int
) -> int:
    """Return where the replay for a snapshot at ``offset`` may begin. Nothing before that is to be read (P-9).
    ``snapshots`` are the offsets of the whole ones that are there."""
    before = [segment for segment in replay if segment.next_offset <= offset]
    young = next((at for at, each in enumerate(before) if each.max_timestamp_ms > now_ms - expiration_ms), len(before))
    begin = before[young].base_offset if young < len(before) else offset
    for at in {young, len(before)}:
        open_from = before[at - 1].open_from if at else -1
        begin = begin if open_from < 0 else min(begin, open_from)
    return max([begin, *(snapshot for snapshot in snapshots if begin <= snapshot <= offset)])


def stable_end(replay: Sequence[ReplayedSegment]) -> int:
    """Up to where nothing is undecided: the first record of the earliest open transaction, or the end (KIP-98)."""
    if not replay:
        return 0
    return replay[-1].next_offset if replay[-1].open_from < 0 else replay[-1].open_from
