"""Reads the tables of many nights as data frames, each with a leading ``night`` column: the name of the night's folder.

Schemas are stated, never inferred. A night that was stopped early may lack tables, and a table may lie in no night.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from reports.columns import Table
from reports.night_rows import NIGHT_TABLES, PlayRow
from reports.read_tables import struct_type

NIGHT = StructField("night", StringType(), False)


@dataclass(frozen=True, slots=True)
class NightTables:
    """The tables of ``night_rows.py`` over several nights. ``replays`` are the plays of seeds that broke a guarantee
    before, of all nights."""

    plays: DataFrame
    replays: DataFrame
    failures: DataFrame
    figures: DataFrame
    cells: DataFrame


PLAYS_OF, TABLES_OF = 40, 90
"""Plays are read of so many nights, and figures and cells of so many. Failures are read of all, for their age, and so
are the plays that say whether one is mended."""
_READ = {"plays": PLAYS_OF, "figures": TABLES_OF, "cells": TABLES_OF, "failures": 0}


def read_nights(spark: SparkSession, folders: Sequence[Path]) -> NightTables:
    """``folders`` are those of all nights, the oldest first."""
    frames = {table.name: _read(spark, folders, table, _READ[table.name]) for table in NIGHT_TABLES.values()}
    replays = _read(spark, folders, NIGHT_TABLES[PlayRow], 0).where("is_replay")
    return NightTables(**frames, replays=replays)


def night_bytes(folders: Sequence[Path]) -> int:
    """The stored size of what is read of these nights."""
    nights = {**_READ, "plays": 0}  # Those of older nights are read for their replays.
    return sum(
        path.stat().st_size for table in NIGHT_TABLES.values() for path in _files(folders, table, nights[table.name])
    )


def _files(folders: Sequence[Path], table: Table, nights: int) -> list[Path]:
    return [path for folder in folders[-nights:] if (path := folder / table.path).is_file()]


def _read(spark: SparkSession, folders: Sequence[Path], table: Table, nights: int) -> DataFrame:
    """Of the last ``nights``, or of all if that is 0."""
    files = [str(each.resolve()) for each in _files(folders, table, nights)]
    columns = struct_type(table)
    if not files:
        return spark.createDataFrame([], StructType([NIGHT, *columns.fields]))
    night = F.regexp_extract(F.col("_metadata.file_path"), r"([^/]+)/[^/]+$", 1)
    return spark.read.schema(columns).parquet(*files).select(night.alias(NIGHT.name), *columns.names)
