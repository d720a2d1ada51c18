"""nonmonotonic-metadata-epoch: a client or a node took metadata that is older than what it knew.

It is also a violation if the metadata log holds an epoch twice. A client that left and came back knows nothing, and
neither does a restarted node. A response to a request from before the client left belongs to its time before, even if
it came later.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, metadata_log_anomalies, sentence
from reports.jobs.shared.expressions import before, node_name, with_operation
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import METADATA_EPOCH, UPDATE_METADATA_APPLIED, notes, number
from reports.read_tables import Tables

_CLIENT = ("run", "process")
_NODE = ("run", "node", "incarnation")


def transform(tables: Tables) -> DataFrame:
    return _at_clients(tables).unionByName(_at_nodes(tables)).unionByName(_in_the_log(tables))


def _at_clients(tables: Tables) -> DataFrame:
    accepted = tables.metadata_epochs.where("accepted").select(*_CLIENT, "index", "node", "metadata_epoch", "at_us")
    requested = with_operation(accepted, tables, "invoke_us", how="left")
    taken = requested.withColumn("from_us", F.coalesce("invoke_us", "at_us")).drop("invoke_us")
    left = tables.memberships.where("event = 'left'").select(*_CLIENT, F.col("at_us").alias("from_us"))
    # A request of the moment in which the client left is from before.
    in_time = Window.partitionBy(*_CLIENT).orderBy("from_us", F.col("metadata_epoch").isNull())
    departures = F.count_if(F.col("metadata_epoch").isNull()).over(in_time)
    lives = taken.unionByName(left, allowMissingColumns=True).withColumn("life", departures)
    lives = lives.where("metadata_epoch is not null")
    life = Window.partitionBy(*_CLIENT, "life").orderBy("at_us", "index")
    known = lives.withColumn("known", F.max("metadata_epoch").over(before(life)))
    told = "%s had metadata epoch %s and took %s from node %s."
    detail = sentence(told, "process", "known", "metadata_epoch", "node")
    return anomalies(known.where("metadata_epoch < known"), detail)


def _at_nodes(tables: Tables) -> DataFrame:
    applied = notes(tables, UPDATE_METADATA_APPLIED).select(*_NODE, "seq", "at_us", number("epoch"))
    in_order = Window.partitionBy(*_NODE).orderBy("seq")
    known = applied.withColumn("known", F.max("epoch").over(before(in_order))).where("epoch < known")
    detail = sentence("Node %s had metadata epoch %s and applied %s.", "node", "known", "epoch")
    return anomalies(known, detail, process=node_name("node"))


def _in_the_log(tables: Tables) -> DataFrame:
    """All nodes that note where a committed epoch lies must say the same of it."""
    noted = notes(tables, METADATA_EPOCH).select("run", "node", "at_us", number("epoch"), number("offset"))
    places = noted.groupBy("run", "offset", "epoch").agg(F.min("at_us").alias("at_us"), F.min("node").alias("node"))
    in_order = Window.partitionBy("run").orderBy("offset", "epoch")
    known = places.withColumn("known", F.max("epoch").over(before(in_order))).where("epoch <= known")
    detail = sentence("Metadata epoch %s was committed at offset %s, behind epoch %s.", "epoch", "offset", "known")
    return metadata_log_anomalies(known, detail, process=node_name("node"))


JUDGED = Judging(
    "nonmonotonic-metadata-epoch",
    needs=("metadata_epochs",),
    evidence="metadata_epochs",
    unit="metadata answers taken",
    find=transform,
)
