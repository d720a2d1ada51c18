"""The Spark session of a judge."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_python_workers_run_the_interpreter_of_the_driver(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark refuses workers of another minor version, and ``python3`` on PATH may be one."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert spark.createDataFrame([(7,)], "number int").collect()[0].number == 7
    assert spark.sparkContext.pythonExec == sys.executable
