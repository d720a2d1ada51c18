"""nonmonotonic-poll: a fetcher's next read goes back. int-nonmonotonic-poll: the same inside one read."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.judging import LOG, POLL, Judging
from reports.jobs.shared.polls import steps_between_operations, steps_inside_operations
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    return _gone_back(tables.once(steps_between_operations), "It read to offset %s, and then from %s again.")


def transform_inside(tables: Tables) -> DataFrame:
    return _gone_back(tables.once(steps_inside_operations), "One read holds offset %s, and then %s again.")


def _gone_back(steps: DataFrame, told: str) -> DataFrame:
    back = steps.where("first_offset < expected")
    return anomalies(back, sentence(told, F.col("expected") - 1, "first_offset"), offset="first_offset")


JUDGED = Judging(
    "nonmonotonic-poll",
    needs=POLL,
    evidence="read_runs",
    unit="runs of records read",
    find=transform,
)

JUDGED_INSIDE = Judging(
    "int-nonmonotonic-poll",
    needs=LOG,
    evidence="read_runs",
    unit="runs of records read",
    find=transform_inside,
)
