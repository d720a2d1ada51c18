"""Histories of runs as data frames. Each has a leading ``run`` column (0, 1, ...).

Schemas are stated, never inferred. A table without files is an empty frame and is missing from ``present``.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from reports import schema
from reports.columns import Table
from reports.errors import SetupError
from reports.manifest import PRODUCER_EXPIRATION_MS
from reports.schema import FORMER_COLUMNS, arrow_schema, files_of

ROWS_AT_ONCE = 1 << 18


def gather(run_dirs: Sequence[Path], table: Table, target: Path, empty: bool = False) -> bool:
    """Write the rows of all runs to the file ``target``, with a leading ``run`` column (0, 1, ...).

    Spark opens each file again in each of its hundreds of small stages, and knows the run of a row only by the path of
    its file. With dozens of runs that takes most of the time of a verdict. So they are gathered in one file.

    Return False if no run has the table. Nothing is written then, or with ``empty`` a file without rows. A column that
    a file lacks is null. About ROWS_AT_ONCE rows are in memory at a time. Raise SetupError for a file that is damaged
    or has a column of another type.
    """
    files = [(run, name) for run, folder in enumerate(run_dirs) for name in files_of(folder, table)]
    if not files and not empty:
        return False
    schema = arrow_schema(table)
    schema = pa.schema([pa.field("run", pa.int64(), nullable=False), *(field.with_nullable(True) for field in schema)])
    unwritten: list[pa.Table] = []
    with pq.ParquetWriter(target, schema) as writer:
        for piece in _pieces(files, schema):
            unwritten.append(piece)
            if sum(batch.num_rows for batch in unwritten) >= ROWS_AT_ONCE:
                writer.write_table(pa.concat_tables(unwritten))
                unwritten = []
        if unwritten:
            writer.write_table(pa.concat_tables(unwritten))
    return bool(files)


def _pieces(files: Sequence[tuple[int, str]], schema: pa.Schema) -> Iterator[pa.Table]:
    for run, name in files:
        try:
            yield from _pieces_of(run, name, schema)
        except (pa.ArrowException, OSError) as wrong:
            reason = str(wrong).partition("\n")[0].partition(". ")[0].rstrip(".")
            raise SetupError(f"{name} cannot be read as Parquet: {reason}.") from wrong


def _pieces_of(run: int, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with pq.ParquetFile(name) as file:
        stored = {column: _stored_name(column, file.schema_arrow.names) for column in schema.names}
        known = {column: name for column, name in stored.items() if name}
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=[*known.values()]):
            columns = {column: batch.column(name).cast(schema.field(column).type) for column, name in known.items()}
            columns["run"] = pa.repeat(pa.scalar(run, pa.int64()), batch.num_rows)
            absent = {column: pa.nulls(batch.num_rows, schema.field(column).type) for column in schema.names}
            yield pa.table({**absent, **columns}, schema=schema)


def _stored_name(column: str, stored: Sequence[str]) -> str:
    """Return the column's name in a file, which is a former one in an older run. It is empty if the file lacks it."""
    if column in stored:
        return column
    former = FORMER_COLUMNS.get(column, "")
    return former if former in stored else ""


def _has_former_names(run_dir: Path, table: Table) -> bool:
    if not any(column.name in FORMER_COLUMNS for column in table.columns):
        return False
    try:
        stored = [pq.read_schema(name).names for name in files_of(run_dir, table)[:1]]
    except (pa.ArrowException, OSError):
        return False  # Spark reports what is wrong with it
    return any(
        _stored_name(column.name, names) not in ("", column.name) for names in stored for column in table.columns
    )


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of one run that the jobs need and its tables lack."""

    warm_up_us: int = 0
    external: int = 0
    """1 if its broker is not ours."""
    clock_tick_us: int = 1000
    producer_expiration_us: int = PRODUCER_EXPIRATION_MS * 1000


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The settings of the jobs."""

    window_s: int = 10
    """The length of the windows "before" and "after" a fault."""
    settle_s: int = 1
    """The time after the end of a fault that still belongs to "during", because operations that it hit end later."""
    calm_after_s: int = 4
    """The time after the end of a fault until seconds are outside faults again. Delayed operations are sent by then."""
    begin_s: int = 2
    """The time from the start of the load that is not outside faults either, because clients connect and join."""
    busy_permille: int = 900
    """A worker limits the load in a second in which it wanted this share of a processor, had ``working_permille`` of
    it, and its timer was ``late_us`` late."""
    working_permille: int = 500
    late_us: int = 100_000
    blocks: int = 1
    """The number of blocks into which a run is cut when runs are compared."""
    runs: Mapping[int, RunConfig] = field(default_factory=dict)

    @property
    def producers_expire(self) -> bool:
        """Whether the brokers of a run forget the ID of an idle producer sooner than by Kafka's default."""
        return any(run.producer_expiration_us < PRODUCER_EXPIRATION_MS * 1000 for run in self.runs.values())

    def per_run(self, name: str) -> Column:
        """Return a run's setting as an expression over the column ``run``. More runs do not make its plan larger."""
        settings = [F.lit(number) for run, config in self.runs.items() for number in (run, getattr(config, name))]
        return F.element_at(F.create_map(*settings), F.col("run").cast("int")).cast("long")


_TYPES: Mapping[str, DataType] = {
    "int64": LongType(),
    "float64": DoubleType(),
    "string": StringType(),
    "bool": BooleanType(),
}


DECIDING: Final = ("frames", "frame_lines", "keyed_writes", "latency", "load")
"""Jobs make other frames where runs have these tables."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of reports/schema.py, and frames that several jobs start from.

    ``reads`` and ``sends`` are RUNS of that kind with their operation's f, type, invoke_us and complete_us. The type is
    ``info`` where the operation has no row, because its end is unknown. They also have last_offset, last_sequence and
    ``shift`` = first_sequence - first_offset. Two runs of a writer agree where they overlap if their shifts are equal.
    ``reads``, ``sends`` and ``notes`` are cached in memory once they are used, and so are the frames of ``once``.
    """

    operations: DataFrame
    runs: DataFrame
    keyed_writes: DataFrame
    views: DataFrame
    positions: DataFrame
    assignments: DataFrame
    ends: DataFrame
    changes: DataFrame
    metadata_reads: DataFrame
    commits: DataFrame
    transactions: DataFrame
    described_transactions: DataFrame
    transforms: DataFrame
    memberships: DataFrame
    metadata_epochs: DataFrame
    resets: DataFrame
    copies: DataFrame
    target_runs: DataFrame
    faults: DataFrame
    trace: DataFrame
    frames: DataFrame
    frame_lines: DataFrame
    latency: DataFrame
    load: DataFrame
    fetch_costs: DataFrame
    broker: DataFrame
    reads: DataFrame
    sends: DataFrame
    notes: DataFrame
    """TRACE without requests, replies and the notes on fetch sessions."""
    config: JobConfig
    present: frozenset[tuple[int, str]]
    """(run, table name) of each table that has files."""
    kept: dict[object, DataFrame] = field(default_factory=dict)
    """The cached frames."""
    _lock: Any = field(default_factory=RLock)

    def once(self, make: "Callable[[Tables], DataFrame]") -> DataFrame:
        """Return a frame that several jobs start from. It is computed once, for the first of them."""
        with self._lock:
            if make not in self.kept:
                self.kept[make] = make(self).persist(StorageLevel.MEMORY_AND_DISK)
            return self.kept[make]

    def has(self, run: int, *names: str) -> bool:
        return all((run, name) in self.present for name in names)

    def runs_with(self, name: str) -> list[int]:
        """Return the runs that have this table, which is one of DECIDING."""
        assert name in DECIDING, f"a job needs runs with {name}, which DECIDING does not name"
        return sorted(run for run, table in self.present if table == name)

    def forget(self) -> None:
        """Drop the cached rows. They are computed again when they are used next."""
        for frame in self.kept.values():
            frame.unpersist()
        for frame in self.kept.values():  # each after those that it begins with
            frame.persist(StorageLevel.MEMORY_AND_DISK)


def struct_type(table: Table) -> StructType:
    return StructType([StructField(column.name, _TYPES[column.kind], True) for column in table.columns])


def together(frame: DataFrame, *keys: str) -> DataFrame:
    """Move rows of equal keys to one partition, for all later grouping, ordering and joining by these keys (and more).
    A small history is in one partition anyway."""
    return frame if lies_in_one_place(frame) else frame.repartition(*keys)


def lies_in_one_place(frame: DataFrame) -> bool:
    """Return whether the history is small, so that each frame has one partition."""
    return str(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")) == "1"


def _in_one_partition(frame: DataFrame) -> DataFrame:
    """Coalesce a small table to one partition. Spark then knows that equal keys are together, and plans no shuffles."""
    return frame.coalesce(1) if lies_in_one_place(frame) else frame


@contextmanager
def reading(spark: SparkSession, run_dirs: Sequence[Path], config: JobConfig) -> Iterator[Tables]:
    """Provide the tables of these runs. What was cached for the jobs is dropped at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="crucible-gathered-") as scratch:
        frames = {table.name: _read(spark, run_dirs, table, Path(scratch)) for table in schema.TABLES}
        with tables_over(frames, present_in(run_dirs), config) as tables:
            yield tables


def present_in(run_dirs: Sequence[Path]) -> frozenset[tuple[int, str]]:
    """Return (run, table name) for each table that has files."""
    return frozenset(
        (run, table.name)
        for run, folder in enumerate(run_dirs)
        for table in schema.TABLES
        if schema.files_of(folder, table)
    )


@contextmanager
def tables_over(
    frames: Mapping[str, DataFrame], present: frozenset[tuple[int, str]], config: JobConfig
) -> Iterator[Tables]:
    """Provide tables of these frames. What was cached for the jobs is dropped at the end of the block."""
    frames = {name: _in_one_partition(frame) for name, frame in frames.items()}
    runs = _with_operation(frames["runs"], frames["operations"]).persist(StorageLevel.MEMORY_AND_DISK)
    noted = frames["trace"].where("what not in ('request', 'reply') and not startswith(what, 'session_')")
    notes = noted.select("run", "node", "incarnation", "seq", "at_us", "what", "detail")
    notes = notes.persist(StorageLevel.MEMORY_AND_DISK)
    tables = Tables(
        **frames,
        reads=runs.where("kind = 'read'"),
        sends=runs.where("kind = 'send'"),
        notes=notes,
        config=config,
        present=present,
        kept={"runs": runs, "notes": notes},
    )
    try:
        yield tables
    except KeyboardInterrupt:
        tables.kept.clear()  # Java was interrupted, too. It may have ended, and then it has nothing to drop.
        raise
    finally:
        for frame in tables.kept.values():
            frame.unpersist()


def read_gathered(spark: SparkSession, file: Path) -> DataFrame:
    """Read a file that ``gather`` wrote. It has the name of its table."""
    (table,) = (declared for declared in schema.TABLES if declared.name == file.stem)
    return spark.read.schema(_with_run(table)).parquet(str(file))


def look_again(gathered: DataFrame) -> None:
    """Let Spark notice that the file was rewritten. All frames that start from this one read it then."""
    gathered._jdf.queryExecution().analyzed().relation().location().refresh()


def _with_run(table: Table) -> StructType:
    return StructType([StructField("run", LongType(), False), *struct_type(table).fields])


def _read(spark: SparkSession, run_dirs: Sequence[Path], table: Table, scratch: Path) -> DataFrame:
    here = not any((folder / schema.REMOTE_FILES).exists() for folder in run_dirs)
    gathered = len(run_dirs) > 1 or (here and any(_has_former_names(folder, table) for folder in run_dirs))
    if here and gathered and str(spark.conf.get("spark.master")).startswith("local"):
        target = scratch / f"{table.name}.parquet"
        if gather(run_dirs, table, target):
            return read_gathered(spark, target)
    files = [schema.files_of(folder, table) for folder in run_dirs]
    paths = [path for of_run in files for path in of_run]
    names = [column.name for column in table.columns]
    if not paths:
        return spark.createDataFrame([], _with_run(table))
    frame = spark.read.schema(struct_type(table)).parquet(*paths)
    used = [run for run, of_run in enumerate(files) if of_run]
    run = F.lit(used[0]) if len(used) == 1 else _run_of_file(files)
    return frame.select(run.cast("long").alias("run"), *names)


def _run_of_file(files: Sequence[Sequence[str]]) -> Column:
    """Return the run of a row by the folder of its file. It is looked up in a map, since a condition for each run takes
    minutes to plan for sixty of them. (Spark writes paths as URLs.)"""
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    runs = {_folder_of(path): run for run, of_run in enumerate(files) for path in of_run}
    known = F.create_map(*(F.lit(item) for pair in runs.items() for item in pair))
    return F.element_at(known, F.regexp_extract(path, r"^(?:[a-z0-9]+:)?/*(/.*)/[^/]*$", 1))


def _folder_of(file: str) -> str:
    """Return the folder of a path, or of a URL without its scheme."""
    _, of_url, url_path = file.partition("://")
    return str(Path(f"/{url_path}").parent if of_url else Path(file).resolve().parent)


def _with_operation(runs: DataFrame, operations: DataFrame) -> DataFrame:
    ends = operations.select("run", "process", "index", "f", "type", "invoke_us", "complete_us")
    return (
        together(runs, "run", "process")
        .join(together(ends, "run", "process"), ["run", "process", "index"], "left")
        .fillna({"f": "", "type": "info", "invoke_us": -1, "complete_us": -1, "isolation": 0})
        .withColumn("last_offset", F.col("first_offset") + F.col("count") - 1)
        .withColumn("last_sequence", F.col("first_sequence") + F.col("count") - 1)
        .withColumn("shift", F.col("first_sequence") - F.col("first_offset"))
    )
