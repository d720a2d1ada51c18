"""Sentences about anomalies count one and many rightly."""

import pytest
from pyspark.sql import SparkSession

from reports.jobs.guarantee_job import counted, sentence


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_singular_and_plural(spark: SparkSession) -> None:
    lost = spark.createDataFrame([(7, 1), (8, 2)], "first long, records long")
    text = sentence("From %s on %s.", "first", counted("records", "one record is lost", "%s records are lost"))
    texts = [row["text"] for row in lost.orderBy("first").select(text.alias("text")).collect()]
    assert texts == ["From 7 on one record is lost.", "From 8 on 2 records are lost."]
