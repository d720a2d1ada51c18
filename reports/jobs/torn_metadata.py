"""torn-metadata: somebody saw only a part of what is written whole.

- A reader saw some topics of a set, or some partitions of a topic. One request creates, or deletes, the topics of a
set,
  and a reader records all that changed since its last answer from that node. Whatever changes of a set in one answer
  must therefore be all of it.
- Two nodes had different content at one offset of the metadata log.
- An admin sent a request again, and it found a part of its topics.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.jobs.notes import METADATA_IMAGE, notes, number, text
from reports.read_tables import Tables

NAME = "torn-metadata"
_NOWHERE = -1


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    return _seen(tables).unionByName(_divided(tables)).unionByName(_half_there(tables))


def _seen(tables: Tables) -> DataFrame:
    """The first torn answer of each reader, node and set: later ones only repeat it."""
    short = F.col("present") & (F.col("partitions_seen") != F.col("partitions_wanted"))
    answers = tables.metadata_reads.groupBy("run", "process", "node", "index", "topic_set", "topics_wanted").agg(
        F.count(F.lit(1)).alias("topics"),
        F.sum(F.col("present").cast("long")).alias("there"),
        F.min(F.when(short, F.struct("topic", "partitions_seen", "partitions_wanted"))).alias("short"),
    )
    whole = (F.col("topics") == F.col("topics_wanted")) & F.col("there").isin(0, F.col("topics"))
    torn = answers.where(~whole | F.col("short").isNotNull())
    first = torn.groupBy("run", "process", "node", "topic_set").agg(
        F.min(F.struct("index", "topics", "topics_wanted", "there", "short")).alias("first")
    )
    ended = tables.operations.select("run", "process", "index", "complete_us")
    told = first.select("run", "process", "node", "topic_set", "first.*").join(ended, ["run", "process", "index"])
    part = sentence(
        "Node %s showed %s of %s partitions of topic %s.",
        "node",
        "short.partitions_seen",
        "short.partitions_wanted",
        "short.topic",
    )
    some = sentence(
        "Node %s showed a change of %s of the %s topics of %s, %s of them as present: they are written together.",
        "node",
        "topics",
        "topics_wanted",
        "topic_set",
        "there",
    )
    detail = F.when(F.col("short").isNotNull(), part).otherwise(some)
    topic = F.coalesce(F.col("short.topic"), F.col("topic_set"))
    return anomalies(told, NAME, detail, topic=topic, partition=_NOWHERE, offset=_NOWHERE)


def _divided(tables: Tables) -> DataFrame:
    images = notes(tables, METADATA_IMAGE).select("run", "node", "at_us", number("offset"), text("digest"))
    shown = images.groupBy("run", "offset", "digest").agg(
        F.min("at_us").alias("at_us"), F.min_by("node", "at_us").alias("node")
    )
    versions = (
        shown.groupBy("run", "offset")
        .agg(
            F.count(F.lit(1)).alias("versions"),
            F.max("at_us").alias("at_us"),
            F.min_by("node", "at_us").alias("one"),
            F.max_by("node", "at_us").alias("other"),
        )
        .where(F.col("versions") > 1)
    )
    detail = sentence(
        "Nodes %s and %s held different metadata at offset %s of the metadata log (%s versions in all).",
        "one",
        "other",
        "offset",
        "versions",
    )
    named = F.format_string("node-%s", F.col("other").cast("string"))
    return anomalies(
        versions,
        NAME,
        detail,
        at_us="at_us",
        topic=F.lit("__cluster_metadata"),
        partition=0,
        process=named,
        index=_NOWHERE,
    )


def _half_there(tables: Tables) -> DataFrame:
    """A creation was sent again, and found some of its topics but not all."""
    created = tables.changes.where((F.col("change") == "create") & (F.col("type") == "ok"))
    found = created.groupBy("run", "process", "index", "topic_set", "topics_wanted").agg(
        F.sum(F.col("error").isNotNull().cast("long")).alias("there")
    )
    partly = found.where((F.col("there") > 0) & (F.col("there") < F.col("topics_wanted")))
    ended = tables.operations.select("run", "process", "index", "complete_us")
    detail = sentence(
        "A request sent again found %s of its %s topics: an earlier attempt had created a part of %s.",
        "there",
        "topics_wanted",
        "topic_set",
    )
    told = partly.join(ended, ["run", "process", "index"])
    return anomalies(told, NAME, detail, topic=F.col("topic_set"), partition=_NOWHERE, offset=_NOWHERE)


JUDGED = Judging(
    NAME,
    needs=("operations",),
    evidence="metadata_looks",
    unit="metadata answers and published images",
    find=transform,
)
