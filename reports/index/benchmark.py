"""The figures of the benchmark over the nights: where they changed permanently, and their pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import exp, log

from reports.index.nights import Note
from reports.job_rows import Rows
from reports.jobs.nights import SERIES_KEYS
from reports.plots import style
from reports.plots.ratio_series import Level, Series, draw_ratios
from reports.statistics.change_points import change_points


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a benchmark's level between two nights."""

    series: Series
    before: str
    """The last night at the old level."""
    night: str
    """The first night at the new level."""
    old: float
    new: float

    @property
    def word(self) -> str:
        return "better" if self.new > self.old else "worse"


def series_of(rows: Rows) -> list[Series]:
    return [_series(list(group)) for _, group in groupby(rows, key=lambda row: tuple(row[key] for key in SERIES_KEYS))]


def _series(rows: Rows) -> Series:
    ratios = tuple(row["ratio"] for row in rows)
    logs = [log(ratio) for ratio in ratios]
    bounds = [0, *(change.at for change in change_points(logs)), len(logs)]
    first = rows[0]
    return Series(
        row=first["row"],
        what=first["what"],
        nodes=first["nodes"],
        peer=first["peer_name"],
        nights=tuple(row["night"] for row in rows),
        ratios=ratios,
        lows=tuple(row["ratio_low"] or row["ratio"] for row in rows),
        highs=tuple(row["ratio_high"] or row["ratio"] for row in rows),
        levels=tuple(Level(start, end, exp(sum(logs[start:end]) / (end - start))) for start, end in pairwise(bounds)),
    )


def changes(every: Sequence[Series]) -> list[Change]:
    """The newest change comes first."""
    return sorted(
        _changes(every), key=lambda change: (change.night, change.series.row, change.series.what), reverse=True
    )


def _changes(every: Sequence[Series]) -> Iterator[Change]:
    for series in every:
        for old, new in pairwise(series.levels):
            yield Change(series, series.nights[new.start - 1], series.nights[new.start], old.ratio, new.ratio)


@dataclass(frozen=True, slots=True)
class Picture:
    """The drawing of one benchmark row."""

    row: str
    svg: str
    notes: tuple[Note, ...]
    """Those that the picture's numbers mean, in the order of the numbers."""


def pictures(every: Sequence[Series], notes: Sequence[Note]) -> list[Picture]:
    drawn_rows = []
    with style.styled():
        for row, group in groupby(every, key=lambda series: series.row):
            own = tuple(note for note in notes if note.row in ("", row))
            drawn = list(group)
            figure = draw_ratios(drawn, [note.at for note in own])
            caption = f"{row}: " + "; ".join(
                f"{series.title} {series.levels[-1].ratio:.2f} times {series.peer}" for series in drawn
            )
            drawn_rows.append(Picture(row, style.svg(figure, f"series-{row}", caption), own))
    return drawn_rows
