"""Downloads of metadata snapshots: snapshot-transfer-bounded, and each download as its node noted it.

A download is one snapshot from one leader. If it was interrupted, or its node was killed, and it then resumed, it is
one download with several starts, even if the node discarded its bytes in between. It ends when the snapshot is whole,
or when the node begins another snapshot or fetches from another leader.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import before, first_rows, node_name, notes, number, so_far, text
from reports.jobs.guarantee_job import GuaranteeJob, metadata_log_anomalies, sentence
from reports.read_tables import Tables

STARTED, CHUNK, FINISHED, DISCARDED = "download_started", "download_chunk", "download_finished", "download_discarded"
DOWNLOAD_SOURCE = ("leader", "end_offset", "epoch")


def download_steps(tables: Tables) -> DataFrame:
    """Each note of a download with its ``SOURCE`` and with numbers that distinguish downloads.

    ``round`` lasts until the node has a whole snapshot, ``at_leader`` until it turns to another leader, and
    ``download`` until it turns to another source. ``held`` is how many bytes the node held before the note. ``begins``
    is true if the note before has another source.
    """
    rows = notes(tables, STARTED, CHUNK, FINISHED, DISCARDED).select(
        "run",
        "node",
        "incarnation",
        "seq",
        "at_us",
        "what",
        number("size"),
        number("position"),
        number("bytes"),
        text("why"),
        *(F.when(F.col("what") == STARTED, number(column)).alias(column) for column in DOWNLOAD_SOURCE),
    )
    in_order = Window.partitionBy("run", "node").orderBy("incarnation", "seq")
    started, chunk, finished = (F.col("what") == what for what in (STARTED, CHUNK, FINISHED))
    keeps = F.when(started, F.col("position")).when(chunk, F.col("position") + F.col("bytes")).otherwise(0)
    known = rows.withColumns(
        {
            **{column: F.last(column, ignorenulls=True).over(so_far(in_order)) for column in DOWNLOAD_SOURCE},
            "held": F.coalesce(F.last(keeps).over(before(in_order)), F.lit(0)),
            "round": F.count_if(finished).over(before(in_order)),
        }
    )
    marked = known.withColumns(
        {
            "begins": started & _another(("round", *DOWNLOAD_SOURCE), in_order),
            "moves": started & _another(("round", "leader"), in_order),
        }
    )
    return marked.where("leader is not null").withColumns(
        {
            "download": F.count_if("begins").over(so_far(in_order)),
            "at_leader": F.count_if("moves").over(so_far(in_order)),
        }
    )


def _another(columns: tuple[str, ...], in_order: WindowSpec) -> Column:
    """Return whether the row before has other values. True for the first row of all, too."""
    here = F.struct(*columns)
    return ~here.eqNullSafe(F.lag(here).over(in_order))


def downloads(tables: Tables) -> DataFrame:
    """Columns: run, node, leader, end_offset, epoch, size_bytes, received_bytes, starts, resumes (starts above position
    0), resumed_at (largest such position), discarded, largest_chunk_bytes, from_us, until_us, finished.
    """
    chunk, start = F.col("what") == CHUNK, F.col("what") == STARTED
    chunk_bytes = F.when(chunk, F.col("bytes")).otherwise(0)
    resumed = start & (F.col("position") > 0)
    return (
        tables.once(download_steps)
        .groupBy("run", "node", "download", *DOWNLOAD_SOURCE)
        .agg(
            F.max("size").alias("size_bytes"),
            F.sum(chunk_bytes).alias("received_bytes"),
            F.count_if(start).alias("starts"),
            F.count_if(resumed).alias("resumes"),
            F.max(F.when(resumed, F.col("position")).otherwise(0)).alias("resumed_at"),
            F.count_if(F.col("what") == DISCARDED).alias("discarded"),
            F.max(chunk_bytes).alias("largest_chunk_bytes"),
            F.min("at_us").alias("from_us"),
            F.max("at_us").alias("until_us"),
            F.max(F.col("what") == FINISHED).alias("finished"),
        )
        .drop("download")
    )


def snapshot_transfers(tables: Tables) -> DataFrame:
    return tables.once(downloads)


MAX_STARTED_DOWNLOADS = 3
DAMAGE = r"\.checkpoint\.part at byte \d+"
"""The words by which a node reports what is wrong inside a file that it has fetched."""


@GuaranteeJob(
    needs=("trace",),
    evidence="download_chunks",
    unit="chunks of snapshots received",
    about=("S-8", "S-11"),
)
def snapshot_transfer_bounded(tables: Tables) -> DataFrame:
    """snapshot-transfer-bounded: a download resumes where it stopped, and costs little more than its snapshot (S-11,
    S-15).

    A download fetches again at most one chunk for each start. It requests and accepts bytes only at the end of the
    bytes that it has of the same snapshot from the same leader. Newer snapshots may appear meanwhile. Until a node has
    one of them whole, it fetches from one leader at most as many bytes as the first three snapshots have that it began,
    and one chunk for each start. The file that results is whole.
    """
    steps = tables.once(download_steps)
    violations = (_fetched_again(steps), _elsewhere(steps), _without_end(steps), _damaged(steps))
    return reduce(DataFrame.unionByName, violations)


def _fetched_again(steps: DataFrame) -> DataFrame:
    """The first chunk of each download that was too much."""
    size = F.max(F.col("size"))
    wrong = _too_much(steps, ["run", "node", "download"], size)
    detail = sentence(
        "Node %s received %s bytes of snapshot %s-%s in %s starts. The snapshot has %s, and %s are enough.",
        "node",
        "received_bytes",
        "end_offset",
        "epoch",
        "starts",
        "size_bytes",
        "most",
    )
    return _download_violations(wrong, detail)


def _too_much(steps: DataFrame, of: list[str], size: Column) -> DataFrame:
    """The first step ``of`` each by which more bytes had been received than the ``size`` and a chunk for each start. A
    size of -1 means that there was no response yet."""
    until_now = so_far(Window.partitionBy(*of).orderBy("incarnation", "seq"))
    chunk_bytes = F.when(F.col("what") == CHUNK, F.col("bytes"))
    counted = steps.withColumns(
        {
            "size_bytes": size.over(until_now),
            "received_bytes": F.sum(chunk_bytes).over(until_now),
            "largest_bytes": F.max(chunk_bytes).over(until_now),
            "starts": F.count_if(F.col("what") == STARTED).over(until_now),
        }
    )
    most = F.col("size_bytes") + F.col("starts") * F.col("largest_bytes")
    wrong = counted.withColumn("most", most).where("size_bytes > 0 and received_bytes > most")
    return first_rows(wrong, 1, Window.partitionBy(*of).orderBy("incarnation", "seq"))


def _elsewhere(steps: DataFrame) -> DataFrame:
    """Find requests for, or chunks of, bytes beyond what the node has. A start may request fewer. For another snapshot,
    or from another leader, it must request all bytes.
    """
    started = steps.where(F.col("what") == STARTED).withColumn("allowed", F.expr("if(begins, 0, held)"))
    requested = sentence(
        "Node %s requested snapshot %s-%s of node %s from byte %s and held %s bytes of it.",
        "node",
        "end_offset",
        "epoch",
        "leader",
        "position",
        "allowed",
    )
    chunks = steps.where(F.col("what") == CHUNK).where("position != held")
    took = sentence(
        "Node %s took bytes of snapshot %s-%s at %s and held %s.", "node", "end_offset", "epoch", "position", "held"
    )
    return _download_violations(started.where("position > allowed"), requested).unionByName(
        _download_violations(chunks, took)
    )


def _damaged(steps: DataFrame) -> DataFrame:
    thrown_away = steps.where((F.col("what") == DISCARDED) & F.col("why").rlike(DAMAGE))
    detail = sentence("Node %s put together a damaged snapshot: %s.", "node", "why")
    return _download_violations(thrown_away, detail)


def _without_end(steps: DataFrame) -> DataFrame:
    chunk, in_order = F.col("what") == CHUNK, ("incarnation", "seq")
    of_download = so_far(Window.partitionBy("run", "node", "download").orderBy(*in_order))
    at_leader = so_far(Window.partitionBy("run", "node", "at_leader").orderBy(*in_order))
    begun = steps.withColumn("is_first", chunk & (F.count_if(chunk).over(of_download) == 1))
    counted = begun.withColumn("nth", F.when(F.col("is_first"), F.count_if("is_first").over(at_leader)))
    first_sizes = F.sum(F.when(F.col("nth") <= MAX_STARTED_DOWNLOADS, F.col("size")))
    wrong = _too_much(counted, ["run", "node", "at_leader"], first_sizes)
    detail = sentence(
        "Node %s received %s bytes from node %s until it had a snapshot. The first ones had %s, and %s are "
        "enough in %s starts.",
        "node",
        "received_bytes",
        "leader",
        "size_bytes",
        "most",
        "starts",
    )
    return _download_violations(wrong, detail)


def _download_violations(steps: DataFrame, detail: Column, **given: str) -> DataFrame:
    return metadata_log_anomalies(steps, detail, offset="end_offset", process=node_name("node"), **given)
