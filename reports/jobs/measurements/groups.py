"""What happened to groups: rebalances, partitions without an owner, and how much was read and committed."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.commits import NEVER_US, STORED, requests
from reports.jobs.shared.evidence import group_reads
from reports.jobs.shared.expressions import before, first_rows
from reports.jobs.shared.intervals import merged
from reports.read_tables import Tables

MOST_REBALANCES = 400
MOST_GAPS = 2_000
"""The page shows at most so many gaps of one group."""
_GROUP = ["run", "group"]


def transform(tables: Tables) -> DataFrame:
    """Columns: run, group, members (processes), partitions (that were given to somebody), generations, records (read),
    again (read more than once), committed, refused, unknown (the last three count offsets by how their commit
    ended)."""
    reads = tables.once(group_reads)
    once = merged(reads, STORED, "first_offset", "last_offset").groupBy(*_GROUP)
    distinct = once.agg(F.sum(F.col("last") - F.col("first") + 1).alias("distinct"))
    read = reads.groupBy(*_GROUP).agg(F.sum("count").alias("records"))
    commits = tables.once(requests).where("kind = 'commit'").groupBy(*_GROUP)
    ends = {"ok": "committed", "refused": "refused", "unknown": "unknown"}
    ended = commits.agg(*(F.count_if(F.col("end") == end).alias(name) for end, name in ends.items()))
    place = F.when(F.col("topic") != "", F.struct("topic", "partition"))
    members = tables.memberships.groupBy(*_GROUP).agg(
        F.countDistinct("process").alias("members"),
        F.countDistinct(place).alias("partitions"),
        F.countDistinct(F.when(F.col("event") == "joined", F.col("generation"))).alias("generations"),
    )
    whole = members.join(read, _GROUP, "left").join(distinct, _GROUP, "left").join(ended, _GROUP, "left").fillna(0)
    again = (F.col("records") - F.col("distinct")).alias("again")
    return whole.select(*members.columns, "records", again, *ends.values())


def rebalances(tables: Tables) -> DataFrame:
    """Columns: run, group, generation, members, from_us (the first of them began to ask), until_us (the last knew its
    part), slowest_us (the longest that one of them took). A static member that comes back to its generation does not
    count again."""
    joins = tables.memberships.where("event = 'joined'")
    joined = joins.groupBy(*_GROUP, "generation", "process").agg(
        F.min("at_us").alias("at_us"), F.min_by("since_us", "at_us").alias("since_us")
    )
    each = joined.groupBy(*_GROUP, "generation").agg(
        F.count("*").alias("members"),
        F.min("since_us").alias("from_us"),
        F.max("at_us").alias("until_us"),
        F.max(F.col("at_us") - F.col("since_us")).alias("slowest_us"),
    )
    in_order = Window.partitionBy(*_GROUP).orderBy("until_us", "generation")
    return first_rows(each, MOST_REBALANCES, in_order).drop("n")


def ownerless(tables: Tables) -> DataFrame:
    """Times between two owners of a partition in which it had none, the longest first. Columns: run, group, topic,
    partition, from_us, until_us."""
    in_time = Window.partitionBy(*STORED).orderBy("from_us", "until_us")
    freed = _owned(tables).withColumn("free_us", F.max("until_us").over(before(in_time)))
    found = freed.where("from_us > free_us").select(
        *STORED, F.col("free_us").alias("from_us"), F.col("from_us").alias("until_us")
    )
    longest = Window.partitionBy(*_GROUP).orderBy(F.desc(F.col("until_us") - F.col("from_us")), *STORED, "from_us")
    return first_rows(found, MOST_GAPS, longest).drop("n")


def _owned(tables: Tables) -> DataFrame:
    """A member's time with a partition. Columns: STORED, process, from_us, until_us (NEVER_US: to the end)."""
    events = tables.memberships.select(*STORED, "process", "event", "at_us")
    moves = events.where("event in ('assigned', 'revoked', 'lost')")
    places = moves.select(*STORED, "process").distinct()
    left = events.where("event = 'left'").drop("topic", "partition").join(places, [*_GROUP, "process"])
    in_time = Window.partitionBy(*STORED, "process").orderBy("at_us", F.col("event") == "assigned")
    until_us = F.coalesce(F.lead("at_us").over(in_time), F.lit(NEVER_US))
    spans = moves.unionByName(left).withColumn("until_us", until_us).where("event = 'assigned'")
    return spans.select(*STORED, "process", F.col("at_us").alias("from_us"), "until_us")
