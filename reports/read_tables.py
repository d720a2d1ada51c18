"""Reads the history of one or several runs as data frames, each with a leading ``run`` column (0, 1, ...).

Schemas are stated, never inferred. A table without files is an empty frame and is missing from ``present``.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from reports import schema
from reports.columns import Table
from reports.gathered import gather
from reports.jobs.shared.config import JobConfig

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
    """The tables of reports/schema.py plus what several jobs start from.

    ``reads`` and ``sends`` are RUNS of that kind with their operation's f, type, invoke_us and complete_us. The type is
    ``info`` where the operation has no row, because its end is unknown. They also have last_offset, last_sequence and
    ``shift`` = first_sequence - first_offset. Two runs of a writer agree where they overlap if their shifts are equal.
    ``notes`` is TRACE without requests and replies, and without the notes on fetch sessions.
    All three are kept in memory once they are used, and so is what jobs ask for by ``once``.
    ``present`` holds (run, table name) for each table that has files. ``config`` is what the tables do not say.
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
    told_transactions: DataFrame
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
    config: JobConfig
    present: frozenset[tuple[int, str]]
    kept: dict[object, DataFrame] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)

    def once(self, make: "Callable[[Tables], DataFrame]") -> DataFrame:
        """A frame that several jobs begin with. The first of them plans and computes it; the others read it from
        memory."""
        with self._lock:
            if make not in self.kept:
                self.kept[make] = make(self).persist(StorageLevel.MEMORY_AND_DISK)
            return self.kept[make]

    def has(self, run: int, *names: str) -> bool:
        return all((run, name) in self.present for name in names)

    def runs_with(self, name: str) -> list[int]:
        """The runs that left this table, which is one of DECIDING."""
        assert name in DECIDING, f"a job asks for runs with {name}, which DECIDING does not name"
        return sorted(run for run, table in self.present if table == name)

    def forget(self) -> None:
        """Frees the rows that are kept in memory. They are computed anew when they are used next."""
        for frame in self.kept.values():
            frame.unpersist()
        for frame in self.kept.values():  # each after those that it begins with
            frame.persist(StorageLevel.MEMORY_AND_DISK)


def struct_type(table: Table) -> StructType:
    return StructType([StructField(one.name, _TYPES[one.kind], True) for one in table.columns])


def together(frame: DataFrame, *keys: str) -> DataFrame:
    """Moves rows of equal keys to one place, for all grouping, ordering and joining by these keys (and more) that
    follows. A small history lies in one place anyway."""
    return frame if lies_in_one_place(frame) else frame.repartition(*keys)


def lies_in_one_place(frame: DataFrame) -> bool:
    """Whether the history is small."""
    return str(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")) == "1"


def _in_one_partition(frame: DataFrame) -> DataFrame:
    """Makes a small table one partition. Spark then knows that equal keys lie together, and plans no shuffles."""
    return frame.coalesce(1) if lies_in_one_place(frame) else frame


@contextmanager
def reading(spark: SparkSession, run_dirs: Sequence[Path], config: JobConfig) -> Iterator[Tables]:
    """The runs' tables. What was kept in memory for the jobs is freed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="crucible-gathered-") as scratch:
        frames = {table.name: _read(spark, run_dirs, table, Path(scratch)) for table in schema.TABLES}
        with tables_over(frames, present_in(run_dirs), config) as tables:
            yield tables


def present_in(run_dirs: Sequence[Path]) -> frozenset[tuple[int, str]]:
    """(run, table name) for each table that has files."""
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
    """Tables of these frames, one of each name. What was kept in memory for the jobs is freed at the end of the
    block."""
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
        tables.kept.clear()  # Java has heard of it, too. It may be gone, and then it has nothing to free.
        raise
    finally:
        for frame in tables.kept.values():
            frame.unpersist()


def read_gathered(spark: SparkSession, file: Path) -> DataFrame:
    """The rows of a file that ``gather`` wrote. Its table's name is the file's."""
    (table,) = (each for each in schema.TABLES if each.name == file.stem)
    return spark.read.schema(_with_run(table)).parquet(str(file))


def look_again(gathered: DataFrame) -> None:
    """Has Spark notice that the file was written anew. All frames that begin with this one read it then."""
    gathered._jdf.queryExecution().analyzed().relation().location().refresh()


def _with_run(table: Table) -> StructType:
    return StructType([StructField("run", LongType(), False), *struct_type(table).fields])


def _read(spark: SparkSession, run_dirs: Sequence[Path], table: Table, scratch: Path) -> DataFrame:
    here = not any((folder / schema.REMOTE_FILES).exists() for folder in run_dirs)
    if here and len(run_dirs) > 1 and str(spark.conf.get("spark.master")).startswith("local"):
        target = scratch / f"{table.name}.parquet"
        if gather(run_dirs, table, target):
            return read_gathered(spark, target)
    files = [schema.files_of(folder, table) for folder in run_dirs]
    paths = [path for one in files for path in one]
    names = [column.name for column in table.columns]
    if not paths:
        return spark.createDataFrame([], _with_run(table))
    frame = spark.read.schema(struct_type(table)).parquet(*paths)
    used = [run for run, one in enumerate(files) if one]
    run = F.lit(used[0]) if len(used) == 1 else _run_of_file(files)
    return frame.select(run.cast("long").alias("run"), *names)


def _run_of_file(files: Sequence[Sequence[str]]) -> Column:
    """Which run a row's file belongs to, by the folder that it lies in: looked up in a map, since a condition for each
    run takes minutes to plan for sixty of them. (Spark writes paths as URLs.)"""
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    runs = {_folder_of(each): run for run, one in enumerate(files) for each in one}
    known = F.create_map(*(F.lit(each) for pair in runs.items() for each in pair))
    return F.element_at(known, F.regexp_extract(path, r"^(?:[a-z0-9]+:)?/*(/.*)/[^/]*$", 1))


def _folder_of(file: str) -> str:
    """The folder of a path, or of a URL without its scheme."""
    _, of_url, rest = file.partition("://")
    return str(Path(f"/{rest}").parent if of_url else Path(file).resolve().parent)


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
