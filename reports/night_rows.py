"""The rows of a night, one class for each table, declared as those of a run's history in ``rows.py``.

A night's folder has one Parquet file for each table. Times are microseconds since the epoch, of the wall clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from reports.columns import Later, Row, Table, table
from reports.schema import arrow_schema

NIGHT_TABLES: dict[type[Row], Table] = {}
"""Each class of a night's rows and its table. A run's history has none of them."""

World: TypeAlias = Annotated[str, "sim or live"]
Target: TypeAlias = Annotated[str, "what was played against: reference, kafka@4.1.1, ..."]
Seed: TypeAlias = Annotated[int, "derived from the night's seed"]


@table("plays", "plays.parquet", NIGHT_TABLES)
@dataclass(frozen=True, slots=True)
class PlayRow(Row):
    """One play of a scenario with one seed."""

    scenario: Annotated[str, "its name, with the mark of its revision"]
    world: World
    target: Target
    mutant: Annotated[str, "the planted defect; empty: none; a control, if the target is reference"]
    seed: Seed
    outcome: Annotated[str, "PASSED, FAILED, INVALID or CRASHED"]
    guarantee: Annotated[str, "the first one that broke, or empty"]
    detail: Annotated[str, "how it broke, or why the play shows nothing"]
    wall_us: Annotated[int, "how long the play took"]
    at_us: Annotated[int, "when it ended"]
    run_dir: Annotated[str, "the run's folder, relative to the night's; empty if none was kept"]
    command: Annotated[str, "plays it again"]
    is_replay: Annotated[bool, Later("whether the seed was chosen because a guarantee broke with it before")] = False


@table("failures", "failures.parquet", NIGHT_TABLES)
@dataclass(frozen=True, slots=True)
class FailureRow(Row):
    """A seed of a control that turned red, and what was found out about it."""

    scenario: Annotated[str, "its name, with the mark of its revision"]
    world: World
    target: Target
    guarantee: Annotated[str, "the first one that broke; without one the outcome"]
    seed: Seed
    faults: Annotated[str, "the faults of the smallest scenario that still fails, a line each"]
    regression: Annotated[str, "the file of that scenario, relative to the night's folder; empty if there is none"]
    command: Annotated[str, "plays it again"]
    live_plays: Annotated[int, "how often it was played with real processes; 0 if it cannot be"]
    live_reds: Annotated[int, "how many of these were red, too"]
    first_bad_commit: Annotated[str, "the oldest commit since the last night at which the seed fails; empty: unknown"]
    detail: Annotated[str, "how it broke, and what could not be found out"]


@table("figures", "figures.parquet", NIGHT_TABLES)
@dataclass(frozen=True, slots=True)
class FigureRow(Row):
    """A figure, beside that of a peer. The ratio says how many times better the reference was, pair by pair."""

    row: Annotated[str, "the row of the benchmark: produce, fetch, ..."]
    what: Annotated[str, "the figure's label in its row"]
    nodes: Annotated[int, "the size of the clusters that were asked for"]
    unit: str
    better: Annotated[str, "higher or lower"]
    reference: Annotated[float, "median of the reference broker, in the unit"]
    peer: Annotated[float | None, "median of the peer, in the unit; null without one, as are all ratios"]
    ratio: Annotated[float | None, "median over all pairs"]
    ratio_low: Annotated[float | None, "of the pairs"]
    ratio_high: Annotated[float | None, "of the pairs"]
    pairs: Annotated[int, "how many measurements of each broker there are"]
    peer_name: Annotated[str, "empty without a peer"]


@table("cells", "cells.parquet", NIGHT_TABLES)
@dataclass(frozen=True, slots=True)
class CellRow(Row):
    """What came of one case of the probe on one target."""

    target: Target
    case_id: str
    section: str
    level: Annotated[str, "MUST or SHOULD"]
    outcome: Annotated[str, "pass, fail, differs, ..., or not judged"]


def write_rows(folder: Path, kind: type[Row], rows: Iterable[Row]) -> Path:
    """Writes a table of a night whole or not at all, also if it has no rows. Returns the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(NIGHT_TABLES[kind])
    columns = list(zip(*(row.values() for row in rows), strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    path = folder / NIGHT_TABLES[kind].path
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), part, compression="zstd")
    part.replace(path)
    return path
