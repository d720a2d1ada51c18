"""unrequested-partition: a response contains a partition that the fetcher did not ask for, or no longer.

A partition is asked for if it was assigned before the response came, and if no answer had acknowledged its forget when
the request was sent.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "unrequested-partition"
_SAID = ("run", "process", "index", "topic", "partition")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    fetches = tables.operations.where(F.col("f") == "fetch").select(
        "run", "process", "index", "invoke_us", "complete_us"
    )
    named = tables.positions.select(*_SAID, F.col("fetch_offset").alias("offset")).join(
        fetches, ["run", "process", "index"]
    )
    read = tables.reads.where(F.col("f") == "fetch").select(
        *_SAID, F.col("first_offset").alias("offset"), "invoke_us", "complete_us"
    )
    said = named.unionByName(read).groupBy(*_SAID, "invoke_us", "complete_us").agg(F.min("offset").alias("offset"))
    asked = tables.assignments.select("run", "process", "topic", "partition", "from_us", "until_us").alias("a")
    in_force = [
        *(F.col(f"s.{name}") == F.col(f"a.{name}") for name in ("run", "process", "topic", "partition")),
        F.col("a.from_us") <= F.col("s.complete_us"),
        F.col("a.until_us") > F.col("s.invoke_us"),
    ]
    foreign = said.alias("s").join(asked, in_force, "left_anti")
    detail = sentence("%s was answered %s-%s, which it was not asking for.", "process", "topic", "partition")
    return anomalies(foreign, NAME, detail)


JUDGED = Judging(
    NAME,
    needs=("operations", "positions", "assignments"),
    evidence="positions",
    unit="partition answers",
    find=transform,
)
