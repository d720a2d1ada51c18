"""The positions of fetchers: poll-skip, nonmonotonic-poll, fetch-gap and unrequested-partition.

The first two and their forms inside one read (int-poll-skip, int-nonmonotonic-poll) compare steps. A step is a read
with the offset at which it should begin: ``expected`` is the offset after the last record read. A reassignment or a
seek (a new row in ASSIGNMENTS) resets it. Reads of operations that did not end ok are compared, but they do not move
the position. Reads are in the order of their responses, since a member fetches from several nodes at once. A client may
use the response to a request from before a seek if its position is the same again.
"""

from collections.abc import Callable
from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.compacted_topics import has_keyed, missable
from reports.jobs.evidence import occupied
from reports.jobs.expressions import PARTITION, READER, before, so_far, with_operation, without_match
from reports.jobs.guarantee_job import COMPACTION, LOG, POLL, THE_END, GuaranteeJob, anomalies, counted, sentence
from reports.jobs.intervals import meeting
from reports.jobs.session_requests import wire_lines
from reports.read_tables import Tables
from reports.rows import END_OF_RUN_US

_STEP = (*READER, "isolation", "index", "complete_us", "first_offset", "expected")


def steps_between_operations(tables: Tables) -> DataFrame:
    """Return one step for each read of a fetcher from a partition (columns ``_STEP``).

    ``expected`` is the offset after the last record of the reads before it in the same assignment. It is null for the
    first read of an assignment. Of READS, a read has one row for each run of records; here the rows of one read are
    one step, from its first offset to its last.

    Two windows give the position, because assignments and reads have times, but no common key:

    1. ``in_time`` sorts reads (by their response) and new assignments of a fetcher on one axis. ``assignment`` is the
       number of assignments so far, so all reads between two assignments have the same number. At an equal time the
       read comes first: its response belongs to the assignment that ends.
    2. ``in_order`` has the reads of one ``assignment``. ``cursor`` is the last offset of the nearest read before that
       ended ok; others do not move the position.
    """
    reads = tables.reads.withColumn("at_us", F.col("complete_us"))
    polls = reads.groupBy(*READER, "isolation", "index", "type", "at_us", "complete_us").agg(
        F.min_by("first_offset", "position").alias("first_offset"),
        F.max_by("last_offset", "position").alias("last_offset"),
    )
    assignments = tables.assignments.select(*READER, F.col("from_us").alias("at_us"))
    events = polls.withColumn("is_poll", F.lit(1)).unionByName(
        assignments.withColumn("is_poll", F.lit(0)), allowMissingColumns=True
    )
    in_time = Window.partitionBy(*READER).orderBy("at_us", F.desc("is_poll"), "index")
    assignment = F.sum(1 - F.col("is_poll")).over(so_far(in_time))
    in_order = Window.partitionBy(*READER, "assignment").orderBy("complete_us", "index")
    ended_ok = F.when(F.col("type") == "ok", F.col("last_offset"))
    cursor = F.last(ended_ok, ignorenulls=True).over(before(in_order))
    mine = events.withColumn("assignment", assignment).where("is_poll = 1")
    return mine.withColumn("expected", cursor + 1).select(*_STEP)


def steps_inside_operations(tables: Tables) -> DataFrame:
    """Return one step for each run of records in a read (columns ``_STEP``).

    ``expected`` is the offset after the run before it in the same read, and null for the first run.
    """
    inside = Window.partitionBy(*READER, "index").orderBy("position")
    return tables.reads.withColumn("expected", F.lag("last_offset").over(inside) + 1).select(*_STEP)


def skipped(tables: Tables, steps: DataFrame) -> DataFrame:
    """Steps that jumped over records which others read (``skipped`` many, from ``first_skipped``).

    Offsets below the log start that the same response named do not count: they may be deleted. X-11: neither do records
    that a cleaner may have taken before this read.
    """
    jumps = with_log_start(tables, steps.where("first_offset > expected"))
    low, high = F.greatest("expected", "log_start_offset", F.lit(0)), F.col("first_offset") - 1
    known = jumps.withColumns({"low": low, "high": high}).where("low <= high")
    over = meeting(known, tables.once(occupied), [*PARTITION, "isolation"], ("low", "high"), ("first", "last"))
    from_offset = F.greatest("first", "low")
    until = F.least("last", F.col("first_offset") - 1)
    missed = over.select(*_STEP, from_offset.alias("from_offset"), until.alias("until"))
    if has_keyed(tables):
        missed = _not_taken(tables, missed)
    count = F.sum(F.expr("until - from_offset + 1"))
    return missed.groupBy(*_STEP).agg(count.alias("skipped"), F.min("from_offset").alias("first_skipped"))


def with_log_start(tables: Tables, steps: DataFrame) -> DataFrame:
    """Add the log start that the same response named, or null (``log_start_offset``)."""
    operations = F.broadcast(steps.select("run", "process", "index").distinct())
    positions = tables.positions.join(operations, ["run", "process", "index"], "left_semi")
    return steps.join(positions.select(*READER, "index", "log_start_offset"), [*READER, "index"], "left")


def _not_taken(tables: Tables, missed: DataFrame) -> DataFrame:
    """Split what was missed of compacted topics into offsets, and exclude those that a cleaner may have removed."""
    compacted = F.broadcast(tables.keyed_writes.select(*PARTITION).distinct())
    offset = F.explode(F.sequence("from_offset", "until")).alias("from_offset")
    offsets = missed.join(compacted, PARTITION, "left_semi").select(*_STEP, offset)
    offsets = offsets.withColumn("until", F.col("from_offset"))
    taken = tables.once(missable).withColumnRenamed("offset", "from_offset")
    there = without_match(offsets, taken, [*PARTITION, "from_offset"], "other.since_us <= this.complete_us")
    return missed.join(compacted, PARTITION, "left_anti").unionByName(there)


@GuaranteeJob(
    needs=POLL,
    evidence="read_runs",
    unit="runs of records read",
    excused_by=COMPACTION,
)
def poll_skip(tables: Tables) -> DataFrame:
    """poll-skip: a fetcher's next read jumps over records that exist. int-poll-skip: the same inside one read."""
    return _jumped(tables, steps_between_operations, "It read to offset %s, and then from %s")


@GuaranteeJob(
    needs=LOG,
    evidence="read_runs",
    unit="runs of records read",
    excused_by=COMPACTION,
)
def int_poll_skip(tables: Tables) -> DataFrame:
    return _jumped(tables, steps_inside_operations, "One read holds offset %s, and then %s")


def _jumped(tables: Tables, steps: Callable[[Tables], DataFrame], template: str) -> DataFrame:
    jumps = skipped(tables, tables.once(steps))
    detail = sentence(
        template + ". %s, from offset %s.",
        F.col("expected") - 1,
        "first_offset",
        counted("skipped", "One record is omitted", "%s records are omitted"),
        "first_skipped",
    )
    return anomalies(jumps, detail, offset="first_skipped")


@GuaranteeJob(
    needs=POLL,
    evidence="read_runs",
    unit="runs of records read",
)
def nonmonotonic_poll(tables: Tables) -> DataFrame:
    """nonmonotonic-poll: a fetcher's next read goes back. int-nonmonotonic-poll: the same inside one read."""
    return _gone_back(tables.once(steps_between_operations), "It read to offset %s, and then from %s again.")


@GuaranteeJob(
    needs=LOG,
    evidence="read_runs",
    unit="runs of records read",
)
def int_nonmonotonic_poll(tables: Tables) -> DataFrame:
    return _gone_back(tables.once(steps_inside_operations), "One read holds offset %s, and then %s again.")


def _gone_back(steps: DataFrame, template: str) -> DataFrame:
    back = steps.where("first_offset < expected")
    return anomalies(back, sentence(template, F.col("expected") - 1, "first_offset"), offset="first_offset")


@GuaranteeJob(
    needs=("operations", "assignments", "ends"),
    evidence="assignments",
    unit="assignments",
    excused_by=THE_END,
)
def fetch_gap(tables: Tables) -> DataFrame:
    """fetch-gap: a fetcher's position is not the high watermark once all is quiet (F-20).

    Each assignment that lasted to the end of the run is judged against the bounds of the log in ENDS. The position of a
    member that fetches from several nodes at once is that after the last response. In a partition that does not exist
    any more no position is judged (lost-write).
    """
    lasting = tables.assignments.where(F.col("until_us") == END_OF_RUN_US)
    last = lasting.groupBy(*READER).agg(F.max(F.struct("from_us", "from_offset")).alias("last"))
    last = last.select(*READER, "last.*")
    moves = with_operation(tables.positions, tables, "complete_us")
    since = moves.join(last, READER).where("complete_us >= from_us")
    reached = since.groupBy(*READER).agg(F.max(F.struct("complete_us", "index", "next_offset")).alias("reached"))
    judged = (
        last.join(tables.ends.where("error is null"), PARTITION)
        .join(reached.select(*READER, "reached.*"), READER, "left")
        .withColumn("start", F.expr("if(from_offset >= 0, from_offset, log_start_offset)"))
        .withColumn("position", F.coalesce("next_offset", "start"))
        .fillna(-1, ["index"])
    )
    detail = sentence(
        "%s is at offset %s, and the high watermark at %s.",
        "process",
        "position",
        "high_watermark",
    )
    return anomalies(judged.where("position != high_watermark"), detail, at_us="end_us", offset="position")


_RESPONSE_KEYS = [*READER, "index"]


@GuaranteeJob(
    needs=("operations", "positions", "assignments"),
    evidence="positions",
    unit="partition responses",
    excused_by="the row of an assignment, which is written when the assignment ends",
)
def unrequested_partition(tables: Tables) -> DataFrame:
    """unrequested-partition: a response contains a partition that the fetcher did not request, or no longer.

    A partition is requested if it was assigned before the response came, and if no response had acknowledged that it
    was forgotten when the request was sent.

    The frames before another broker show it for any client: a session's response contains a partition that no request
    of the session named since it was last forgotten (``wire_lines``).
    """
    violations = _unrequested_in_the_history(tables)
    return violations.unionByName(_unrequested_on_the_wire(tables)) if tables.runs_with("frame_lines") else violations


def _unrequested_on_the_wire(tables: Tables) -> DataFrame:
    unrequested = tables.once(wire_lines).where("judged and line is not null and not named and (not held or forgotten)")
    detail = sentence(
        "%s got %s-%s in session %s, in which it had not requested it.",
        "client_id",
        "topic",
        "partition",
        "session",
    )
    return anomalies(unrequested, detail, process="client_id", at_us="until_us")


def _unrequested_in_the_history(tables: Tables) -> DataFrame:
    fetched = with_operation(tables.positions, tables, "f", "invoke_us", "complete_us").where("f = 'fetch'")
    named = fetched.withColumn("offset", F.col("fetch_offset"))
    read = tables.reads.where("f = 'fetch'").withColumn("offset", F.col("first_offset"))
    columns = [*_RESPONSE_KEYS, "invoke_us", "complete_us", "offset"]
    in_force = "other.from_us <= this.complete_us and other.until_us > this.invoke_us"
    unrequested = reduce(
        DataFrame.unionByName,
        (without_match(frame.select(*columns), tables.assignments, READER, in_force) for frame in (named, read)),
    )
    unrequested = unrequested.groupBy(*_RESPONSE_KEYS, "invoke_us", "complete_us").agg(F.min("offset").alias("offset"))
    detail = sentence("%s got %s-%s, which it had not requested.", "process", "topic", "partition")
    return anomalies(unrequested, detail)
