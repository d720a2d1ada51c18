"""The metadata log: lost-metadata, torn-metadata and one-abort-per-begin."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import (
    METADATA_COMMITTED,
    METADATA_IMAGE,
    node_name,
    notes,
    number,
    so_far,
    text,
    with_operation,
)
from reports.jobs.guarantee_job import ADMIN, GuaranteeJob, anomalies, metadata_log_anomalies, sentence
from reports.read_tables import Tables

_TOPIC = ["run", "topic"]


@GuaranteeJob(
    needs=ADMIN,
    evidence="described_changes",
    unit="requested changes of topics, described at the end",
    excused_by="a deletion that is under way",
)
def lost_metadata(tables: Tables) -> DataFrame:
    """lost-metadata: an acknowledged change is missing at the end, had more than one effect, or was never requested.

    Each topic's name is used once, so a second ID, or a return after the topic was gone, is a second effect. Changes of
    unknown end may have happened or not. So may a late copy of a configuration that was sent more than once.

    A node of another broker may resend a client's request to the next controller, once the first one has died: Apache
    Kafka puts a forwarded request (KIP-590) whose connection ended back into its queue (its class
    NodeToControllerRequestThread). There TOPIC_ALREADY_EXISTS reports what the first controller created.
    """
    described = tables.operations.where("f = 'final_describe' and type = 'ok'")
    nodes = described.groupBy("run").agg(
        F.sort_array(F.collect_set("node")).alias("nodes"), F.max("complete_us").alias("end_us")
    )
    topics = (
        _requested_changes(tables)
        .join(_described_topics(tables), _TOPIC, "full")
        .join(F.broadcast(nodes), "run", "left")
    )
    wrong = topics.withColumn("violation", _first_violation()).where("violation is not null")
    return anomalies(
        wrong,
        F.col("violation.detail"),
        at_us=F.coalesce("violation.at_us", "end_us", F.lit(0)),
        process=F.coalesce("admin", F.lit("")),
        index=F.coalesce("admin_index", F.lit(-1)),
    )


def _requested_changes(tables: Tables) -> DataFrame:
    """Return what the admins requested for each topic, and how each request ended.

    A configuration may still take effect late if its end is unknown, or if it was sent more than once.
    """
    changes = with_operation(tables.changes, tables, "invoke_us")
    created = F.col("change") == "create"
    deleted = F.expr("change = 'delete' and type = 'ok'")
    maybe_deleted = F.expr("change = 'delete' and type in ('ok', 'info')")
    configured = F.expr("change = 'configure' and type = 'ok'")
    asked_twice = F.expr("error <=> 'TOPIC_ALREADY_EXISTS'") & (tables.config.per_run("external") == 1)
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


def _described_topics(tables: Tables) -> DataFrame:
    """Return the observations of each topic: when it was gone, whether it came back, and what each node has at the
    end."""
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


def _first_violation() -> Column:
    """Return the first violation that applies to a topic, with its time (null means the end), or null."""
    missing = F.expr("array_except(nodes, coalesce(at_nodes, array()))")
    acked_or_unset = F.expr("coalesce(value_acked, -1)")
    foreign = F.array_except("values", F.array_append("values_possible", acked_or_unset))
    final, shown = F.col("nodes").isNotNull(), F.size("at_nodes") > 0
    violations = [
        (
            F.expr("gone_us is not null and (delete_us is null or delete_us > gone_us)"),
            "gone_us",
            sentence("It was gone at node %s, and no request had deleted it.", "gone_node"),
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
            sentence("It is there at nodes %s, and no request created it.", _nodes_listed("at_nodes")),
        ),
        (
            final & shown & F.expr("created = 'fail'"),
            "null",
            sentence("Its creation was refused, and it is there at nodes %s.", _nodes_listed("at_nodes")),
        ),
        (
            final & F.expr("created = 'ok' and delete_us is null") & (F.size(missing) > 0),
            "null",
            sentence("Its creation was acknowledged, and it is missing at nodes %s.", _nodes_listed(missing)),
        ),
        (
            final & shown & F.col("deleted"),
            "null",
            sentence("Its deletion was acknowledged, and it is there at nodes %s.", _nodes_listed("at_nodes")),
        ),
        (
            final & shown & F.expr("created is not null") & (F.size(foreign) > 0),
            "null",
            sentence(
                "Its retention.ms is %s at the end. The last acknowledged value is %s.",
                _nodes_listed(foreign),
                F.coalesce(F.col("value_acked").cast("string"), F.lit("none")),
            ),
        ),
    ]
    explanations = (
        F.when(applies, F.struct(F.expr(at_us).cast("long").alias("at_us"), detail.alias("detail")))
        for applies, at_us, detail in violations
    )
    return F.coalesce(*explanations)


def _nodes_listed(values: str | Column) -> Column:
    return F.array_join(
        F.transform(values, lambda node: F.when(node == -1, "unset").otherwise(node.cast("string"))), ", "
    )


@GuaranteeJob(
    needs=("operations",),
    evidence="metadata_looks",
    unit="metadata responses and published images",
)
def torn_metadata(tables: Tables) -> DataFrame:
    """torn-metadata: a client or a node saw only a part of what is written atomically.

    - A reader saw some topics of a set, or some partitions of a topic. One request creates, or deletes, the topics of a
      set. A reader records all that changed since its last response from that node. If a part of a set changes in one
      response, all of it must.
    - Two nodes had different content at one offset of the metadata log.
    - A node published its metadata as of an offset inside a transaction, as the nodes noted its markers (T-8).
    - An admin resent a request, and it found a part of its topics.
    """
    return (
        _partly_seen(tables)
        .unionByName(_different_at_one_offset(tables))
        .unionByName(_published_inside_transaction(tables))
        .unionByName(_partly_created(tables))
    )


def _partly_seen(tables: Tables) -> DataFrame:
    """Return the first torn response of each reader, node and set: later ones only repeat it."""
    short = F.expr("present and partitions_seen != partitions_wanted")
    responses = tables.metadata_reads.groupBy("run", "process", "node", "index", "topic_set", "topics_wanted").agg(
        F.count("*").alias("topics"),
        F.count_if("present").alias("there"),
        F.min(F.when(short, F.struct("topic", "partitions_seen", "partitions_wanted"))).alias("short"),
    )
    torn = responses.where("topics != topics_wanted or there not in (0, topics) or short is not null")
    first = torn.groupBy("run", "process", "node", "topic_set").agg(
        F.min(F.struct("index", "topics", "topics_wanted", "there", "short")).alias("first")
    )
    timed = with_operation(first.select("run", "process", "node", "topic_set", "first.*"), tables, "complete_us")
    part = sentence(
        "Node %s showed %s of %s partitions of topic %s.",
        "node",
        "short.partitions_seen",
        "short.partitions_wanted",
        "short.topic",
    )
    whole_sentence = sentence(
        "Node %s showed a change of %s of the %s topics of %s, %s of them as present, though they "
        "are written together.",
        "node",
        "topics",
        "topics_wanted",
        "topic_set",
        "there",
    )
    detail = F.when(F.col("short").isNotNull(), part).otherwise(whole_sentence)
    return anomalies(timed, detail, topic=F.coalesce("short.topic", "topic_set"))


def _different_at_one_offset(tables: Tables) -> DataFrame:
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


def _published_inside_transaction(tables: Tables) -> DataFrame:
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


def _partly_created(tables: Tables) -> DataFrame:
    """A creation was sent again, and found some of its topics but not all."""
    created = tables.changes.where("change = 'create' and type = 'ok'")
    topics_there = created.groupBy("run", "process", "index", "topic_set", "topics_wanted").agg(
        F.count("error").alias("there")
    )
    partly = with_operation(topics_there.where("there > 0 and there < topics_wanted"), tables, "complete_us")
    detail = sentence(
        "A request sent again found %s of its %s topics, so an earlier attempt had created a part of %s.",
        "there",
        "topics_wanted",
        "topic_set",
    )
    return anomalies(partly, detail, topic="topic_set")


@GuaranteeJob(
    needs=("trace",),
    evidence="metadata_markers",
    unit="committed markers noted",
    excused_by="the note of a marker by a node that is behind",
)
def one_abort_per_begin(tables: Tables) -> DataFrame:
    """one-abort-per-begin: in the committed metadata log each Begin is closed once, by End or Abort, before the next.

    Every node notes each batch that it loads from the committed log. Together they are the whole log, however often a
    node was killed. The nodes that wrote a snapshot had noted what it replaced. Two nodes that noted different kinds at
    one offset disagree about the log itself.
    """
    committed = notes(tables, METADATA_COMMITTED).select("run", "at_us", number("offset"), text("kind"))
    markers = committed.where("kind in ('begin', 'end', 'abort')")
    seen = markers.groupBy("run", "offset", "kind").agg(F.min("at_us").alias("at_us"))
    in_order = Window.partitionBy("run").orderBy("offset", "at_us")
    steps = seen.withColumn("last", F.lag(F.struct("kind", "offset")).over(in_order))
    wrong = steps.where("last.offset <=> offset or (kind = 'begin') = (last.kind <=> 'begin')")
    last = F.when(F.col("last").isNull(), "none").otherwise(sentence("%s at %s", "last.kind", "last.offset"))
    detail = sentence("A committed %s marker at offset %s follows this marker: %s.", "kind", "offset", last)
    return metadata_log_anomalies(wrong, detail)
