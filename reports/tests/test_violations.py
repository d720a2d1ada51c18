"""Violations are counted and numbered alike, whether few were found or many."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from reports import collect
from reports.spark import sized_for

COLUMNS = "run long, topic string, partition long, offset long, process string, index long, at_us long, detail string"
AT_US = (9, None, 4, 4, 4, 4)


def found(spark: SparkSession) -> DataFrame:
    rows = [
        (run, "orders", place % 2, None if place == 3 else place, f"c-{place}", place, at_us, f"{run} {place}")
        for run in (1, 0)
        for place, at_us in enumerate(AT_US)
        if run or place
    ]
    return spark.createDataFrame(rows, COLUMNS)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_few_violations_are_numbered_as_many_are(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with sized_for(spark, 0):
        few = rows_of(found(spark))
        monkeypatch.setattr(collect, "lies_in_one_place", lambda _: False)
        assert _in_order(few) == _in_order(rows_of(found(spark)))
        monkeypatch.undo()
        monkeypatch.setattr(collect, "MAX_EXAMPLES", 2)
        cut = rows_of(found(spark))
    assert [row["detail"] for row in few if row["run"] == 1] == ["1 1", "1 2", "1 4", "1 3", "1 5", "1 0"]
    assert {(row["run"], row["total"]) for row in few} == {(0, 5), (1, 6)}
    assert _in_order(cut) == _in_order([row for row in few if row["n"] <= 2])


def rows_of(violations: DataFrame) -> list[dict[str, Any]]:
    query = collect.Query("unseen", True, lambda _: violations)
    return query.rows(violations, query.first_rows(violations))


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["run"], row["n"]))
