"""Violations that are planted in a generated history, each at a random place, one for each guarantee."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from reports.scale.load import FETCHERS, PIECE, Again, Fetches, Numbers, Piece

_CLEAR = 400
"""The least distance between two violations, and from the ends of a piece."""
MIN_APPENDS = 20_000
"""The least number of appends in which all violations have room."""


@dataclass(frozen=True, slots=True)
class Place:
    """An append and the fetcher that the fault hits there."""

    piece: int
    append: int
    fetcher: int


@dataclass(frozen=True, slots=True)
class Planted:
    """The places, by the guarantee that is violated there. Without places nothing is planted."""

    places: Mapping[str, Place]

    def again(self) -> list[Again]:
        return [Again(place.piece, place.append) for name, place in self.places.items() if name == "duplicate"]

    def of(self, name: str, piece: int, fetcher: int | None = None) -> int | None:
        """Return the append at which the guarantee is broken, if that is in this piece and for this fetcher."""
        place = self.places.get(name)
        if place is None or place.piece != piece or fetcher not in (None, place.fetcher):
            return None
        return place.append

    def nobody_reads(self, piece: int) -> list[int]:
        lost = self.of("lost-write", piece)
        return [] if lost is None else [lost]

    def change(self, read: Fetches, piece: Piece, fetcher: int) -> Fetches:
        """Return what the fetcher has read in truth, where violations omit or repeat something."""
        for name, violation in _READS.items():
            place = self.of(name, piece.number, fetcher)
            if place is not None:
                read = violation(read, piece.partition, place)
        for lost in self.nobody_reads(piece.number):
            read = _left_out(read, piece.partition, lost)
        return read


NOTHING = Planted({})
BROKEN = (
    "inconsistent-offsets",
    "duplicate",
    "lost-write",
    "corrupt-value",
    "poll-skip",
    "nonmonotonic-poll",
    "unrequested-partition",
    "fetch-gap",
)
"""Violations that can be planted. A record that is lost is unseen, too."""


def planted(appends: int, seed: int) -> Planted:
    """One violation of each. There must be MIN_APPENDS."""
    random = Random(seed)
    grid = [
        (piece, place)
        for piece, first in enumerate(range(0, appends, PIECE))
        for place in range(_CLEAR, min(PIECE, appends - first) - _CLEAR, _CLEAR)
    ]
    chosen = random.sample(grid, len(BROKEN))
    places = {
        name: Place(piece, place + random.randrange(_CLEAR // 2), random.randrange(FETCHERS))
        for name, (piece, place) in zip(BROKEN, chosen, strict=True)
    }
    last = (appends - 1) // PIECE
    gap = Place(last, appends - last * PIECE - 1 - random.randrange(4), places["fetch-gap"].fetcher)
    return Planted(places | {"fetch-gap": gap})


def _left_out(read: Fetches, _: Numbers, place: int) -> Fetches:
    """Return the fetches without the append. If a fetch began with it, the fetch begins with what follows."""
    (where,) = np.flatnonzero(read.events == place)
    begins = read.begins.copy()
    if where + 1 < len(begins):
        begins[where + 1] |= begins[where]
    keep = np.arange(len(begins)) != where
    return Fetches(read.events[keep], begins[keep], read.at_us[keep])


def _read_again(read: Fetches, partition: Numbers, place: int) -> Fetches:
    """Plant a read of the record before this one in its partition, and of this one again after it."""
    (where,) = np.flatnonzero(read.events == place)
    before = np.flatnonzero(partition[:place] == partition[place])[-1]
    at_us = read.at_us[where]
    begins = np.insert(read.begins, where + 1, [True, True])
    begins[where + 3] = True
    return Fetches(
        np.insert(read.events, where + 1, [before, place]),
        begins,
        np.insert(read.at_us, where + 1, [at_us + 500, at_us + 1_000]),
    )


_READS: Mapping[str, Callable[[Fetches, Numbers, int], Fetches]] = {
    "poll-skip": _left_out,
    "nonmonotonic-poll": _read_again,
    "fetch-gap": _left_out,
}
