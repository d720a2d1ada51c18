"""The pictures of the index: one for each row of the benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from reports.index.annotations import Note
from reports.index.series import Series
from reports.plots import ratio_series, style


@dataclass(frozen=True, slots=True)
class Picture:
    """``notes`` are those that the picture's numbers mean, in the order of the numbers."""

    row: str
    svg: str
    notes: tuple[Note, ...]


def pictures(every: Sequence[Series], notes: Sequence[Note]) -> list[Picture]:
    found = []
    with style.styled():
        for row, group in groupby(every, key=lambda one: one.row):
            own = tuple(note for note in notes if note.row in ("", row))
            drawn = list(group)
            figure = ratio_series.draw(drawn, [note.at for note in own])
            told = f"{row}: " + "; ".join(f"{one.title} {one.levels[-1].ratio:.2f} times {one.peer}" for one in drawn)
            found.append(Picture(row, style.svg(figure, f"series-{row}", told), own))
    return found
