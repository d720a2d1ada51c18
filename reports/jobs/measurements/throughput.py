"""Operations by the second of their completion, by kind, end and error."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import second_of
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    """Columns: run, second, f, type, error ("" none), operations."""
    error = F.coalesce("error", F.lit("")).alias("error")
    grouped = tables.operations.groupBy("run", second_of("complete_us").alias("second"), "f", "type", error)
    return grouped.agg(F.count("*").alias("operations"))
