"""The nights of the index: the rows of the jobs over them, the users' notes, the verdict of each night, and the
decision points that the newest night reached."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reports.job_rows import Row, Rows
from reports.night import ANNOTATIONS_NAME, Night, NightError, PointCounts, outcome_of, why_red
from reports.verdict import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Collected:
    """The rows of the jobs in ``jobs/nights.py``, whose docstrings name the columns, in a fixed order."""

    counts: Rows
    matrix: Rows
    failures: Rows
    series: Rows
    probed: Rows


def collect_nights(folders: Sequence[Path], spark: "SparkSession | None" = None) -> Collected:
    """Raise SetupError without PySpark or Java."""
    from reports.jobs.nights import night_bytes, read_nights
    from reports.spark import sized_for, spark_session

    size = night_bytes(folders)
    with (
        nullcontext(spark) if spark is not None else spark_session("crucible-index", size) as session,
        sized_for(session, size),
    ):
        from reports.jobs.nights import (
            SERIES_KEYS,
            figure_series,
            plays_by_outcome,
            probe_sections,
            still_open_failures,
            worst_of_scenarios,
        )

        tables = read_nights(session, folders)
        return Collected(
            counts=_rows(plays_by_outcome(tables), "night", "is_control", "outcome"),
            matrix=_rows(worst_of_scenarios(tables), "scenario", "world", "target", "night"),
            failures=_rows(still_open_failures(tables), "first_night", "scenario", "world", "target", "guarantee"),
            series=_rows(figure_series(tables), *SERIES_KEYS, "night"),
            probed=_rows(probe_sections(tables), "section", "target"),
        )


def _rows(frame: "DataFrame", *order: str) -> list[Row]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(rows, key=lambda row: tuple(row[name] for name in order))


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note on a benchmark, shown in its picture."""

    at: date
    text: str
    row: str = ""
    """The row of the benchmark that the note is about. Empty: all of them."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: tuple[Note, ...] = ()


def read_notes(nights: Path) -> Sequence[Note]:
    """The notes in the order of their days. Raise NightError."""
    path = nights / ANNOTATIONS_NAME
    if not path.is_file():
        return ()
    try:
        decoded = msgspec.toml.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise NightError(
            f'{path} cannot be read ({error}): each note is [[note]] with at = 2026-11-28, text = "..." and, if it is '
            'about one row of the benchmark, row = "produce"'
        ) from error
    return sorted(decoded.note, key=lambda note: note.at)


@dataclass(frozen=True, slots=True)
class NightSummary:
    """One night as the index shows it."""

    night: Night
    started: datetime
    plays: int
    controls: int
    """The number of plays that must pass."""
    reasons: tuple[str, ...]
    """The reasons why the night is red."""
    outcome: Outcome
    gap_hours: int
    """Hours without a night before it, if they are too many."""

    @property
    def is_red(self) -> bool:
        return bool(self.reasons)

    @property
    def line(self) -> str:
        """The night in one line."""
        if self.reasons:
            reasons = "; ".join(self.reasons)
            return f"{reasons[0].upper()}{reasons[1:]}."
        canary = self.night.canary
        canary_words = (
            "" if canary is None else f", and the canary {canary.mutant} was found after {_seeds(canary.seeds_tried)}"
        )
        return f"{self.plays:,} plays{canary_words}."


GAP_HOURS = 36


def summarize_nights(nights: Sequence[Night], counts: Rows, now_us: int) -> list[NightSummary]:
    """``nights`` are in order, the oldest first. ``now_us`` decides whether the newest is too old."""
    return list(_summaries(nights, counts, now_us))


def _summaries(nights: Sequence[Night], counts: Rows, now_us: int) -> Iterator[NightSummary]:
    finished: list[int] = []
    before_us = 0
    for night in nights:
        rows = [row for row in counts if row["night"] == night.night]
        plays = sum(row["plays"] for row in rows)
        controls = {row["outcome"]: row["plays"] for row in rows if row["is_control"]}
        newest = night is nights[-1]
        reasons = why_red(night, plays, controls, finished, now_us if newest else 0)
        gap = int((night.started_us - before_us) / 3600e6) if before_us else 0
        yield NightSummary(
            night=night,
            started=datetime.fromtimestamp(night.started_us / 1e6, UTC),
            plays=plays,
            controls=sum(controls.values()),
            reasons=tuple(reason.text for reason in reasons),
            outcome=outcome_of(reasons),
            gap_hours=gap if gap > GAP_HOURS else 0,
        )
        before_us = night.started_us
        if night.finished:
            finished.append(plays)


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


@dataclass(frozen=True, slots=True)
class ReachedPoints:
    """The decision points of the newest night that counted them, compared with the previous such night."""

    night: str
    counts: PointCounts
    newly: tuple[str, ...]
    """Outcomes that the previous night did not reach."""
    lost: tuple[str, ...]
    """Outcomes that only the previous night reached."""

    @property
    def excused(self) -> int:
        """The number of outcomes that were not reached for a known reason."""
        return self.counts.outcomes - self.counts.reached - len(self.counts.never)


def reached_points(nights: Sequence[NightSummary]) -> ReachedPoints | None:
    """Return None if no night counted. An outcome that only one of two nights knows is neither newly reached nor
    lost."""
    counted = [(summary.night.night, summary.night.points) for summary in nights if summary.night.points is not None]
    if not counted:
        return None
    night, counts = counted[-1]
    if len(counted) == 1 or counted[-2][1].outcomes != counts.outcomes:
        return ReachedPoints(night, counts, (), ())
    before = counted[-2][1].never
    newly = tuple(outcome for outcome in before if outcome not in counts.never)
    lost = tuple(outcome for outcome in counts.never if outcome not in before)
    return ReachedPoints(night, counts, newly, lost)
