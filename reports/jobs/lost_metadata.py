"""lost-metadata: an acknowledged change is missing at the end, had more than one effect, or nobody asked for it.

Each topic's name is used once, so a second ID, or a return after the topic was gone, is a second effect. Changes of
unknown end may have happened or not. So may a late copy of a configuration that was sent more than once.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import ADMIN, Judging
from reports.read_tables import Tables

NAME = "lost-metadata"
_TOPIC = ("run", "topic")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    described = tables.operations.where((F.col("f") == "final_describe") & (F.col("type") == "ok"))
    nodes = described.groupBy("run").agg(
        F.sort_array(F.collect_set("node")).alias("nodes"), F.max("complete_us").alias("end_us")
    )
    topics = _asked(tables).join(_seen(tables), list(_TOPIC), "full").join(F.broadcast(nodes), "run", "left")
    story = _story()
    detail, at_us = story["detail"], F.coalesce(story["at_us"], F.col("end_us"), F.lit(0))
    wrong = topics.withColumn("story", story).where(F.col("story").isNotNull())
    return anomalies(
        wrong.withColumn("told_us", at_us),
        NAME,
        detail,
        at_us="told_us",
        partition=-1,
        offset=-1,
        process=F.coalesce("admin", F.lit("")),
        index=F.coalesce("admin_index", F.lit(-1)),
    )


def _asked(tables: Tables) -> DataFrame:
    """What the admins asked for each topic, and how each request ended."""
    sent = tables.operations.select("run", "process", "index", "invoke_us")
    changes = tables.changes.join(sent, ["run", "process", "index"])
    is_create, is_delete, is_config = (F.col("change") == each for each in ("create", "delete", "configure"))
    maybe = F.col("type").isin("ok", "info")
    loose = is_config & ((F.col("type") == "info") | ((F.col("type") == "ok") & (F.col("attempts") > 1)))
    return changes.groupBy(*_TOPIC).agg(
        F.max(F.when(is_create, F.col("type"))).alias("created"),
        F.max(F.when(is_create, F.col("process"))).alias("admin"),
        F.max(F.when(is_create, F.col("index"))).alias("admin_index"),
        F.min(F.when(is_delete & maybe, F.col("invoke_us"))).alias("delete_us"),
        F.coalesce(F.max(is_delete & (F.col("type") == "ok")), F.lit(False)).alias("deleted"),
        F.max(F.when(is_config & (F.col("type") == "ok"), F.col("value"))).alias("value_acked"),
        F.collect_set(F.when(loose, F.col("value"))).alias("values_possible"),
    )


def _seen(tables: Tables) -> DataFrame:
    ended = tables.operations.select("run", "process", "index", "complete_us")
    reads = tables.metadata_reads.join(ended, ["run", "process", "index"])
    there = F.col("present")
    by_reader = reads.groupBy(*_TOPIC, "process", "node").agg(
        F.min(F.when(~there, F.col("complete_us"))).alias("gone_us"),
        F.max(F.when(there, F.col("complete_us"))).alias("there_us"),
        F.collect_set(F.when(there & (F.col("topic_id") != ""), F.col("topic_id"))).alias("ids"),
        F.max(there & F.col("final")).alias("at_end"),
        F.max(F.when(F.col("final"), F.col("value"))).alias("value"),
    )
    return by_reader.groupBy(*_TOPIC).agg(
        F.min("gone_us").alias("gone_us"),
        F.min_by("node", "gone_us").alias("gone_node"),
        F.max(F.when(F.col("there_us") > F.col("gone_us"), F.struct("there_us", "node"))).alias("back"),
        F.array_distinct(F.flatten(F.collect_list("ids"))).alias("ids"),
        F.sort_array(F.collect_set(F.when(F.col("at_end"), F.col("node")))).alias("at_nodes"),
        F.collect_set(F.when(F.col("at_end"), F.col("value"))).alias("values"),
    )


def _story() -> Column:
    """The first breach that applies to a topic, with its time (null means the end). It is null if all is well."""
    missing = F.array_except("nodes", F.coalesce("at_nodes", F.array().cast("array<bigint>")))
    any_node, all_gone = F.size("at_nodes") > 0, F.size(missing) > 0
    final = F.col("nodes").isNotNull()
    vanished = F.col("gone_us").isNotNull() & (F.col("delete_us").isNull() | (F.col("delete_us") > F.col("gone_us")))
    stands = (F.col("created") == "ok") & F.col("delete_us").isNull()
    possible = F.when(
        F.col("value_acked").isNull(), F.array_append("values_possible", F.lit(-1).cast("long"))
    ).otherwise(F.array_append("values_possible", F.col("value_acked")))
    foreign = F.array_except("values", possible)
    told = [
        (F.size("ids") > 1, None, sentence("It was created more than once: it has had %s IDs.", F.size("ids"))),
        (
            F.col("back").isNotNull(),
            F.col("back.there_us"),
            sentence("Node %s shows it again after it was gone.", "back.node"),
        ),
        (
            vanished,
            F.col("gone_us"),
            sentence("It was gone at node %s, and nobody had asked to delete it.", "gone_node"),
        ),
        (
            final & F.col("created").isNull() & any_node,
            None,
            sentence("It is there at nodes %s, and nobody asked for it.", _listed("at_nodes")),
        ),
        (
            final & (F.col("created") == "fail") & any_node,
            None,
            sentence("Its creation was refused, and it is there at nodes %s.", _listed("at_nodes")),
        ),
        (
            final & stands & all_gone,
            None,
            sentence("Its creation was acknowledged, and it is missing at nodes %s.", _listed(missing)),
        ),
        (
            final & F.col("deleted") & any_node,
            None,
            sentence("Its deletion was acknowledged, and it is there at nodes %s.", _listed("at_nodes")),
        ),
        (
            final & F.col("created").isNotNull() & any_node & (F.size(foreign) > 0),
            None,
            sentence(
                "Its retention.ms is %s at the end; acknowledged last: %s.",
                _listed(foreign),
                F.coalesce(F.col("value_acked").cast("string"), F.lit("none")),
            ),
        ),
    ]
    story = F.lit(None)
    for applies, at_us, detail in reversed(told):
        when = F.lit(None).cast("long") if at_us is None else at_us
        story = F.when(applies, F.struct(when.alias("at_us"), detail.alias("detail"))).otherwise(story)
    return story


def _listed(values: str | Column) -> Column:
    found = F.col(values) if isinstance(values, str) else values
    return F.array_join(F.transform(found, lambda one: F.when(one == -1, "unset").otherwise(one.cast("string"))), ", ")


JUDGED = Judging(
    NAME,
    needs=ADMIN,
    evidence="described_changes",
    unit="changes of topics asked for, and described at the end",
    find=transform,
)
