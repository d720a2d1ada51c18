"""What came of each scenario in each world on each target, night by night. Plays with a mutant do not count here, and
neither do replays, because their seeds were not drawn."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_nights import NightTables

KEYS = ("night", "scenario", "world", "target")
MOST_RUNS = 9
_RANK = "CASE outcome WHEN 'CRASHED' THEN 0 WHEN 'FAILED' THEN 1 WHEN 'INVALID' THEN 2 ELSE 3 END"


def transform(tables: NightTables) -> DataFrame:
    """Columns: KEYS, passed, failed, invalid, crashed, wall_us, first_seed and last_seed; outcome, seed, guarantee,
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
    kept = F.when(F.col("run_dir") != "", F.struct("order", "run_dir", "outcome", "seed"))
    runs = F.transform(F.slice(F.array_sort(F.collect_list(kept)), 1, MOST_RUNS), lambda one: one.dropFields("order"))
    return (
        controls.groupBy(*KEYS)
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
