"""How many plays each night had, and how they ended."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_nights import NightTables


def transform(tables: NightTables) -> DataFrame:
    """Columns: night, is_control (our own broker without a mutant, which must pass), outcome, plays."""
    is_control = F.expr("mutant = '' and target = 'reference'").alias("is_control")
    return tables.plays.groupBy("night", is_control, "outcome").agg(F.count("*").alias("plays"))
