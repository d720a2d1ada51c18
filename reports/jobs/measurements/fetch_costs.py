"""What fetches cost the nodes that served them: by revision, full or incremental, client or follower."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables

FOLLOWER, FETCHER = "node-", "fetcher-"
"""Names of followers and fetchers begin like this. Other readers (the final read) are left out."""
_SUMS = ("request_bytes", "response_bytes", "record_bytes", "named", "sent", "service_us")


def transform(tables: Tables) -> DataFrame:
    """Columns: run, follower, revision, full, fetches, the sums of _SUMS, p50_us, p99_us (of the service time).

    Only the time in which fetchers were at work counts, without the warm-up. Before it followers meet new partitions,
    and after it leaders move away from nodes that end.
    """
    follower = F.startswith("client_id", F.lit(FOLLOWER))
    costs = _under_load(tables).where(follower | _fetcher())
    return costs.groupBy("run", follower.alias("follower"), "revision", "full").agg(
        F.count("*").alias("fetches"),
        *(F.sum(name).alias(name) for name in _SUMS),
        F.percentile_approx("service_us", 0.5, 1_000).alias("p50_us"),
        F.percentile_approx("service_us", 0.99, 1_000).alias("p99_us"),
    )


def by_partitions_sent(tables: Tables) -> DataFrame:
    """How the service time grows with the answer. Columns: run, bucket (partitions sent, rounded up to a power of two;
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
