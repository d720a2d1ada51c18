"""What the history proves about the log's contents. Several jobs share these frames."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import PARTITION, without_match
from reports.jobs.shared.intervals import merged
from reports.jobs.shared.notes import LEADS, notes, text
from reports.read_tables import Tables

_VALUE = (
    *PARTITION,
    "first_offset",
    "last_offset",
    "producer_id",
    "writer",
    "first_sequence",
    "last_sequence",
    "shift",
    "process",
    "index",
    "complete_us",
)


def ours(reads: DataFrame) -> DataFrame:
    """Reads of values that a writer of this run made."""
    return reads.where("valid and writer != ''")


def placed_values(tables: Tables) -> DataFrame:
    """Our values at known offsets: every read, and every send that was durably acknowledged with an offset."""
    return ours(tables.reads).select(*_VALUE).unionByName(durably_acknowledged(tables).select(*_VALUE))


def acknowledged(tables: Tables) -> DataFrame:
    return tables.sends.where("type = 'ok' and first_offset >= 0")


def durably_acknowledged(tables: Tables) -> DataFrame:
    return without_leaders_word(acknowledged(tables), tables)


def without_leaders_word(sends: DataFrame, tables: Tables) -> DataFrame:
    """Leaves out what only the leader of a replicated partition had acknowledged (acks=1).

    E-7 speaks of acks=all. Such records may be lost when the leader dies, and the next leader writes something else at
    their offsets.
    """
    led = notes(tables, LEADS).select("run", text("partition")).distinct()
    leader_only = "this.acks = 1 and other.partition = concat(this.topic, '-', this.partition)"
    return without_match(sends, F.broadcast(led), ["run"], leader_only)


def ok_reads(tables: Tables) -> DataFrame:
    return tables.reads.where("type = 'ok'")


def group_reads(tables: Tables) -> DataFrame:
    """Runs of records that members read while they were members, with their group."""
    return ok_reads(tables).join(F.broadcast(members(tables)), ["run", "process"])


def members(tables: Tables) -> DataFrame:
    """The clients that were ever members of a group. Columns: run, group, process."""
    return tables.memberships.select("run", "group", "process").distinct()


def occupied(tables: Tables) -> DataFrame:
    """Offsets at which somebody read a record: merged intervals ``first``, ``last`` per partition.

    Offsets that hold no record for a reader (control batches, compacted records) are in no interval.
    """
    return merged(tables.reads, PARTITION, "first_offset", "last_offset")


def log_starts(tables: Tables) -> DataFrame:
    """The highest log start that was seen of each partition (``start_offset``). What lies below it may be gone."""
    answered = tables.positions.where("log_start_offset >= 0").select(*PARTITION, "log_start_offset")
    seen = answered.unionByName(tables.ends.select(*PARTITION, "log_start_offset"))
    return seen.groupBy(*PARTITION).agg(F.max("log_start_offset").alias("start_offset"))


def with_witness(clashes: DataFrame, values: DataFrame, first: str, last: str, same: Sequence[str]) -> DataFrame:
    """Adds the earliest operation that showed the clash (process, index, complete_us) to each clash."""
    keys = [*PARTITION, *same]
    shown = values.select(
        *keys, F.col(first).alias("w_first"), F.col(last).alias("w_last"), "process", "index", "complete_us"
    )
    hits = F.broadcast(clashes).join(shown, keys).where("w_first <= last and w_last >= first")
    witness = F.min(F.struct("complete_us", "process", "index")).alias("witness")
    return hits.groupBy(*clashes.columns).agg(witness).select(*clashes.columns, "witness.*")
