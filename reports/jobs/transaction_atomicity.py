"""Transactions as a whole: torn-transaction, lost-transaction and exactly-once."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.committed_offsets import NEVER_US, STORED, requests, written
from reports.jobs.evidence import occupied, read_values, sequences
from reports.jobs.expressions import OPERATION, PARTITION, without_match
from reports.jobs.guarantee_job import A_READ, GuaranteeJob, anomalies, sentence
from reports.jobs.intervals import meeting, merged, overlaps, subtracted
from reports.jobs.transactions import ABOUT, TRANSACTIONS, parts, transactions
from reports.read_tables import Tables


@GuaranteeJob(
    needs=TRANSACTIONS,
    evidence="transactions_ok",
    unit="transactions that were committed",
    about=ABOUT,
    excused_by=A_READ,
)
def torn_transaction(tables: Tables) -> DataFrame:
    """torn-transaction: a part of a transaction took effect, and a part did not.

    Internally torn: some of its values were seen by readers with read_committed, and others are missing. That also
    proves a transaction torn whose commit has an unknown end.

    Externally torn: its values and its offsets disagree. Either it was committed, and the group fetches an older offset
    than the transaction sent, or it was not, and the group fetches an offset that only such transactions sent. A commit
    that may have taken effect since the end of the transaction was requested explains any offset.
    """
    return _internal(tables).unionByName(_older_offset(tables)).unionByName(_offset_never_committed(tables))


def _internal(tables: Tables) -> DataFrame:
    torn = tables.once(parts).where("there > 0")
    detail = sentence(
        "Of the %s values of operation %s of %s, %s are missing and %s are there. Value %s of %s is missing "
        "at offset %s.",
        "values",
        "index",
        "process",
        "missing",
        "there",
        "sequence",
        "writer",
        "offset",
    )
    return anomalies(torn, detail, at_us=F.col("until_us"))


def offset_effects(tables: Tables) -> DataFrame:
    """Offsets that were committed, with or without a transaction. Columns: STORED, OPERATION, offset, ``fate`` (ok,
    fail, info), ``since_us`` and ``until_us`` (when the effect came at the earliest and at the latest)."""
    plain = written(tables).select(
        *STORED,
        "process",
        "index",
        "offset",
        F.expr("if(end = 'ok', 'ok', 'info')").alias("fate"),
        F.col("invoke_us").alias("since_us"),
        "until_us",
    )
    ends = tables.once(transactions).select(*OPERATION, "fate", F.col("at_us").alias("since_us"), "until_us")
    late = F.expr(f"if(fate = 'info', {NEVER_US}, until_us)")
    sends = tables.commits.where("kind = 'transaction' and error is null").select(*STORED, "process", "index", "offset")
    return plain.unionByName(sends.join(ends, OPERATION).withColumn("until_us", late))


def _fetched_offsets(tables: Tables) -> DataFrame:
    return tables.once(requests).where("kind = 'fetched' and end = 'ok'")


def _older_offset(tables: Tables) -> DataFrame:
    """Find fetched offsets that are older than one that a transaction had committed before the fetch."""
    effects = tables.once(offset_effects)
    sent = F.broadcast(tables.commits.where("kind = 'transaction'").select(*OPERATION).distinct())
    done = effects.where("fate = 'ok'").join(sent, OPERATION, "left_semi")
    done = done.select(*STORED, F.col("offset").alias("sent"), "since_us", F.col("until_us").alias("done_us"))
    behind = _fetched_offsets(tables).join(done, STORED).where("done_us <= invoke_us and offset < sent")
    last = F.max(F.struct("since_us", "sent")).alias("last")
    columns = (*STORED, "process", "index", "offset", "invoke_us", "at_us")
    behind = behind.groupBy(*columns).agg(last).select(*columns, "last.*")
    explained = "other.offset = this.offset and other.fate != 'fail' and other.until_us > this.since_us"
    torn = without_match(behind, effects, STORED, explained)
    detail = sentence(
        "A committed transaction sent offset %s of group %s. After that %s fetched offset %s.",
        "sent",
        "group",
        "process",
        "offset",
    )
    return anomalies(torn, detail)


def _offset_never_committed(tables: Tables) -> DataFrame:
    """Find fetched offsets that only transactions sent which were not committed."""
    effects = tables.once(offset_effects)
    failed = effects.where("fate = 'fail'").select(*STORED, "offset", F.col("since_us").alias("sent_us"))
    shown = _fetched_offsets(tables).join(failed.distinct(), [*STORED, "offset"]).where("sent_us <= at_us")
    torn = without_match(shown, effects, [*STORED, "offset"], "other.fate != 'fail' and other.since_us <= this.at_us")
    torn = torn.select(*STORED, "process", "index", "offset", "at_us").distinct()
    detail = sentence(
        "%s fetched offset %s of group %s, which only a transaction sent that was not committed.",
        "process",
        "offset",
        "group",
    )
    return anomalies(torn, detail)


USED_UP = 30_000
"""An epoch from which on the next producer may get another producer ID, since epochs end at 32,767."""
IDLE_US = 2_500_000
"""An ID that was idle this long may be forgotten: no scenario has a smaller transactional.id.expiration.ms (X-10)."""


@GuaranteeJob(
    needs=TRANSACTIONS,
    evidence="transactions_ok",
    unit="transactions that were committed",
    about=ABOUT,
    excused_by=A_READ,
)
def lost_transaction(tables: Tables) -> DataFrame:
    """lost-transaction: a commit was acknowledged, and no reader with read_committed ever saw any of its values.

    If some are there, it is torn-transaction. A transactional ID that is in use must not get another producer ID or a
    lower epoch (X-1) either: that means that its coordinator has lost it, with decisions that were not reported.
    """
    return _nothing_there(tables).unionByName(_forgotten(tables))


def _forgotten(tables: Tables) -> DataFrame:
    in_order = Window.partitionBy("run", "process", "transactional_id").orderBy("index")
    identity = F.struct("producer_id", "producer_epoch", "from_us")
    followed = tables.transactions.where("producer_id >= 0").withColumn("last", F.lag(identity).over(in_order))
    lower = "producer_id = last.producer_id and producer_epoch < last.producer_epoch"
    other = (
        f"producer_id != last.producer_id and last.producer_epoch < {USED_UP} and from_us - last.from_us < {IDLE_US}"
    )
    detail = sentence(
        "%s went on as producer %s with epoch %s after producer %s with epoch %s, so its coordinator forgot it.",
        "transactional_id",
        "producer_id",
        "producer_epoch",
        "last.producer_id",
        "last.producer_epoch",
    )
    return anomalies(followed.where(f"({lower}) or ({other})"), detail, at_us="from_us")


def _nothing_there(tables: Tables) -> DataFrame:
    lost = tables.once(parts).where("fate = 'ok' and there = 0")
    detail = sentence(
        "Operation %s of %s committed %s values as %s, and nobody ever read one of them. One is value %s of %s, at "
        "offset %s.",
        "index",
        "process",
        "values",
        "transactional_id",
        "sequence",
        "writer",
        "offset",
    )
    return anomalies(lost, detail, at_us=F.col("until_us"))


_COPY = ("writer", "target_partition", "shift", "source_shift")


@GuaranteeJob(
    needs=("operations", "runs", "transactions", "transforms", "commits"),
    evidence="records_transformed",
    unit="records consumed, transformed and produced",
    about=ABOUT,
    found_in="transforms",
    excused_by="the value that takes the input into the output",
)
def exactly_once(tables: Tables) -> DataFrame:
    """exactly-once (X-14): each input of a group that consumes, transforms and produces is once in its output.

    The output is what readers with read_committed saw of the target. The workers noted which of their values was made
    of which offset of the source (TRANSFORMS).

    - Twice: two values in the output were made of one input.
    - Never: an input is below the offset that a committed transaction of the group has sent, and no value of the
      output was made of it. Inputs whose values went to partitions that were not read to their end do not count.

    Inputs are what readers with read_committed saw of the source. Those below the first offset that the group took do
    not count.
    """
    return _transformed_twice(tables).unionByName(_never_transformed(tables))


def input_effects(tables: Tables) -> DataFrame:
    """The inputs that are in the output: intervals of source offsets. Columns: STORED, first_offset, last_offset,
    writer, target_partition, ``shift`` (value less target offset), ``source_shift`` (value less source offset)."""
    made = tables.transforms.select(
        *STORED,
        "source_offset",
        "count",
        F.col("target_topic"),
        F.col("target_partition"),
        "writer",
        F.col("first_sequence").alias("low"),
        (F.col("first_sequence") + F.col("count") - 1).alias("high"),
    )
    read = tables.once(read_values).where("is_ok and is_ours and isolation = 1")
    there = sequences(read, [*PARTITION, "writer", "shift"])
    there = there.withColumnsRenamed({"topic": "target_topic", "partition": "target_partition"})
    target = ["run", "target_topic", "target_partition", "writer"]
    both = meeting(made, there, target, ("low", "high"), ("first", "last"))
    source_shift = F.col("low") - F.col("source_offset")
    return both.select(
        *STORED,
        (F.greatest("first", "low") - source_shift).alias("first_offset"),
        (F.least("last", "high") - source_shift).alias("last_offset"),
        "writer",
        "target_partition",
        "shift",
        source_shift.alias("source_shift"),
    )


def _transformed_twice(tables: Tables) -> DataFrame:
    copies = merged(tables.once(input_effects), [*STORED, *_COPY], "first_offset", "last_offset")
    again = overlaps(copies, STORED, _COPY)
    value, other = F.col("first") + F.col("source_shift"), F.col("first") + F.col("other_source_shift")
    detail = sentence(
        "Offset %s is in the output of group %s twice: as value %s of %s, and as value %s of %s.",
        "first",
        "group",
        other,
        "other_writer",
        value,
        "writer",
    )
    return anomalies(_at_the_end(again, tables), detail, offset=F.col("first"))


def _never_transformed(tables: Tables) -> DataFrame:
    done = tables.once(transactions).where("fate = 'ok'").select(*OPERATION)
    sent = tables.commits.where("kind = 'transaction' and error is null").join(done, OPERATION, "left_semi")
    until = sent.groupBy(*STORED).agg((F.max("offset") - 1).alias("high"))
    since = tables.transforms.groupBy(*STORED).agg(F.min("source_offset").alias("low"))
    inputs = tables.once(occupied).where("isolation = 1").join(F.broadcast(until.join(since, STORED)), PARTITION)
    due = inputs.select(*STORED, F.greatest("first", "low").alias("first"), F.least("last", "high").alias("last"))
    there = tables.once(input_effects).select(
        *STORED, F.col("first_offset").alias("first"), F.col("last_offset").alias("last")
    )
    known = merged(there.unionByName(_inputs_to_unread_partitions(tables)), STORED, "first", "last")
    never = subtracted(merged(due.where("first <= last"), STORED, "first", "last"), known, STORED)
    detail = sentence("Offsets %s to %s were consumed by group %s and are not in its output.", "first", "last", "group")
    return anomalies(_at_the_end(never, tables), detail, offset=F.col("first"))


def _inputs_to_unread_partitions(tables: Tables) -> DataFrame:
    """Inputs whose values went to a partition that was not read to its end."""
    ends = tables.ends.select("run", F.col("topic").alias("target_topic"), F.col("partition").alias("target_partition"))
    unread = tables.transforms.join(F.broadcast(ends), ["run", "target_topic", "target_partition"], "left_anti")
    last = F.col("source_offset") + F.col("count") - 1
    return unread.select(*STORED, F.col("source_offset").alias("first"), last.alias("last"))


def _at_the_end(frame: DataFrame, tables: Tables) -> DataFrame:
    ended = tables.operations.groupBy("run").agg(F.max("complete_us").alias("at_us"))
    return frame.join(F.broadcast(ended), "run")
