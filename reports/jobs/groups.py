"""What happened to groups: rebalances, partitions without an owner, and how much was read and committed."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.commits import STORED, requests
from reports.jobs.config import JobConfig
from reports.jobs.group_skip import group_reads
from reports.jobs.intervals import merged
from reports.read_tables import Tables

MOST_REBALANCES = 400
MOST_GAPS = 2_000
"""The page shows at most so many gaps of one group."""
_GROUP = ("run", "group")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, group, members (processes), partitions (that were given to somebody), generations, records (read),
    again (read more than once), committed, refused, unknown (the last three count offsets by how their commit
    ended)."""
    reads = tables.once("group_reads", group_reads)
    distinct = merged(reads, STORED, "first_offset", "last_offset")
    held = distinct.groupBy(*_GROUP).agg(F.sum(F.col("last") - F.col("first") + 1).alias("distinct"))
    read = reads.groupBy(*_GROUP).agg(F.sum("count").alias("records"))
    commits = tables.once("commit_requests", requests).where(F.col("kind") == "commit")
    ends = commits.groupBy(*_GROUP).agg(
        *(
            F.count(F.when(F.col("end") == end, 1)).alias(name)
            for end, name in (("ok", "committed"), ("refused", "refused"), ("unknown", "unknown"))
        )
    )
    place = F.when(F.col("topic") != "", F.struct("topic", "partition"))
    members = tables.memberships.groupBy(*_GROUP).agg(
        F.countDistinct("process").alias("members"),
        F.countDistinct(place).alias("partitions"),
        F.countDistinct(F.when(F.col("event") == "joined", F.col("generation"))).alias("generations"),
    )
    whole = members
    for more in (read, held, ends):
        whole = whole.join(more, list(_GROUP), "left")
    zero = F.lit(0).cast("long")
    return whole.select(
        *_GROUP,
        "members",
        "partitions",
        "generations",
        F.coalesce("records", zero).alias("records"),
        (F.coalesce("records", zero) - F.coalesce("distinct", zero)).alias("again"),
        *(F.coalesce(name, zero).alias(name) for name in ("committed", "refused", "unknown")),
    )


def rebalances(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, group, generation, members, from_us (the first of them began to ask), until_us (the last knew its
    part), slowest_us (the longest that one of them took). A static member that comes back to its generation does not
    count again."""
    joins = tables.memberships.where(F.col("event") == "joined")
    joined = joins.groupBy(*_GROUP, "generation", "process").agg(
        F.min("at_us").alias("at_us"), F.min_by("since_us", "at_us").alias("since_us")
    )
    each = joined.groupBy(*_GROUP, "generation").agg(
        F.count(F.lit(1)).alias("members"),
        F.min("since_us").alias("from_us"),
        F.max("at_us").alias("until_us"),
        F.max(F.col("at_us") - F.col("since_us")).alias("slowest_us"),
    )
    place = F.row_number().over(Window.partitionBy(*_GROUP).orderBy("until_us", "generation"))
    return each.withColumn("n", place).where(F.col("n") <= MOST_REBALANCES).drop("n")


def ownerless(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Times between two owners of a partition in which it had none, the longest first. Columns: run, group, topic,
    partition, from_us, until_us."""
    in_time = Window.partitionBy(*STORED).orderBy("from_us", "until_us")
    before = F.max("until_us").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    gaps = _owned(tables).withColumn("free_us", before).where(F.col("from_us") > F.col("free_us"))
    found = gaps.select(*STORED, F.col("free_us").alias("from_us"), F.col("from_us").alias("until_us"))
    longest = Window.partitionBy(*_GROUP).orderBy(F.desc(F.col("until_us") - F.col("from_us")), *STORED, "from_us")
    return found.withColumn("n", F.row_number().over(longest)).where(F.col("n") <= MOST_GAPS).drop("n")


def _owned(tables: Tables) -> DataFrame:
    """A member's time with a partition. Columns: STORED, process, from_us, until_us (null: to the end)."""
    events = tables.memberships.select("run", "group", "process", "topic", "partition", "event", "at_us")
    moves = events.where(F.col("event").isin("assigned", "revoked", "lost"))
    whole = moves.select("run", "group", "process", "topic", "partition").distinct()
    left = events.where(F.col("event") == "left").select("run", "group", "process", "event", "at_us")
    both = moves.unionByName(left.join(whole, ["run", "group", "process"]))
    in_time = Window.partitionBy(*STORED, "process").orderBy("at_us", F.col("event") == "assigned")
    spans = both.withColumn("until_us", F.lead("at_us").over(in_time)).where(F.col("event") == "assigned")
    end = F.coalesce("until_us", F.lit(2**62))
    return spans.select(*STORED, "process", F.col("at_us").alias("from_us"), end.alias("until_us"))
