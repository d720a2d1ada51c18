"""torn-transaction: a part of a transaction took effect, and a part did not.

Internally torn: some of its values were seen by readers with read_committed, and others are missing. That also proves
torn what nobody knows to be committed.

Externally torn: its values and its offsets disagree. Either it was committed, and the group is told an older offset
than the one that it sent, or it was not, and the group is told an offset that only such transactions sent. A commit
that may have taken effect since the transaction's end was asked for explains any offset.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.commits import NEVER_US, STORED, requests, written
from reports.jobs.shared.expressions import OPERATION, without_match
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, TRANSACTIONS, parts, transactions
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    return _internal(tables).unionByName(_older_offset(tables)).unionByName(_offset_of_nobody(tables))


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


def effects(tables: Tables) -> DataFrame:
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


def _fetched(tables: Tables) -> DataFrame:
    return tables.once(requests).where("kind = 'fetched' and end = 'ok'")


def _older_offset(tables: Tables) -> DataFrame:
    """The group is told less than a transaction that had ended before it asked has committed."""
    told = tables.once(effects)
    sent = F.broadcast(tables.commits.where("kind = 'transaction'").select(*OPERATION).distinct())
    done = told.where("fate = 'ok'").join(sent, OPERATION, "left_semi")
    done = done.select(*STORED, F.col("offset").alias("sent"), "since_us", F.col("until_us").alias("done_us"))
    behind = _fetched(tables).join(done, STORED).where("done_us <= invoke_us and offset < sent")
    last = F.max(F.struct("since_us", "sent")).alias("last")
    columns = (*STORED, "process", "index", "offset", "invoke_us", "at_us")
    behind = behind.groupBy(*columns).agg(last).select(*columns, "last.*")
    explained = "other.offset = this.offset and other.fate != 'fail' and other.until_us > this.since_us"
    torn = without_match(behind, told, STORED, explained)
    detail = sentence(
        "A committed transaction sent offset %s of group %s. After that %s was told offset %s.",
        "sent",
        "group",
        "process",
        "offset",
    )
    return anomalies(torn, detail)


def _offset_of_nobody(tables: Tables) -> DataFrame:
    """The group is told an offset that was sent only by transactions that were not committed."""
    told = tables.once(effects)
    failed = told.where("fate = 'fail'").select(*STORED, "offset", F.col("since_us").alias("sent_us"))
    shown = _fetched(tables).join(failed.distinct(), [*STORED, "offset"]).where("sent_us <= at_us")
    torn = without_match(shown, told, [*STORED, "offset"], "other.fate != 'fail' and other.since_us <= this.at_us")
    torn = torn.select(*STORED, "process", "index", "offset", "at_us").distinct()
    detail = sentence(
        "%s was told offset %s of group %s, which only a transaction sent that was not committed.",
        "process",
        "offset",
        "group",
    )
    return anomalies(torn, detail)


JUDGED = Judging(
    "torn-transaction",
    needs=TRANSACTIONS,
    evidence="transactions_ok",
    unit="transactions that were committed",
    find=transform,
    about=ABOUT,
)
