"""torn-metadata: somebody saw only a part of what is written whole.

- A reader saw some topics of a set, or some partitions of a topic. One request creates, or deletes, the topics of a
  set. A reader records all that changed since its last answer from that node. If a part of a set changes in one answer,
  all of it must.
- Two nodes had different content at one offset of the metadata log.
- A node published its metadata as of an offset inside a transaction, as the nodes noted its markers (T-8).
- An admin sent a request again, and it found a part of its topics.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, metadata_log_anomalies, sentence
from reports.jobs.shared.expressions import node_name, with_operation
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import METADATA_COMMITTED, METADATA_IMAGE, notes, number, text
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    return _seen(tables).unionByName(_divided(tables)).unionByName(_inside(tables)).unionByName(_half_there(tables))


def _seen(tables: Tables) -> DataFrame:
    """The first torn answer of each reader, node and set: later ones only repeat it."""
    short = F.expr("present and partitions_seen != partitions_wanted")
    answers = tables.metadata_reads.groupBy("run", "process", "node", "index", "topic_set", "topics_wanted").agg(
        F.count("*").alias("topics"),
        F.count_if("present").alias("there"),
        F.min(F.when(short, F.struct("topic", "partitions_seen", "partitions_wanted"))).alias("short"),
    )
    torn = answers.where("topics != topics_wanted or there not in (0, topics) or short is not null")
    first = torn.groupBy("run", "process", "node", "topic_set").agg(
        F.min(F.struct("index", "topics", "topics_wanted", "there", "short")).alias("first")
    )
    told = with_operation(first.select("run", "process", "node", "topic_set", "first.*"), tables, "complete_us")
    part = sentence(
        "Node %s showed %s of %s partitions of topic %s.",
        "node",
        "short.partitions_seen",
        "short.partitions_wanted",
        "short.topic",
    )
    some = sentence(
        "Node %s showed a change of %s of the %s topics of %s, %s of them as present, though they "
        "are written together.",
        "node",
        "topics",
        "topics_wanted",
        "topic_set",
        "there",
    )
    detail = F.when(F.col("short").isNotNull(), part).otherwise(some)
    return anomalies(told, detail, topic=F.coalesce("short.topic", "topic_set"))


def _divided(tables: Tables) -> DataFrame:
    images = notes(tables, METADATA_IMAGE).select("run", "node", "at_us", number("offset"), text("digest"))
    shown = images.groupBy("run", "offset", "digest").agg(
        F.min("at_us").alias("at_us"), F.min_by("node", "at_us").alias("node")
    )
    versions = shown.groupBy("run", "offset").agg(
        F.count("*").alias("versions"),
        F.sort_array(F.collect_list(F.struct("at_us", "node"))).alias("shows"),
    )
    one, other = F.expr("get(shows, 0)"), F.expr("get(shows, 1)")
    two = versions.where("versions > 1").withColumns(
        {"one": one["node"], "other": other["node"], "at_us": other["at_us"]}
    )
    detail = sentence(
        "Nodes %s and %s held different metadata at offset %s of the metadata log (%s versions in all).",
        "one",
        "other",
        "offset",
        "versions",
    )
    return metadata_log_anomalies(two, detail, process=node_name("other"))


def _inside(tables: Tables) -> DataFrame:
    """The first publication inside each transaction of which both ends were noted."""
    committed = notes(tables, METADATA_COMMITTED).select("run", number("offset"), text("kind"))
    markers = committed.where("kind in ('begin', 'end', 'abort')").distinct()
    before = F.lag(F.struct("kind", "offset")).over(Window.partitionBy("run").orderBy("offset"))
    closed = markers.withColumn("before", before).where("kind != 'begin' and before.kind = 'begin'")
    whole = closed.select("run", F.col("before.offset").alias("begin"), F.col("offset").alias("close"))
    images = notes(tables, METADATA_IMAGE).select("run", "node", "at_us", number("offset"))
    torn = images.join(whole, "run").where("offset >= begin and offset < close")
    first = torn.groupBy("run", "begin", "close").agg(F.min(F.struct("at_us", "node", "offset")).alias("first"))
    detail = sentence(
        "Node %s published its metadata as of offset %s, inside the transaction from %s to %s.",
        "node",
        "offset",
        "begin",
        "close",
    )
    shown = first.select("run", "begin", "close", "first.*")
    return metadata_log_anomalies(shown, detail, process=node_name("node"))


def _half_there(tables: Tables) -> DataFrame:
    """A creation was sent again, and found some of its topics but not all."""
    created = tables.changes.where("change = 'create' and type = 'ok'")
    found = created.groupBy("run", "process", "index", "topic_set", "topics_wanted").agg(
        F.count("error").alias("there")
    )
    partly = with_operation(found.where("there > 0 and there < topics_wanted"), tables, "complete_us")
    detail = sentence(
        "A request sent again found %s of its %s topics, so an earlier attempt had created a part of %s.",
        "there",
        "topics_wanted",
        "topic_set",
    )
    return anomalies(partly, detail, topic="topic_set")


JUDGED = Judging(
    "torn-metadata",
    needs=("operations",),
    evidence="metadata_looks",
    unit="metadata answers and published images",
    find=transform,
)
