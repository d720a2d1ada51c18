"""Operations and bytes by the second of their completion, by kind, end and error."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, second, f, type, error ("" none), operations, request_bytes, response_bytes."""
    second = F.floor(F.col("complete_us") / 1_000_000).cast("long")
    error = F.coalesce("error", F.lit(""))
    return tables.operations.groupBy("run", second.alias("second"), "f", "type", error.alias("error")).agg(
        F.count(F.lit(1)).alias("operations"),
        F.sum("request_bytes").alias("request_bytes"),
        F.sum("response_bytes").alias("response_bytes"),
    )
