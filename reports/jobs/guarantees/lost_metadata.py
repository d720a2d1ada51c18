"""lost-metadata: an acknowledged change is missing at the end, had more than one effect, or nobody asked for it.

Each topic's name is used once, so a second ID, or a return after the topic was gone, is a second effect. Changes of
unknown end may have happened or not. So may a late copy of a configuration that was sent more than once.

A node of a broker that is not ours may ask the next controller again on its client's behalf, once the first one has
died: Apache Kafka puts a forwarded request (KIP-590) whose connection ended back into its queue (its class
NodeToControllerRequestThread). There TOPIC_ALREADY_EXISTS tells of what the first controller made.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import so_far, with_operation
from reports.jobs.shared.judging import ADMIN, Judging
from reports.read_tables import Tables

_TOPIC = ["run", "topic"]


def transform(tables: Tables) -> DataFrame:
    described = tables.operations.where("f = 'final_describe' and type = 'ok'")
    nodes = described.groupBy("run").agg(
        F.sort_array(F.collect_set("node")).alias("nodes"), F.max("complete_us").alias("end_us")
    )
    topics = _asked(tables).join(_seen(tables), _TOPIC, "full").join(F.broadcast(nodes), "run", "left")
    wrong = topics.withColumn("story", _story()).where("story is not null")
    return anomalies(
        wrong,
        F.col("story.detail"),
        at_us=F.coalesce("story.at_us", "end_us", F.lit(0)),
        process=F.coalesce("admin", F.lit("")),
        index=F.coalesce("admin_index", F.lit(-1)),
    )


def _asked(tables: Tables) -> DataFrame:
    """What the admins asked for each topic, and how each request ended.

    A configuration may still take effect late if its end is unknown, or if it was sent more than once.
    """
    changes = with_operation(tables.changes, tables, "invoke_us")
    created = F.col("change") == "create"
    deleted = F.expr("change = 'delete' and type = 'ok'")
    maybe_deleted = F.expr("change = 'delete' and type in ('ok', 'info')")
    configured = F.expr("change = 'configure' and type = 'ok'")
    asked_twice = F.expr("error <=> 'TOPIC_ALREADY_EXISTS'") & (tables.config.per_run("foreign") == 1)
    how_created = F.when(asked_twice, F.lit("info")).otherwise(F.col("type"))
    may_be_late = F.expr("change = 'configure' and (type = 'info' or type = 'ok' and attempts > 1)")
    return changes.groupBy(*_TOPIC).agg(
        F.max(F.when(created, how_created)).alias("created"),
        F.max(F.when(created, F.col("process"))).alias("admin"),
        F.max(F.when(created, F.col("index"))).alias("admin_index"),
        F.min(F.when(maybe_deleted, F.col("invoke_us"))).alias("delete_us"),
        F.max(deleted).alias("deleted"),
        F.max(F.when(configured, F.col("value"))).alias("value_acked"),
        F.collect_set(F.when(may_be_late, F.col("value"))).alias("values_possible"),
    )


def _seen(tables: Tables) -> DataFrame:
    """What readers saw of each topic: when it was gone, whether it came back, and what each node has at the end."""
    reads = with_operation(tables.metadata_reads, tables, "complete_us")
    there = F.col("present")
    until_now = so_far(Window.partitionBy(*_TOPIC, "process", "node").orderBy("complete_us", "index"))
    gone = F.min(F.when(~there, F.col("complete_us"))).over(until_now)
    by_reader = (
        reads.withColumn("gone_before_us", gone)
        .groupBy(*_TOPIC, "process", "node")
        .agg(
            F.min(F.when(~there, F.col("complete_us"))).alias("gone_us"),
            F.min(F.expr("if(present and complete_us > gone_before_us, complete_us, null)")).alias("back_us"),
            F.collect_set(F.when(there & (F.col("topic_id") != ""), F.col("topic_id"))).alias("ids"),
            F.max(there & F.col("final")).alias("at_end"),
            F.max(F.when(F.col("final"), F.col("value"))).alias("value"),
        )
    )
    return by_reader.groupBy(*_TOPIC).agg(
        F.min("gone_us").alias("gone_us"),
        F.min_by("node", "gone_us").alias("gone_node"),
        F.min(F.expr("if(back_us is not null, struct(back_us, node), null)")).alias("back"),
        F.array_distinct(F.flatten(F.collect_list("ids"))).alias("ids"),
        F.sort_array(F.collect_set(F.when(F.col("at_end"), F.col("node")))).alias("at_nodes"),
        F.collect_set(F.when(F.col("at_end"), F.col("value"))).alias("values"),
    )


def _story() -> Column:
    """The first breach that applies to a topic, with its time (null means the end). It is null if all is well."""
    missing = F.expr("array_except(nodes, coalesce(at_nodes, array()))")
    acked_or_unset = F.expr("coalesce(value_acked, -1)")
    foreign = F.array_except("values", F.array_append("values_possible", acked_or_unset))
    final, shown = F.col("nodes").isNotNull(), F.size("at_nodes") > 0
    told = [
        (
            F.expr("gone_us is not null and (delete_us is null or delete_us > gone_us)"),
            "gone_us",
            sentence("It was gone at node %s, and nobody had asked to delete it.", "gone_node"),
        ),
        (
            F.col("back").isNotNull(),
            "back.back_us",
            sentence("Node %s shows it again after it was gone.", "back.node"),
        ),
        (
            F.size("ids") > 1,
            "null",
            sentence("It was created more than once, because it has had %s IDs.", F.size("ids")),
        ),
        (
            final & shown & F.expr("created is null"),
            "null",
            sentence("It is there at nodes %s, and nobody asked for it.", _listed("at_nodes")),
        ),
        (
            final & shown & F.expr("created = 'fail'"),
            "null",
            sentence("Its creation was refused, and it is there at nodes %s.", _listed("at_nodes")),
        ),
        (
            final & F.expr("created = 'ok' and delete_us is null") & (F.size(missing) > 0),
            "null",
            sentence("Its creation was acknowledged, and it is missing at nodes %s.", _listed(missing)),
        ),
        (
            final & shown & F.col("deleted"),
            "null",
            sentence("Its deletion was acknowledged, and it is there at nodes %s.", _listed("at_nodes")),
        ),
        (
            final & shown & F.expr("created is not null") & (F.size(foreign) > 0),
            "null",
            sentence(
                "Its retention.ms is %s at the end. The last acknowledged value is %s.",
                _listed(foreign),
                F.coalesce(F.col("value_acked").cast("string"), F.lit("none")),
            ),
        ),
    ]
    stories = (
        F.when(applies, F.struct(F.expr(at_us).cast("long").alias("at_us"), detail.alias("detail")))
        for applies, at_us, detail in told
    )
    return F.coalesce(*stories)


def _listed(values: str | Column) -> Column:
    return F.array_join(F.transform(values, lambda one: F.when(one == -1, "unset").otherwise(one.cast("string"))), ", ")


JUDGED = Judging(
    "lost-metadata",
    needs=ADMIN,
    evidence="described_changes",
    unit="changes of topics asked for, and described at the end",
    find=transform,
)
