"""The failures that nights found and that nothing has shown to be mended.

A failure is one guarantee that broke in one scenario, world and on one target, whatever the seeds. It is open until a
later night plays the seed of its last sighting again, and that passes.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_nights import NightTables

PLACE = ("scenario", "world", "target")
LATEST = ("seed", "faults", "regression", "command", "live_plays", "live_reds", "detail")


def transform(tables: NightTables) -> DataFrame:
    """Columns: PLACE, guarantee, first_night, last_night, nights, seeds, first_bad_commit (the first that was found),
    LATEST (of the last night's failure); plays and breaches (plays of that place without a mutant, and those that broke
    the guarantee) from its first to its last night; plays_since and breaches_since (alike, in later nights). Replays
    count in none of these, because their seeds were not drawn; still_breaks says whether one of a later night broke the
    guarantee."""
    known = F.when(F.col("first_bad_commit") != "", F.col("first_bad_commit"))
    found = (
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
    return _with_plays(found, tables).join(_mended(found, tables), [*PLACE, "guarantee"], "left_anti")


def _with_plays(found: DataFrame, tables: NightTables) -> DataFrame:
    played = tables.plays.where("mutant = ''").select(
        *PLACE, "night", F.col("guarantee").alias("broke"), F.expr("coalesce(is_replay, false)").alias("again")
    )
    key = [*PLACE, "guarantee"]
    counted = (
        found.join(played, list(PLACE))
        .where("night >= first_night")
        .groupBy(*key)
        .agg(
            F.expr("count_if(not again and night <= last_night)").alias("plays"),
            F.expr("count_if(not again and night <= last_night and broke = guarantee)").alias("breaches"),
            F.expr("count_if(not again and night > last_night)").alias("plays_since"),
            F.expr("count_if(not again and night > last_night and broke = guarantee)").alias("breaches_since"),
            F.expr("bool_or(again and night > last_night and broke = guarantee)").alias("still_breaks"),
        )
    )
    none = dict.fromkeys(("plays", "breaches", "plays_since", "breaches_since"), 0)
    return found.join(counted, key, "left").fillna({**none, "still_breaks": False})


def _mended(found: DataFrame, tables: NightTables) -> DataFrame:
    """The failures whose last seed has passed in a later night, whether it was chosen for that or not."""
    passed = tables.plays.unionByName(tables.replays).where("mutant = '' and outcome = 'PASSED'")
    again = passed.select(*PLACE, "seed", F.col("night").alias("passed_in"))
    return found.join(again, [*PLACE, "seed"]).where("passed_in > last_night").select(*PLACE, "guarantee")
