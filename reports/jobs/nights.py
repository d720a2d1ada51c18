"""The tables of many nights, and the jobs over them. A leading ``night`` column has the name of the night's folder.

Schemas are stated, never inferred. A night that was stopped early may lack tables, and no night may have a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from reports.columns import Table
from reports.night import NIGHT_TABLES, PlayRow
from reports.read_tables import struct_type

NIGHT = StructField("night", StringType(), False)


@dataclass(frozen=True, slots=True)
class NightTables:
    """The tables of ``night.py`` over several nights."""

    plays: DataFrame
    replays: DataFrame
    """The plays of seeds that violated a guarantee before, of all nights."""
    failures: DataFrame
    figures: DataFrame
    cells: DataFrame


PLAYS_OF, TABLES_OF = 40, 90
"""The number of nights of which plays are read, and that of figures and cells. Failures are read of all nights, for
their age, and so are the plays that show whether one is fixed."""
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
    """Return the rows of ``table`` of the last ``nights`` nights, or of all if that is 0."""
    files = [str(file.resolve()) for file in _files(folders, table, nights)]
    columns = struct_type(table)
    if not files:
        return spark.createDataFrame([], StructType([NIGHT, *columns.fields]))
    night = F.regexp_extract(F.col("_metadata.file_path"), r"([^/]+)/[^/]+$", 1)
    return spark.read.schema(columns).parquet(*files).select(night.alias(NIGHT.name), *columns.names)


def plays_by_outcome(tables: NightTables) -> DataFrame:
    """Number of plays of each night, by outcome.

    Columns: night, is_control (our own broker without a mutant, which must pass), outcome, plays.
    """
    is_control = F.expr("mutant = '' and target = 'reference'").alias("is_control")
    return tables.plays.groupBy("night", is_control, "outcome").agg(F.count("*").alias("plays"))


SCENARIO_KEYS = ("night", "scenario", "world", "target")
MAX_RUNS = 9
_RANK = "CASE outcome WHEN 'CRASHED' THEN 0 WHEN 'FAILED' THEN 1 WHEN 'INVALID' THEN 2 ELSE 3 END"


def worst_of_scenarios(tables: NightTables) -> DataFrame:
    """Worst outcome of each scenario in each world on each target, night by night. Plays with a mutant do not count
    here, and neither do replays, because their seeds were not drawn.

    Columns: KEYS, passed, failed, invalid, crashed, wall_us, first_seed and last_seed; outcome, seed, guarantee,
    detail, command of the worst play (of several the latest); runs: the folders that were kept, the worst first.
    """
    controls = tables.plays.where("mutant = '' and not coalesce(is_replay, false)").withColumn(
        "order", F.struct(F.expr(_RANK), -F.col("at_us"))
    )
    counts = [
        F.count_if(F.col("outcome") == outcome).alias(outcome.lower())
        for outcome in ("PASSED", "FAILED", "INVALID", "CRASHED")
    ]
    worst = F.min_by(F.struct("outcome", "seed", "guarantee", "detail", "command"), "order").alias("worst")
    reported_runs = F.when(F.col("run_dir") != "", F.struct("order", "run_dir", "outcome", "seed"))
    runs = F.transform(
        F.slice(F.array_sort(F.collect_list(reported_runs)), 1, MAX_RUNS), lambda run: run.dropFields("order")
    )
    return (
        controls.groupBy(*SCENARIO_KEYS)
        .agg(
            *counts,
            F.sum("wall_us").alias("wall_us"),
            F.min("seed").alias("first_seed"),
            F.max("seed").alias("last_seed"),
            worst,
            runs.alias("runs"),
        )
        .select("*", "worst.*")
        .drop("worst")
    )


PLACE = ("scenario", "world", "target")
LATEST = ("seed", "faults", "regression", "command", "live_plays", "live_reds", "detail")


def still_open_failures(tables: NightTables) -> DataFrame:
    """The failures of all nights that are not known to be fixed.

    A failure is one guarantee that broke in one scenario, world and on one target, whatever the seeds. It is open until
    a later night plays the seed of its last sighting again, and that passes.

    Columns: PLACE, guarantee, first_night, last_night, nights, seeds, first_bad_commit (the first that was found),
    LATEST (of the last night's failure); plays and violations (plays of that place without a mutant, and those that
    broke the guarantee) from its first to its last night; plays_since and violations_since (alike, in later nights).
    Replays count in none of these, because their seeds were not drawn; still_breaks says whether one of a later night
    broke the guarantee.
    """
    known = F.when(F.col("first_bad_commit") != "", F.col("first_bad_commit"))
    failures = (
        tables.failures.groupBy(*PLACE, "guarantee")
        .agg(
            F.min("night").alias("first_night"),
            F.max("night").alias("last_night"),
            F.count_distinct("night").alias("nights"),
            F.count_distinct("seed").alias("seeds"),
            F.coalesce(F.min_by(known, F.when(known.isNotNull(), F.col("night"))), F.lit("")).alias("first_bad_commit"),
            F.max_by(F.struct(*LATEST), "night").alias("latest"),
        )
        .select("*", "latest.*")
        .drop("latest")
    )
    return _with_counts(failures, tables).join(_mended(failures, tables), [*PLACE, "guarantee"], "left_anti")


def _with_counts(failures: DataFrame, tables: NightTables) -> DataFrame:
    played = tables.plays.where("mutant = ''").select(
        *PLACE, "night", F.col("guarantee").alias("broke"), F.expr("coalesce(is_replay, false)").alias("again")
    )
    key = [*PLACE, "guarantee"]
    counted = (
        failures.join(played, list(PLACE))
        .where("night >= first_night")
        .groupBy(*key)
        .agg(
            F.expr("count_if(not again and night <= last_night)").alias("plays"),
            F.expr("count_if(not again and night <= last_night and broke = guarantee)").alias("violations"),
            F.expr("count_if(not again and night > last_night)").alias("plays_since"),
            F.expr("count_if(not again and night > last_night and broke = guarantee)").alias("violations_since"),
            F.expr("bool_or(again and night > last_night and broke = guarantee)").alias("still_breaks"),
        )
    )
    none = dict.fromkeys(("plays", "violations", "plays_since", "violations_since"), 0)
    return failures.join(counted, key, "left").fillna({**none, "still_breaks": False})


def _mended(failures: DataFrame, tables: NightTables) -> DataFrame:
    """The failures whose last seed has passed in a later night, whether it was chosen for that or not."""
    passed = tables.plays.unionByName(tables.replays).where("mutant = '' and outcome = 'PASSED'")
    again = passed.select(*PLACE, "seed", F.col("night").alias("passed_in"))
    return failures.join(again, [*PLACE, "seed"]).where("passed_in > last_night").select(*PLACE, "guarantee")


GOOD = "pass"
UNJUDGED = (
    *("not advertised", "not played", "not judged"),
    *("not supported", "not shown", "adapter failed", "our error"),
)
"""Outcomes of cases that do not apply to this broker or client, or could not be played. They are neither good nor
bad."""


def probe_sections(tables: NightTables) -> DataFrame:
    """Last results of each target (a broker in the probe, or a client), section by section, and which cases changed
    since its results before.

    Columns: target, section, night (of the last probe), cases, passed, unjudged, must (that did not pass), should
    (alike), changed: what each case (case_id) was (was; empty: it is new) and is (now; empty: it is gone), and failed:
    the cases behind ``must`` and ``should`` (case_id, level, outcome).
    """
    probes = tables.cells.select("target", "night").distinct()
    nights = probes.withColumn("place", F.row_number().over(Window.partitionBy("target").orderBy(F.desc("night"))))
    placed = tables.cells.join(F.broadcast(nights.where("place <= 2")), ["target", "night"])
    key = ["target", "section", "case_id"]
    cases = placed.groupBy(*key).agg(
        F.max(F.when(F.col("place") == 1, F.col("outcome"))).alias("now"),
        F.max(F.when(F.col("place") == 2, F.col("outcome"))).alias("was"),
        F.max_by("level", "night").alias("level"),
    )
    probed = nights.groupBy("target").agg(F.max("night").alias("night"), F.max("place").alias("probes"))
    judged = cases.join(F.broadcast(probed), "target").withColumn(
        "bad", F.col("now").isNotNull() & ~F.col("now").isin(GOOD, *UNJUDGED)
    )
    differs = F.col("now").eqNullSafe(F.col("was")) | (F.col("probes") < 2)
    change = F.struct("case_id", F.coalesce("was", F.lit("")).alias("was"), F.coalesce("now", F.lit("")).alias("now"))
    failed = F.struct("case_id", "level", F.col("now").alias("outcome"))
    return judged.groupBy("target", "section").agg(
        F.max("night").alias("night"),
        F.count("now").alias("cases"),
        F.count_if(F.col("now") == GOOD).alias("passed"),
        F.count_if(F.col("now").isin(*UNJUDGED)).alias("unjudged"),
        F.count_if(F.expr("bad and level = 'MUST'")).alias("must"),
        F.count_if(F.expr("bad and level <> 'MUST'")).alias("should"),
        F.array_sort(F.collect_list(F.when(~differs, change))).alias("changed"),
        F.array_sort(F.collect_list(F.when(F.col("bad"), failed))).alias("failed"),
    )


SERIES_KEYS = ("row", "what", "nodes", "peer_name")


def figure_series(tables: NightTables) -> DataFrame:
    """The series of each figure of the benchmark, as ratio to the peer in the same run.

    A ratio is compared night by night, because both brokers took turns on the same machine. The figures themselves also
    change with the machine.

    Columns: KEYS, unit, better, night, ratio, ratio_low, ratio_high, reference, peer, pairs.

    If a night measured a figure more than once, its middle ratio counts.
    """
    columns = ("ratio", "ratio_low", "ratio_high", "reference", "peer")
    return (
        tables.figures.where("ratio is not null and ratio > 0")
        .groupBy(*SERIES_KEYS, "unit", "better", "night")
        .agg(*(F.median(column).alias(column) for column in columns), F.sum("pairs").alias("pairs"))
    )
