"""fetch-gap: a fetcher's position is not the high watermark once all is quiet (F-20).

Each assignment that lasted to the end of the run is judged against the log's bounds in ENDS. A member that asks several
nodes at once stands where the answer that came last left it. In a partition that does not exist any more nobody stands
anywhere (lost-write).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import PARTITION, READER, with_operation
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables
from reports.rows import END_OF_RUN_US


def transform(tables: Tables) -> DataFrame:
    lasting = tables.assignments.where(F.col("until_us") == END_OF_RUN_US)
    last = lasting.groupBy(*READER).agg(F.max(F.struct("from_us", "from_offset")).alias("last"))
    last = last.select(*READER, "last.*")
    moves = with_operation(tables.positions, tables, "complete_us")
    since = moves.join(last, READER).where("complete_us >= from_us")
    reached = since.groupBy(*READER).agg(F.max(F.struct("complete_us", "index", "next_offset")).alias("reached"))
    judged = (
        last.join(tables.ends.where("error is null"), PARTITION)
        .join(reached.select(*READER, "reached.*"), READER, "left")
        .withColumn("start", F.expr("if(from_offset >= 0, from_offset, log_start_offset)"))
        .withColumn("stands_at", F.coalesce("next_offset", "start"))
        .fillna(-1, ["index"])
    )
    detail = sentence(
        "%s stands at offset %s, and the high watermark at %s.",
        "process",
        "stands_at",
        "high_watermark",
    )
    return anomalies(judged.where("stands_at != high_watermark"), detail, at_us="end_us", offset="stands_at")


JUDGED = Judging(
    "fetch-gap",
    needs=("operations", "assignments", "ends"),
    evidence="assignments",
    unit="assignments",
    find=transform,
)
