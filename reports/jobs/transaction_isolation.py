"""Isolation of transactions: aborted-read (G1a), precommitted-read and dependency-cycle (G0 and G1c)."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import committed_reads, ok_reads, ours
from reports.jobs.expressions import OPERATION, PARTITION, so_far
from reports.jobs.guarantee_job import GuaranteeJob, anomalies, sentence
from reports.jobs.intervals import meeting
from reports.jobs.transactions import ABOUT, SEQUENCES, TRANSACTIONS, VALUES, seen, sent
from reports.read_tables import Tables, together


@GuaranteeJob(
    needs=TRANSACTIONS,
    evidence="transactions_not_committed",
    unit="transactions that were not committed",
    about=ABOUT,
)
def aborted_read(tables: Tables) -> DataFrame:
    """aborted-read (G1a): a reader with read_committed saw a value of a transaction that was never committed.

    A transaction whose commit has an unknown end does not count: it may be committed. Readers with read_uncommitted may
    see everything.
    """
    failed = tables.once(sent).where("fate = 'fail'")
    shown = meeting(failed, tables.once(seen), VALUES, SEQUENCES, ("first", "last"))
    values = shown.select(
        *VALUES,
        F.greatest("first", "first_sequence").alias("low"),
        F.least("last", "last_sequence").alias("high"),
        F.col("process").alias("producer"),
        F.col("index").alias("sent_in"),
        "requested_end",
    )
    reads = committed_reads(tables).join(F.broadcast(values), VALUES)
    reads = reads.where("first_sequence <= high and last_sequence >= low")
    first = F.min(F.struct("complete_us", "process", "index", "shift")).alias("witness")
    witnessed = reads.groupBy(*VALUES, "low", "high", "producer", "sent_in", "requested_end").agg(first)
    witnessed = witnessed.select("*", "witness.*").withColumn("offset", F.col("low") - F.col("shift"))
    detail = sentence(
        "%s read value %s of %s at offset %s. Its transaction (operation %s of %s) was not committed: the producer "
        "requested: %s.",
        "process",
        "low",
        "writer",
        "offset",
        "sent_in",
        "producer",
        "requested_end",
    )
    return anomalies(witnessed, detail)


@GuaranteeJob(
    needs=TRANSACTIONS,
    evidence="transactions_committed",
    unit="transactions whose commit was requested",
    about=ABOUT,
)
def precommitted_read(tables: Tables) -> DataFrame:
    """precommitted-read: a reader with read_committed had a value before its producer requested the transaction's
    commit.

    All times are of one clock. The commit is requested at ``at_us`` at the earliest, so a response that came before
    cannot follow from it.
    """
    sends = tables.once(sent).where("requested_end = 'commit'")
    values = sends.select(*VALUES, F.col("first_sequence").alias("low"), F.col("last_sequence").alias("high"), "at_us")
    read = ("process", "index", "shift")
    first = F.min(F.struct("complete_us", *read)).alias("first")
    # Every reader reads the same batches. The first of them is enough.
    reads = committed_reads(tables).groupBy(*VALUES, "first_sequence", "last_sequence").agg(first)
    early = meeting(reads.select("*", "first.*"), values, VALUES, SEQUENCES, ("low", "high"))
    early = early.where("complete_us < at_us")
    sequence = F.greatest("low", "first_sequence")
    early = early.withColumns(
        {"sequence": sequence, "offset": sequence - F.col("shift"), "requested_us": F.col("at_us")}
    )
    detail = sentence(
        "%s read value %s of %s %s us before its producer requested the commit.",
        "process",
        "sequence",
        "writer",
        F.col("requested_us") - F.col("complete_us"),
    )
    return anomalies(early.drop("at_us"), detail)


_SENT = (*OPERATION, "topic", "partition", "writer", *SEQUENCES, "first_offset", "last_offset")
_READ = ("complete_us", "process", "index")
_BEGUN, _APPENDED = 1, 0
_EVENT = ("how", "process", "index", "offset", "writer", "sequence")
_BOUND = (*PARTITION, "kind", "us", *_EVENT)


@GuaranteeJob(
    needs=TRANSACTIONS,
    evidence="transactions_committed",
    unit="transactions whose commit was requested",
    about=ABOUT,
)
def dependency_cycle(tables: Tables) -> DataFrame:
    """dependency-cycle (G0 and G1c): the order of logs, reads and requests in time form no circle.

    What orders two events of a history:

    - *ww*: two records of one partition were appended in the order of their offsets.
    - *wr*: a record was appended before anybody had it, and its transaction was committed before a reader with
      read_committed had it.
    - Within an operation: it begins, its records are appended, its commit is requested and takes effect, it ends.
    - *process* and *realtime*: what had ended before something else began came first.

    X-4: readers are isolated, and writers are not. Records of open transactions interleave as they arrive, in each
    partition separately, so two concurrent transactions may be in both orders (a *G0* that Kafka allows). Appends are
    ordered here, and never whole transactions.

    All times are of one clock. A path from one recorded moment to the next has then at most one *ww* step: a beginning,
    an append, an append behind it, perhaps a commit, and an end. There is a circle if and only if such a path, or that
    from the request of a commit to a read, ends at an earlier moment than it began. That takes one sort of each
    partition and no search, and what is found is a shortest circle.
    """
    return _before_what_was_there(tables).unionByName(_read_before_requested(tables))


def effective_sends(tables: Tables) -> DataFrame:
    """The runs of transactions that took effect: they are known to be committed, or a reader with read_committed had a
    value of them. Columns: those of ``sent``, and ``read``, the first such read of the whole transaction, or null."""
    sends = tables.once(sent).where("fate != 'fail'")
    # Every reader reads the same batches. The first of them is enough.
    first = F.min(F.struct(*_READ, "shift")).alias("first")
    reads = committed_reads(tables).groupBy(*VALUES, *SEQUENCES).agg(first)
    reads = reads.select(*VALUES, F.col("first_sequence").alias("low"), F.col("last_sequence").alias("high"), "first")
    met = meeting(sends.select(*_SENT), reads, VALUES, SEQUENCES, ("low", "high"))
    sequence = F.greatest("low", "first_sequence").alias("sequence")
    offset = (F.greatest("low", "first_sequence") - F.col("first.shift")).alias("offset")
    read = F.min(F.struct(*(f"first.{name}" for name in _READ), "topic", "partition", offset, "writer", sequence))
    shown = met.groupBy(*OPERATION).agg(read.alias("read"))
    return sends.join(shown, OPERATION, "left").where("fate = 'ok' or read is not null")


def _read_before_requested(tables: Tables) -> DataFrame:
    """G1c: a transaction's commit was requested after a reader with read_committed had a value of it."""
    early = (
        tables.once(effective_sends).where("read.complete_us < at_us").select(*OPERATION, "at_us", "read").distinct()
    )
    detail = sentence(
        "G1c-realtime: %s requested the commit of operation %s at %s us, but %s had its value %s of %s at %s us, with "
        "read_committed (operation %s).",
        "process",
        "index",
        "at_us",
        "read.process",
        "read.sequence",
        "read.writer",
        "read.complete_us",
        "read.index",
    )
    return anomalies(early, detail, topic="read.topic", partition="read.partition", offset="read.offset")


def _before_what_was_there(tables: Tables) -> DataFrame:
    """G0 and G1c: an operation began after a record existed, and its own record precedes that one in the log.

    Each partition is swept from its end: the records that are known to exist, against the operations that begin at the
    same offset or before.
    """
    bounds = together(_cycle_bounds(tables), *PARTITION)
    from_the_end = Window.partitionBy(*PARTITION).orderBy(F.desc("offset"), "kind")
    there = F.when(F.col("kind") == _APPENDED, F.struct("us", *_EVENT))
    swept = bounds.withColumn("behind", F.min(there).over(so_far(from_the_end)))
    late = swept.where(f"kind = {_BEGUN} and us > behind.us")
    detail = sentence(
        "%s%s: operation %s of %s began at %s us, but its value %s of %s is at offset %s. Value %s of %s, at "
        "offset %s, %s %s at %s us (operation %s).",
        F.expr("if(behind.how = 'acknowledged', 'G0', 'G1c')"),
        F.expr("if(behind.process = process, '-process', '-realtime')"),
        "index",
        "process",
        "us",
        "sequence",
        "writer",
        "offset",
        "behind.sequence",
        "behind.writer",
        "behind.offset",
        F.expr(
            "case behind.how when 'acknowledged' then 'had been acknowledged to' when 'read' then 'had been read by' "
            "else 'is of a transaction of which another value had been read by' end"
        ),
        "behind.process",
        "behind.us",
        "behind.index",
    )
    return anomalies(late, detail, at_us="us")


def _cycle_bounds(tables: Tables) -> DataFrame:
    """Return when an operation began whose records begin at ``offset``, and when the records up to ``offset`` were
    there, by the end of which operation (``process``, ``index``)."""
    reads = ours(ok_reads(tables))
    transactional = tables.once(effective_sends)
    plain = tables.sends.where("f != 'transaction' and invoke_us >= 0").withColumn("from_us", F.col("invoke_us"))
    # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
    acknowledged = plain.where("type = 'ok' and first_offset >= 0 and not (acks <=> 1)")
    elsewhere = plain.where("type != 'fail' and not (type = 'ok' and first_offset >= 0 and not (acks <=> 1))")
    columns = (*_SENT, "from_us")
    known = acknowledged.select(*columns).unionByName(transactional.where("first_offset >= 0").select(*columns))
    lost = elsewhere.select(*columns).unionByName(transactional.where("first_offset < 0").select(*columns))
    seen = reads.select(*VALUES, F.col("first_sequence").alias("low"), F.col("last_sequence").alias("high"), "shift")
    lost_and_seen = meeting(lost, seen.distinct(), VALUES, SEQUENCES, ("low", "high"))
    lost_and_seen = lost_and_seen.withColumn("first_sequence", F.greatest("low", "first_sequence"))
    lost_and_seen = lost_and_seen.withColumn("first_offset", F.expr("first_sequence - shift")).select(*columns)
    begun = known.unionByName(lost_and_seen).select(
        *PARTITION,
        F.lit(_BEGUN).alias("kind"),
        F.col("from_us").alias("us"),
        F.lit("").alias("how"),
        "process",
        "index",
        F.col("first_offset").alias("offset"),
        "writer",
        F.col("first_sequence").alias("sequence"),
    )
    read = _records_there(reads.withColumn("us", F.col("complete_us")), "read")
    first = F.min(F.struct("us", "how", "process", "index", "writer", "sequence")).alias("first")
    read = read.groupBy(*PARTITION, "kind", "offset").agg(first).select("*", "first.*").select(*_BOUND)
    acked = _records_there(acknowledged.withColumn("us", F.col("complete_us")), "acknowledged")
    committed = transactional.where("first_offset >= 0")
    ended = _records_there(committed.where("fate = 'ok'").withColumn("us", F.col("until_us")), "acknowledged")
    by_reader = committed.where("read is not null").select(
        *PARTITION,
        "last_offset",
        "writer",
        "last_sequence",
        F.col("read.complete_us").alias("us"),
        F.col("read.process").alias("process"),
        F.col("read.index").alias("index"),
    )
    parts = (read, acked, ended, _records_there(by_reader, "committed"))
    for part in parts:
        begun = begun.unionByName(part)
    return begun


def _records_there(frame: DataFrame, how: str) -> DataFrame:
    return frame.select(
        *PARTITION,
        F.lit(_APPENDED).alias("kind"),
        "us",
        F.lit(how).alias("how"),
        "process",
        "index",
        F.col("last_offset").alias("offset"),
        "writer",
        F.col("last_sequence").alias("sequence"),
    )
