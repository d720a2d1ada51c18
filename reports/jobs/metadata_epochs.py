"""Metadata epochs: no-fetch-before-epoch, nonmonotonic-metadata-epoch and rewinds."""

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import log_starts
from reports.jobs.expressions import (
    METADATA_EPOCH,
    PARTITION,
    READER,
    TRUNCATED,
    UPDATE_METADATA_APPLIED,
    before,
    node_name,
    notes,
    number,
    text,
    with_operation,
    without_match,
)
from reports.jobs.guarantee_job import GuaranteeJob, anomalies, counted, metadata_log_anomalies, sentence
from reports.read_tables import Tables

_CONSUMER = ["run", "process"]
_LEFT, _TAKEN, _LEARNT, _FETCH = range(4)
"""Events of a client, in the order in which they count at the same time."""


@GuaranteeJob(
    needs=("operations", "positions", "commits", "metadata_epochs"),
    evidence="epochs_learnt",
    unit="offsets learnt with a metadata epoch",
    about=("M-9", "M-13"),
)
def no_fetch_before_epoch(tables: Tables) -> DataFrame:
    """no-fetch-before-epoch: a consumer fetches from a partition only once its metadata is as new as the offset's
    epoch.

    That epoch was committed with the offset (M-10), or stored with it outside (M-13). The consumer's first fetch after
    it learnt an offset is judged, by the newest metadata that it had accepted until then. A client that left and
    rejoined has no metadata, so its state is reset.
    """
    in_time = ("at_us", "step", "index")
    left = F.count_if(F.col("step") == _LEFT).over(Window.partitionBy(*_CONSUMER).orderBy(*in_time))
    life = Window.partitionBy(*_CONSUMER, "life").orderBy(*in_time)
    taken = F.max(F.when(F.col("step") == _TAKEN, F.col("metadata_epoch"))).over(life)
    steps = _client_steps(tables).withColumn("life", left).withColumn("had", F.coalesce(taken, F.lit(-1)))
    in_partition = Window.partitionBy(*_CONSUMER, "life", "topic", "partition").orderBy(*in_time)
    firsts = steps.where(F.col("step") >= _LEARNT).withColumns(
        {"previous": F.lag("step").over(in_partition), "learnt": F.lag("metadata_epoch").over(in_partition)}
    )
    early = firsts.where(f"step = {_FETCH} and previous = {_LEARNT} and had < learnt")
    detail = sentence(
        "%s fetched the partition with metadata epoch %s, but the offset that it had learnt has epoch %s.",
        "process",
        "had",
        "learnt",
    )
    return anomalies(early, detail)


def _client_steps(tables: Tables) -> DataFrame:
    """Return the steps of each client. Columns: run, process, step, at_us, and, where they apply, index, topic,
    partition, metadata_epoch."""
    learnt = tables.commits.where("kind in ('fetched', 'loaded') and error is null and metadata_epoch >= 0")
    fetched = tables.positions.join(F.broadcast(learnt.select(*_CONSUMER).distinct()), _CONSUMER, "left_semi")
    fetches = with_operation(fetched, tables, "f", "invoke_us").where("f = 'fetch'")
    frames = [
        tables.memberships.where("event = 'left'").select(*_CONSUMER, "at_us", F.lit(-1).cast("long").alias("index")),
        tables.metadata_epochs.where("accepted").select(*_CONSUMER, "at_us", "index", "metadata_epoch"),
        learnt.select(*_CONSUMER, "at_us", "index", "topic", "partition", "metadata_epoch"),
        fetches.select(*_CONSUMER, F.col("invoke_us").alias("at_us"), "index", "topic", "partition"),
    ]
    steps = [frame.withColumn("step", F.lit(step)) for step, frame in enumerate(frames)]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), steps)


_CLIENT = ("run", "process")
_NODE = ("run", "node", "incarnation")


@GuaranteeJob(
    needs=("metadata_epochs",),
    evidence="metadata_epochs",
    unit="metadata responses taken",
)
def nonmonotonic_metadata_epoch(tables: Tables) -> DataFrame:
    """nonmonotonic-metadata-epoch: a client or a node accepted metadata that is older than the metadata that it had.

    It is also a violation if the metadata log holds an epoch twice. A client that left and rejoined has no earlier
    metadata, and neither does a restarted node. A response to a request from before the client left belongs to its time
    before, even if it came later.
    """
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
    template = "%s had metadata epoch %s and took %s from node %s."
    detail = sentence(template, "process", "known", "metadata_epoch", "node")
    return anomalies(known.where("metadata_epoch < known"), detail)


def _at_nodes(tables: Tables) -> DataFrame:
    applied = notes(tables, UPDATE_METADATA_APPLIED).select(*_NODE, "seq", "at_us", number("epoch"))
    in_order = Window.partitionBy(*_NODE).orderBy("seq")
    known = applied.withColumn("known", F.max("epoch").over(before(in_order))).where("epoch < known")
    detail = sentence("Node %s had metadata epoch %s and applied %s.", "node", "known", "epoch")
    return anomalies(known, detail, process=node_name("node"))


def _in_the_log(tables: Tables) -> DataFrame:
    """Find epochs that the metadata log has twice. All nodes that note the offset of a committed epoch must agree."""
    noted = notes(tables, METADATA_EPOCH).select("run", "node", "at_us", number("epoch"), number("offset"))
    places = noted.groupBy("run", "offset", "epoch").agg(F.min("at_us").alias("at_us"), F.min("node").alias("node"))
    in_order = Window.partitionBy("run").orderBy("offset", "epoch")
    known = places.withColumn("known", F.max("epoch").over(before(in_order))).where("epoch <= known")
    detail = sentence("Metadata epoch %s was committed at offset %s, behind epoch %s.", "epoch", "offset", "known")
    return metadata_log_anomalies(known, detail, process=node_name("node"))


@GuaranteeJob(
    needs=("operations", "positions", "metadata_epochs"),
    evidence="positions_with_epochs",
    unit="partition responses to clients with metadata epochs",
    found_in="resets",
    excused_by="the log's end, above which positions may be lost",
)
def rewinds(tables: Tables) -> DataFrame:
    """rewinds: a fetcher gets OFFSET_OUT_OF_RANGE at a position that exists in its partition, and moves elsewhere.

    Only clients with metadata epochs are judged (M-15), and not those that began at an offset which was committed
    without an epoch (M-11). Some positions do not count: those below a log start that was seen (deleted), those above
    the log's end once all is quiet (lost), and those above a place where a replica truncated its log after a fetch had
    read up to there. Earlier truncations explain nothing, since the log has grown again since then. Later ones, by a
    stale leader that comes back, explain nothing either.
    """
    moved = _with_epoch(tables.resets.where("reason = 'OFFSET_OUT_OF_RANGE' and metadata_epoch >= 0"), tables)
    known = (
        moved.join(F.broadcast(_first_reached(moved, tables)), [*PARTITION, "from_offset"], "left")
        .join(log_starts(tables), PARTITION, "left")
        .join(tables.ends.select(*PARTITION, "high_watermark"), PARTITION, "left")
        .withColumn("name", F.concat_ws("-", "topic", F.col("partition").cast("string")))
    )
    held = known.where("from_offset between coalesce(start_offset, 0) and coalesce(high_watermark, from_offset)")
    truncations = notes(tables, *TRUNCATED).select("run", text("partition").alias("name"), number("offset"), "at_us")
    explained = "other.offset < this.from_offset and other.at_us between coalesce(this.reached_us, 0) and this.at_us"
    wrong = without_match(held, F.broadcast(truncations), ["run", "name"], explained)
    went = F.when(F.col("to_offset") < 0, "did not go on").otherwise(
        sentence(
            "went on at %s, %s away",
            "to_offset",
            counted(F.abs(F.col("to_offset") - F.col("from_offset")), "one offset", "%s offsets"),
        )
    )
    detail = sentence(
        "%s was at offset %s, which was out of range, and %s. Its metadata epoch was %s.",
        "process",
        "from_offset",
        went,
        "metadata_epoch",
    )
    return anomalies(wrong, detail, offset="from_offset")


def _with_epoch(moved: DataFrame, tables: Tables) -> DataFrame:
    """Return the resets before which the client had last learnt an offset with an epoch, or none."""
    learnt = tables.commits.where("kind in ('fetched', 'loaded') and error is null")
    learnt = learnt.select(*READER, F.struct("at_us", "metadata_epoch", "offset").alias("learnt"))
    earlier = [F.col(f"reset.{name}") == F.col(f"learned.{name}") for name in READER]
    known = moved.alias("reset").join(
        learnt.alias("learned"), [*earlier, F.expr("learnt.at_us <= reset.at_us")], "left"
    )
    last = known.groupBy(*(F.col(f"reset.{name}").alias(name) for name in moved.columns)).agg(
        F.max("learnt").alias("last")
    )
    return last.where("last is null or last.metadata_epoch >= 0 or last.offset < 0").drop("last")


def _first_reached(moved: DataFrame, tables: Tables) -> DataFrame:
    """Return the time at which a fetch first came to each of these positions. Columns: PARTITION, from_offset,
    reached_us."""
    places = moved.select(*PARTITION, "from_offset").distinct()
    came = tables.positions.where("error is null").join(F.broadcast(places), PARTITION)
    ended = with_operation(came.where("next_offset >= from_offset"), tables, "complete_us")
    return ended.groupBy(*PARTITION, "from_offset").agg(F.min("complete_us").alias("reached_us"))
