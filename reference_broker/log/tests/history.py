"""A naive replay of all batches that a log ever had: producers, transactions, and the records of read_committed
consumers.

It is written from the clauses P-1 and X-4, X-5, and knows no files, snapshots or indexes.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One batch of a history. ``commit`` is None in a data batch, and the outcome in a marker."""

    first: int
    last: int
    producer_id: int
    epoch: int
    sequence: int = -1
    transactional: bool = False
    commit: bool | None = None


class Past(NamedTuple):
    """The result of the whole history. ``producers``: (epoch, last sequence or -1, first offset of the open transaction
    or
    -1). ``ended``: (first offset, marker's offset, was it aborted, producer ID). ``batches``: those of each producer's
    epoch, as (first sequence, first offset, last offset)."""

    producers: dict[int, tuple[int, int, int]]
    ended: list[tuple[int, int, bool, int]]
    batches: dict[int, list[tuple[int, int, int]]]

    def last_stable_offset(self, high_watermark: int) -> int:
        held = [first for _, _, first in self.producers.values() if first >= 0]
        held += [first for first, marker, _, _ in self.ended if marker >= high_watermark]
        return min([high_watermark, *held])

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return whether the batch of a transaction at this offset was aborted."""
        return any(
            aborted and who == producer_id and first <= offset < marker for first, marker, aborted, who in self.ended
        )


def replayed_naively(history: Sequence[Step]) -> Past:
    producers: dict[int, tuple[int, int, int]] = {}
    ended: list[tuple[int, int, bool, int]] = []
    batches: dict[int, list[tuple[int, int, int]]] = {}
    for step in history:
        if step.producer_id < 0:
            continue
        epoch, last, open_from = producers.get(step.producer_id, (step.epoch, -1, -1))
        if step.epoch > epoch:
            epoch, last = step.epoch, -1
            batches[step.producer_id] = []
        if step.commit is not None:
            if open_from >= 0:
                ended.append((open_from, step.first, not step.commit, step.producer_id))
            producers[step.producer_id] = (epoch, last, -1)
            continue
        if step.transactional and open_from < 0:
            open_from = step.first
        last = step.sequence + step.last - step.first
        producers[step.producer_id] = (epoch, last, open_from)
        batches.setdefault(step.producer_id, []).append((step.sequence, step.first, step.last))
    return Past(producers, ended, batches)
