"""redelivery: a member that was given a partition begins to read below the group's committed offset.

The next owner reads again what was read but not committed. Groups promise no more, so ``groups.py`` only counts it.
``rewinds`` judges positions that were out of range or truncated.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.commits import STORED, with_known_before, written
from reports.jobs.shared.evidence import ok_reads
from reports.jobs.shared.expressions import READER, first_rows, without_match
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables


def first_reads(tables: Tables) -> DataFrame:
    """A row for each time that a member was given a partition and read from it. Columns: run, process, topic,
    partition, group, generation, given_us, index, invoke_us, at_us, first_offset."""
    owner = ("group", "generation", "given_us")
    given = tables.memberships.where("event = 'assigned'").withColumn("given_us", F.col("at_us"))
    given = given.select(*READER, *owner, F.col("at_us").alias("point_us"), F.lit(0).alias("is_read"))
    reads = ok_reads(tables).withColumn("at_us", F.col("complete_us")).withColumn("point_us", F.col("invoke_us"))
    read = ("index", "position", "invoke_us", "at_us", "first_offset")
    both = given.unionByName(
        reads.select(*READER, *read, "point_us", F.lit(1).alias("is_read")), allowMissingColumns=True
    )
    in_time = Window.partitionBy(*READER).orderBy("point_us", "is_read", "index", "position")
    owned = both.withColumns({name: F.last(name, ignorenulls=True).over(in_time) for name in owner})
    place = Window.partitionBy(*READER, "given_us").orderBy("point_us", "index", "position")
    return first_rows(owned.where("is_read = 1 and given_us is not null"), 1, place).select(*READER, *owner, *read)


def transform(tables: Tables) -> DataFrame:
    commits = written(tables)
    reads = tables.once(first_reads)
    last = F.struct("invoke_us", "offset")
    known = with_known_before(reads, "given_us", commits.where("end = 'ok'"), last)
    back = known.where("first_offset < known.offset")
    by_commit = (
        "other.offset <= this.first_offset and other.until_us > this.known.invoke_us "
        "and other.invoke_us < this.invoke_us"
    )
    moves = tables.resets.where("reason != 'no_offset'")
    by_move = "other.at_us between this.given_us and this.at_us"
    left = without_match(without_match(back, commits, STORED, by_commit), moves, READER, by_move)
    detail = sentence(
        "%s was given the partition in generation %s and read from offset %s, though the group had committed %s. "
        "That is %s.",
        "process",
        "generation",
        "first_offset",
        "known.offset",
        counted(F.col("known.offset") - F.col("first_offset"), "one record", "%s records"),
    )
    return anomalies(left, detail, offset="first_offset")


JUDGED = Judging(
    "redelivery",
    needs=("operations", "runs", "commits", "memberships"),
    evidence="partitions_given",
    unit="partitions given to members",
    find=transform,
)
