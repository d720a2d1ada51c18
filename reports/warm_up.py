"""Makes Java and Spark warm before there is a run to judge.

A cold Java takes twice the processor time of a warm one: it loads some twenty thousand classes and interprets them
first. So the jobs run once over a history of one row in each table of an ordinary run.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import schema
from reports.columns import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDINARY = (
    "operations",
    "runs",
    "positions",
    "assignments",
    "ends",
    "changes",
    "metadata_reads",
    "faults",
    "trace",
    "latency",
    "load",
    "broker",
)
"""The tables that nearly every run leaves."""
_NOTHING = {"int64": 1, "float64": 1.0, "string": "", "bool": False}


def warm_up(spark: "SparkSession", enough: Callable[[], bool]) -> None:
    """Runs the jobs until all have run, or until ``enough()``, which is asked before each query."""
    from reports.collect import queries
    from reports.jobs.shared.config import JobConfig, RunConfig
    from reports.page import render  # noqa: F401  (so that the page's libraries are loaded, too)
    from reports.read_tables import reading
    from reports.spark import sized_for

    with tempfile.TemporaryDirectory(prefix="crucible-warm-up-") as scratch:
        run_dir = Path(scratch)
        write_history(run_dir)
        with sized_for(spark, 0), reading(spark, [run_dir], JobConfig(runs={0: RunConfig()})) as tables:
            for query in queries(tables, 1):
                if enough():
                    return
                query.rows()


def write_history(run_dir: Path) -> None:
    """Leaves one row in each of the ORDINARY tables. They show nothing and need not fit together."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for table in schema.TABLES:
        if table.name in ORDINARY:
            target = run_dir / table.path.replace("*", "0")
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist([_row(table)], schema=schema.arrow_schema(table)), target)


def _row(table: Table) -> dict[str, Any]:
    return {column.name: _NOTHING[column.kind] for column in table.columns}
