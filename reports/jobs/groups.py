"""Consumer groups: one-group-leader, redelivery, group-skip, and what happened to each group.

The measurements are rebalances, moves of the coordinator, partitions without an owner, and the numbers of read and
committed records.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.committed_offsets import NEVER_US, STORED, requests, with_known_before, written
from reports.jobs.compacted_topics import has_keyed, missable
from reports.jobs.evidence import group_reads, log_starts, members, occupied, ok_reads
from reports.jobs.expressions import (
    COORDINATOR_LOADED,
    GROUP_STATE,
    PARTITION,
    READER,
    before,
    first_rows,
    notes,
    number,
    text,
    without_match,
)
from reports.jobs.guarantee_job import A_COMMIT, GuaranteeJob, anomalies, counted, sentence
from reports.jobs.intervals import merged, subtracted
from reports.read_tables import Tables

MAX_REBALANCES = 400
MAX_GAPS = 2_000
"""Limits the gaps of one group on the page."""
_GROUP = ["run", "group"]


def group_totals(tables: Tables) -> DataFrame:
    """Return the totals of each group.

    Columns: run, group, members (processes), partitions (that were assigned), generations, records (read), again (read
    more than once), committed, refused, unknown (the last three count offsets by how their commit ended).
    """
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


def group_rebalances(tables: Tables) -> DataFrame:
    """Return the rebalances of each group.

    Columns: run, group, generation, members, from_us (the first member sent its JoinGroup), until_us (the last member
    had its assignment), slowest_us (the longest time of one member). A static member that returns to its generation
    does not count again.
    """
    joins = tables.memberships.where("event = 'joined'")
    joined = joins.groupBy(*_GROUP, "generation", "process").agg(
        F.min("at_us").alias("at_us"), F.min_by("since_us", "at_us").alias("since_us")
    )
    rebalances = joined.groupBy(*_GROUP, "generation").agg(
        F.count("*").alias("members"),
        F.min("since_us").alias("from_us"),
        F.max("at_us").alias("until_us"),
        F.max(F.col("at_us") - F.col("since_us")).alias("slowest_us"),
    )
    in_order = Window.partitionBy(*_GROUP).orderBy("until_us", "generation")
    return first_rows(rebalances, MAX_REBALANCES, in_order).drop("n")


def ownerless_partitions(tables: Tables) -> DataFrame:
    """Times between two owners of a partition in which it had none, the longest first. Columns: run, group, topic,
    partition, from_us, until_us."""
    in_time = Window.partitionBy(*STORED).orderBy("from_us", "until_us")
    freed = _owned(tables).withColumn("free_us", F.max("until_us").over(before(in_time)))
    gaps = freed.where("from_us > free_us").select(
        *STORED, F.col("free_us").alias("from_us"), F.col("from_us").alias("until_us")
    )
    longest = Window.partitionBy(*_GROUP).orderBy(F.desc(F.col("until_us") - F.col("from_us")), *STORED, "from_us")
    return first_rows(gaps, MAX_GAPS, longest).drop("n")


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


MAX_MOVES = 200


def coordinator_moves(tables: Tables) -> DataFrame:
    """Moves of a group's coordinator, as its members saw them.

    A move lasts from the last commit that one node acknowledged to the first commit that the next node acknowledged.

    Columns: run, group, node, next_node, last_us, first_us, failed (commits in between that were not acknowledged),
    loaded_us, records (the next node had loaded a partition of the offsets by then; null: no such note).
    """
    commits = tables.once(requests).where("kind = 'commit'")
    commits_by_node = commits.groupBy("run", "group", "process", "index", "node").agg(
        F.max("at_us").alias("at_us"), F.max(F.col("end") == "ok").alias("ok")
    )
    in_time = Window.partitionBy("run", "group").orderBy("at_us", "process", "index")
    failures = commits_by_node.withColumn("failures", F.count_if(~F.col("ok")).over(in_time))
    acked = F.when(F.col("ok"), F.struct("node", "at_us", "failures"))
    steps = failures.withColumn("last", F.last(acked, ignorenulls=True).over(before(in_time)))
    moves = steps.where("ok and last.node != node and node >= 0").select(
        "run",
        "group",
        "last.node",
        F.col("node").alias("next_node"),
        F.col("last.at_us").alias("last_us"),
        F.col("at_us").alias("first_us"),
        (F.col("failures") - F.col("last.failures")).alias("failed"),
    )
    in_order = Window.partitionBy("run").orderBy("first_us", "group")
    return _with_loads(first_rows(moves, MAX_MOVES, in_order).drop("n"), tables)


def _with_loads(moves: DataFrame, tables: Tables) -> DataFrame:
    loads = notes(tables, COORDINATOR_LOADED).select("run", "node", "at_us", number("records"))
    meanwhile = F.expr(
        "load.run = move.run and load.node = move.next_node and load.at_us between move.last_us and move.first_us"
    )
    joined = moves.alias("move").join(loads.alias("load"), meanwhile, "left")
    return joined.groupBy(*(f"move.{name}" for name in moves.columns)).agg(
        F.max("at_us").alias("loaded_us"), F.max("records").alias("records")
    )


@GuaranteeJob(
    needs=("memberships",),
    evidence="partitions_given",
    unit="partitions given to members",
)
def one_group_leader(tables: Tables) -> DataFrame:
    """one-group-leader, as far as the members show it: a generation assigns one partition to two of them.

    A generation has one leader, which makes one assignment. Members receive it only after it was written to the group's
    log, so its number is not used again, not even by another coordinator. A group without members may be deleted, and
    one that is created after that begins with generation 1 (Kafka). The simulator also compares the leaders that
    coordinators write.
    """
    assigned = _with_deletions(tables.memberships.where("event = 'assigned' and generation >= 0"), tables)
    generation = Window.partitionBy("run", "group", "deletions", "generation", "topic", "partition")
    in_time = generation.orderBy("at_us", "process")
    both = assigned.withColumn("first", F.first("process").over(in_time)).where("process != first")
    detail = sentence(
        "In generation %s of group %s the partition was given to %s and to %s.",
        "generation",
        "group",
        "first",
        "process",
    )
    return anomalies(both, detail)


def _with_deletions(frame: DataFrame, tables: Tables) -> DataFrame:
    """Add how often a coordinator had deleted the group until ``at_us`` (``deletions``)."""
    states = notes(tables, GROUP_STATE).select("run", text("group"), text("state"), "at_us")
    deleted = states.where("state = 'Dead'").drop("state").withColumn("is_deletion", F.lit(1))
    both = frame.unionByName(deleted, allowMissingColumns=True)
    in_time = Window.partitionBy(*_GROUP).orderBy("at_us").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    with_deletions = both.withColumn("deletions", F.count("is_deletion").over(in_time))
    return with_deletions.where("is_deletion is null").drop("is_deletion")


def first_reads(tables: Tables) -> DataFrame:
    """A row for each time that a member was given a partition and read from it. Columns: run, process, topic,
    partition, group, generation, given_us, index, invoke_us, at_us, first_offset."""
    owner = ("group", "generation", "given_us")
    assigned = tables.memberships.where("event = 'assigned'").withColumn("given_us", F.col("at_us"))
    assigned = assigned.select(*READER, *owner, F.col("at_us").alias("point_us"), F.lit(0).alias("is_read"))
    reads = ok_reads(tables).withColumn("at_us", F.col("complete_us")).withColumn("point_us", F.col("invoke_us"))
    read = ("index", "position", "invoke_us", "at_us", "first_offset")
    both = assigned.unionByName(
        reads.select(*READER, *read, "point_us", F.lit(1).alias("is_read")), allowMissingColumns=True
    )
    in_time = Window.partitionBy(*READER).orderBy("point_us", "is_read", "index", "position")
    owned = both.withColumns({name: F.last(name, ignorenulls=True).over(in_time) for name in owner})
    place = Window.partitionBy(*READER, "given_us").orderBy("point_us", "index", "position")
    return first_rows(owned.where("is_read = 1 and given_us is not null"), 1, place).select(*READER, *owner, *read)


@GuaranteeJob(
    needs=("operations", "runs", "commits", "memberships"),
    evidence="partitions_given",
    unit="partitions given to members",
    excused_by=A_COMMIT,
)
def redelivery(tables: Tables) -> DataFrame:
    """redelivery: a member that was assigned a partition begins to read below the group's committed offset.

    The next owner reads again what was read but not committed. Groups promise no more than that, so ``group_totals``
    only counts it. ``rewinds`` judges positions that were out of range or truncated.
    """
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


@GuaranteeJob(
    needs=("operations", "runs", "memberships"),
    evidence="partitions_given",
    unit="partitions given to members",
    excused_by="a read by another member",
)
def group_skip(tables: Tables) -> DataFrame:
    """group-skip: no member of a group read a record that is between two records that members did read.

    The owner of a partition starts at the group's committed offset, so nothing may be skipped between owners. Offsets
    below a log start that was seen do not count, because they may be deleted. Neither do offsets over which a reset
    moved a member's position forward (its reset policy is ``latest``), and records that a cleaner may have removed
    before a member read on behind them (X-11).
    """
    reads = tables.once(group_reads)
    mine = merged(reads, STORED, "first_offset", "last_offset")
    reach = mine.groupBy(*STORED).agg(F.min("first").alias("low"), F.max("last").alias("high"))
    level = reads.groupBy("run", "group").agg(F.max("isolation").alias("isolation"))
    reach = reach.join(F.broadcast(level), ["run", "group"])
    there = tables.once(occupied).join(reach, [*PARTITION, "isolation"])
    between = there.select(*STORED, F.greatest("first", "low").alias("first"), F.least("last", "high").alias("last"))
    covered = mine.unionByName(_jumped_over(tables))
    if has_keyed(tables):
        offset = F.col("offset")
        covered = covered.unionByName(
            _cleaned_before_read(tables, reads).select(*STORED, offset.alias("first"), offset.alias("last"))
        )
    covered = merged(covered, STORED, "first", "last")
    holes = subtracted(between.where("first <= last"), covered, STORED)
    # greatest() skips a log start that no response had.
    holes_in_log = holes.join(log_starts(tables), PARTITION, "left").withColumn(
        "first", F.greatest("first", "start_offset")
    )
    seen = reads.select(*STORED, "process", "index", "complete_us", F.col("first_offset").alias("next_offset"))
    after = F.broadcast(holes_in_log.where("first <= last")).join(seen, STORED).where("next_offset > last")
    witness = F.min(F.struct("complete_us", "process", "index", "next_offset")).alias("witness")
    skipped = after.groupBy(*STORED, "first", "last").agg(witness).select(*STORED, "first", "last", "witness.*")
    detail = sentence("Group %s omitted offsets %s to %s and read on from %s.", "group", "first", "last", "next_offset")
    return anomalies(skipped, detail, offset="first")


def _cleaned_before_read(tables: Tables, reads: DataFrame) -> DataFrame:
    """The offsets whose records a cleaner may have taken before the group's first read that began behind them ended.
    Columns: STORED, offset."""
    begun = reads.select(*STORED, F.col("first_offset").alias("offset"), "complete_us", F.lit(None).alias("since_us"))
    records = tables.once(missable).join(F.broadcast(members(tables).select("run", "group").distinct()), "run")
    records = records.select(*STORED, "offset", F.lit(None).alias("complete_us"), "since_us")
    behind = Window.partitionBy(*STORED).orderBy(F.desc("offset")).rangeBetween(Window.unboundedPreceding, -1)
    records_and_reads = begun.unionByName(records).withColumn("first_us", F.min("complete_us").over(behind))
    return records_and_reads.where("since_us is not null and (first_us is null or since_us <= first_us)")


def _jumped_over(tables: Tables) -> DataFrame:
    """The offsets that Kafka's auto.offset.reset omits. Columns: STORED, first, last."""
    moved = tables.resets.join(F.broadcast(members(tables)), ["run", "process"])
    first, last = F.greatest("from_offset", F.lit(0)), F.col("to_offset") - 1
    return moved.select(*STORED, first.alias("first"), last.alias("last")).where("first <= last")
