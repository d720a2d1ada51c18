"""Of many hits of one fault a chart shows as many as fit, from all over the run."""

import pytest
from pyspark.sql import SparkSession

from reports.jobs.faults import MAX_HITS, spread_hits
from reports.read_tables import Tables

COLUMNS = "run int, name string, kind string, hit long, at_us long, until_us long, target string, client_id string, \
session_epoch long, detail string"


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("total", [1, 59, 60, 61, 340])
def test_hits_are_chosen_evenly(spark: SparkSession, total: int) -> None:
    rows = [(0, "lost", "response_dropped", n, n * 1_000, n * 1_000, "node-0", "", -1, "") for n in range(1, total + 1)]
    faults = spark.createDataFrame(rows, COLUMNS)
    tables = Tables.__new__(Tables)
    object.__setattr__(tables, "faults", faults)
    shown = sorted(row["hit"] for row in spread_hits(tables).collect())
    assert len(shown) == min(total, MAX_HITS)
    assert shown[0] == 1
    assert total - shown[-1] <= max(0, total // MAX_HITS)
