"""The load of a generated history: producers that append, and fetchers that read it all, in pieces of bounded size.

Its shape is that of the scenario plain-load: an operation sends or reads runs of about ten records, and a response has
one partition or two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

PARTITIONS = 16
PRODUCERS = 4
FETCHERS = 4
PIECE = 40_000
"""Appends that are in memory at a time."""
BETWEEN_APPENDS_US = 5_000
LOAD_STARTS_US = 2_000_000
_FETCH_SIZES = (1, 1, 1, 2)
"""Appends that one fetch brings, each as often as it is listed here."""
_EACH_FETCH = sum(_FETCH_SIZES) / len(_FETCH_SIZES)
PER_APPEND = 1 + FETCHERS / _EACH_FETCH
"""Operations for each append, without those at the end."""


@dataclass(slots=True)
class Piece:
    """Some appends in the order of the log, one array element for each."""

    number: int
    writer: Numbers
    partition: Numbers
    offset: Numbers
    count: Numbers
    sequence: Numbers
    index: Numbers
    at_us: Numbers
    sent_us: Numbers
    received_us: Numbers
    acked: "np.ndarray[Any, np.dtype[np.bool_]]"
    """False for what a broker appended although nobody sent it (again)."""
    next_offset: Numbers
    """Of each partition, after the piece."""


@dataclass(frozen=True, slots=True)
class Again:
    """An append that the broker makes twice."""

    piece: int
    append: int
    """Its number in the piece. It repeats the writer's last one there."""


def pieces(appends: int, seed: int, again: Sequence[Again] = ()) -> Iterator[Piece]:
    """Yield the same pieces each time it is called with the same arguments."""
    next_offset = np.zeros(PARTITIONS, np.int64)
    next_sequence = np.zeros(PRODUCERS, np.int64)
    next_index = np.full(PRODUCERS, FIRST_INDEX, np.int64)
    for number, first in enumerate(range(0, appends, PIECE)):
        n = min(PIECE, appends - first)
        random = np.random.default_rng([seed, number])
        turn, writer = np.divmod(np.arange(first, first + n), PRODUCERS)
        partition = (turn + writer * (PARTITIONS // PRODUCERS)) % PARTITIONS
        count = random.integers(5, 16, n)
        acked = np.ones(n, np.bool_)
        repeats = {
            repeat.append: _last_of(writer, partition, repeat.append) for repeat in again if repeat.piece == number
        }
        for place, repeated in repeats.items():
            acked[place], writer[place], count[place] = False, writer[repeated], count[repeated]
        sequence = _running(np.where(acked, count, 0), writer, next_sequence)
        for place, repeated in repeats.items():
            sequence[place] = sequence[repeated]
        offset = _running(count, partition, next_offset)
        at_us = LOAD_STARTS_US + (first + np.arange(n)) * BETWEEN_APPENDS_US
        received_us = at_us + random.integers(150, 2_000, n)
        sent_us = at_us - random.integers(100, 300, n)
        index = _running(acked.astype(np.int64), writer, next_index)
        yield Piece(
            number,
            writer,
            partition,
            offset,
            count,
            sequence,
            index,
            at_us,
            sent_us,
            received_us,
            acked,
            next_offset.copy(),
        )


FIRST_INDEX = 3
"""Before it a client has connected, and requested metadata, and a producer ID or offsets."""


def _last_of(writer: Numbers, partition: Numbers, place: int) -> int:
    """Return the place of the last append before this one by the same writer to the same partition."""
    same = (writer[:place] == writer[place]) & (partition[:place] == partition[place])
    return int(np.flatnonzero(same)[-1])


def _running(steps: Numbers, keys: Numbers, state: Numbers) -> Numbers:
    """Return for each element the sum of the steps before it with the same key, on top of ``state``, which moves on to
    the sums of all."""
    before = np.empty(len(steps), np.int64)
    for key in range(len(state)):
        mine = np.flatnonzero(keys == key)
        sums = np.cumsum(steps[mine])
        before[mine] = state[key] + sums - steps[mine]
        state[key] += int(sums[-1]) if len(mine) else 0
    return before


@dataclass(slots=True)
class Fetches:
    """The reads of one fetcher in a piece."""

    events: Numbers
    """Places in the piece, in the order in which the fetcher read them."""
    begins: "np.ndarray[Any, np.dtype[np.bool_]]"
    """True where a fetch begins."""
    at_us: Numbers
    """When the fetcher had it."""


def fetches(piece: Piece, fetcher: int, seed: int) -> Fetches:
    random = np.random.default_rng([seed, piece.number, fetcher])
    n = len(piece.writer)
    sizes = random.choice(_FETCH_SIZES, n)
    begins = np.zeros(n, np.bool_)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    begins[starts[starts < n]] = True
    return Fetches(np.arange(n), begins, piece.at_us + 600 + random.integers(0, 2_000, n))
