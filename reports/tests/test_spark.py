"""The Spark session that computes verdicts."""

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_python_workers_run_the_interpreter_of_the_driver(spark: "SparkSession") -> None:
    """PySpark refuses workers of another minor version, and ``python3`` on PATH may be one."""
    assert spark.sparkContext.pythonExec == sys.executable
