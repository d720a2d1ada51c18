"""What a lost answer costs its fetcher: the time until the next good answer from that node, and the bytes.

A fetch whose end is unknown opens an episode. The next fetch at the same node that ends ok closes it, and what lies
between belongs to it. Full fetches beyond a fetcher's first at a node bring partitions that were sent before, and so
does a request that is sent again with its number.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import before
from reports.read_tables import Tables

_PLACE = ("run", "process", "node")


def transform(tables: Tables) -> DataFrame:
    """One row for each episode that ended: run, process, node, lost_us (the fetcher gave up waiting), recovered_us
    (from then to the good answer), asking_us (of that, between requests and their answers: without the fetcher's own
    pauses, new connections, and further answers that did not come), request_bytes, response_bytes."""
    in_order = Window.partitionBy(*_PLACE).orderBy("index")
    good = F.count_if(F.col("type") == "ok").over(before(in_order))
    episode = Window.partitionBy(*_PLACE, "good_before").orderBy("index")
    given_up = F.min(F.expr("if(type = 'info', complete_us, null)")).over(before(episode))
    lost = F.broadcast(_fetches(tables).where("type = 'info'").select(*_PLACE).distinct())
    fetches = _fetches(tables).join(lost, [*_PLACE], "left_semi").withColumn("good_before", good)
    inside = fetches.withColumn("lost_us", given_up).where("lost_us is not null")
    ended = F.max(F.expr("if(type = 'ok', complete_us, null)"))
    return (
        inside.groupBy(*_PLACE, "good_before")
        .agg(
            F.min("lost_us").alias("lost_us"),
            (ended - F.min("lost_us")).alias("recovered_us"),
            F.sum(F.expr("if(type = 'info', 0, complete_us - invoke_us)")).alias("asking_us"),
            F.sum("request_bytes").alias("request_bytes"),
            F.sum("response_bytes").alias("response_bytes"),
        )
        .where("recovered_us is not null")
        .drop("good_before")
    )


def sent_again(tables: Tables) -> DataFrame:
    """Columns: run, fetches, named, answered, requests_again, named_again, answered_again. Only fetches that ended ok
    count."""
    in_order = Window.partitionBy(*_PLACE).orderBy("index")
    same = F.struct("session_id", "session_epoch")
    marked = _fetches(tables).withColumns(
        {
            "earlier_full": F.count_if(F.col("session_epoch") <= 0).over(before(in_order)),
            "repeats": same == F.lag(same).over(in_order),
        }
    )
    again = F.expr("if(session_epoch <= 0, earlier_full > 0, coalesce(repeats, false))")
    answered = marked.where("type = 'ok'").withColumn("again", again)
    return answered.groupBy("run").agg(
        F.count("*").alias("fetches"),
        F.sum("partitions_sent").alias("named"),
        F.sum("partitions_answered").alias("answered"),
        F.count_if(F.col("again")).alias("requests_again"),
        F.sum(F.expr("if(again, partitions_sent, 0)")).alias("named_again"),
        F.sum(F.expr("if(again, partitions_answered, 0)")).alias("answered_again"),
    )


def _fetches(tables: Tables) -> DataFrame:
    return tables.operations.where("f = 'fetch' and (error is null or error != 'unfinished')")
