"""Runs the jobs over the nights and brings their rows home. They are aggregates; plays stay in Spark."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Collected:
    """The rows of the jobs in ``jobs/nights.py``, whose docstrings name the columns, in a fixed order."""

    counts: Sequence[Row]
    matrix: Sequence[Row]
    failures: Sequence[Row]
    series: Sequence[Row]
    probed: Sequence[Row]


def collect_nights(folders: Sequence[Path], spark: "SparkSession | None" = None) -> Collected:
    """Raises SetupError without PySpark or Java."""
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
