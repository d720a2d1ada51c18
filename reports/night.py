"""A night: its tables, and when it is red.

The folder of a night has ``night.json`` and one Parquet file for each table. The rows of a table are declared as those
of a run's history in ``rows.py``. Times are microseconds since the epoch, of the wall clock.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from reports.columns import Later, Row, Table, table
from reports.schema import arrow_schema
from reports.verdict import Outcome, worst_outcome

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
    """A failing seed of a control, and the results of its follow-up."""

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
    nodes: Annotated[int, "the size of the clusters"]
    unit: str
    better: Annotated[str, "higher or lower"]
    reference: Annotated[float, "median of the reference broker, in the unit"]
    peer: Annotated[float | None, "median of the peer, in the unit; null without one, as are all ratios"]
    ratio: Annotated[float | None, "median over all pairs"]
    ratio_low: Annotated[float | None, "of the pairs"]
    ratio_high: Annotated[float | None, "of the pairs"]
    pairs: Annotated[int, "how many measurements of each broker there are"]
    peer_name: Annotated[str, "empty without a peer"]


CLIENT = "client "
"""Prefix of the target of a cell that is a client."""


@table("cells", "cells.parquet", NIGHT_TABLES)
@dataclass(frozen=True, slots=True)
class CellRow(Row):
    """The outcome of one case of the probe on one broker, or of ``crucible client`` on one client."""

    target: Annotated[str, "the broker, or ``client`` and the client's name"]
    case_id: str
    section: str
    level: Annotated[str, "MUST or SHOULD"]
    outcome: Annotated[str, "pass, fail, differs, ..., or not judged"]


def write_rows(folder: Path, kind: type[Row], rows: Iterable[Row]) -> Path:
    """Write a table of a night whole or not at all, also if it has no rows. Return the file."""
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


NIGHT_NAME = "night.json"
ANNOTATIONS_NAME = "annotations.toml"
"""Beside the nights' folders: notes that people keep."""
FOLDER_NAME = re.compile(r"\d{8}-\d{6}")
"""When the night began, in UTC: YYYYMMDD-HHMMSS."""
COMPARED_NIGHTS = 10
MIN_SHARE = 0.5
OLDEST_S = 36 * 3600


class NightError(Exception):
    """A night's file is missing or unreadable. The message is one sentence."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    python: str = ""
    java: str = ""


class NightStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a night."""

    name: str
    planned_s: float
    spent_s: float = 0.0
    outcome: str = ""
    """That of a run, or SKIPPED; empty if the stage has not ended."""
    detail: str = ""
    """The reason why it is not PASSED, if no play has it."""
    tried: tuple[str, ...] = ()
    """The things of which a night plays only some: brokers, rows of the benchmark, scenarios with real processes. The
    next night begins with those that were not tried for longest."""


class Canary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The planted mutant that the night must find."""

    mutant: str
    scenario: str
    world: str = "sim"
    seeds_tried: int = 0
    found: bool = False
    guarantee: str = ""
    """The first one that it violated."""
    spent_us: int = 0
    """The time of its plays, up to the one that found it."""


class PointCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcomes of the broker's decision points that a night's runs in the simulator reached."""

    outcomes: int
    """Number of outcomes."""
    reached: int
    never: tuple[str, ...] = ()
    """Those that were never reached, without the ones for which the broker's table has a reason."""


class CorpusGrowth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The corpus of the guided search, at the start and at the end of its stage."""

    schedules: int
    """Number of played schedules."""
    entries_before: int
    entries: int
    outcomes_before: int
    """Number of outcomes of decision points that the corpus reached before."""
    outcomes: int


class Night(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One night. Times are microseconds since the epoch, of the wall clock."""

    night: str
    started_us: int
    budget_s: float
    seed: int
    """The first seed. All others derive from it."""
    ended_us: int = 0
    """0 until the night ends."""
    commit: str = ""
    commit_time_us: int = 0
    dirty: bool = False
    machine: Machine = Machine()
    finished: bool = False
    """The budget was spent, or all was done."""
    stages: tuple[NightStage, ...] = ()
    canary: Canary | None = None
    """None only if this night plays nothing in the simulator."""
    points: PointCounts | None = None
    """None until the night has ended, and if nothing was counted."""
    corpus: CorpusGrowth | None = None
    """None without a guided search."""
    command: str = ""


def night_folders(nights: Path) -> list[Path]:
    """The folders of all nights, the oldest first."""
    folders = nights.iterdir() if nights.is_dir() else ()
    return sorted(
        folder for folder in folders if FOLDER_NAME.fullmatch(folder.name) and (folder / NIGHT_NAME).is_file()
    )


def read_night(folder: Path) -> Night:
    """Raise NightError."""
    path = folder / NIGHT_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Night)
    except FileNotFoundError:
        raise NightError(f"{folder} has no {NIGHT_NAME}: it is not the folder of a night") from None
    except (OSError, msgspec.DecodeError) as error:
        raise NightError(f"{path} cannot be read: {error}") from error


def write_night(folder: Path, night: Night) -> Path:
    """Write the file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NIGHT_NAME
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(night), indent=2) + b"\n")
    part.replace(path)
    return path


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a night is red."""

    outcome: Outcome
    """Never PASSED."""
    text: str


def why_red(
    night: Night, plays: int, controls: Mapping[str, int], earlier_plays: Sequence[int], now_us: int = 0
) -> tuple[Reason, ...]:
    """Return why the night is red; nothing if it is green.

    - ``plays`` counts all of the night's plays, and ``controls`` by their outcome those that must pass: plays of
      our own broker (target ``reference``) without a mutant.
    - ``earlier_plays`` counts the plays of finished nights before this one, the oldest first; the last ten count.
    - ``now_us`` is given for the newest night only: a night that began long ago is red, since none has come after it.
    """
    return tuple(_reasons(night, plays, controls, earlier_plays, now_us))


def _reasons(
    night: Night, plays: int, controls: Mapping[str, int], earlier_plays: Sequence[int], now_us: int
) -> Iterator[Reason]:
    for outcome in (Outcome.CRASHED, Outcome.FAILED, Outcome.INVALID):
        if count := controls.get(outcome.name, 0):
            yield Reason(outcome, f"{count} control plays {outcome.name}" if count > 1 else f"a control {outcome.name}")
    for stage in night.stages:
        if stage.outcome in (Outcome.CRASHED.name, Outcome.FAILED.name) and stage.detail:
            yield Reason(Outcome[stage.outcome], f"the stage {stage.name} {stage.outcome}: {stage.detail}")
    if night.canary is not None and not night.canary.found:
        tried = f"{night.canary.mutant} in {night.canary.seeds_tried} seeds of {night.canary.scenario}"
        yield Reason(Outcome.FAILED, f"the canary lives: nothing killed {tried}")
    median = statistics.median(earlier_plays[-COMPARED_NIGHTS:] or [0])
    if plays < median * MIN_SHARE:
        yield Reason(Outcome.FAILED, f"{plays} plays, less than half the median {median:g} of the nights before")
    if now_us and now_us - night.started_us > OLDEST_S * 1e6:
        hours = (now_us - night.started_us) / 3600e6
        yield Reason(Outcome.FAILED, f"the newest night began {hours:.0f} hours ago, which is more than 36")


def outcome_of(reasons: Sequence[Reason]) -> Outcome:
    """The worst of the reasons; its value is the exit code of a night."""
    return worst_outcome(reason.outcome for reason in reasons)
