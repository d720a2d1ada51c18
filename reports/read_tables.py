"""Reads the history of one or several runs as data frames, each with a leading ``run`` column (0, 1, ...).

Schemas are stated, never inferred. A table without files is an empty frame and is missing from ``present``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from reports import schema
from reports.columns import Table

_TYPES: Mapping[str, DataType] = {"int64": LongType(), "string": StringType(), "bool": BooleanType()}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of reports/schema.py plus what several jobs start from.

    ``reads`` and ``sends`` are RUNS of that kind with their operation's f, type, invoke_us and complete_us. The type is
    ``info`` where the operation has no row, because its end is unknown. They also have last_offset, last_sequence and
    ``shift`` = first_sequence - first_offset. Two runs of a writer agree where they overlap if their shifts are equal.
    ``notes`` is TRACE without requests and replies, and without the notes on fetch sessions.
    All three are kept in memory once they are used, and so is what jobs ask for by ``once``.
    ``present`` holds (run, table name) for each table that has files.
    """

    operations: DataFrame
    runs: DataFrame
    positions: DataFrame
    assignments: DataFrame
    ends: DataFrame
    changes: DataFrame
    metadata_reads: DataFrame
    commits: DataFrame
    memberships: DataFrame
    metadata_epochs: DataFrame
    resets: DataFrame
    copies: DataFrame
    target_runs: DataFrame
    faults: DataFrame
    trace: DataFrame
    latency: DataFrame
    load: DataFrame
    fetch_costs: DataFrame
    broker: DataFrame
    reads: DataFrame
    sends: DataFrame
    notes: DataFrame
    present: frozenset[tuple[int, str]]
    kept: dict[str, DataFrame] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)

    def once(self, name: str, make: "Callable[[Tables], DataFrame]") -> DataFrame:
        """A frame that several jobs begin with. The first of them plans and computes it; the others read it from
        memory."""
        with self._lock:
            if name not in self.kept:
                self.kept[name] = make(self).persist(StorageLevel.MEMORY_AND_DISK)
            return self.kept[name]

    def has(self, run: int, *names: str) -> bool:
        return all((run, name) in self.present for name in names)


def struct_type(table: Table) -> StructType:
    return StructType([StructField(one.name, _TYPES[one.kind], True) for one in table.columns])


def read_tables(spark: SparkSession, run_dirs: Sequence[Path]) -> Tables:
    present = frozenset(
        (run, table.name)
        for run, folder in enumerate(run_dirs)
        for table in schema.TABLES
        if schema.files_of(folder, table)
    )
    frames = {table.name: _read(spark, run_dirs, table) for table in schema.TABLES}
    return tables_from(frames, present)


def tables_from(frames: Mapping[str, DataFrame], present: frozenset[tuple[int, str]]) -> Tables:
    """``frames`` holds every table by name, with its ``run`` column."""
    joined = _with_operation(frames["runs"], frames["operations"]).persist(StorageLevel.MEMORY_AND_DISK)
    noted = frames["trace"].where(~F.col("what").isin("request", "reply") & ~F.startswith("what", F.lit("session_")))
    notes = noted.select("run", "node", "incarnation", "seq", "at_us", "what", "detail")
    notes = notes.persist(StorageLevel.MEMORY_AND_DISK)
    return Tables(
        **{table.name: frames[table.name] for table in schema.TABLES},
        reads=joined.where(F.col("kind") == "read"),
        sends=joined.where(F.col("kind") == "send"),
        notes=notes,
        present=present,
        kept={"joined": joined, "notes": notes},
    )


def release(tables: Tables) -> None:
    """Frees what was kept in memory for the jobs."""
    for frame in tables.kept.values():
        frame.unpersist()


def _read(spark: SparkSession, run_dirs: Sequence[Path], table: Table) -> DataFrame:
    files = [schema.files_of(folder, table) for folder in run_dirs]
    paths = [path for one in files for path in one]
    names = [column.name for column in table.columns]
    if not paths:
        empty = StructType([StructField("run", LongType(), False), *struct_type(table).fields])
        return spark.createDataFrame([], empty)
    frame = spark.read.schema(struct_type(table)).parquet(*paths)
    used = [run for run, one in enumerate(files) if one]
    run = F.lit(used[0]) if len(used) == 1 else _run_of_file(files)
    return frame.select(run.cast("long").alias("run"), *names)


def _run_of_file(files: Sequence[Sequence[str]]) -> Column:
    """Which run a row's file belongs to, by the folder that it lies in: looked up in a map, since a condition for each
    run takes minutes to plan for sixty of them. (Spark writes paths as URLs.)"""
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    runs = {str(Path(each).resolve().parent): run for run, one in enumerate(files) for each in one}
    known = F.create_map(*(F.lit(each) for pair in runs.items() for each in pair))
    return F.element_at(known, F.regexp_extract(path, r"^(?:[a-z]+:)?/*(/.*)/[^/]*$", 1))


def _with_operation(runs: DataFrame, operations: DataFrame) -> DataFrame:
    ends = operations.select("run", "process", "index", "f", "type", "invoke_us", "complete_us")
    return (
        runs.join(ends, ["run", "process", "index"], "left")
        .withColumn("type", F.coalesce("type", F.lit("info")))
        .withColumn("f", F.coalesce("f", F.lit("")))
        .withColumn("complete_us", F.coalesce("complete_us", F.lit(-1)))
        .withColumn("invoke_us", F.coalesce("invoke_us", F.lit(-1)))
        .withColumn("last_offset", F.col("first_offset") + F.col("count") - 1)
        .withColumn("last_sequence", F.col("first_sequence") + F.col("count") - 1)
        .withColumn("shift", F.col("first_sequence") - F.col("first_offset"))
    )
