"""snapshot-transfer-bounded: a download goes on where it stood, and costs little more than its snapshot (S-11, S-15).

A download fetches again at most one chunk for each time that it began. It asks for bytes, and takes them, only at the
end of the bytes that it holds of the same snapshot from the same leader. Newer snapshots may appear meanwhile. Until a
node has one of them whole, it fetches from one leader at most as many bytes as the first three snapshots have that it
began, and one chunk for each beginning. The file that it has put together is whole.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements.snapshot_transfers import CHUNK, DISCARDED, STARTED, steps
from reports.jobs.shared.anomaly import metadata_log_anomalies, sentence
from reports.jobs.shared.expressions import first_rows, node_name, so_far
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables

MOST_BEGUN = 3
DAMAGE = r"\.checkpoint\.part at byte \d+"
"""The words by which a node tells what is wrong inside a file that it has fetched."""


def transform(tables: Tables) -> DataFrame:
    found = tables.once(steps)
    breaches = (_fetched_again(found), _elsewhere(found), _without_end(found), _damaged(found))
    return reduce(DataFrame.unionByName, breaches)


def _fetched_again(found: DataFrame) -> DataFrame:
    """The first chunk of each download that was too much."""
    size = F.max(F.col("size"))
    wrong = _too_much(found, ["run", "node", "download"], size)
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
    return _breaches(wrong, detail)


def _too_much(found: DataFrame, of: list[str], size: Column) -> DataFrame:
    """The first step ``of`` each by which more bytes had been received than the ``size`` and a chunk for each start. A
    size of -1 means that there was no answer yet."""
    until_now = so_far(Window.partitionBy(*of).orderBy("incarnation", "seq"))
    chunk_bytes = F.when(F.col("what") == CHUNK, F.col("bytes"))
    counted = found.withColumns(
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


def _elsewhere(found: DataFrame) -> DataFrame:
    """A beginning may ask for less than is held. Of another snapshot, or from another leader, it must ask for all."""
    started = found.where(F.col("what") == STARTED).withColumn("allowed", F.expr("if(begins, 0, held)"))
    asked = sentence(
        "Node %s asked for snapshot %s-%s of node %s from byte %s and held %s bytes of it.",
        "node",
        "end_offset",
        "epoch",
        "leader",
        "position",
        "allowed",
    )
    chunks = found.where(F.col("what") == CHUNK).where("position != held")
    took = sentence(
        "Node %s took bytes of snapshot %s-%s at %s and held %s.", "node", "end_offset", "epoch", "position", "held"
    )
    return _breaches(started.where("position > allowed"), asked).unionByName(_breaches(chunks, took))


def _damaged(found: DataFrame) -> DataFrame:
    thrown_away = found.where((F.col("what") == DISCARDED) & F.col("why").rlike(DAMAGE))
    detail = sentence("Node %s put together a damaged snapshot: %s.", "node", "why")
    return _breaches(thrown_away, detail)


def _without_end(found: DataFrame) -> DataFrame:
    chunk, in_order = F.col("what") == CHUNK, ("incarnation", "seq")
    of_download = so_far(Window.partitionBy("run", "node", "download").orderBy(*in_order))
    at_leader = so_far(Window.partitionBy("run", "node", "at_leader").orderBy(*in_order))
    begun = found.withColumn("is_first", chunk & (F.count_if(chunk).over(of_download) == 1))
    counted = begun.withColumn("nth", F.when(F.col("is_first"), F.count_if("is_first").over(at_leader)))
    first_sizes = F.sum(F.when(F.col("nth") <= MOST_BEGUN, F.col("size")))
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
    return _breaches(wrong, detail)


def _breaches(found: DataFrame, detail: Column, **given: str) -> DataFrame:
    return metadata_log_anomalies(found, detail, offset="end_offset", process=node_name("node"), **given)


JUDGED = Judging(
    "snapshot-transfer-bounded",
    needs=("trace",),
    evidence="download_chunks",
    unit="chunks of snapshots received",
    find=transform,
    about=("S-8", "S-11"),
)
