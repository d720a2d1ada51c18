"""The latency tables: a percentile is shown only if at least ten samples lie beyond it (n >= 10 / (1 - p))."""

from dataclasses import dataclass
from typing import Any

from reports.job_rows import Row, Rows
from reports.jobs.latency import CALM, FAULTY
from reports.page.words import count, micros

COLUMNS: tuple[tuple[str, str, int], ...] = (  # column, title, one in this many is beyond
    ("p50_us", "p50", 2),
    ("p75_us", "p75", 4),
    ("p90_us", "p90", 10),
    ("p95_us", "p95", 20),
    ("p99_us", "p99", 100),
    ("p999_us", "p99.9", 1_000),
    ("p9999_us", "p99.99", 10_000),
)
TAIL_SAMPLES = 10
MIN_SAMPLES = 2 * TAIL_SAMPLES
"""With fewer there is not even a median."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table that can be sorted."""

    text: str
    order: float | str = ""
    """The value by which the column is sorted."""


@dataclass(frozen=True, slots=True)
class LatencyRow:
    operation: str
    measure: str
    cells: tuple[Cell, ...]
    """Count, min, the percentiles, max."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One operation's response times outside faults and under them, and the numbers of samples. None: too few
    samples."""

    operation: str
    calm: tuple[int, int | None, int | None, int | None]
    """Count, p50_us, p99_us, max_us."""
    faulty: tuple[int, int | None, int | None, int | None]


def contrasts(percentiles: Rows) -> list[Contrast]:
    """Return the operations of which there were enough for a median, the most frequent first."""
    by_window = {
        (row["operation"], row["window"]): row
        for row in percentiles
        if row["fault"] == "" and row["window"] and row["measure"] == "response"
    }
    operations = sorted({operation for operation, _ in by_window})
    rows = [
        Contrast(operation, _times(by_window.get((operation, CALM))), _times(by_window.get((operation, FAULTY))))
        for operation in operations
    ]
    shown = [row for row in rows if row.calm[1] is not None or row.faulty[1] is not None]
    return sorted(shown, key=lambda row: -row.calm[0] - row.faulty[0])


def _times(row: dict[str, Any] | None) -> tuple[int, int | None, int | None, int | None]:
    if row is None:
        return 0, None, None, None
    return row["count"], quantile(row, "p50_us", 2), quantile(row, "p99_us", 100), row["max_us"]


def latency_rows(percentiles: Rows) -> list[LatencyRow]:
    """The rows of the whole run, service time before response time, without those that have not even a median."""
    whole = [row for row in _of_run(percentiles) if row["count"] >= MIN_SAMPLES]
    whole.sort(key=lambda row: (row["operation"], row["measure"] != "service"))
    return [LatencyRow(row["operation"], row["measure"], _cells(row)) for row in whole]


def thin_operations(percentiles: Rows) -> list[str]:
    """The operations that ``latency_rows`` omits."""
    return sorted({str(row["operation"]) for row in _of_run(percentiles) if row["count"] < MIN_SAMPLES})


def _of_run(percentiles: Rows) -> list[Row]:
    return [row for row in percentiles if row["fault"] == "" and row["window"] == ""]


def _cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    shown = [quantile(row, column, one_in) for column, _, one_in in COLUMNS]
    values = [row["min_us"], *shown, row["max_us"]]
    return (Cell(count(row["count"]), row["count"]), *(Cell(micros(v), -1 if v is None else v) for v in values))


def quantile(row: dict[str, Any] | None, column: str, one_in: int) -> int | None:
    """None if there are too few samples; one in ``one_in`` is beyond this quantile."""
    return int(row[column]) if row is not None and row["count"] >= TAIL_SAMPLES * one_in else None
