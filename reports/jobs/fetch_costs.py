"""The costs of fetches: on the nodes, on the wire, and after a lost response.

The last job samples the metrics of the nodes that served them.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import before, second_of
from reports.read_tables import Tables

FOLLOWER, FETCHER = "node-", "fetcher-"
"""Names of followers and fetchers begin like this. Other readers (the final read) are omitted."""
_COSTS = ("request_bytes", "response_bytes", "record_bytes", "named", "sent", "service_us")


def fetch_costs(tables: Tables) -> DataFrame:
    """Cost of fetches for the nodes that served them, by revision, full or incremental, client or follower.

    Columns: run, follower, revision, full, fetches, the sums of _SUMS, p50_us, p99_us (of the service time).

    Only the time in which fetchers were at work counts, without the warm-up. Before it followers meet new partitions,
    and after it leaders move away from nodes that end.
    """
    follower = F.startswith("client_id", F.lit(FOLLOWER))
    costs = _under_load(tables).where(follower | _fetcher())
    return costs.groupBy("run", follower.alias("follower"), "revision", "full").agg(
        F.count("*").alias("fetches"),
        *(F.sum(name).alias(name) for name in _COSTS),
        F.percentile_approx("service_us", 0.5, 1_000).alias("p50_us"),
        F.percentile_approx("service_us", 0.99, 1_000).alias("p99_us"),
    )


def service_time_by_partitions_sent(tables: Tables) -> DataFrame:
    """Service time by the size of the response. Columns: run, bucket (partitions sent, rounded up to a power of two;
    0 for none), fetches, mean_us."""
    bucket = F.expr("if(sent = 0, 0, cast(pow(2, ceil(log2(greatest(sent, 1)))) as long))")
    costs = _under_load(tables).where(_fetcher())
    return costs.groupBy("run", bucket.alias("bucket")).agg(
        F.count("*").alias("fetches"), F.avg("service_us").alias("mean_us")
    )


def _under_load(tables: Tables) -> DataFrame:
    fetched = tables.operations.where("f = 'fetch'").groupBy("run")
    bounds = fetched.agg(F.min("invoke_us").alias("from_us"), F.max("complete_us").alias("until_us"))
    costs = tables.fetch_costs.where(F.col("at_us") >= tables.config.per_run("warm_up_us"))
    return costs.join(F.broadcast(bounds), "run").where("at_us between from_us and until_us")


def _fetcher() -> Column:
    return F.contains("client_id", F.lit(FETCHER))


_FETCHER_AT_NODE = ("run", "process", "node")


def fetch_recoveries(tables: Tables) -> DataFrame:
    """Cost of a lost response for its fetcher: the time until the next good response from that node, and the bytes.

    A fetch whose end is unknown opens an episode. The next fetch at the same node that ends ok closes it, and the
    requests in between belong to it. Full fetches beyond a fetcher's first at a node bring partitions that were sent
    before, and so does a request that is resent with its number.

    One row for each episode that ended: run, process, node, lost_us (the fetcher gave up waiting), recovered_us (from
    then to the good response), requests_us (of that, between requests and their responses: without the fetcher's own
    pauses, new connections, and further responses that did not come), request_bytes, response_bytes.
    """
    in_order = Window.partitionBy(*_FETCHER_AT_NODE).orderBy("index")
    good = F.count_if(F.col("type") == "ok").over(before(in_order))
    episode = Window.partitionBy(*_FETCHER_AT_NODE, "good_before").orderBy("index")
    given_up = F.min(F.expr("if(type = 'info', complete_us, null)")).over(before(episode))
    lost = F.broadcast(_fetches(tables).where("type = 'info'").select(*_FETCHER_AT_NODE).distinct())
    fetches = _fetches(tables).join(lost, [*_FETCHER_AT_NODE], "left_semi").withColumn("good_before", good)
    inside = fetches.withColumn("lost_us", given_up).where("lost_us is not null")
    ended = F.max(F.expr("if(type = 'ok', complete_us, null)"))
    return (
        inside.groupBy(*_FETCHER_AT_NODE, "good_before")
        .agg(
            F.min("lost_us").alias("lost_us"),
            (ended - F.min("lost_us")).alias("recovered_us"),
            F.sum(F.expr("if(type = 'info', 0, complete_us - invoke_us)")).alias("requests_us"),
            F.sum("request_bytes").alias("request_bytes"),
            F.sum("response_bytes").alias("response_bytes"),
        )
        .where("recovered_us is not null")
        .drop("good_before")
    )


def partitions_sent_again(tables: Tables) -> DataFrame:
    """Columns: run, fetches, named, returned, requests_again, named_again, returned_again. Only fetches that ended ok
    count."""
    in_order = Window.partitionBy(*_FETCHER_AT_NODE).orderBy("index")
    same = F.struct("session_id", "session_epoch")
    marked = _fetches(tables).withColumns(
        {
            "earlier_full": F.count_if(F.col("session_epoch") <= 0).over(before(in_order)),
            "repeats": same == F.lag(same).over(in_order),
        }
    )
    again = F.expr("if(session_epoch <= 0, earlier_full > 0, coalesce(repeats, false))")
    completed = marked.where("type = 'ok'").withColumn("again", again)
    return completed.groupBy("run").agg(
        F.count("*").alias("fetches"),
        F.sum("partitions_sent").alias("named"),
        F.sum("partitions_returned").alias("returned"),
        F.count_if(F.col("again")).alias("requests_again"),
        F.sum(F.expr("if(again, partitions_sent, 0)")).alias("named_again"),
        F.sum(F.expr("if(again, partitions_returned, 0)")).alias("returned_again"),
    )


def _fetches(tables: Tables) -> DataFrame:
    return tables.operations.where("f = 'fetch' and (error is null or error != 'unfinished')")


def broker_metrics(tables: Tables) -> DataFrame:
    """The broker's metrics over time: the last sample of each metric at each node in each second.

    Columns: run, node, metric, second, value.
    """
    grouped = tables.broker.groupBy("run", "node", "metric", second_of("at_us").alias("second"))
    return grouped.agg(F.max_by("value", "at_us").alias("value"))
