"""fetch-gap: a fetcher's position lies below the high watermark once all is quiet.

Each assignment that lasted to the end of the run is judged against the log's bounds in ENDS.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION, anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "fetch-gap"
END_OF_RUN_US = 2**63 - 1
_READER = ("run", "process", "topic", "partition")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    lasting = tables.assignments.where(F.col("until_us") == END_OF_RUN_US)
    last = lasting.groupBy(*_READER).agg(F.max(F.struct("from_us", "from_offset")).alias("a")).select(*_READER, "a.*")
    operations = tables.operations.select("run", "process", "index", "complete_us")
    moves = tables.positions.join(operations, ["run", "process", "index"]).select(
        *_READER, "index", "complete_us", "next_offset"
    )
    since = moves.join(last, list(_READER)).where(F.col("complete_us") >= F.col("from_us"))
    reached = since.groupBy(*_READER).agg(F.max(F.struct("index", "next_offset")).alias("p")).select(*_READER, "p.*")
    start = F.when(F.col("from_offset") >= 0, F.col("from_offset")).otherwise(F.col("log_start_offset"))
    judged = (
        last.join(tables.ends, list(PARTITION))
        .join(reached, list(_READER), "left")
        .withColumn("position", F.coalesce("next_offset", start))
        .withColumn("index", F.coalesce("index", F.lit(-1)))
    )
    short = judged.where(F.col("position") < F.col("high_watermark"))
    detail = sentence(
        "%s stands at offset %s, the high watermark at %s: %s offsets never reached it.",
        "process",
        "position",
        "high_watermark",
        F.col("high_watermark") - F.greatest("position", "log_start_offset"),
    )
    return anomalies(short, NAME, detail, at_us="end_us", offset=F.col("position"))


JUDGED = Judging(
    NAME,
    needs=("operations", "assignments", "ends"),
    evidence="assignments",
    unit="assignments",
    find=transform,
)
